"""Whether a file computes what its model computes, and how fast."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dpt.export.files import Run
from dpt.export.graph import Graph, Shape


@dataclass(frozen=True)
class Half:
    """The float16 file.

    Attributes:
        path: where it is.
        errors: of each output, as in :class:`Export`.
        seconds: for one image.
    """

    path: Path
    errors: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Export:
    """What was written, and what came of comparing it with the model.

    Attributes:
        path: the file.
        metadata: what it says of itself.
        compared: (images, height, width) of the inputs that it was compared on.
        errors: largest difference of each output from the model's, as a share of the largest
            value of that output.
        timed: (images, height, width) of the input that was timed.
        seconds: for that input, in ONNX Runtime or torch, on the CPU.
        model_seconds: the same of the model.
        half: the float16 file, if one was asked for.
    """

    path: Path
    metadata: dict[str, str]
    compared: tuple[Shape, ...]
    errors: dict[str, float]
    timed: Shape
    seconds: float
    model_seconds: float
    half: Half | None = None

    def __str__(self) -> str:
        _, height, width = self.timed
        threads = torch.get_num_threads()
        lines = [
            f"{self.path}: {_size(self.path)}",
            f"  input    {self.metadata['input']}; size: {self.metadata['input_size']}",
            f"  checked  {', '.join(map(_form, self.compared))} (images x H x W): off by "
            f"at most {_shares(self.errors)} of the largest value",
            f"  speed    {_ms(self.seconds)} for {height}x{width}, the model takes "
            f"{_ms(self.model_seconds)} ({threads} thread{'s' if threads > 1 else ''} of this CPU)",
        ]
        if self.half:
            lines.append(
                f"  float16  {self.half.path}: {_size(self.half.path)}, off by at most "
                f"{_shares(self.half.errors)}, {_ms(self.half.seconds)}: "
                f"{self.seconds / self.half.seconds:.2f} times the speed of float32 here"
            )
            if self.half.seconds > self.seconds:
                lines.append("           (few CPUs compute in float16; it is meant for GPUs)")
        return "\n".join(lines)


def shapes_to_check(
    graph: Graph, *, size: tuple[int, int] | None
) -> tuple[Shape, tuple[Shape, ...]]:
    """The input to trace with, and three others: on and off the grid, upright and lying."""
    if size:
        return (2, *size), ((1, *size), (3, *size), (4, *size))
    step = graph.model.pad_multiple
    trained = graph.model.preprocessing.image_size
    traced = (2, 5 * step - 3, 4 * step - 1)
    return traced, ((1, *trained), (2, 4 * step + 1, 3 * step), (1, 3 * step, 6 * step))


def compare(graph: Graph, run: Run, shapes: Iterable[Shape]) -> dict[str, float]:
    """The largest difference of each output, as a share of the largest value it should have.

    Raises:
        ValueError: what was written does not run on one of the shapes.
    """
    differences: dict[str, float] = {}
    scales: dict[str, float] = {}
    for shape in shapes:
        images = graph.example(shape)
        with torch.no_grad():
            wanted = graph(images)
            try:
                found = run(images)
            except Exception as error:  # of either runtime
                reason = str(error).strip().partition("\n")[0][:200]
                raise ValueError(f"it fails on {_form(shape)} pixels: {reason}") from error
        for name, value in wanted.items():
            same = found[name].shape == value.shape
            off = (found[name] - value).abs().max().item() if same else inf
            differences[name] = max(differences.get(name, 0.0), inf if isnan(off) else off)
            scales[name] = max(scales.get(name, 0.0), value.abs().max().item())
    tiny = torch.finfo(torch.float32).tiny
    return {name: off / max(scales[name], tiny) for name, off in differences.items()}


def require(errors: dict[str, float], *, tolerance: float) -> None:
    """Raises ValueError if an output is further off than ``tolerance``, a share of its scale."""
    worst = max(errors, key=lambda name: errors[name])
    if not errors[worst] <= tolerance:
        raise ValueError(
            f"its {worst} is off by {errors[worst]:.1e} of the largest value, more than "
            f"{tolerance:.0e}"
        )


def seconds_for(run: Any, images: Tensor, *, rounds: int = 3) -> float:
    """Median time of a call, after one that does not count."""
    times = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            run(images)
            times.append(time.perf_counter() - start)
    return median(times[1:])


def _size(path: Path) -> str:
    parts = [path, path.with_name(f"{path.name}.data")]
    return f"{sum(p.stat().st_size for p in parts if p.is_file()) / 1e6:.1f} MB"


def _form(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _shares(errors: dict[str, float]) -> str:
    return ", ".join(f"{error:.1e} ({name})" for name, error in errors.items())


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
