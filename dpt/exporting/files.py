"""Writing a traced graph to a file."""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch.export import ExportedProgram

from dpt.files import open_file, reason
from dpt.weights.files import writing

if TYPE_CHECKING:  # of the extra `onnx`
    from onnx_ir import Value

SUFFIXES = ".onnx", ".xml", ".pt2"


def check_target(path: Path, *, opset: int | None) -> None:
    """Raises ValueError if ``path`` cannot be written in the format of its suffix."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: the name of an exported file ends in {', '.join(SUFFIXES[:-1])} or .pt2"
        )
    if path.is_dir() or not path.parent.is_dir():
        fault = "is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ValueError(f"{path}: {fault}; give a file in a folder that exists")
    if path.suffix == ".pt2":
        if opset is not None:
            raise ValueError(f"{path}: opset is an option of ONNX: leave it out for .pt2")
        return
    extra = "onnx" if path.suffix == ".onnx" else "openvino"
    needed = ("onnx", "onnxruntime", "onnxscript", *(["openvino"] if extra == "openvino" else []))
    absent = [name for name in needed if not find_spec(name)]
    if absent:
        raise ValueError(
            f"{path}: the format needs {', '.join(absent)}: "
            f'pip install "dense-prediction-transformers[{extra}]"'
        )


def parts_of(path: Path) -> list[Path]:
    """Returns an exported file and those beside it that hold its weights."""
    beside = path.with_suffix(".bin") if path.suffix == ".xml" else Path(f"{path}.data")
    return [path, beside] if beside.is_file() else [path]


def fingerprint_of(path: Path) -> str:
    """Returns a short code of an exported file with its weights; DataError if there is none."""
    code = hashlib.blake2b(digest_size=8)
    for part in parts_of(path):
        with open_file(part) as file:
            for chunk in iter(partial(file.read, 2**24), b""):
                code.update(chunk)
    return code.hexdigest()


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """Yields a temporary folder whose files are moved beside ``path`` at the end.

    A file and its ``.onnx.data`` belong together: both get their names when all went well.
    """
    with writing(path):
        temporary = TemporaryDirectory(dir=path.parent, prefix=f".{path.stem}-")
    with temporary as name:
        yield Path(name)
        with writing(path):
            # those with the weights first
            for file in sorted(Path(name).iterdir(), key=lambda file: file.name == path.name):
                os.replace(file, path.parent / file.name)


@contextmanager
def quiet(fault: str) -> Iterator[None]:
    """Silences the warnings of other libraries; an error of theirs is a ValueError with ``fault``.

    torch.onnx, onnx, onnxruntime, openvino and nncf raise many types.
    """
    logging.disable(logging.WARNING)
    try:
        yield
    except Exception as error:
        raise ValueError(f"{fault}: {reason(error)}") from error
    finally:
        logging.disable(logging.NOTSET)


def write(
    program: ExportedProgram,
    path: Path,
    *,
    axes: Mapping[int, str],
    outputs: Mapping[str, bool],
    metadata: dict[str, str],
    opset: int | None,
) -> None:
    """Writes ``program`` in the format of the suffix of ``path``.

    Args:
        axes: names of the input's axes.
        outputs: for each output, whether it has a value for each pixel.
    """
    if path.suffix == ".pt2":
        extra = {"metadata.json": json.dumps(metadata, indent=2)}
        buffer = io.BytesIO()  # torch's writer of files aborts the process if the disk is full
        torch.export.save(program, buffer, extra_files=extra)
        path.write_bytes(buffer.getbuffer())
        return
    with quiet("ONNX cannot express this model"):  # the exporter reports every step
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["images"],
            output_names=list(outputs),
            opset_version=opset,
            verbose=False,
        )
    assert made is not None  # only the exporter before torch 2.5 returns None
    written_opset = made.model.opset_imports[""]
    if opset not in (None, written_opset):
        raise ValueError(f"--opset {opset}: the exporter wrote {written_opset}: choose another")
    made.model.metadata_props.update(metadata)
    _name_axes(made.model.graph.inputs[0], axes)
    for value, is_dense in zip(made.model.graph.outputs, outputs.values(), strict=True):
        _name_axes(value, {0: "batch", **({-2: "height", -1: "width"} if is_dense else {})})
    if path.suffix == ".xml":
        with TemporaryDirectory(dir=path.parent) as folder:
            made.save(Path(folder, "model.onnx"))
            to_openvino(Path(folder, "model.onnx"), path)
        return
    made.save(path)  # weights beyond 1.5 GB go to NAME.onnx.data


def to_openvino(source: Path, target: Path) -> None:
    """Writes an ONNX file in OpenVINO's format, with the weights in ``.bin`` beside the file."""
    import openvino

    openvino.save_model(openvino.Core().read_model(source), target, compress_to_fp16=False)


def _name_axes(value: "Value", names: Mapping[int, str]) -> None:
    """Names free axes by their index; the trace calls them s34, or 16*((s34 + 15)//16)."""
    shape = value.shape
    assert shape is not None
    by_index = {index % len(shape): name for index, name in names.items()}
    sizes = enumerate(shape)
    value.shape = type(shape)(s if isinstance(s, int) else by_index.get(i, s) for i, s in sizes)
