"""Semantic segmentation."""

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.functional import chunked_argmax, upsample
from dpt.losses.masks import SetLoss
from dpt.losses.segmentation import CrossEntropyLoss, softened_divergence
from dpt.metrics.segmentation import SegmentationMetrics
from dpt.objectives.base import PixelClassObjective, mean_predictions, nearest
from dpt.segments import segments_of
from dpt.types import (
    IGNORE_INDEX,
    Batch,
    HeadOutput,
    HeadPrediction,
    OutputSpec,
    tensors_in,
)
from dpt.validation import NonNegative
from dpt.viz import segmentation_panel


class SegmentationObjective(PixelClassObjective):
    """Trains ``outputs["segmentation"]``, logits (B, K, H, W), and scores its argmax.

    Args:
        num_classes: K.
        class_names: for scores and reports, K of them or none.
        palette: colours of the classes, rows of RGB in 0..255; empty for the default colours.
        loss: called with logits (B, K, h, w), which it upsamples, and labels (B, H, W).
        kind: of the head: ``dpt`` reads the decoder's map, ``linear`` the encoder's own tokens, see
            :class:`dpt.nn.LinearSegmentationHead`; ``masks`` has queries, see :mod:`dpt.nn.masks`.
        num_queries: of ``masks``.
        set_loss: of ``masks``, in place of ``loss``, which its term of pixels uses.
        auxiliary_weight: factor of the same loss on the auxiliary head (Ranftl et al. 2021,
            section 4.2: 0.2 on the penultimate fusion output); 0 leaves the head out. A linear head
            has none.
        dropout: in front of the last convolution.
    """

    head = "segmentation"
    target = "labels"
    metrics: SegmentationMetrics

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        palette: Sequence[Sequence[int]] = (),
        loss: nn.Module | None = None,
        kind: Literal["dpt", "linear", "masks"] = "dpt",
        num_queries: int = 100,
        set_loss: SetLoss | None = None,
        auxiliary_weight: NonNegative = 0.2,
        dropout: float = 0.1,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes = num_classes
        self.palette = palette
        self.loss = loss or CrossEntropyLoss()
        self.auxiliary_weight = auxiliary_weight
        self.metrics = SegmentationMetrics(num_classes, class_names)
        self.head_options = {
            "num_classes": num_classes,
            "dropout": dropout,
            "class_names": list(self.metrics.class_names),
            "palette": [list(row) for row in palette],
        }
        self.set_loss: SetLoss | None = None
        if kind == "dpt":
            self.head_options["auxiliary"] = auxiliary_weight > 0
        else:
            self.head_options["kind"] = kind
        if kind == "masks":
            self.set_loss = set_loss or SetLoss()
            self.set_loss.pixel_loss = self.loss
            self.head_options["num_queries"] = num_queries

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        labels = batch["labels"]
        if self.set_loss is not None:
            nothing = torch.zeros_like(labels[0])
            truth = [segments_of(each, nothing, (False,) * self.num_classes) for each in labels]
            return self.set_losses(self.set_loss, output, labels, truth)
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
        self, teacher: Tensor, size: tuple[int, int], *, share: float
    ) -> dict[str, Tensor]:
        """Returns the classes of the most certain ``share`` of each class's pixels."""
        logits = upsample(teacher.float(), size)
        probability, ids = logits.softmax(dim=1).max(dim=1)
        labels = torch.full_like(ids, IGNORE_INDEX, dtype=torch.uint8)
        for k in ids.unique():
            values = probability[ids == k]
            limit = values.kthvalue(1 + int((1 - share) * (len(values) - 1))).values
            labels[(ids == k) & (probability >= limit)] = k.to(torch.uint8)
        return {"labels": labels}

    def predict(self, prediction: HeadPrediction, size: Sequence[int]) -> Tensor:
        """Logits (1, K, h, w) to class ids (1, H, W): the argmax of the resized logits.

        Ids (1, h, w), of a file of predictions or a baseline, are resized by nearest neighbour.
        """
        (output,), full = tensors_in(prediction), (size[0], size[1])
        if output.shape[-2:] == torch.Size(size):
            return output.argmax(dim=1) if output.is_floating_point() else output
        if not output.is_floating_point():
            return nearest(output, full).long()
        return chunked_argmax(output.float(), full, self.resize)

    def panel(
        self, photo: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray:
        (truth,) = self.truth(labels, 0)
        ids = self.predict(output.prediction, truth.shape[-2:])
        is_class = (ids >= 0) & (ids < self.num_classes)  # files hold any number
        ids = torch.where(is_class, ids, IGNORE_INDEX)
        maps = truth[0].numpy(force=True), ids[0].numpy(force=True).astype(np.uint8)
        names = spec.class_names or self.metrics.class_names  # the model's own, if known
        return segmentation_panel(photo, *maps, spec.palette or self.palette, names)

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """The most frequent class, as class ids."""

        def one_hot(ids: Tensor) -> Tensor:
            """(1, K, h, w), NaN where ignored."""
            known = ids != IGNORE_INDEX
            hot = F.one_hot(torch.where(known, ids, 0), self.num_classes).permute(0, 3, 1, 2)
            return torch.where(known[:, None], hot.float(), torch.nan)

        maps = (nearest(self.truth(labels, 0)[0], size).long() for labels in samples)
        shares = mean_predictions((one_hot(ids) for ids in maps), dense=True)
        return {kind: share.argmax(dim=1) for kind, share in shares.items()}
