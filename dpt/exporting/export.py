"""Writing a model to a file, and comparing the file with the model before it is kept.

The file holds the model for inference: BatchNorm is fused, auxiliary heads are removed.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path

import torch

from dpt.exporting.description import describe
from dpt.exporting.files import check_target, folder_beside, parts_of, write
from dpt.exporting.graph import Graph, Shape, trace
from dpt.exporting.sessions import Run, run_of
from dpt.files import reason
from dpt.model import DPT
from dpt.weights.files import writing

log = logging.getLogger("dpt")

TOLERANCE = 1e-4  # the largest error that is accepted, as a fraction of an output's largest value


@dataclass(frozen=True)
class Export:
    """What was written, and the result of :func:`compare`."""

    path: Path
    errors: dict[str, float]
    metadata: dict[str, str]
    compared: tuple[Shape, ...]  # (images, height, width) of the inputs of the comparison

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in parts_of(self.path)) / 1e6
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
    check_target(path, opset=opset)
    if size and min(size) < 1:
        raise ValueError(f"size {size[0]}x{size[1]}: each side must be at least one pixel")
    if model.takes_prompts:
        log.warning("%s: the file takes images alone, and no sparse depth", path)
    graph = Graph.of(model, tasks=tasks, with_preprocessing=with_preprocessing)
    metadata = describe(model, graph, size=size)
    compared: tuple[Shape, ...]
    if size:
        traced, compared = (2, *size), ((1, *size), (3, *size), (4, *size))
    else:  # on and off the grid, portrait and landscape, one side and both as trained
        step, trained = model.encoder.pad_multiple, model.preprocessing.image_size
        if path.suffix == ".pt2":  # torch.export guards sides of more than two patches
            trained = max(trained[0], 2 * step + 1), max(trained[1], 2 * step + 1)
        traced = (2, 5 * step - 3, 4 * step - 1)
        compared = ((1, *trained), (2, 4 * step + 1, 3 * step), (1, 3 * step, trained[1]))
    with folder_beside(path) as folder:
        program = trace(graph.for_inference(), traced, free_size=size is None)
        file = folder / path.name
        with writing(path):
            outputs = graph.all_outputs()
            write(program, file, axes=graph.axes, outputs=outputs, metadata=metadata, opset=opset)
        run = run_of(file)
        try:
            errors = compare(graph, run, compared)
        except ValueError as error:
            remedy = "" if size else "; a fixed size may work: --size H W"
            raise ValueError(f"{path} was not written: {error}{remedy}") from error
    return Export(path, errors, metadata, compared)


def compare(graph: Graph, run: Run, shapes: Iterable[Shape]) -> dict[str, float]:
    """Returns each output's largest difference, as a fraction of its largest value in the model.

    Raises:
        ValueError: a difference exceeds :data:`TOLERANCE`, or the file does not run.
    """
    errors: dict[str, float] = {}
    for shape in shapes:
        images = graph.example(shape)
        with torch.no_grad():
            expected = graph(images)
            try:
                outputs = run(images)
            except Exception as error:  # of either runtime
                raise ValueError(f"it fails on {_form(shape)} pixels: {reason(error)}") from error
        for name, value in expected.items():
            off = inf
            if outputs[name].shape == value.shape:
                scale = value.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
                off = float((outputs[name] - value).abs().max() / scale)
            errors[name] = max(errors.get(name, 0.0), inf if isnan(off) else off)
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > TOLERANCE:
        raise ValueError(
            f"its {worst} is off by {errors[worst]:.1e} of the largest value, more than "
            f"{TOLERANCE:.0e}"
        )
    return errors


def _form(shape: Shape) -> str:
    return "x".join(map(str, shape))
