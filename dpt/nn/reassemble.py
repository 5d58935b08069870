"""Reassemble (Ranftl et al. 2021, section 3.2): a token matrix becomes a map.

Four steps in the paper's order, Read, Assemble, Project, Resample. Shapes: B batch, P prefix
tokens, N = h·w patch tokens, D embedding, C channels of the map.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

ReadoutMode = Literal["ignore", "add", "project"]


class Read(nn.Module):
    """Combines the CLS (readout) token with the patch tokens: (B, P + N, D) to (B, N, D).

    - ``ignore``: the CLS token is not used
    - ``add``: the CLS token is added to each patch token
    - ``project``: each patch token is concatenated with the CLS token, then GELU(Linear(2D -> D));
      :class:`Project` below is another step, a 1×1 convolution

    Registers are dropped in every mode.
    """

    def __init__(self, *, dim: int, num_prefix_tokens: int, mode: ReadoutMode) -> None:
        super().__init__()
        if num_prefix_tokens == 0 and mode != "ignore":
            raise ValueError(f"readout={mode!r} needs a CLS token, and this encoder has none")
        self.mode: ReadoutMode = mode
        self.num_prefix_tokens = num_prefix_tokens
        self.linear = nn.Linear(2 * dim, dim) if mode == "project" else None

    def forward(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.num_prefix_tokens :]
        if self.mode == "ignore":
            return patches
        cls_token = tokens[:, 0]
        if self.linear is None:
            return patches + cls_token.unsqueeze(1)
        # W [patch; cls] = W_patch patch + W_cls cls: compute the CLS part once per image
        dim = patches.shape[-1]
        weight_patch, weight_cls = self.linear.weight.split(dim, dim=1)
        shared = F.linear(cls_token, weight_cls, self.linear.bias)
        return F.gelu(F.linear(patches, weight_patch) + shared.unsqueeze(1))


class Assemble(nn.Module):
    """Arranges the patch tokens as a map: (B, h·w, D) to (B, D, h, w), channels-last."""

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        return patches.transpose(1, 2).unflatten(2, grid)


class Project(nn.Conv2d):
    """Projects the embedding to the map's channels, D to C, by a 1×1 convolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, kernel_size=1)


class Resample(nn.Module):
    """Resizes a map by ``scale``: transposed convolution up, strided 3×3 convolution down."""

    def __init__(self, *, channels: int, scale: float) -> None:
        super().__init__()
        self.conv: nn.Module = nn.Identity()
        if scale > 1 and scale == int(scale):
            k = int(scale)
            self.conv = nn.ConvTranspose2d(channels, channels, kernel_size=k, stride=k)
        elif 0 < scale < 1 and (1 / scale) == int(1 / scale):
            k = int(1 / scale)
            self.conv = nn.Conv2d(channels, channels, kernel_size=3, stride=k, padding=1)
        elif scale != 1:
            raise ValueError(f"resample scale {scale}: must be a whole number or one over one")

    def forward(self, map_BChw: Tensor) -> Tensor:
        return self.conv(map_BChw)


class Reassemble(nn.Module):
    """One level: Read, Assemble, Project, Resample.

    ``channels=None`` leaves Project out (official hybrid, levels 1 and 2). ``scale`` is the size of
    the map over that of the token grid. With ``norm``, BN comes before Project.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_prefix_tokens: int,
        readout: ReadoutMode,
        channels: int | None,
        scale: float,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.read = Read(dim=dim, num_prefix_tokens=num_prefix_tokens, mode=readout)
        self.assemble = Assemble()
        self.norm = nn.BatchNorm2d(dim) if norm else nn.Identity()
        self.project = nn.Identity() if channels is None else Project(dim, channels)
        self.resample = Resample(channels=channels or dim, scale=scale)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Maps (B, P + h·w, D) to (B, C, scale·h, scale·w)."""
        assembled = self.norm(self.assemble(self.read(tokens), grid))
        return self.resample(self.project(assembled))
