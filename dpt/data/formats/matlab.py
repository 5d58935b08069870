"""Checks MATLAB files before SciPy reads them: its compiled reader trusts types and sizes."""

import math
import struct
import zlib
from collections.abc import Iterator

from dpt.files import MAX_BYTES

_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}
_OTHERS = {_MATRIX, 16, 17, 18}
"""Types of elements; the others are texts."""
_CELLS, _STRUCT, _TEXT, _SPARSE, _NUMERIC, _LAST = 1, 2, 4, 5, range(5, 16), 17
"""Classes of matrices."""
_MAX_LEVELS = 40


def check_mat(data: bytes) -> None:
    """Raises an error of any kind if a file is not of version 5, or types or sizes are wrong."""
    if 0 in data[:4]:
        raise ValueError("version 4: save it in a newer one")
    order = {b"IM": "<", b"MI": ">"}[data[126:128]]
    room = MAX_BYTES
    for kind, content in _elements(memoryview(data)[128:], order, padding=1):
        if kind == _COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content, room)
            room -= len(unpacked)
            if room <= 0:
                raise ValueError(f"it unpacks to more than {MAX_BYTES / 1e6:g} MB, the limit")
            kind, content = next(_elements(memoryview(unpacked), order))
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} in place of a matrix")
        _check_matrix(content, order)


def _elements(
    view: memoryview, order: str, *, padding: int = 8
) -> Iterator[tuple[int, memoryview]]:
    """Yields type and content of each element; ValueError if one is longer than the file."""
    while len(view) >= 8:
        kind, size = struct.unpack_from(f"{order}II", view)
        start, end = 8, 8 + size
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
        if size > min(end, len(view)) - start:
            raise ValueError(f"an element of {size} bytes in {len(view) - start}")
        yield kind, view[start : start + size]
        view = view[end + -end % padding :]


def _check_matrix(view: memoryview, order: str, level: int = 0) -> None:
    """Raises ValueError if the header or an element of a matrix is wrong."""
    (_, flags), *elements = _elements(view, order)
    bits, _ = struct.unpack(f"{order}II", flags)
    kind, is_complex = bits & 0xFF, bits >> 11 & 1
    is_read = kind in (_CELLS, _STRUCT, _TEXT, *_NUMERIC)
    if level > _MAX_LEVELS or kind > _LAST or (level and not is_read):
        raise ValueError(f"a matrix of class {kind}, or nested too deep")
    if not is_read:  # such as a function
        return
    (shape_type, shape), (name_type, _), *content = elements
    sides = struct.unpack(f"{order}{len(shape) // 4}i", shape)
    has_header = shape_type in (5, 6) and name_type in (1, 16)
    most = len(view) if kind < _TEXT else MAX_BYTES // 8
    is_large = kind != _SPARSE and math.prod(sides) > most
    if not has_header or min(sides) < 0 or is_large:
        raise ValueError(f"a matrix of the shape {sides}")
    wanted = is_complex + (3 if kind == _SPARSE else 1)
    if kind >= _TEXT and len(content) != wanted:
        raise ValueError(f"{len(content)} elements in an array")
    for inner_type, inner in content:
        if inner_type not in _NUMBERS and (kind in _NUMERIC or inner_type not in _OTHERS):
            raise ValueError(f"an element of type {inner_type}")
        if inner_type == _MATRIX and inner:  # not an empty cell
            _check_matrix(inner, order, level + 1)
