"""Files and folders of tensors. Reading executes no code; writing is atomic."""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pickletools import OpcodeInfo, genops, stackslice
from typing import IO

import safetensors.torch
import torch
from torch import Tensor

from dpt.files import open_file, parse_json, read_bytes, reason, replacing
from dpt.process import lack_of_memory
from dpt.validation import Plain, PlainMapping

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
WEIGHTS_FILE = "model.safetensors"
RUN_FILES = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
WEIGHT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_MAX_JSON = 1 << 24  # bytes; lists of the tensors of the largest models have a few megabytes
_MAX_VALUES = 10_000_000  # of a pickle, each counted wherever it appears
_MAX_DEPTH = 100
_FILLING = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")  # the lowest value they take
_ZIP_START = b"PK\x03\x04"
_LEGACY_PICKLES = 5  # in files before torch 1.6: magic number, version, system, data, keys
_WRAPPERS = ("teacher", "model_ema", "encoder", "model", "module", "state_dict", "model_state_dict")
_PREFIXES = re.compile(r"^((module|model|_orig_mod)\.)+|\b_orig_mod\.")
"""What DDP, torch.compile and other modules that hold a model put into the names of its tensors."""
_COUNT = "n_averaged"  # of torch's AveragedModel


@dataclass(frozen=True)
class CheckpointFiles:
    """Content of a checkpoint file or folder.

    Attributes:
        path: the file or folder.
        content: content of the weight file, with its wrapper.
        config: ``config.json`` of a folder, or empty.
        processor: settings of the image processor of a folder, or empty.
    """

    path: Path
    content: PlainMapping
    config: Plain = field(default_factory=dict)
    processor: Plain = field(default_factory=dict)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of ``content``, without a wrapper."""
        return unwrap(self.content)

    @cached_property
    def facts(self) -> Plain:
        """The values beside the tensors, by their own keys, wherever they stand, and ``config``."""
        return dict(_facts({**self.content, **self.config}))

    @property
    def depth_kind(self) -> str | None:
        """The kind of depth that a value of ``facts`` names; None if none does, or two differ."""
        words = [word for word in ("metric", "relative") if word in self.facts.values()]
        return words[0] if len(words) == 1 else None

    def has_prefixes(self, *prefixes: str) -> bool:
        """Whether there is a tensor under each prefix."""
        return all(any(k.startswith(p) for k in self.tensors) for p in prefixes)

    def save(self) -> None:
        """Writes a folder with safetensors if there is a config, otherwise a file of tensors.

        No reader sees a mixture of two models: an older ``config.json`` is removed first, and the
        new one is placed last.
        """
        # copies: safetensors refuses tensors that share memory
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.content.items()}
        if not self.config:
            is_safe = self.path.suffix == ".safetensors"  # the suffix decides how it is read
            write = safetensors.torch.save_file if is_safe else torch.save
            with writing(self.path), replacing(self.path) as temporary:
                write(tensors, temporary)
            return
        config, weights = self.path / CONFIG_FILE, self.path / WEIGHTS_FILE
        with writing(config), replacing(config) as config_file:
            _write_json(config_file, self.config)
            with writing(weights), replacing(weights) as weights_file:
                safetensors.torch.save_file(tensors, weights_file, metadata={"format": "pt"})
                config.unlink(missing_ok=True)
            if self.processor:
                processor = self.path / PROCESSOR_FILES[0]
                with writing(processor), replacing(processor) as processor_file:
                    _write_json(processor_file, self.processor)


def open_checkpoint(path: str | Path) -> CheckpointFiles:
    """Reads a file, a folder with ``config.json`` and weights (one file or shards), or a run's.

    Raises:
        ValueError: a file is missing, damaged, or would execute code.
    """
    path = checkpoint_of(Path(path))
    if not path.is_dir():
        return CheckpointFiles(path, read_tensors(path))
    if (path / ADAPTER_FILE).is_file():
        remedy = "merge it into its model (merge_and_unload of PEFT), and save that"
        raise ValueError(f"{path}: holds an adapter of PEFT alone: {remedy}")
    if not (path / CONFIG_FILE).is_file():
        wanted = f"{CONFIG_FILE}, as a saved model has, nor {' or '.join(RUN_FILES)}, as a run has"
        raise ValueError(f"{path}: this folder holds neither {wanted}")
    config = _read_json(path / CONFIG_FILE)
    processors = [_read_json(path / n) for n in PROCESSOR_FILES if (path / n).is_file()]
    processor = processors[0] if processors else {}
    processor = processor.get("image_processor", processor)  # nested in processor_config.json
    for weights in (path / WEIGHTS_FILE, path / "pytorch_model.bin"):
        index = weights.with_name(f"{weights.name}.index.json")
        if weights.is_file():
            return CheckpointFiles(path, read_tensors(weights), config, processor)
        if index.is_file():
            return CheckpointFiles(path, _read_shards(index), config, processor)
    raise ValueError(f"{path}: no {WEIGHTS_FILE} in this folder; a saved model has one")


def checkpoint_of(path: Path) -> Path:
    """Returns the checkpoint of a run's folder that is loaded; any other path as it is."""
    if (path / CONFIG_FILE).is_file():
        return path
    return next((path / name for name in RUN_FILES if (path / name).is_file()), path)


def _read_shards(index: Path) -> Plain:
    file_of = _read_json(index).get("weight_map")
    if not isinstance(file_of, dict):
        raise ValueError(f"{index}: no 'weight_map' with the file of each tensor")
    content: Plain = {}
    for name in sorted(set(map(str, file_of.values()))):
        if Path(name).name != name:
            raise ValueError(f"{index}: names {name!r}, which lies outside of the folder")
        content.update(read_tensors(index.parent / name))
    return content


