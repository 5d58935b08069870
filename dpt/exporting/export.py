"""Writing a model to a file, and comparing the file with the model before it is kept.

The file holds the model for inference: BatchNorm is fused, auxiliary heads are removed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dpt.exporting import files
from dpt.library_internals import drop_guards, oblivious_sizes
from dpt.model import DPT
from dpt.nn import Network
from dpt.nn.network import optimized
from dpt.process import log
from dpt.types.outputs import tensor_specs, tensors_of
from dpt.types.preprocessing import Preprocessing
from dpt.weights.files import writing

TOLERANCE = 1e-4  # the largest error that is accepted, as a fraction of an output's largest value


@dataclass(frozen=True)
class Export:
    """What was written, and the result of :func:`compare`."""

    path: Path
    errors: dict[str, float]
    metadata: dict[str, str]
    compared: tuple[Shape, ...]  # (images, height, width) of the inputs of the comparison

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in files.parts_of(self.path)) / 1e6
        errors = ", ".join(f"{error:.1e} ({name})" for name, error in self.errors.items())
        return (
            f"{self.path}: {size:.1f} MB, largest error {errors} of the largest value\n"
            f"  input    {self.metadata['input']}; size: {self.metadata['input_size']}\n"
            f"  checked  {', '.join(map(_form, self.compared))} (images x H x W)"
        )


def export(
    model: DPT,
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    tasks: Sequence[str] = (),
    with_preprocessing: bool = False,
    opset: int | None = None,
) -> Export:
    """Writes ``model`` to ``path`` and compares the file with it.

    Number of images, height and width are free: images of any size are padded inside as the model
    pads them. Resizing an image to a size that suits the model is left to the caller.

    Args:
        model: what to export; it is not changed.
        path: ``.onnx`` or ``.pt2``; an existing file is replaced after the comparison.
        size: (H, W) fixes the size of the input.
        tasks: names of the heads to export; empty for all.
        with_preprocessing: the input is uint8 RGB (B, H, W, 3), or float32 bands (B, H, W, C),
            normalised in the file.
        opset: of ONNX; None uses the exporter's default.

    Raises:
        ValueError: the model cannot be exported, the file cannot be written, or it differs from
            the model. Nothing is left behind then.
    """
    path = Path(path)
    files.check_target(path)
    if model.takes_prompts:
        log.warning("%s: the file takes images alone, and no sparse depth", path)
    graph = Graph.of(model, tasks=tasks, with_preprocessing=with_preprocessing)
    metadata = files.describe(model, graph.model.outputs, normalises=with_preprocessing, size=size)
    compared: tuple[Shape, ...]
    if size:
        traced, compared = (2, *size), ((1, *size), (3, *size), (4, *size))
    else:  # on and off the grid, portrait and landscape, one side and both as trained
        step, trained = model.encoder.pad_multiple, model.preprocessing.image_size
        if path.suffix == ".pt2":  # torch.export guards sides of more than two patches
            trained = max(trained[0], 2 * step + 1), max(trained[1], 2 * step + 1)
        traced = (2, 5 * step - 3, 4 * step - 1)
        compared = ((1, *trained), (2, 4 * step + 1, 3 * step), (1, 3 * step, trained[1]))
    with files.folder_beside(path) as folder:
        program = trace(graph.for_inference(), traced, free_size=size is None)
        file = folder / path.name
        with writing(path):
            write(program, file, graph, metadata, opset)
        errors = compare(graph, files.run_of(file), compared, path)
    return Export(path, errors, metadata, compared)


def compare(graph: Graph, run: files.Run, shapes: Iterable[Shape], path: Path) -> dict[str, float]:
    """Returns each output's largest difference, as a fraction of its largest value in the model.

    Args:
        run: the file as a function.
        shapes: of the inputs.
        path: of the file, for messages.

    Raises:
        ValueError: a difference exceeds :data:`TOLERANCE`, or the file does not run.
    """
    errors: dict[str, float] = {}
    for shape in shapes:
        images = graph.example(shape)
        with torch.no_grad():
            expected = graph(images)
            with files.quiet(f"{path} was not written: it fails on {_form(shape)} pixels"):
                outputs = run(images)
        for name, value in expected.items():
            off = inf
            if outputs[name].shape == value.shape:
                scale = value.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
                off = float((outputs[name] - value).abs().max() / scale)
            errors[name] = max(errors.get(name, 0.0), inf if isnan(off) else off)
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > TOLERANCE:
        fault = f"its {worst} is off by {errors[worst]:.1e} of the largest value"
        remedy = "fix the size (--size H W), or choose another format"
        raise ValueError(f"{path} was not written: {fault}, more than {TOLERANCE:.0e}: {remedy}")
    return errors


def _form(shape: Shape) -> str:
    return "x".join(map(str, shape))


Shape = tuple[int, int, int]  # of an input: number of images, height, width


class Graph(nn.Module):
    """Images to the tensors of the model's predictions by name, as tensors_of gives them.

    With ``preprocessing`` the input is uint8 RGB (B, H, W, 3), or float32 bands (B, H, W, C) in
    their own unit, which are normalised here, else normalised float32 (B, C, H, W).
    """

    model: Network

    def __init__(self, model: Network, *, preprocessing: Preprocessing | None) -> None:
        super().__init__()
        self.model, self.preprocessing = model, preprocessing

    @classmethod
    def of(cls, model: DPT, *, tasks: Sequence[str], with_preprocessing: bool) -> Graph:
        """Returns a copy of ``model`` in float32 on the CPU with the heads in ``tasks``."""
        if model.predicts_only:
            raise ValueError("an optimised copy cannot be exported: give the original model")
        unknown = sorted(set(tasks) - set(model.heads))
        if unknown:
            raise ValueError(f"no head {', '.join(unknown)}: this model has {list(model.heads)}")
        copy = deepcopy(model).cpu().float().eval().requires_grad_(False)
        for name in [name for name in copy.heads if tasks and name not in tasks]:
            del copy.heads[name]
        return cls(copy, preprocessing=model.preprocessing if with_preprocessing else None)

    def for_inference(self) -> Graph:
        """Returns the same function with fused BatchNorm and no auxiliary head."""
        model = optimized(self.model, compiled=False)
        model.to(memory_format=torch.contiguous_format)  # the runtime chooses its own
        return Graph(model, preprocessing=self.preprocessing).eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        if self.preprocessing is not None:
            images = self.preprocessing.normalize(images.permute(0, 3, 1, 2))
        return tensors_of(self.model(images), self.model.outputs)

    @property
    def axes(self) -> dict[int, str]:
        """Names of the axes of the input that may be free."""
        first = 2 if self.preprocessing is None else 1
        return {0: "batch", first: "height", first + 1: "width"}

    def example(self, shape: Shape) -> Tensor:
        """Returns noise as input, always the same for a shape."""
        random, channels = torch.Generator().manual_seed(0), self.model.encoder.in_channels
        if self.preprocessing is None:
            return torch.randn(shape[0], channels, *shape[1:], generator=random)
        if not self.preprocessing.is_rgb:
            mean, std = (torch.tensor(v) for v in (self.preprocessing.mean, self.preprocessing.std))
            return mean + std * torch.randn(*shape, channels, generator=random)
        return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=random)


def trace(graph: Graph, shape: Shape, *, free_size: bool) -> ExportedProgram:
    """Traces the graph by torch.export, for any number of images and, if ``free_size``, any size.

    ``shape`` is that of the images to trace with. A model that torch cannot trace is a ValueError.
    """
    free = {i: Dim.DYNAMIC for i, name in graph.axes.items() if free_size or name == "batch"}
    remedy = "; fix the size, with --size H W" if free_size else ""
    with files.quiet(f"this model cannot be traced{remedy}"), torch.no_grad(), oblivious_sizes():
        program = torch.export.export(
            graph, (graph.example(shape),), dynamic_shapes=(free,), strict=False
        )
    drop_guards(program)  # in their place, the file is compared with the model at several sizes
    return program


def write(
    program: ExportedProgram, path: Path, graph: Graph, metadata: dict[str, str], opset: int | None
) -> None:
    """Writes ``program``, which was traced from ``graph``, in the format of the suffix of
    ``path``."""
    if path.suffix == ".pt2":
        extra = {"metadata.json": json.dumps(metadata, indent=2)}
        buffer = io.BytesIO()  # torch's writer of files aborts the process if the disk is full
        torch.export.save(program, buffer, extra_files=extra)
        path.write_bytes(buffer.getbuffer())
        return
    outputs = tensor_specs(graph.model.outputs)
    with files.quiet("ONNX cannot express this model"):  # the exporter reports every step
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["images"],
            output_names=list(outputs),
            opset_version=opset,
            verbose=False,
        )
    assert made is not None  # only the older exporter returns None
    written_opset = made.model.opset_imports[""]
    if opset not in (None, written_opset):
        raise ValueError(f"--opset {opset}: the exporter wrote {written_opset}: choose another")
    made.model.metadata_props.update(metadata)
    _name_axes(made.model.graph.inputs[0], graph.axes)
    for value, spec in zip(made.model.graph.outputs, outputs.values(), strict=True):
        _name_axes(value, {0: "batch", **({-2: "height", -1: "width"} if spec.dense else {})})
    if path.suffix == ".xml":
        import openvino

        with TemporaryDirectory(dir=path.parent) as folder:
            made.save(Path(folder, "model.onnx"))
            read = openvino.Core().read_model(Path(folder, "model.onnx"))
            openvino.save_model(read, path, compress_to_fp16=False)
        return
    made.save(path)  # weights beyond 1.5 GB go to NAME.onnx.data


def _name_axes(value: Any, names: Mapping[int, str]) -> None:
    """Names free axes by their index; the trace calls them s34, or 16*((s34 + 15)//16)."""
    by_index = {index % len(value.shape): name for index, name in names.items()}
    sizes = [s if isinstance(s, int) else by_index.get(i, s) for i, s in enumerate(value.shape)]
    value.shape = type(value.shape)(sizes)
