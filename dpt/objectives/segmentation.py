"""Semantic segmentation, and panoptic and instance segmentation by mask classification."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.files import DataError
from dpt.functional import chunked_argmax, upsample
from dpt.losses.masks import SetLoss
from dpt.losses.segmentation import CrossEntropyLoss, softened_divergence
from dpt.metrics.base import SumMetric, class_labels
from dpt.metrics.instances import InstanceMetrics, objects_of
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules.all_rules import SegmentationRuleMetrics
from dpt.metrics.segmentation import PanopticMetrics, SegmentationMetrics
from dpt.objectives.base import ClassObjective, mean_predictions, nearest, take
from dpt.process import log
from dpt.segments import OBJECT_IDS, SegmentMap, Segments, instances, panoptic_segments, segments_of
from dpt.types import outputs as types
from dpt.types.samples import IGNORE_INDEX, Batch, Palette
from dpt.validation import NonNegative, Plain, PlainMapping
from dpt.viz import output_panel, segmentation_panel

_FEWEST_QUERIES = 50
_MOST_QUERIES = 100  # more must be asked for, as time and memory grow with them


class PixelClassObjective(ClassObjective):
    """An objective of a head for the classes of pixels, with their names and colours."""

    @classmethod
    def names_of_classes(cls, data: Dataset) -> tuple[str, ...]:
        return data.info.class_names

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        return {**super().from_data(data, settings), "palette": data.info.palette}

    def set_loss_terms(
        self, loss: SetLoss, output: types.HeadOutput, labels: Tensor, segments: Sequence[Segments]
    ) -> dict[str, Tensor]:
        """Returns the terms of a set loss for the output of ``QueryHead``."""
        assert isinstance(output, types.QueryOutput)
        terms = loss(*output.layers, segments, pixels=output.auxiliary, labels=labels)
        return {f"loss_{self.head}_{k}": self.weight * value for k, value in terms.items()}


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
    def from_output(cls, output: types.OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        objective = super().from_output(output, data, protocol)
        if protocol.rules:
            names = objective.class_names
            objective.metrics = SegmentationRuleMetrics(len(names), names)
        return objective

    def losses(self, output: types.HeadOutput, batch: Batch) -> dict[str, Tensor]:
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

    def distil(self, output: types.HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
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

    def predict(self, prediction: types.HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns class ids (1, H, W), the argmax of resized logits (1, K, h, w).

        Ids (1, h, w), of a file of predictions or a baseline, are resized by nearest neighbour.
        """
        (output,), full = types.tensors_in(prediction), (size[0], size[1])
        if output.shape[-2:] == torch.Size(size):
            return output.argmax(dim=1) if output.is_floating_point() else output
        if not output.is_floating_point():
            return nearest(output, full).long()
        return chunked_argmax(output.float(), full, self.resize)

    def panel(
        self, image: np.ndarray, output: types.HeadOutput, labels: Batch, spec: types.OutputSpec
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


class MaskObjective(PixelClassObjective):
    """Trains masks and classes of queries by :class:`dpt.losses.SetLoss`.

    Args:
        num_classes, class_names, palette: see :class:`SegmentationObjective`.
        things: for each class, whether it is a thing; the others are stuff.
        loss: None for its defaults.
        threshold, overlap: of the segments that are scored and shown, see
            :func:`dpt.segments.panoptic_segments`.
    """

    target = "objects"
    measured = ("num_queries",)
    stuff: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_classes: int,
        things: Sequence[bool],
        class_names: Sequence[str] = (),
        palette: Palette = (),
        loss: SetLoss | None = None,
        threshold: float = 0.8,
        overlap: float = 0.8,
        weight: NonNegative = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes, self.things = num_classes, tuple(things)
        self.palette = tuple(palette)
        self.class_names = class_labels(class_names, num_classes)
        self.loss = loss or SetLoss()
        self.threshold, self.overlap = threshold, overlap
        self.metrics = self.make_metrics()

    @property
    def notes(self) -> Plain:
        return {"protocol/resize": "bilinear"}  # as in Mask2Former, whatever ``resize`` is

    @abstractmethod
    def make_metrics(self) -> SumMetric:
        """Returns the metrics of the classes."""

    @abstractmethod
    def score(self, prediction: types.HeadPrediction, segments: Segments, labels: Batch) -> None:
        """Updates the metrics with one image; ``labels`` has a batch axis of 1."""

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        if data.objects_fault:
            raise DataError(f"{data.objects_fault}: correct the file, or choose task=segmentation")
        of_data = {**super().from_data(data, settings), "things": data.info.things}
        if "num_queries" in settings:  # in training
            stuff = data.info.things.count(False) if cls.stuff else 0
            counts = [stuff + count for count in data.object_counts]
            of_data["num_queries"] = _num_queries(counts, settings["num_queries"])
        return of_data

    @classmethod
    def from_output(cls, output: types.OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        objective = super().from_output(output, data, protocol)
        objective.threshold, objective.overlap = output.threshold, output.overlap
        return objective

    def teacher_mismatch(self, output: types.OutputSpec) -> str | None:
        return "queries of two models have different orders: leave task/teacher out"

    def losses(self, output: types.HeadOutput, batch: Batch) -> dict[str, Tensor]:
        maps = zip(batch["labels"], batch["objects"], strict=True)
        segments = [self._segments(labels, objects) for labels, objects in maps]
        return self.set_loss_terms(self.loss, output, batch["labels"], segments)

    def _segments(self, labels: Tensor, objects: Tensor) -> Segments:
        """Returns the true segments; without objects, no pixel is known."""
        segments = segments_of(labels, objects, self.things, stuff=self.stuff)
        return segments._replace(compared=segments.compared & (objects >= 0))

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        return batch["labels"][k][None], batch["objects"][k][None]

    def update(self, output: types.HeadOutput, batch: Batch) -> None:
        for k, labels in enumerate(batch["labels"]):
            segments = self._segments(labels, batch["objects"][k])
            if segments.compared.any():
                self.score(output.image(k).prediction, segments, take(batch, [k]))

    def predict(self, prediction: types.HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns :attr:`SegmentMap.codes` of the predicted segments of one image, (1, H, W)."""
        return self.segment_map(prediction, (size[0], size[1])).codes[None]

    def segment_map(self, prediction: types.HeadPrediction, size: tuple[int, int]) -> SegmentMap:
        """Returns the predicted segments of one image at ``size``.

        The prediction is ``Masks``, or from a file ``Objects`` or,
        also of a baseline, :attr:`SegmentMap.codes`.
        """
        if isinstance(prediction, Tensor):
            return SegmentMap.from_codes(nearest(prediction, size)[0].long())
        if isinstance(prediction, types.Objects):
            return SegmentMap.from_objects(*(tensor[0] for tensor in prediction))
        masks, classes = (logits[0].float() for logits in types.tensors_in(prediction))
        limits = {"threshold": self.threshold, "overlap": self.overlap}
        return panoptic_segments(masks, classes, self.things, size=size, **limits)

    def panel(
        self, image: np.ndarray, output: types.HeadOutput, labels: Batch, spec: types.OutputSpec
    ) -> np.ndarray:
        classes, objects = (maps[0] for maps in self.ground_truth(labels, 0))
        expected = self._segments(classes, objects)
        predicted = self.segment_map(output.prediction, (classes.shape[-2], classes.shape[-1]))
        names, palette = spec.class_names or self.class_names, spec.palette or self.palette
        spec = replace(spec, class_names=names, palette=palette)
        return output_panel(
            image,
            expected.map.codes.numpy(force=True),
            predicted.codes.numpy(force=True),
            spec,
            captions=(
                f"ground truth, {len(expected.classes)} segments",
                f"prediction, {len(predicted.classes)} segments",
            ),
        )

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns :attr:`SegmentMap.codes`: the most frequent class of stuff.

        Those of a single sample are its own segments.
        """
        maps = [
            [nearest(labels, size)[0].long() for labels in self.ground_truth(sample, 0)]
            for sample in samples
        ]
        if len(maps) == 1:
            return {"per position": self._segments(*maps[0]).map.codes[None]}
        labels = torch.stack([classes for classes, _ in maps])
        frequencies = torch.stack(
            [(labels == c).float().mean(0) * (not thing) for c, thing in enumerate(self.things)]
        )
        overall = frequencies.mean((1, 2)).argmax()
        return {
            "constant": (overall * OBJECT_IDS).expand(1, *size),
            "per position": (frequencies.argmax(0) * OBJECT_IDS)[None],
        }


class PanopticObjective(MaskObjective):
    """Objects and areas of stuff without overlap, scored by PQ; see :class:`MaskObjective`."""

    head = "panoptic"

    def make_metrics(self) -> PanopticMetrics:
        return PanopticMetrics(self.things, self.class_names)

    def score(self, prediction: types.HeadPrediction, segments: Segments, labels: Batch) -> None:
        height, width = segments.compared.shape
        self.metrics.update(self.segment_map(prediction, (height, width)), segments)


class InstanceObjective(MaskObjective):
    """Objects alone, scored by the AP of their masks; see :class:`MaskObjective`."""

    head = "instance"
    stuff = False

    def make_metrics(self) -> InstanceMetrics:
        return InstanceMetrics(self.class_names)

    def score(self, prediction: types.HeadPrediction, segments: Segments, labels: Batch) -> None:
        height, width = segments.compared.shape
        size = height, width
        if isinstance(prediction, Tensor):
            baseline = self.segment_map(prediction, size)
            numbers = torch.arange(len(baseline.classes), device=prediction.device)
            masks = baseline.ids == numbers[:, None, None]
            predicted = masks, baseline.classes, baseline.scores
        elif isinstance(prediction, types.Objects):
            predicted = prediction.masks[0], prediction.classes[0], prediction.scores[0]
        else:
            masks, classes = (logits.float() for logits in types.tensors_in(prediction))
            predicted = instances(masks[0], classes[0], self.things, size)
        (stored,) = labels.get("masks", [None])
        expected = objects_of(segments) if stored is None else stored
        self.metrics.update(*predicted, expected, int(labels["index"][0]))


def _num_queries(counts: Sequence[int], given: int | None) -> int:
    """Returns the number of queries for images with so many segments each, and logs it."""
    most = max(counts, default=_MOST_QUERIES)
    queries = given or min(_MOST_QUERIES, max(_FEWEST_QUERIES, most))
    left_out = sum(max(0, count - queries) for count in counts)
    if left_out or (counts and queries > _FEWEST_QUERIES and given is None):
        text = f"images have up to {most} segments; {left_out} of {sum(counts)}, the smallest, are"
        text += " left out (more queries take longer; task=segmentation has no limit)"
        log.warning("task.num_queries=%d: %s", queries, text)
    return queries
