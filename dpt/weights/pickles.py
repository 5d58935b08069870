"""Loading of what ``torch.save`` wrote: no code is executed, and the plain data are bounded.

Lists and tuples in a pickle may refer to one another, so that a small file describes data of any
size: forty lists of two references each hold 2^40 values. A hash, a message or a validator of such
data never ends, even inside of ``torch.load``; so the pickle is measured before it is loaded.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from pickletools import genops, markobject
from typing import IO

import torch

from dpt.files import open_file
from dpt.validation import Plain

MAX_VALUES = 1_000_000  # plain values in a file, each counted at every place where it appears
MAX_LEVELS = 50
_TOO_LARGE = f"plain data of more than {MAX_VALUES} values, or {MAX_LEVELS} levels"
_LEGACY_PICKLES = 5  # in files before torch 1.6: magic number, version, system, data, keys
_ZIP_START = b"PK\x03\x04"
_FILLING = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


class Node(list["Node"]):
    """The values inside of a value; empty for a number or a text."""


def load_pickles(path: Path, *, mmap: bool = False) -> Plain:
    """Returns the content of a file of ``torch.save``: tensors and plain data.

    Raises:
        ValueError: the data are larger or nested deeper than ``MAX_VALUES`` and ``MAX_LEVELS``, or
            no dictionary.
        Exception: the file is damaged or holds other objects, errors of many types.
    """
    with open_file(path) as file:
        is_zip = file.read(len(_ZIP_START)) == _ZIP_START
        file.seek(0)
        for pickle in _pickles_of_zip(file) if is_zip else [file] * _LEGACY_PICKLES:
            _check_pickle(pickle)
    content = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not a checkpoint")
    return content


def _pickles_of_zip(file: BufferedReader) -> Iterator[IO[bytes]]:
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if record.filename.endswith(".pkl"):
                with archive.open(record) as pickle:
                    yield pickle


def _check_pickle(file: IO[bytes]) -> None:
    """Raises a ValueError if the next pickle of a file describes data that are too large.

    The operations are followed with a :class:`Node` in place of each value.
    """
    node = Node()
    stack: list[Node] = []
    memo: dict[object, Node] = {}
    marks: list[int] = []
    for count, (operation, argument, _) in enumerate(genops(file)):
        if count > MAX_VALUES:
            raise ValueError(_TOO_LARGE)
        if operation.name == "MARK":
            marks.append(len(stack))
        elif operation.name in {"GET", "BINGET", "LONG_BINGET"}:
            stack.append(memo[argument])
        elif operation.name in {"PUT", "BINPUT", "LONG_BINPUT"}:
            memo[argument] = stack[-1]
        else:
            start = len(stack) - len(operation.stack_before)
            if markobject in operation.stack_before:
                start = marks.pop() - operation.stack_before.index(markobject)
            node = Node(stack[start:])
            del stack[start:]
            if operation.name in _FILLING:
                node[0].extend(node[1:])
                node = node[0]
            stack += [node] * len(operation.stack_after)
    sizes: dict[int, tuple[int, int]] = {}
    for part in (*memo.values(), *stack, node):  # the last node holds the result
        _measure(part, sizes, MAX_LEVELS)


def _measure(node: Node, sizes: dict[int, tuple[int, int]], levels: int) -> tuple[int, int]:
    """Returns the numbers of values and of levels in a node, by ``sizes`` if it is there.

    Raises:
        ValueError: there are more than ``MAX_VALUES`` values or ``levels``.
    """
    if id(node) not in sizes and levels:
        inner = [_measure(value, sizes, levels - 1) for value in node]
        deepest = max((depth for _, depth in inner), default=0)
        sizes[id(node)] = 1 + sum(size for size, _ in inner), 1 + deepest
    size, depth = sizes.get(id(node), (0, levels + 1))
    if size > MAX_VALUES or depth > levels:
        raise ValueError(_TOO_LARGE)
    return size, depth
