"""What a case of the parity matrix is: a peer's random model in its own format, read by us."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Attributes:
        format, task, model: what to call it.
        sizes: [H, W] of the images that are compared.
        options: of the peer's model.
        exact: tolerance of max|Δ| over the output's scale in float64; larger where the peer
            computes a part in float32 whatever it is given.
    """

    format: str
    task: str
    model: str
    sizes: tuple[tuple[int, int], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: float = 1e-12

    def build(self, folder: Path) -> tuple[nn.Module, nn.Module]:
        """The peer (images to one tensor) and our model, read from what the peer saved."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.format}, {self.task}, {self.model}"


def jolt(model: nn.Module, *, gain: float = 1.0) -> nn.Module:
    """Random tensors that keep a signal's size, none at its initial zero or one.

    Rounding errors grow with every block as the signal does: deep models need a smaller gain.
    """
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            noise = torch.randn_like(tensor)
            if name.endswith("running_var"):
                tensor.copy_(1 + noise.abs() / 5)
            elif tensor.ndim == 1:
                tensor.add_(noise / 5)
            elif "token" in name or "pos" in name:
                tensor.copy_(noise)
            else:
                tensor.copy_(noise * gain * (2 / tensor[0].numel()) ** 0.5)
    return model.eval()


def compare(theirs: nn.Module, ours: nn.Module, images: torch.Tensor, task: str) -> float:
    """max|Δ| over the output's scale; the peer's map is resized where it is not the image's."""
    with torch.no_grad():
        wanted, found = theirs(images), ours(images)[task]
    if wanted.shape[-2:] != found.shape[-2:]:
        maps = wanted if wanted.ndim == 4 else wanted[:, None]
        maps = F.interpolate(maps, size=found.shape[-2:], mode="bilinear", align_corners=False)
        wanted = maps if wanted.ndim == 4 else maps[:, 0]
    assert found.shape == wanted.shape
    scale = wanted.abs().max()
    assert wanted.std() > 0.002 * scale  # a flat map would say nothing
    return ((found - wanted).abs().max() / scale).item()


def measure(case: Case, folder: Path) -> dict[tuple[int, int], tuple[float, float]]:
    """(float32, float64) error at each size."""
    theirs, ours = case.build(folder)
    images = {size: torch.randn(2, 3, *size) for size in case.sizes}
    single = {size: compare(theirs, ours, x, case.task) for size, x in images.items()}
    theirs.double(), ours.double()
    return {
        size: (single[size], compare(theirs, ours, x.double(), case.task))
        for size, x in images.items()
    }
