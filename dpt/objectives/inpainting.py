"""Masked image inpainting, as in SimMIM (Xie et al. 2022): pretraining without labels.

Hidden patches have the mean colour; one linear layer predicts them. Unlike masked autoencoders
(He et al. 2022), which leave hidden tokens out, it works for every encoder.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import at_least_float32, masked_mean
from dpt.metrics.image import RegressionMetrics
from dpt.objectives.base import Objective
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.samples import Batch
from dpt.validation import Count, Fraction
from dpt.viz import colorize_output, side_by_side


def draw_hidden(
    indices: Sequence[int], size: tuple[int, int], *, step: int, ratio: float, patch: int
) -> Tensor:
    """Returns the hidden pixels, bool (B, H, W).

    They depend on the arguments alone, not on interruptions or the number of processes.

    Args:
        indices: each image's position in the data set.
        size: (H, W).
        step: number of training steps so far; each step hides other patches of an image.
        ratio: fraction of hidden patches, in (0, 1); at least one is hidden, and one is not.
        patch: side of a patch in pixels; patches at the right and lower edge may be cut off.
    """
    height, width = (math.ceil(length / patch) for length in size)
    if height * width < 2:
        raise ValueError(
            f"mask_size={patch} hides whole images of {size[0]}x{size[1]}: make it smaller"
        )
    count = min(max(1, round(ratio * height * width)), height * width - 1)
    chosen = np.zeros((len(indices), height * width), bool)
    for row, index in zip(chosen, indices, strict=True):
        row[np.random.default_rng((step, index)).permutation(len(row))[:count]] = True
    grid = torch.from_numpy(chosen).view(-1, height, width)
    pixels = grid.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
    return pixels[:, : size[0], : size[1]]


def hide_patches(
    inputs: Tensor, batch: Batch, indices: Sequence[int], *, step: int, ratio: float, patch: int
) -> tuple[Tensor, Batch]:
    """Returns normalised images (B, 3, H, W) without the patches of :func:`draw_hidden`.

    Also returns the batch with ``hidden``, which says where these are.
    """
    size = (inputs.shape[-2], inputs.shape[-1])
    hidden = draw_hidden(indices, size, step=step, ratio=ratio, patch=patch).to(inputs.device)
    # 0 is the mean colour; the patch embedding maps it to its bias, a learned token
    return inputs.masked_fill(hidden[:, None], 0.0), {**batch, "hidden": hidden}


class InpaintingObjective(Objective):
    """Trains RGB (B, 3, H, W) in 0..1 where the image was hidden.

    The loss is the mean absolute error over hidden pixels, as in SimMIM. ``mae`` and ``rmse`` of
    the same pixels are in units of the colour range; ``r2`` is 0 for one grey everywhere.

    Args:
        mask_ratio: fraction of hidden patches (SimMIM: 0.6).
        mask_size: side of a hidden patch in pixels (SimMIM: 32), best a multiple of the encoder's
            patch size.
    """

    head = "inpainting"
    target = None

    def __init__(
        self, *, mask_ratio: Fraction = 0.6, mask_size: Count = 32, weight: float = 1.0
    ) -> None:
        super().__init__(weight=weight)
        self.hide = partial(hide_patches, ratio=mask_ratio, patch=mask_size)
        self.metrics = RegressionMetrics()

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """Hides patches; in evaluation (step 0) always the same ones of an image."""
        return self.hide(inputs, batch, batch["index"].tolist(), step=step)

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        error = at_least_float32(output.tensor) - batch["image"] / 255
        loss = masked_mean(error.abs().mean(dim=1), batch["hidden"]).mean()
        return {"loss_inpainting": self.weight * loss}

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        """Returns RGB in 0..1, NaN where it was not hidden."""
        colors = torch.where(batch["hidden"][k], batch["image"][k] / 255, torch.nan)
        return (colors[None],)

    def panel(
        self, image: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray:
        colors = output.tensor[0].float().numpy(force=True)
        picture = colorize_output(colors, spec, limits=(0.0, 1.0))
        hidden = labels["hidden"][0].numpy(force=True)[..., None]
        visible, painted = np.where(hidden, np.uint8(128), image), np.where(hidden, picture, image)
        captions = ("image", f"input, {hidden.mean():.0%} hidden", "prediction")
        return side_by_side([image, visible, painted], captions)
