"""What a case of the parity matrix is: a peer's random model in its own format, read by us."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dpt
from dpt.types.outputs import tensors_in
from dpt.weights import formats

Size = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """One row of the matrix.

    Attributes:
        format, task, model: what to call it.
        sizes: [H, W] of the images that are compared, the native size first.
        options: of the peer's model.
        exact: tolerance of max|Δ| over the output's scale in float64; larger where the peer
            computes a part in float32 whatever it is given.
    """

    format: str
    task: str
    model: str
    sizes: tuple[Size, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    exact: float = 1e-12

    def make(self) -> nn.Module:
        """The peer, random: images to one tensor."""
        raise NotImplementedError

    def save(self, theirs: nn.Module, folder: Path) -> Path:
        """Writes the peer as it is written by those who made it; says what we shall read."""
        raise NotImplementedError

    def build(self, folder: Path) -> tuple[nn.Module, dpt.DPT]:
        """The peer and our model, read from what the peer saved."""
        torch.manual_seed(0)
        theirs = self.make()
        return theirs, dpt.DPT.from_pretrained(self.save(theirs, folder))

    def __str__(self) -> str:
        return f"{self.format}, {self.task}, {self.model}"


def default(cases, *names: str):
    """Cases as parameters of a test; those that are not named are slow."""
    slow = {True: (), False: pytest.mark.slow}
    params = [pytest.param(c, id=str(c), marks=slow[str(c) in names]) for c in cases]
    assert sum(not p.marks for p in params) == len(names)
    return params


def jolt(model: nn.Module, *, gain: float = 1.0) -> nn.Module:
    """Fills the saved tensors with noise that keeps a signal's size, none at its first zero or one.

    Rounding errors grow with every block as the signal does: deep models need a smaller gain.
    """
    saved = model.state_dict().keys()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in saved or not tensor.is_floating_point():
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


def random_images(count: int, size: Size) -> torch.Tensor:
    """The same ones at every call."""
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))


def outputs(
    case: Case, theirs: nn.Module, ours: nn.Module, images: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The peer's and ours; the peer's map is resized where it is not of the image's size."""
    expected, (actual, *_) = theirs(images), tensors_in(ours(images)[case.task])  # masks come first
    if expected.shape[-2:] != actual.shape[-2:]:
        maps = expected if expected.ndim == 4 else expected[:, None]
        maps = F.interpolate(maps, size=actual.shape[-2:], mode="bilinear", align_corners=False)
        expected = maps if expected.ndim == 4 else maps[:, 0]
    assert actual.shape == expected.shape
    return expected, actual


def output_error(
    case: Case, theirs: nn.Module, ours: nn.Module, size: Size, dtype: torch.dtype = torch.float32
) -> float:
    """max|Δ| over the output's scale."""
    theirs, ours = (deepcopy(m).to(dtype) for m in (theirs, ours))
    with torch.no_grad():
        expected, actual = outputs(case, theirs, ours, random_images(2, size).to(dtype))
    scale = expected.abs().max()
    assert expected.std() > 0.002 * scale  # a flat map would say nothing
    return ((actual - expected).abs().max() / scale).item()


def bfloat16_ratio(case: Case, theirs: nn.Module, ours: nn.Module) -> float:
    """Our error in bfloat16 over the peer's own: RMS of an image, median of images."""
    images = random_images(16, case.sizes[0])
    with torch.no_grad():
        exact, _ = outputs(case, theirs, ours, images)
        theirs, ours = (deepcopy(m).bfloat16() for m in (theirs, ours))
        actual = outputs(case, theirs, ours, images.bfloat16())
    peer, own = ((x.float() - exact).square().flatten(1).mean(1).sqrt() for x in actual)
    assert own.min() > 0
    return (own / peer).median().item()


def gradient_error(case: Case, theirs: nn.Module, ours: dpt.DPT, folder: Path) -> float:
    """Worst max|Δ| over max of a tensor's gradient, of one training step in float64.

    The peer's gradients are saved as if they were its weights, so that our reader gives them our
    names. Those of key biases are left out, zero but for rounding: a shift of every key changes no
    softmax.
    """
    theirs, ours = (deepcopy(m).double() for m in (theirs, ours))
    expected, actual = outputs(case, theirs, ours, random_images(2, case.sizes[0]).double())
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(2)).double()
    (expected * weights).sum().backward()
    (actual * weights).sum().backward()
    for p in theirs.parameters():
        p.data = torch.zeros_like(p) if p.grad is None else p.grad
    peers = formats.read(case.save(theirs, folder)).tensors
    worst = 0.0
    for name, p in ours.named_parameters():
        grad, expected = p.grad, peers[name]
        assert expected.dtype == torch.float64
        if grad is None:  # auxiliary layers, of no part in an evaluation-mode output
            assert expected.count_nonzero() == 0, name
            continue
        if name.endswith("qkv.bias"):
            grad, expected = (g.unflatten(0, (3, -1))[::2] for g in (grad, expected))
        assert expected.abs().max() > 0, name
        worst = max(worst, ((grad - expected).abs().max() / expected.abs().max()).item())
    return worst
