"""Image-level tasks: classification, regression, field of view, captions."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.depthmath import at_least_float32
from dpt.files import few
from dpt.losses.contrastive import contrastive_loss
from dpt.metrics import image as image_metrics
from dpt.metrics.protocols import Protocol
from dpt.nn.heads.image import ClipHead
from dpt.objectives.base import ClassObjective, Objective, mean_predictions
from dpt.types.outputs import ClipOutput, HeadOutput, OutputSpec
from dpt.types.samples import NO_CLASS, Batch, Sample
from dpt.validation import NonNegative, Plain, PlainMapping, Share


class ClassificationObjective(ClassObjective):
    """Trains logits (B, C) by cross-entropy.

    Args:
        num_classes: C.
        class_names: C of them or none; saved with the weights.
        label_smoothing: fraction of the target spread over all classes.
    """

    head = "classification"
    target = "class_id"
    dense = False

    def __init__(
        self,
        *,
        num_classes: int,
        class_names: Sequence[str] = (),
        label_smoothing: Share = 0.0,
        weight: NonNegative = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes = num_classes
        self.label_smoothing = label_smoothing
        self.class_names = tuple(class_names)
        self.metrics = image_metrics.ClassificationMetrics(num_classes)

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        names = cls.names_of_classes(data)
        if len(names) < 2:
            raise ValueError(f"classification needs two classes, not {few(names) or 'none'}")
        return super().from_data(data, settings)

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        # summed over labelled images and divided by all, so that processes can be averaged
        loss = F.cross_entropy(
            output.tensor.float(),
            batch["class_id"],
            ignore_index=NO_CLASS,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return {"loss_classification": self.weight * loss / len(batch["class_id"])}

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the cross-entropy to the teacher's class (Touvron et al. 2021, eq. 3).

        ``temperature`` is not used.
        """
        logits = at_least_float32(output.tensor)
        return self.weight * F.cross_entropy(logits, teacher.argmax(dim=1))

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the frequencies of the classes, as logits."""
        ids = torch.cat([labels["class_id"] for labels in samples])
        targets = F.one_hot(ids[ids != NO_CLASS], self.num_classes).float()
        return mean_predictions(targets[:, None], dense=False)


class RegressionObjective(Objective):
    """Trains one number (B,) by the squared error over ``std``, that of the training values."""

    head = "regression"
    target = "value"
    dense = False
    measured = ("mean", "std")

    def __init__(self, *, std: float = 1.0, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.std = std
        self.metrics = image_metrics.RegressionMetrics()

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        files = (data.files(i) for i in range(len(data)))
        values = [f.value for f in files if f and f.value is not None]
        if not values:  # shards: of some samples, as their pictures are decoded too
            samples = (data[i] for i in data.some_indices(256))  # one at a time in memory
            values = [sample["value"] for sample in samples if "value" in sample]
        if not values:
            return {}
        return {"mean": float(np.mean(values)), "std": float(np.std(values)) or 1.0}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        return cls()  # its settings are of the loss alone

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        value = batch["value"]
        has_value = value.isfinite()
        error = (output.tensor.float() - torch.where(has_value, value, 0.0)) / self.std
        loss = torch.where(has_value, error, 0.0).square().mean()
        return {"loss_regression": self.weight * loss}


class FieldOfViewObjective(Objective):
    """Trains the horizontal field of view (B,) by the absolute error of the angle in radians.

    The ground truth is that of :class:`dpt.geometry.Camera`: 2 · atan(W / (2 · fx)), for a crop of
    an image too.
    """

    head = "fov"
    target = "K"
    dense = False

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.metrics = image_metrics.FieldOfViewMetrics()

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        fov = batch["fov"]
        is_known = fov.isfinite()
        error = torch.deg2rad(output.tensor.float() - torch.where(is_known, fov, 0.0))
        # divided by all images, so that processes can be averaged
        loss = torch.where(is_known, error, 0.0).abs().mean()
        return {"loss_fov": self.weight * loss}

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's angle in place of the true one."""
        return self.weight * torch.deg2rad(output.tensor.float() - teacher).abs().mean()

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        return (batch["fov"][k : k + 1],)

    def update(self, output: HeadOutput, batch: Batch) -> None:
        self.metrics.update(output.tensor, batch["fov"])


class ClipObjective(Objective):
    """Trains image embeddings (B, E) against the captions' embeddings (Radford et al. 2021).

    Images with equal captions, as far as the text encoder reads them, are not negatives of one
    another, and each of their captions counts as the right one in retrieval. Images without a
    caption count in zero-shot accuracy alone.

    Args:
        class_names: names of the data's image-level classes, for zero-shot accuracy.
        text_length: of the head, see :class:`dpt.nn.heads.image.ClipHeadConfig`.
    """

    head = "clip"
    target = "caption"
    scored_by = "class_id"
    dense = False
    metrics: image_metrics.RetrievalMetrics

    def __init__(
        self, *, class_names: Sequence[str] = (), text_length: int = 128, weight: NonNegative = 1.0
    ) -> None:
        super().__init__(weight=weight)
        self.class_names, self.text_length = tuple(class_names), text_length
        self.metrics = image_metrics.RetrievalMetrics()

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        return {"class_names": data.class_id_names}

    def add_outputs(self, head: nn.Module, output: HeadOutput, batch: Batch) -> ClipOutput:
        assert isinstance(head, ClipHead)
        captions, images = batch["caption"], output.tensor
        ids = caption_ids(captions, head.length).to(images.device)
        clip_output = ClipOutput(images, text=head.scaled_text(captions), ids=ids)
        if self.class_names and not head.training:
            clip_output.classes = images @ head.embed_classes(self.class_names).mT
        return clip_output

    def remarks(self, samples: Sequence[Sample]) -> Iterator[str]:
        texts = [sample.get("caption", "").encode() for sample in samples]
        key = f"task.objectives.clip.text_length={self.text_length}"
        num_long = sum(len(text) > self.text_length for text in texts)
        if num_long:
            yield f"{key}: {num_long} of {len(texts)} captions read are longer and are cut"
        if len(texts) > 1 and len({text[: self.text_length] for text in texts}) == 1:
            yield f"{key}: all {len(texts)} captions read are equal: nothing can be learned"

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        assert isinstance(output, ClipOutput)
        loss = contrastive_loss(output.tensor, output.text, output.ids)
        return {"loss_clip": self.weight * loss}

    def update(self, output: HeadOutput, batch: Batch) -> None:
        assert isinstance(output, ClipOutput)
        has_caption = output.ids >= 0
        self.metrics.update(
            output.tensor[has_caption], output.text[has_caption], output.ids[has_caption]
        )
        if output.classes is not None and "class_id" in batch:
            self.metrics.update_classes(output.classes, batch["class_id"])


def caption_ids(captions: Sequence[str], length: int) -> Tensor:
    """Returns int64 (B,), equal for captions with the same first ``length`` bytes.

    The ids are the same in every process; -1 stands for an empty caption.
    """
    digests = [blake2b(text.encode()[:length], digest_size=8).digest() for text in captions]
    numbers = [int.from_bytes(digest, "big") >> 1 for digest in digests]  # at least 0
    return torch.tensor([n if text else -1 for n, text in zip(numbers, captions, strict=True)])
