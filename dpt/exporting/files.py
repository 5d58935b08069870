"""An exported file: its weights, the metadata by which a program can use it, and running it."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import dpt
from dpt.files import open_file, parse_json, reason, require
from dpt.model import DPT
from dpt.process import log
from dpt.types.outputs import DEPTH_UNITS, OutputSpec
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.validation import Plain, to_plain, validate
from dpt.weights.files import writing

_LOOPS = {"Loop", "Scan", "If", "SequenceMap", "TensorIterator"}  # of ONNX and OpenVINO
Run = Callable[[Tensor], Mapping[str, Tensor]]  # the graph's input to its outputs by name


def parts_of(path: Path) -> list[Path]:
    """Returns an exported file and those beside it that hold its weights."""
    beside = path.with_suffix(".bin") if path.suffix == ".xml" else Path(f"{path}.data")
    return [path, beside] if beside.is_file() else [path]


def fingerprint_of(path: Path) -> str:
    """Returns a short code of an exported file with its weights; DataError if there is none."""
    code = hashlib.blake2b(digest_size=8)
    for part in parts_of(path):
        with open_file(part) as file:
            hashlib.file_digest(file, lambda: code)
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


def describe(
    model: DPT, heads: Iterable[str], *, normalises: bool, size: tuple[int, int] | None
) -> dict[str, str]:
    """Returns the file's metadata, what a user must know by name; lists and objects are JSON.

    Args:
        heads: those that the file holds.
        normalises, size: see :class:`Description`.
    """
    rule = model.preprocessing
    outputs = {name: replace(model.outputs[name], record=None) for name in heads}
    if model.calibration is not None:
        outputs = _without_focal(outputs)
    metadata: Plain = {
        "dpt_version": dpt.__version__,
        "model": model.config.name,
        "outputs": {name: asdict(spec) for name, spec in outputs.items()},
        "input": _input_form(rule, normalises=normalises),
        "input_size": list(size) if size else "any",
        "resize": f"before the input: {rule.resize} image_size, {rule.interpolation}",
        **{k: v for k, v in to_plain(rule).items() if k not in ("resize", "interpolation")},
        "preprocessing": to_plain(rule),
        "normalises": normalises,
    }
    if model.calibration is not None:
        metadata["calibration"] = to_plain(model.calibration)
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}


def _input_form(rule: Preprocessing, *, normalises: bool) -> str:
    """Returns what the input of the file is, in words."""
    kind, content = ("uint8", "RGB") if rule.is_rgb else ("float32", "bands")
    if normalises:
        return f"{kind} (batch, height, width, {len(rule.mean)}): {content}, normalised inside"
    content = "RGB / 255" if rule.is_rgb else "bands"
    return (
        f"float32 (batch, {len(rule.mean)}, height, width): {content}, minus mean, divided by std"
    )


def _without_focal(outputs: dict[str, OutputSpec]) -> dict[str, OutputSpec]:
    """Returns outputs of a calibrated model: the calibration is of depth as the network gives it,
    and takes the place of a canonical focal length."""
    depth = next((spec for spec in outputs.values() if spec.kind == "depth"), None)
    if depth is None or depth.canonical_focal is None:
        return outputs
    unit = DEPTH_UNITS["up_to_scale"]
    return outputs | {depth.name: replace(depth, canonical_focal=None, unit=unit)}


@dataclass(frozen=True)
class Description:
    """What :func:`describe` wrote of a model.

    Attributes:
        normalises: whether the file normalises images, which it takes with channels last.
        input_size: (H, W) of images, if it is fixed.
    """

    preprocessing: Preprocessing
    outputs: dict[str, OutputSpec]
    normalises: bool
    calibration: Calibration | None = None
    input_size: tuple[int, int] | None = None

    @classmethod
    def read(cls, metadata: Mapping[str, str], path: Path) -> "Description":
        """Returns what the metadata of a file state; ValueError if something is missing."""
        absent = {"preprocessing", "outputs", "normalises"} - metadata.keys()
        if absent:
            fault = f"its metadata do not state {min(absent)}"
            raise ValueError(f"{path}: {fault}: write it by dpt export, or give the checkpoint")
        names = {field.name for field in fields(cls)} & metadata.keys()
        stated = {k: parse_json(metadata[k], path) for k in names if metadata[k] != "any"}
        description: Description = validate(cls, stated, str(path))
        return description


# --- running it on the CPU, by other libraries with PyTorch's threads -----------------------------


@dataclass(frozen=True)
class Session:
    """An open file. A call maps the graph's input to its outputs by name."""

    metadata: Mapping[str, str]
    names: list[str]
    run: Callable[[np.ndarray], Iterable[np.ndarray]]

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        with quiet(f"the exported file cannot be run on images {tuple(images.shape)}"):
            values = map(torch.from_numpy, self.run(images.contiguous().numpy()))
            return dict(zip(self.names, values, strict=True))


