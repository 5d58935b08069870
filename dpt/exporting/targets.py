"""The formats of exported files: how each is written, and run by its own library to compare it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from dpt.exporting import files
from dpt.exporting.graph import Axes, Graph, trace
from dpt.exporting.half import to_half
from dpt.files import require
from dpt.library_internals import compile_package, load_package, parts_of_grid_sample
from dpt.types.outputs import tensor_specs

FIRST_EXPORTED = 18  # the oldest operator set of ONNX that PyTorch writes


@dataclass(frozen=True)
class Source:
    """What is written.

    Attributes:
        metadata: what a user of the file must know, by name.
        opset: of ONNX; None uses the exporter's default.
        half: whether ONNX is in float16.
    """

    graph: Graph
    axes: Axes
    metadata: dict[str, str]
    opset: int | None = None
    half: bool = False


@dataclass(frozen=True)
class Target:
    """A format.

    Attributes:
        write: writes a file.
        open: returns a file as a function, run on the CPU.
        extra: of the project, which installs ``packages``.
        is_fixed: whether a file takes one image of one size.
    """

    suffix: str
    write: Callable[[Source, Path], None]
    open: Callable[[Path], files.Run]
    extra: str = ""
    packages: tuple[str, ...] = ()
    is_fixed: bool = False


def target_of(path: Path, name: str | None = None) -> Target:
    """Returns the format ``name``, or that of the suffix of ``path``.

    Raises:
        ValueError: ``path`` cannot be written in the format, or a package is missing or made for
            another version of torch.
    """
    if name not in (None, *TARGETS):
        raise ValueError(f"--to {name}: choose from {', '.join(TARGETS)}")
    by_suffix = {target.suffix: target for target in reversed(TARGETS.values())}
    target = TARGETS[name] if name else by_suffix.get(path.suffix)
    if target is None or target.suffix != path.suffix or path.is_dir() or not path.parent.is_dir():
        endings = target.suffix if target else ", ".join(by_suffix)
        fault = f"must be a file that ends in {endings}, in a folder that exists"
        raise ValueError(f"{path}: {fault}: TensorRT and Core ML convert the .onnx")
    for package in target.packages:
        require(package, f"{path}: the format", extra=target.extra)
    return target


# --- PyTorch --------------------------------------------------------------------------------------


def _write_program(source: Source, path: Path) -> None:
    extra = {"metadata.json": json.dumps(source.metadata, indent=2)}
    buffer = io.BytesIO()  # torch's writer of files aborts the process if the disk is full
    torch.export.save(trace(source.graph, source.axes), buffer, extra_files=extra)
    path.write_bytes(buffer.getbuffer())


def _write_compiled(source: Source, path: Path) -> None:
    program = trace(source.graph, source.axes)
    with files.quiet("AOTInductor, which needs a C++ compiler, cannot compile this model"):
        strides = {"strides": "contiguous images alone: others give wrong outputs"}
        compile_package(program, path, source.metadata | strides)


# --- ONNX and OpenVINO ----------------------------------------------------------------------------


def _norm_in_parts(
    x: Tensor,
    shape: list[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Returns what ``torch.layer_norm`` does, by simpler operations."""
    axes = list(range(-len(shape), 0))
    centred = x - x.mean(axes, keepdim=True)
    normed = centred / ((centred * centred).mean(axes, keepdim=True) + eps).sqrt()
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias


def _downgrade(onnx: Any, model: Any, opset: int) -> None:
    """Writes the operators of ONNX as an older set declares them, which suffices for those of a
    model: the checker and the comparison find others.

    Raises:
        ValueError: the older set has no such operator.
    """
    values = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not onnx.defs.has(node.op_type, max_inclusive_version=opset):
            raise ValueError(f"--opset {opset}: it has no {node.op_type}: choose a newer one")
        schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset)
        attributes = [a for a in node.attribute if a.name in schema.attributes]
        if len(node.input) > schema.max_input:  # axes of a mean were an attribute
            axes = onnx.numpy_helper.to_array(values[node.input[-1]]).tolist()
            attributes.append(onnx.helper.make_attribute("axes", axes))
        del node.attribute[:], node.input[schema.max_input :]
        node.attribute.extend(attributes)
    model.opset_import[0].version = opset
    model.ir_version = onnx.helper.find_min_ir_version_for(model.opset_import)
    onnx.checker.check_model(model)


