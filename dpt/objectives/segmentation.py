"""Semantic segmentation."""

from collections.abc import Iterable, Sequence
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.functional import chunked_argmax, upsample
from dpt.losses.masks import SetLoss
from dpt.losses.segmentation import CrossEntropyLoss, softened_divergence
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules.all_rules import SegmentationRuleMetrics
from dpt.metrics.segmentation import SegmentationMetrics
from dpt.objectives.base import PixelClassObjective, mean_predictions, nearest
from dpt.segments import segments_of
from dpt.types.outputs import HeadOutput, HeadPrediction, OutputSpec, tensors_in
from dpt.types.samples import IGNORE_INDEX, Batch, Palette
from dpt.validation import NonNegative
from dpt.viz import segmentation_panel


class SegmentationObjective(PixelClassObjective):
    """Trains logits (B, K, H, W) and scores their argmax.

    Args:
        num_classes: K.
        class_names: for scores and reports, K of them or none.
        palette: colours of the classes, rows of RGB in 0..255; empty for the default colours.
        loss: called with logits (B, K, h, w), which it upsamples, and labels (B, H, W).
        kind: of the head, see ``SegmentationHeadConfig``.
        set_loss: of kind ``masks``, in place of ``loss``, which its term of pixels uses.
        auxiliary_weight: factor of the same loss on the auxiliary head (Ranftl et al. 2021,
            section 4.2: 0.2 on the penultimate fusion output); 0 leaves that head out.
    """

    head = "segmentation"
    target = "labels"
    has_rules = True
    metrics: SegmentationMetrics

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        palette: Palette = (),
        loss: nn.Module | None = None,
        kind: Literal["dpt", "linear", "masks"] = "dpt",
        set_loss: SetLoss | None = None,
        auxiliary_weight: NonNegative = 0.2,
        weight: NonNegative = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes = num_classes
        self.palette = tuple(palette)
        self.loss = loss or CrossEntropyLoss()
        self.auxiliary_weight = auxiliary_weight
        self.metrics = SegmentationMetrics(num_classes, class_names)
        self.class_names = self.metrics.class_names
        self.head_settings = {"auxiliary": auxiliary_weight > 0}
        self.set_loss: SetLoss | None = None
        if kind == "masks":
            self.set_loss = set_loss or SetLoss()
            self.set_loss.pixel_loss = self.loss

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        objective = super().from_output(output, data, protocol)
        if protocol.rules:
            names = objective.class_names
            objective.metrics = SegmentationRuleMetrics(len(names), names)
        return objective

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        if self.set_loss is not None:
            no_objects, things = torch.zeros_like(labels[0]), (False,) * self.num_classes
            segments = [segments_of(classes, no_objects, things) for classes in labels]
            return self.set_loss_terms(self.set_loss, output, labels, segments)
        terms = {"loss_segmentation": self.weight * self.loss(output.tensor, labels)}
        if output.auxiliary is not None:
            factor = self.weight * self.auxiliary_weight
            terms["loss_auxiliary"] = factor * self.loss(output.auxiliary, labels)
        return terms

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the divergence from the teacher's class probabilities at the student's size."""
        student = output.tensor
        teacher = upsample(teacher, (student.shape[-2], student.shape[-1]))
        return self.weight * softened_divergence(student, teacher, temperature=temperature)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, fraction: float
    ) -> dict[str, Tensor]:
        """Returns the classes of the most certain ``fraction`` of each class's pixels."""
        logits = upsample(teacher.float(), size)
        probability, ids = logits.softmax(dim=1).max(dim=1)
        labels = torch.full_like(ids, IGNORE_INDEX, dtype=torch.uint8)
        for k in ids.unique():
            values = probability[ids == k]
            limit = values.kthvalue(1 + int((1 - fraction) * (len(values) - 1))).values
            labels[(ids == k) & (probability >= limit)] = k.to(torch.uint8)
        return {"labels": labels}

    def predict(self, prediction: HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns class ids (1, H, W), the argmax of resized logits (1, K, h, w).

        Ids (1, h, w), of a file of predictions or a baseline, are resized by nearest neighbour.
        """
        (output,), full = tensors_in(prediction), (size[0], size[1])
        if output.shape[-2:] == torch.Size(size):
            return output.argmax(dim=1) if output.is_floating_point() else output
        if not output.is_floating_point():
            return nearest(output, full).long()
        return chunked_argmax(output.float(), full, self.resize)

    def panel(
        self, image: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray:
        (target,) = self.ground_truth(labels, 0)
        ids = self.predict(output.prediction, target.shape[-2:])
        is_class = (ids >= 0) & (ids < self.num_classes)  # files hold any number
        ids = torch.where(is_class, ids, IGNORE_INDEX)
        return segmentation_panel(
            image,
            target[0].numpy(force=True),
            ids[0].numpy(force=True).astype(np.uint8),
            spec.palette or self.palette,
            spec.class_names or self.class_names,  # the model's own, if it has any
        )

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the most frequent class, as class ids."""

        def one_hot(labels: Batch) -> Tensor:
            """Returns (1, K, h, w), NaN where ignored."""
            ids = nearest(self.ground_truth(labels, 0)[0], size).long()
            is_labelled = ids != IGNORE_INDEX
            hot = F.one_hot(torch.where(is_labelled, ids, 0), self.num_classes)
            return torch.where(is_labelled[:, None], hot.permute(0, 3, 1, 2).float(), torch.nan)

        frequencies = mean_predictions(map(one_hot, samples), dense=True)
        return {kind: values.argmax(dim=1) for kind, values in frequencies.items()}
