"""Writing a model to a file, and comparing the file with the model before it is kept.

The file holds the model for inference: BatchNorm is fused, auxiliary heads are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path
from typing import TypedDict

import torch

from dpt.exporting import files
from dpt.exporting.graph import Axes, Graph, Shape
from dpt.exporting.half import half_session
from dpt.exporting.targets import FIRST_EXPORTED, Source, target_of
from dpt.model import DPT
from dpt.process import log
from dpt.weights.files import writing

TOLERANCE = 1e-4  # the largest error that is accepted, as a fraction of an output's largest value
TOLERANCE_OF_HALF = 1e-2
LOWEST_OPSET = 13


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


class Options(TypedDict, total=False):
    """The keywords of :func:`export`."""

    size: tuple[int, int] | None
    tasks: Sequence[str]
    with_preprocessing: bool
    opset: int | None
    to: str | None
    half: bool


def export(
    model: DPT,
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    tasks: Sequence[str] = (),
    with_preprocessing: bool = False,
    opset: int | None = None,
    to: str | None = None,
    half: bool = False,
) -> Export:
    """Writes ``model`` to ``path`` and compares the file with it.

    Number of images, height and width are free: images of any size are padded inside as the model
    pads them. Resizing an image to a size that suits the model is left to the caller. Files for
    phones and NPUs (``.tflite``, and ONNX below opset 18) take one image of one size.

    Args:
        model: what to export; it is not changed.
        path: with the suffix of a target; an existing file is replaced after the comparison.
        size: (H, W) fixes the size of the input. Files of one size have that of
            ``model.preprocessing`` by default.
        tasks: names of the heads to export; empty for all.
        with_preprocessing: the input is uint8 RGB (B, H, W, 3), or float32 bands (B, H, W, C),
            normalised in the file.
        opset: of ONNX, from 13 on; None uses the exporter's default. Below 18, layer norms are
            written in parts.
        to: one of :data:`dpt.exporting.targets.TARGETS`; None: that of the suffix.
        half: ONNX in float16, see :mod:`dpt.exporting.half`.

    Raises:
        ValueError: the model cannot be exported, the file cannot be written, or it differs from
            the model. Nothing is left behind then.
    """
    path = Path(path)
    target = target_of(path, to)
    if path.suffix != ".onnx" and (half or opset is not None):
        raise ValueError(f"{path}: --opset and --half are for .onnx: leave them out")
    if opset is not None and opset < LOWEST_OPSET:
        raise ValueError(f"--opset {opset}: must be {LOWEST_OPSET} or more")
    if model.takes_prompts:
        log.warning("%s: the file takes images alone, and no sparse depth", path)
    graph = Graph.of(model, tasks=tasks, with_preprocessing=with_preprocessing)
    is_fixed = target.is_fixed or (opset or FIRST_EXPORTED) < FIRST_EXPORTED
    axes = _axes_of(model, size, is_fixed=is_fixed, is_program=path.suffix == ".pt2")
    heads, size = graph.model.outputs, axes.size
    metadata = files.describe(model, heads, normalises=with_preprocessing, size=size)
    metadata["batch"] = "any" if axes.free else "1"
    with files.folder_beside(path) as folder:
        source = Source(graph.for_inference(), axes, metadata, opset, half)
        file = folder / path.name
        with writing(path):
            target.write(source, file)
        run = half_session(file) if half else target.open(file)
        tolerance = TOLERANCE_OF_HALF if half else TOLERANCE
        errors = compare(graph, run, axes.compared, path, tolerance)
    return Export(path, errors, metadata, axes.compared)


def _axes_of(model: DPT, size: tuple[int, int] | None, *, is_fixed: bool, is_program: bool) -> Axes:
    """Returns which inputs a file takes: one image, any number of a size, or of any size."""
    trained = model.preprocessing.image_size
    if is_fixed:
        size = size or trained
        return Axes(size, (), (1, *size), ((1, *size),))
    if size:
        return Axes(size, ("batch",), (2, *size), ((1, *size), (3, *size), (4, *size)))
    # on and off the grid, portrait and landscape, one side and both as trained
    step = model.encoder.pad_multiple
    if is_program:  # torch.export guards sides of more than two patches
        trained = max(trained[0], 2 * step + 1), max(trained[1], 2 * step + 1)
    compared = ((1, *trained), (2, 4 * step + 1, 3 * step), (1, 3 * step, trained[1]))
    return Axes(None, ("batch", "height", "width"), (2, 5 * step - 3, 4 * step - 1), compared)


def compare(
    graph: Graph, run: files.Run, shapes: Iterable[Shape], path: Path, tolerance: float
) -> dict[str, float]:
    """Returns each output's largest difference, as a fraction of its largest value in the model.

    Args:
        run: the file as a function.
        shapes: of the inputs.
        path: of the file, for messages.
        tolerance: the largest difference.

    Raises:
        ValueError: a difference exceeds ``tolerance``, or the file does not run.
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
    if errors[worst] > tolerance:
        fault = f"its {worst} is off by {errors[worst]:.1e} of the largest value"
        remedy = "fix the size (--size H W), or choose another format"
        raise ValueError(f"{path} was not written: {fault}, more than {tolerance:.0e}: {remedy}")
    return errors


def _form(shape: Shape) -> str:
    return "x".join(map(str, shape))