def _onnx_program(source: Source) -> Any:
    """Returns the model in ONNX, with metadata; a ``torch.onnx.ONNXProgram``."""
    program, opset = trace(source.graph, source.axes), source.opset
    outputs = tensor_specs(source.graph.model.outputs)
    is_old = opset is not None and opset < FIRST_EXPORTED
    parts = {torch.ops.aten.layer_norm.default: _norm_in_parts, **parts_of_grid_sample()}
    with files.quiet("ONNX cannot express this model"):  # the exporter reports every step
        made = torch.onnx.export(
            program.run_decompositions(parts) if is_old else program,
            dynamo=True,
            input_names=["images"],
            output_names=list(outputs),
            opset_version=FIRST_EXPORTED if is_old else opset,
            verbose=False,
        )
        assert made is not None  # only the older exporter returns None
        if is_old:  # computes the positions of the input's size
            optimizer = require("onnxscript.optimizer", "ONNX", extra="onnx")
            optimizer.fold_constants(made.model, input_size_limit=2**31, output_size_limit=2**31)
    written_opset = made.model.opset_imports[""]
    if not is_old and opset not in (None, written_opset):
        raise ValueError(f"--opset {opset}: the exporter wrote {written_opset}: choose another")
    made.model.metadata_props.update(source.metadata)
    if source.axes.free:
        _name_axes(made.model.graph.inputs[0], source.graph.axes)
        for value, spec in zip(made.model.graph.outputs, outputs.values(), strict=True):
            _name_axes(value, {0: "batch", **({-2: "height", -1: "width"} if spec.dense else {})})
    return made


def _name_axes(value: Any, names: Mapping[int, str]) -> None:
    """Names free axes by their index; the trace calls them s34, or 16*((s34 + 15)//16)."""
    by_index = {index % len(value.shape): name for index, name in names.items()}
    sizes = [s if isinstance(s, int) else by_index.get(i, s) for i, s in enumerate(value.shape)]
    value.shape = type(value.shape)(sizes)


def _write_onnx(source: Source, path: Path) -> None:
    made = _onnx_program(source)
    opset = source.opset or FIRST_EXPORTED
    if not source.half and opset >= FIRST_EXPORTED:
        made.save(path)  # weights beyond 1.5 GB go to NAME.onnx.data
        return
    onnx = require("onnx", "ONNX", extra="onnx")
    with files.quiet(f"ONNX cannot express this model in opset {opset}"):
        model = made.model_proto
        if opset < FIRST_EXPORTED:
            _downgrade(onnx, model, opset)
        onnx.save(to_half(model) if source.half else model, path)


def _write_openvino(source: Source, path: Path) -> None:
    made = _onnx_program(source)
    with files.quiet("OpenVINO cannot express this model"):
        openvino = require("openvino", "OpenVINO", extra="openvino")
        with TemporaryDirectory(dir=path.parent) as folder:
            made.save(Path(folder, "model.onnx"))
            read = openvino.Core().read_model(Path(folder, "model.onnx"))
            openvino.save_model(read, path, compress_to_fp16=False)


# --- phones ---------------------------------------------------------------------------------------


def _write_litert(source: Source, path: Path) -> None:
    litert = require("litert_torch", "LiteRT", extra="litert")
    with files.quiet("LiteRT cannot express this model"), redirect_stdout(io.StringIO()):
        litert.convert(source.graph, (source.graph.example(source.axes.traced),)).export(str(path))
    with ZipFile(path, "a") as file:  # behind the model, as LiteRT's associated files
        file.writestr("metadata.json", json.dumps(source.metadata, indent=2))


def _open_litert(path: Path) -> files.Run:
    interpreter = require("ai_edge_litert.interpreter", "LiteRT", extra="litert")
    with files.quiet(f"{path.name}: LiteRT refuses the file"):
        opened = interpreter.Interpreter(str(path), num_threads=torch.get_num_threads())
        runner = opened.get_signature_runner()
    (name,) = runner.get_input_details()

    def run(images: Tensor) -> dict[str, Tensor]:
        return {k: torch.from_numpy(v) for k, v in runner(**{name: images.numpy()}).items()}

    return run


_ONNX = ("onnx", "onnxruntime", "onnxscript")
_OPENVINO = (*_ONNX, "openvino")
_LITERT = ("litert_torch", "ai_edge_litert.interpreter")
TARGETS = {
    "onnx": Target(".onnx", _write_onnx, files.onnx_session, "onnx", _ONNX),
    "openvino": Target(".xml", _write_openvino, files.openvino_session, "openvino", _OPENVINO),
    "torch": Target(".pt2", _write_program, lambda path: torch.export.load(path).module()),
    "aoti": Target(".pt2", _write_compiled, load_package),
    "litert": Target(".tflite", _write_litert, _open_litert, "litert", _LITERT, is_fixed=True),
}
"""By the name that ``dpt export --to`` takes; the first of those with one suffix is its default."""
