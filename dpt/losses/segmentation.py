"""Segmentation losses on logits (B, K, h, w) and labels (B, H, W), 255 where unlabelled.

Each returns the mean over the batch of one number per image, 0 for an image without labels.
Logits of another size are upsampled to the labels' size, bilinearly with aligned corners as in the
official DPT. Softmax and everything after it runs in float32 at least. Labels must be in [0, K) or
255; the data set checks that.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dpt.depthmath import at_least_float32
from dpt.functional import chunked_pixel_loss, upsample
from dpt.plugins import register
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import NonNegative, Share


@register("cross_entropy")
class CrossEntropyLoss(nn.Module):
    """Pixel-wise cross-entropy: per image Σ w[y] · ce / Σ w[y] over its labelled pixels.

    For one image it equals ``torch.nn.functional.cross_entropy`` with ``reduction="mean"``.

    Args:
        label_smoothing: in [0, 1): fraction of the target spread over all classes.
        class_weights: K factors, none negative; None means 1.
        logit_adjustment: in [0, 1): this times ln w is added to the logits here and not in
            prediction, which so takes that share of the bias to heavy classes back. Rare classes
            are learnt with w and predicted as with w ** (1 - logit_adjustment) (cf. Menon et al.
            2021, eq. 10). Without weights, which must be above 0 here, it has no effect.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        *,
        label_smoothing: Share = 0.0,
        class_weights: Sequence[NonNegative] | None = None,
        logit_adjustment: Share = 0.0,
    ) -> None:
        super().__init__()
        self.label_smoothing, self.logit_adjustment = label_smoothing, logit_adjustment
        weights = None if class_weights is None else torch.tensor([float(w) for w in class_weights])
        self.register_buffer("class_weights", weights, persistent=False)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels, valid = at_least_float32(logits), labels.long(), labels != IGNORE_INDEX
        weights = self.class_weights
        pixel_weights = valid.to(logits.dtype)
        if weights is not None:
            if len(weights) != logits.shape[1]:
                counts = f"{len(weights)} entries for {logits.shape[1]} classes"
                raise ValueError(f"task.segmentation_loss.class_weights has {counts}")
            weights = weights.to(logits.dtype)
            pixel_weights = torch.where(valid, weights[torch.where(valid, labels, 0)], 0.0)
            if self.logit_adjustment:
                logits = logits + self.logit_adjustment * weights.log()[:, None, None]
        total = pixel_weights.flatten(1).sum(1)
        scale = torch.where(total > 0, 1 / total.clamp(min=1e-30), 0.0) / len(total)
        loss = partial(
            F.cross_entropy,
            weight=weights,
            ignore_index=IGNORE_INDEX,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        return chunked_pixel_loss(logits, labels, scale, loss)


@register("focal")
class FocalLoss(nn.Module):
    """(1 - p)^γ · (-ln p), p the probability of the true class (Lin et al. 2017, eq. 4).

    Args:
        gamma: γ, at least 0; 0 is cross-entropy.
    """

    def __init__(self, *, gamma: NonNegative = 2.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels, valid = _at_label_size(logits, labels)
        ce = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="none")
        # 1 - p without cancellation; the floor keeps the gradient of a small power finite at p = 1
        miss = (-torch.expm1(-ce)).clamp(min=1e-12)
        return _image_mean(miss.pow(self.gamma) * ce, valid)


@register("dice")
class DiceLoss(nn.Module):
    """Soft Dice: mean over the image's classes of 1 - 2 Σ p·g / (Σ p + Σ g).

    The classes of an image are those with a labelled pixel in it; the sums run over its labelled
    pixels. (Milletari et al. 2016 square p and g in the denominator; this form is more common.)
    """

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels, valid = _at_label_size(logits, labels)
        probabilities = logits.softmax(1).flatten(2)
        class_ids, inside = torch.where(valid, labels, 0).flatten(1), valid.flatten(1)
        true_class = probabilities.gather(1, class_ids[:, None]).squeeze(1)
        zeros = probabilities.new_zeros(probabilities.shape[:2])
        intersection = zeros.scatter_add(1, class_ids, torch.where(inside, true_class, 0.0))
        labelled = zeros.scatter_add(1, class_ids, inside.to(zeros.dtype))
        predicted = torch.where(inside[:, None], probabilities, 0.0).sum(2)
        present = labelled > 0
        dice = 2 * intersection / torch.where(present, predicted + labelled, 1.0)
        return _image_mean(1 - dice, present)


@register("combined")
class CombinedLoss(nn.Module):
    """Σ weight · loss, of depth losses or of segmentation losses.

    Args:
        losses: name to module.
        weights: name to factor; 1 for names left out.
    """

    def __init__(
        self, losses: Mapping[str, nn.Module], weights: Mapping[str, NonNegative] | None = None
    ) -> None:
        super().__init__()
        weights = weights or {}
        unknown_names = sorted(set(weights) - set(losses))
        if unknown_names:
            raise ValueError(f"weights for {unknown_names}, but the losses are {sorted(losses)}")
        self.losses = nn.ModuleDict(dict(losses))
        self.weights = {name: float(weights.get(name, 1.0)) for name in losses}

    def forward(self, *inputs: Tensor) -> Tensor:
        """Returns the sum, a scalar."""
        terms = [self.weights[name] * loss(*inputs) for name, loss in self.losses.items()]
        return torch.stack(terms).sum()


def _at_label_size(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits (B, K, H, W) in float32 or more, int64 labels, and which pixels have one."""
    size = (labels.shape[1], labels.shape[2])
    return upsample(at_least_float32(logits), size), labels.long(), labels != IGNORE_INDEX


def _image_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Returns the mean over images of the mean of each image's counted values, 0 without any."""
    counted = counted.to(values.dtype).flatten(1)
    return ((values.flatten(1) * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()


def softened_divergence(student: Tensor, teacher: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Returns T² · KL(softmax(teacher / T) ‖ softmax(student / T)), averaged over pixels or images.

    Hinton et al. 2015, section 2. The gradient reaches the student, and T² keeps its size.

    Args:
        student, teacher: logits of one shape, (B, K) or (B, K, h, w).
        temperature: T > 0; above 1 it raises small probabilities.
    """
    student = (at_least_float32(student) / temperature).log_softmax(1)
    teacher = (at_least_float32(teacher) / temperature).log_softmax(1)
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True)
    return temperature**2 * divergence.sum(1).mean()
