"""Masked image inpainting: an encoder learns from pictures alone (He et al. 2022; Xie et al. 2022).

The form is SimMIM's (Xie et al. 2022), because it works for every encoder: square patches of the
picture are painted over with the mean colour, the encoder sees all of it, and one linear map paints
what was hidden. Masked autoencoders (He et al. 2022) leave hidden tokens out instead, which is
faster for plain ViTs and impossible for CNNs and windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import at_least_float32, masked_mean
from dpt.metrics.image import RegressionMetrics
from dpt.objectives.base import Objective
from dpt.types import Batch


def draw_hidden(
    indices: Sequence[int], size: tuple[int, int], *, step: int, ratio: float, patch: int
) -> Tensor:
    """Which pixels to hide: bool (B, H, W), a function of the arguments alone.

    So a resumed run hides what it would have hidden, and so do two processes in place of one.

    Args:
        indices: each image's position in the data set.
        size: (H, W).
        step: training steps before this one; an image is hidden in another way each time.
        ratio: share of the patches, in (0, 1), rounded to whole patches, one at least.
        patch: their side in pixels; those at the right and lower edge may be cut off.
    """
    height, width = (math.ceil(length / patch) for length in size)
    count = max(1, round(ratio * height * width))
    chosen = np.zeros((len(indices), height * width), bool)
    for row, index in zip(chosen, indices, strict=True):
        row[np.random.default_rng((step, index)).permutation(len(row))[:count]] = True
    grid = torch.from_numpy(chosen).view(-1, height, width)
    pixels = grid.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
    return pixels[:, : size[0], : size[1]]


class InpaintingObjective(Objective):
    """Trains ``outputs["inpainting"]``, RGB in 0..1 (B, 3, H, W), where the picture was hidden.

    The loss is the mean absolute error over hidden pixels, as in SimMIM. ``mae`` and ``rmse`` of
    the same pixels are in units of the colour range; ``r2`` is 0 for one grey everywhere.

    Args:
        mask_ratio: share of the patches that is hidden.
        mask_size: side of a hidden patch in pixels; best a multiple of the encoder's own patch.
            SimMIM's are of 32 pixels, 0.6 of them hidden.
        weight: factor of the loss.
    """

    head = "inpainting"
    target = None

    def __init__(
        self, *, mask_ratio: float = 0.6, mask_size: int = 32, weight: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < mask_ratio < 1:
            raise ValueError(f"mask_ratio={mask_ratio} must lie between 0 and 1")
        if mask_size < 1:
            raise ValueError(f"mask_size={mask_size} must be at least 1 pixel")
        self.mask_ratio = mask_ratio
        self.mask_size = mask_size
        self.weight = weight
        self.metrics = RegressionMetrics()

    @property
    def notes(self) -> dict[str, str]:
        return {"val/hidden": f"{self.mask_ratio:g} of the {self.mask_size} px patches"}

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """Paints patches over; in evaluation (step 0) an image's are always the same."""
        hidden = draw_hidden(
            batch["index"].tolist(),
            (inputs.shape[-2], inputs.shape[-1]),
            step=step,
            ratio=self.mask_ratio,
            patch=self.mask_size,
        ).to(inputs.device)
        # 0 is the mean colour, and what a patch embedding makes of it is its bias: a learned token
        return inputs.masked_fill(hidden[:, None], 0.0), {**batch, "hidden": hidden}

    def losses(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        error = at_least_float32(outputs["inpainting"]) - batch["image"] / 255
        loss = masked_mean(error.abs().mean(dim=1), batch["hidden"]).mean()
        return {"loss_inpainting": self.weight * loss}

    def predict(self, output: Tensor, size: tuple[int, int]) -> Tensor:
        """Colours as a picture, uint8 (1, 3, H, W)."""
        return (output.float().clamp(0, 1) * 255).round().to(torch.uint8)

    def update(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        hidden = batch["hidden"][:, None]
        colours = torch.where(hidden, batch["image"] / 255, torch.nan)
        self.metrics.update(outputs["inpainting"], colours)
