"""Pretraining on images without labels: by hidden patches, or by random views of each image."""

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import at_least_float32, masked_mean
from dpt.losses.contrastive import dino_loss, ibot_loss, nt_xent
from dpt.metrics.image import EmbeddingMetrics, RegressionMetrics
from dpt.objectives.base import Objective
from dpt.types.outputs import EmbeddingOutput, HeadOutput, OutputSpec
from dpt.types.samples import NO_CLASS, Batch
from dpt.validation import Count, Fraction, NonNegative, Positive
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
        raise ValueError(f"mask_size={patch} hides whole images of {size[0]}x{size[1]}")
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
    """Masked image inpainting, as in SimMIM (Xie et al. 2022): RGB (B, 3, H, W) in 0..1.

    Hidden patches have the mean colour; one linear layer predicts them. Unlike masked autoencoders
    (He et al. 2022), which leave hidden tokens out, it works for every encoder.

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
        self, *, mask_ratio: Fraction = 0.6, mask_size: Count = 32, weight: NonNegative = 1.0
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


class SelfSupervisedObjective(Objective):
    """The base class: embeddings are scored by the images' classes, where the data has any.

    In training the model sees the B·N views of a batch and gives projections (B·N, E), and those of
    the smaller views, if there are any; in evaluation it sees images and gives embeddings (B, D).
    """

    target = None
    scored_by = "class_id"
    dense = False
    views = 2

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.metrics = EmbeddingMetrics()

    def projections(self, output: HeadOutput, batch: Batch) -> Tensor:
        """Returns (B, V, E), of the views and then of the smaller ones (``augment.crops``)."""
        outputs = [output] if output.crops is None else [output, output.crops]
        count = len(batch["views"].large)
        rows = [cast(EmbeddingOutput, o).projection.unflatten(0, (count, -1)) for o in outputs]
        return torch.cat(rows, dim=1)

    def update(self, output: HeadOutput, batch: Batch) -> None:
        index = batch["index"]
        class_id = batch.get("class_id", torch.full_like(index, NO_CLASS))
        self.metrics.update(output.tensor, class_id, index)


class ContrastiveObjective(SelfSupervisedObjective):
    """SimCLR (Chen et al. 2020): similar embeddings of one image's views, different ones else.

    Args:
        temperature: divides cosines, see :func:`dpt.losses.nt_xent`.
    """

    head = "contrastive"

    def __init__(self, *, temperature: Positive = 0.2, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.temperature = temperature

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        loss = nt_xent(self.projections(output, batch), temperature=self.temperature)
        return {"loss_contrastive": self.weight * loss}


class DinoObjective(SelfSupervisedObjective):
    """DINO (Caron et al. 2021): every view is assigned to the prototypes to which a moving average
    of the model (:class:`dpt.objectives.teacher.SelfTeacher`) assigns the other views.

    ``patch_weight`` adds iBOT (Zhou et al. 2022, section 3): patches of every second view are
    hidden from the trained model. The average sees the whole views, and its assignments of these
    patches are the targets of their tokens.

    Left out of DINO: a last layer that is frozen in the first epoch, weight decay that rises from
    0.04 to 0.4, a teacher's temperature that rises at first, and different colours for the two
    large views. Left out of iBOT: hidden blocks (here single patches are drawn) and a temperature
    of its own for the teacher's patches (0.07).

    Args:
        temperature, teacher_temperature: see :func:`dpt.losses.dino_loss`.
        patch_weight: factor of the loss of hidden patches (iBOT: 1); at 0 none are hidden.
        mask_ratio: fraction of hidden patches in these views (iBOT: 0.1 to 0.5).
        mask_size: side of a patch in pixels, which must be the encoder's.
    """

    head = "dino"

    def __init__(
        self,
        *,
        temperature: Positive = 0.1,
        teacher_temperature: Positive = 0.02,
        patch_weight: NonNegative = 0.0,
        mask_ratio: Fraction = 0.3,
        mask_size: Count = 16,
        weight: NonNegative = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.temperatures = {"temperature": temperature, "teacher_temperature": teacher_temperature}
        self.patch_weight = patch_weight
        self.mask_size = mask_size
        self.hide = partial(hide_patches, ratio=mask_ratio, patch=mask_size)
        self.head_settings = {"patches": patch_weight > 0}

    def prepare(self, inputs: Tensor, batch: Batch, *, step: int) -> tuple[Tensor, Batch]:
        """Hides patches of every second view, other ones in each."""
        if not self.patch_weight or "views" not in batch:
            return inputs, batch
        count = batch["views"].large.shape[1]
        indices = [count * i + k for i in batch["index"].tolist() for k in range(count)]
        views = inputs.clone()
        views[1::2], batch = self.hide(inputs[1::2], batch, indices[1::2], step=step)
        return views, batch

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        if "teacher" not in batch:
            raise ValueError("task=dino needs task/teacher=self")
        student = self.projections(output, batch)
        teacher = batch["teacher"].projection.unflatten(0, (len(student), -1))
        loss = dino_loss(student, teacher, **self.temperatures)
        terms = {"loss_dino": self.weight * loss}
        if self.patch_weight:
            loss = self.patch_loss(output, batch)
            terms["loss_dino_patches"] = self.weight * self.patch_weight * loss
        return terms

    def patch_loss(self, output: HeadOutput, batch: Batch) -> Tensor:
        """Returns the loss of iBOT for the hidden patches."""
        assert isinstance(output, EmbeddingOutput)
        student, teacher = output.patches, batch["teacher"].patches
        assert student is not None
        assert teacher is not None
        hidden = batch["hidden"][:, :: self.mask_size, :: self.mask_size].flatten(1)
        patches, targets = student[1::2], teacher[1::2]
        if hidden.shape != patches.shape[:2]:
            fault = f"the encoder has {patches.shape[1]} patches, not {hidden.shape[1]}"
            raise ValueError(f"task.objectives.dino.mask_size={self.mask_size}: {fault}")
        return ibot_loss(patches[hidden], targets[hidden], **self.temperatures)
