"""A model as one file that other programs run: ONNX, or torch.export's ``.pt2``.

What is written is the inference form: BN folded, no auxiliary head, nothing of autograd. It is
compared with the model before it gets its name: a file that is there agrees with its model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpt.export.check import Export, Half, compare, require, seconds_for, shapes_to_check
from dpt.export.files import check_target, folder_beside, run_of, write
from dpt.export.graph import Graph, describe, trace
from dpt.model import DPT

__all__ = ["Export", "Half", "export"]

HALF_TOLERANCE = 0.05
"""Beyond this the float16 file is of no use: something overflowed, or all detail is gone."""


def export(
    model: DPT,
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    tasks: Sequence[str] = (),
    with_preprocessing: bool = False,
    half: bool = False,
    opset: int | None = None,
    tolerance: float = 1e-4,
) -> Export:
    """Writes ``model`` to ``path`` and compares what was written with it.

    The number of images, height and width stay free: images of any size go in, and are padded
    inside as the model pads them. Resizing a picture to a size that suits the model stays outside.

    Args:
        model: what to export; it is left as it is.
        path: ``.onnx`` or ``.pt2``; an older file of that name is replaced once all went well.
        size: (H, W) fixes the input's size, for programs and encoders that want it fixed.
        tasks: names of the heads to export; empty for all.
        with_preprocessing: take uint8 RGB images (B, H, W, 3), and normalise them in the graph.
        half: write a second file in float16, ``NAME.fp16.onnx``, beside the first, and measure its
            error and speed; its outputs are float32, and so is its input.
        opset: of ONNX; None leaves it to the exporter.
        tolerance: the largest error that passes, as a share of an output's largest value. Of the
            float16 file much less is asked: its error is told.

    Raises:
        ValueError: the model cannot be exported so, the file cannot be written, or it does not
            agree with the model. Nothing is left behind then.
    """
    path = Path(path)
    check_target(path, opset=opset)
    if size and min(size) < 1:
        raise ValueError(f"size {size[0]}x{size[1]}: each side must be at least one pixel")
    graph = Graph.of(model, tasks=tasks, with_preprocessing=with_preprocessing)
    metadata = describe(model, graph, size=size)
    traced, others = shapes_to_check(graph, size=size)
    timed = (1, *(size or model.preprocessing.image_size))

    def make(name: str, *, half: bool) -> tuple[dict[str, float], float]:
        """Writes one file; its errors, and its seconds for an image."""
        program = trace(graph.for_inference(half=half), traced, free_size=size is None)
        facts = {**metadata, "precision": "float16" if half else "float32"}
        outputs = list(graph.model.heads)
        target = folder / name
        write(program, target, axes=graph.axes, outputs=outputs, metadata=facts, opset=opset)
        run = run_of(target)
        try:
            errors = compare(graph, run, others)
            require(errors, tolerance=HALF_TOLERANCE if half else tolerance)
        except ValueError as error:
            raise ValueError(f"{path.with_name(name)} was deleted: {error}") from error
        return errors, seconds_for(run, graph.example(timed))

    with folder_beside(path) as folder:
        errors, seconds = make(path.name, half=False)
        name = f"{path.stem}.fp16{path.suffix}"
        variant = Half(path.with_name(name), *make(name, half=True)) if half else None
        model_seconds = seconds_for(graph, graph.example(timed))
    return Export(
        path=path,
        metadata=metadata,
        compared=others,
        errors=errors,
        timed=timed,
        seconds=seconds,
        model_seconds=model_seconds,
        half=variant,
    )