def onnx_session(path: Path) -> Session:
    """Opens an ``.onnx`` file in ONNX Runtime."""
    onnxruntime = require("onnxruntime", f"{path}: ONNX Runtime", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # what fails raises an error
    # spinning threads would slow down other timings
    options.add_session_config_entry("session.force_spinning_stop", "1")
    providers = ["CPUExecutionProvider"]
    onnx = require("onnx", f"{path}: ONNX Runtime", extra="onnx")
    with quiet(f"{path.name}: ONNX Runtime refuses the file, export it with another --opset"):
        content = onnx.load(path, load_external_data=False)
        graphs = content.graph, *content.functions
        _refuse_loops(node.op_type for graph in graphs for node in graph.node)
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    metadata = session.get_modelmeta().custom_metadata_map
    names = [output.name for output in session.get_outputs()]
    return Session(metadata, names, lambda images: session.run(None, {"images": images}))


def _refuse_loops(kinds: Iterable[str]) -> None:
    """Raises ValueError for operations with a graph of their own, which may run for ever."""
    if loops := {*kinds} & _LOOPS:
        raise ValueError(f"it holds {min(loops)}, which dpt export never writes")


def openvino_session(path: Path, *, bf16: bool = False) -> Session:
    """Opens an ``.onnx`` or ``.xml`` file in OpenVINO, in fp32, or with ``bf16`` where the CPU has
    it."""
    openvino = require("openvino", f"{path}: OpenVINO", extra="openvino")
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
    }
    core = openvino.Core()
    with quiet(f"{path.name}: OpenVINO refuses the file, export it anew"):
        model = core.read_model(path)
        _refuse_loops(node.get_type_name() for node in model.get_ops())
        if bf16:
            _end_in_fp32(model)
        compiled = core.compile_model(model, "CPU", settings)
    has_metadata = model.has_rt_info(["framework"])
    stated = model.get_rt_info(["framework"]).value if has_metadata else {}
    if bf16 and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        log.warning("precision=bf16: this CPU has no bf16 instructions, OpenVINO takes fp32")
    names = [output.get_any_name() for output in compiled.outputs]
    request = compiled.create_infer_request()
    metadata = {key: str(value) for key, value in stated.items()}
    return Session(metadata, names, lambda images: request.infer([images]).values())


def _end_in_fp32(model: Any) -> None:
    """Makes OpenVINO's bf16 leave the outputs of layers in fp32 that an exponential or a quotient
    turns into depth.

    OpenVINO rounds the output of a layer to bf16 unless it joins the next operation to the layer.
    These it cannot join, and depth would have steps of 0.4 %. Limits that change no value it can.
    """
    opset = require("openvino.opset13", "precision=bf16", extra="openvino")
    largest = torch.finfo(torch.float32).max
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind in ("Exp", "Einsum"):  # depth of the activation exp, and of bins
            layer = node.input_value(0) if kind == "Exp" else node.output(0)
            followers = layer.get_target_inputs()
            limited = opset.clamp(layer, -largest, largest).output(0)
            for follower in followers:
                follower.replace_source_output(limited)
