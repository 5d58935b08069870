"""The graph of a model that a file holds: images to tensors by name, and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dpt.exporting import files
from dpt.library_internals import drop_guards, oblivious_sizes
from dpt.model import DPT
from dpt.nn import Network
from dpt.nn.network import optimized
from dpt.types.outputs import tensors_of
from dpt.types.preprocessing import Preprocessing

Shape = tuple[int, int, int]  # of an input: number of images, height, width


@dataclass(frozen=True)
class Axes:
    """The lengths of the axes of a file's input.

    Attributes:
        size: (H, W), if it is fixed.
        free: the axes (``batch``, ``height``, ``width``) that may have any length.
        traced: the shape to trace with.
        compared: the shapes to compare the file with the model at.
    """

    size: tuple[int, int] | None
    free: tuple[str, ...]
    traced: Shape
    compared: tuple[Shape, ...]


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


def trace(graph: Graph, axes: Axes) -> ExportedProgram:
    """Traces the graph by torch.export; ValueError if torch cannot trace the model."""
    free = {i: Dim.DYNAMIC for i, name in graph.axes.items() if name in axes.free}
    remedy = "; fix the size, with --size H W" if axes.size is None else ""
    with files.quiet(f"this model cannot be traced{remedy}"), torch.no_grad(), oblivious_sizes():
        program = torch.export.export(
            graph, (graph.example(axes.traced),), dynamic_shapes=(free,), strict=False
        )
    drop_guards(program)  # in their place, the file is compared with the model at several sizes
    return program