def _read_json(path: Path) -> Plain:
    values = parse_json(read_bytes(path, limit=_MAX_JSON), path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds a {type(values).__name__}, not an object")
    return values


def unwrap(content: PlainMapping) -> dict[str, Tensor]:
    """Returns the tensors of a file, without a wrapper such as ``{"model": ..., "epoch": ...}``.

    Names are those in the model itself, unless two would become equal.
    """
    for key in _WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    named = {str(k): v for k, v in content.items() if isinstance(v, Tensor) and k != _COUNT}
    bare = {_PREFIXES.sub("", name): tensor for name, tensor in named.items()}
    return bare if len(bare) == len(named) else named


def _facts(values: PlainMapping) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _facts(value)
        elif not isinstance(value, Tensor):
            yield str(key), value


def read_tensors(path: Path) -> Plain:
    """Returns the content of a ``.safetensors``, ``.pt``, ``.pth``, ``.ckpt`` or ``.bin`` file."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file: name a file, a folder, or user/name on the hub")
    try:
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, "pt") as file:
                facts = file.metadata() or {}
            return {**facts, **safetensors.torch.load_file(path)}
        check_archive(path)
        with warnings.catch_warnings(action="ignore"):  # of files that are refused
            content = load_pickles(path)
    except Exception as error:  # of pickle, zip files and safetensors
        is_misleading = isinstance(error, pickle.UnpicklingError | EOFError)  # torch's own texts
        cause = "" if is_misleading else f" ({reason(error)})"
        fault = f"damaged, no checkpoint, or holds more than tensors and plain data{cause}"
        raise ValueError(f"{path}: {fault}, and was not loaded") from error
    for name, tensor in unwrap(content).items():
        is_dense = tensor.layout == torch.strided and not tensor.is_meta
        if not is_dense or tensor.untyped_storage().nbytes() < tensor.nbytes:
            raise ValueError(f"{path}: {name} is sparse, or repeats or lacks its values")
    return content


def load_pickles(path: Path, *, mmap: bool = False) -> Plain:
    """Returns what ``torch.save`` wrote: tensors and plain data. No code is executed.

    Raises:
        ValueError: the data may be endless, or are no dictionary.
        Exception: the file is damaged or holds other objects, errors of many types.
    """
    with open_file(path) as file:
        is_zip = file.read(len(_ZIP_START)) == _ZIP_START  # torch, too, reads no more
        file.seek(0)
        if is_zip:
            with zipfile.ZipFile(file) as archive:
                for record in archive.infolist():
                    if record.filename.lower().endswith(".pkl"):  # torch ignores the case
                        _check_pickle(archive.open(record))
        else:
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(file)
    content = torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"holds a {type(content).__name__}, not a checkpoint")
    return content


@dataclass
class _Value:
    """A value of a pickle: how many values it holds, each counted wherever it appears, and how
    deeply they are nested; and whether another value holds it."""

    count: int = 1
    depth: int = 1
    is_held: bool = False


def _pop(stack: list[_Value | None], operation: OpcodeInfo) -> list[_Value]:
    """Takes what an operation needs from the stack, the last value first, without the mark."""
    taken: list[_Value | None] = []
    for kind in reversed(operation.stack_before):
        while kind is stackslice and stack[-1] is not None:  # down to the mark
            taken.append(stack.pop())
        if kind is not stackslice:
            taken.append(stack.pop())
    return [value for value in taken if value is not None]


def _check_pickle(file: IO[bytes]) -> None:
    """Raises a ValueError if the next pickle of a file may describe endless data.

    Containers may refer to one another: forty lists of two references each hold 2^40 values, and
    hashing or printing them never ends, even inside of ``torch.load``. Hashing a deeply nested
    tuple ends the process.
    """
    stack: list[_Value | None] = []  # None is a mark
    memo: dict[object, _Value | None] = {}
    for operation, argument, _ in genops(file):
        if operation.name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif operation.name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif operation.name == "MARK":
            stack.append(None)
        else:
            parts = _pop(stack, operation)
            value = parts.pop() if operation.name in _FILLING else _Value()
            for part in parts:
                part.is_held = True
                value.count += part.count
                value.depth = max(value.depth, 1 + part.depth)
                if value.is_held or value.count > _MAX_VALUES or value.depth > _MAX_DEPTH:
                    raise ValueError("plain data that is endless, or too large or deep")
            stack += [value] * len(operation.stack_after)


def check_archive(path: Path) -> None:
    """Raises a ValueError if a file of ``torch.save`` is compressed or damaged.

    ``torch.load`` does not compare the checksums of the tensors.
    """
    if not zipfile.is_zipfile(path):  # the format before torch 1.6
        return
    with zipfile.ZipFile(path) as archive:
        if any("/code/" in name for name in archive.namelist()):
            raise ValueError("a TorchScript program: save its state_dict() by torch.save")
        if sum(record.file_size for record in archive.infolist()) > path.stat().st_size:
            raise ValueError("compressed")
        damaged = archive.testzip()
        if damaged:
            raise ValueError(f"the checksum of {damaged} is wrong")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a failed write as a ValueError that names ``path``.

    A loader worker's end raises an error in the middle of a write, which torch hides.
    """
    try:
        yield
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:  # by any of the writers
        if error.__context__ is not None and lack_of_memory(error.__context__):
            raise error.__context__ from error
        fault = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        message = f"{path}: cannot be written ({fault}): make room or give another path"
        raise ValueError(message) from error


def _write_json(path: Path, values: PlainMapping) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
