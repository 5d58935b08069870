"""Files and folders of tensors. Reading executes no code; writing is atomic."""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from dpt.atomic import replacing
from dpt.files import parse_json, read_bytes, reason
from dpt.weights.pickles import load_pickles

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
RUN_FILES = ("checkpoints/best.ckpt", "checkpoints/last.ckpt")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
WEIGHT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_MAX_JSON = 1 << 24  # bytes; lists of the tensors of the largest models have a few megabytes
WRAPPERS = ("teacher", "model_ema", "encoder", "model", "state_dict", "model_state_dict")


@dataclass(frozen=True)
class Source:
    """Content of a checkpoint file or folder.

    Attributes:
        path: the file or folder.
        config: ``config.json`` of a folder, or empty.
        processor: settings of the image processor of a folder, or empty.
        content: content of the weight file, with its wrapper.
    """

    path: Path
    config: dict[str, Any]
    processor: dict[str, Any]
    content: dict[str, Any]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of ``content``, without a wrapper."""
        return unwrap(self.content)

    def holds(self, *prefixes: str) -> bool:
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
            with writing(self.path), replacing(self.path) as temporary:
                torch.save(tensors, temporary)
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


def open_source(path: str | Path) -> Source:
    """Reads a file, a folder with ``config.json`` and weights (one file or shards), or a run's.

    A file that is missing, damaged, or would execute code is a ValueError.
    """
    path = Path(path)
    if not (path / CONFIG_FILE).is_file():  # a run's folder
        path = next((p for n in RUN_FILES if (p := path / n).is_file()), path)
    if not path.is_dir():
        return Source(path, {}, {}, read_tensors(path))
    if not (path / CONFIG_FILE).is_file():
        raise ValueError(
            f"{path}: this folder holds neither {CONFIG_FILE}, as a saved model's does, nor "
            f"{' or '.join(RUN_FILES)}, as a run's does"
        )
    config = read_json(path / CONFIG_FILE)
    processor = next((read_json(path / n) for n in PROCESSOR_FILES if (path / n).is_file()), {})
    processor = processor.get("image_processor", processor)  # nested in processor_config.json
    for name in (WEIGHTS_FILE, "pytorch_model.bin"):
        index = path / f"{name}.index.json"
        if (path / name).is_file():
            return Source(path, config, processor, read_tensors(path / name))
        if index.is_file():
            return Source(path, config, processor, _read_shards(index))
    raise ValueError(f"{path}: no {WEIGHTS_FILE} in this folder; a saved model has one")


def locate(path: str | Path, revision: str | None = None) -> Path:
    """The file or folder, or the downloaded folder of ``user/name``, see :func:`from_hub`."""
    local = Path(path).expanduser()
    if revision is not None and local.exists():
        raise ValueError(f"{path}: is not on the hub, so revision={revision!r} cannot be chosen")
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path))
    if is_name and not local.exists() and local.suffix not in WEIGHT_SUFFIXES:
        return from_hub(str(path), revision)
    return local


def from_hub(name: str, revision: str | None = None) -> Path:
    """The downloaded folder of ``user/name`` on the Hugging Face hub at a branch, tag or commit.

    Without repository, permission or network it is a ValueError.
    """
    from huggingface_hub import snapshot_download

    try:
        for weights in ("*.safetensors", "*.bin"):
            patterns = ["*.json", weights]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
            if any(folder.glob(weights)):
                break
    except Exception as error:  # of many libraries
        raise ValueError(
            f"{name}: no such file or folder here, and it cannot be fetched from the hub "
            f"({reason(error)}): check the name and the network, or give a local folder or file"
        ) from error
    return folder


def has_hub_file(name: str, file: str) -> bool:
    """Whether a file of ``user/name`` is in the cache, or the hub offers it within 3 s."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file), str):
        return True
    try:
        get_hf_file_metadata(hf_hub_url(name, file), timeout=3.0)
    except Exception:  # of many libraries: no network, no such file, offline mode
        return False
    return True


def _read_shards(index: Path) -> dict[str, Any]:
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict):
        raise ValueError(f"{index}: no 'weight_map' with the file of each tensor")
    content: dict[str, Any] = {}
    for name in sorted(set(map(str, files.values()))):
        if Path(name).name != name:
            raise ValueError(f"{index}: names {name!r}, which lies outside of the folder")
        content.update(read_tensors(index.parent / name))
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    values = parse_json(read_bytes(path, limit=_MAX_JSON), path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds a {type(values).__name__}, not an object")
    return values


def unwrap(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a file, without a wrapper such as ``{"model": ..., "epoch": ...}``."""
    for key in WRAPPERS:
        if isinstance(content.get(key), dict):
            content = content[key]
    tensors = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if tensors and all(k.startswith("module.") for k in tensors):  # saved under DataParallel
        tensors = {k.removeprefix("module."): v for k, v in tensors.items()}
    return tensors


def read_tensors(path: str | Path) -> dict[str, Any]:
    """Content of a ``.safetensors``, ``.pt``, ``.pth``, ``.ckpt`` or ``.bin`` file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        check_archive(path)
        with warnings.catch_warnings(action="ignore"):  # of files that are refused
            content = load_pickles(path)
    except Exception as error:  # of pickle, zip files and safetensors
        texts = isinstance(error, pickle.UnpicklingError | EOFError)  # of torch, which mislead
        raise ValueError(
            f"{path}: damaged, no checkpoint, or holds more than tensors and plain data, and was "
            f"not loaded{'' if texts else f' ({reason(error)})'}: give a run's folder or a .ckpt, "
            ".pt, .pth or .safetensors file"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}, not a checkpoint")
    for name, tensor in unwrap(content).items():
        is_dense = tensor.layout == torch.strided and not tensor.is_meta
        if not is_dense or tensor.untyped_storage().nbytes() < tensor.nbytes:
            raise ValueError(f"{path}: {name} is sparse, or repeats or lacks its values")
    return content


def check_archive(path: Path) -> None:
    """Raises a ValueError if a file of ``torch.save`` is compressed or damaged.

    ``torch.load`` does not compare the checksums of the tensors.
    """
    if not zipfile.is_zipfile(path):  # the format before torch 1.6
        return
    with zipfile.ZipFile(path) as archive:
        if sum(record.file_size for record in archive.infolist()) > path.stat().st_size:
            raise ValueError("compressed")
        if damaged := archive.testzip():
            raise ValueError(f"the checksum of {damaged} is wrong")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises a failed write as a ValueError that names ``path``."""
    try:
        yield
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:  # by any of the writers
        fault = getattr(error, "strerror", None) or reason(error)
        message = f"{path}: cannot be written ({fault}): make room or give another path"
        raise ValueError(message) from error


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
