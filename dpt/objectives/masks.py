"""Panoptic and instance segmentation by mask classification: a class and a mask for each query."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dpt.files import DataError
from dpt.functional import resize
from dpt.losses.masks import SetLoss
from dpt.metrics.instances import InstanceMetrics, objects_of
from dpt.metrics.panoptic import PanopticMetrics
from dpt.metrics.protocols import Protocol
from dpt.objectives.base import PixelClassObjective, nearest, take
from dpt.segments import (
    OBJECT_IDS,
    SegmentMap,
    Segments,
    instances,
    panoptic_segments,
    segments_of,
)
from dpt.types import Batch, HeadOutput, HeadPrediction, OutputSpec
from dpt.viz import output_panel


class MaskObjective(PixelClassObjective):
    """Trains masks and classes of queries by :class:`dpt.losses.SetLoss`.

    Args:
        num_classes, class_names, palette: see :class:`dpt.objectives.SegmentationObjective`.
        things: for each class, whether it is a thing; the others are stuff.
        loss: None for its defaults.
        num_queries, num_layers, masked_attention: see :class:`dpt.nn.masks.QueryConfig`.
        threshold, overlap: of the segments that are scored and shown, see
            :func:`dpt.segments.panoptic_segments`.
    """

    target = "objects"
    stuff: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_classes: int,
        things: Sequence[bool],
        class_names: Sequence[str] = (),
        palette: Sequence[Sequence[int]] = (),
        loss: SetLoss | None = None,
        num_queries: int = 100,
        num_layers: int = 3,
        masked_attention: bool = True,
        threshold: float = 0.8,
        overlap: float = 0.8,
        weight: float = 1.0,
    ) -> None:
        super().__init__(weight=weight)
        self.num_classes, self.things, self.palette = num_classes, tuple(things), palette
        self.class_labels = tuple(class_names) or tuple(str(c) for c in range(num_classes))
        self.loss = loss or SetLoss()
        self.threshold, self.overlap = threshold, overlap
        self.metrics = self.make_metrics()
        self.head_options = {
            "num_classes": num_classes,
            "things": list(self.things),
            "num_queries": num_queries,
            "num_layers": num_layers,
            "masked_attention": masked_attention,
            "threshold": threshold,
            "overlap": overlap,
            "class_names": list(self.class_labels),
            "palette": [list(row) for row in palette],
        }

    @property
    def notes(self) -> dict[str, Any]:
        return {"protocol/resize": "bilinear"}  # as in Mask2Former, whatever ``resize`` is

    @abstractmethod
    def make_metrics(self) -> Any:
        """The metrics of the classes."""

    @abstractmethod
    def score(self, prediction: HeadPrediction, truth: Segments, labels: Batch) -> None:
        """Updates the metrics with one image; ``labels`` has a batch axis of 1."""

    @classmethod
    def from_data(cls, data: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        if data.objects_fault:
            raise DataError(f"{data.objects_fault}: correct the file, or choose task=segmentation")
        return {**super().from_data(data, settings), "things": data.info.things}

    @classmethod
    def from_output(cls, output: OutputSpec, data: Any, protocol: Protocol) -> Self:
        objective = super().from_output(output, data, protocol)
        objective.threshold, objective.overlap = output.threshold, output.overlap
        return objective

    def losses(self, output: HeadOutput, batch: Batch) -> dict[str, Tensor]:
        maps = zip(batch["labels"], batch["objects"], strict=True)
        truth = [self._segments(labels, objects) for labels, objects in maps]
        return self.set_losses(self.loss, output, batch["labels"], truth)

    def _segments(self, labels: Tensor, objects: Tensor) -> Segments:
        """The true segments; none of their pixels is known where the loader found no objects."""
        segments = segments_of(labels, objects, self.things, stuff=self.stuff)
        return segments._replace(compared=segments.compared & (objects >= 0))

    def truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        return batch["labels"][k][None], batch["objects"][k][None]

    def update(self, output: HeadOutput, batch: Batch) -> None:
        for k, labels in enumerate(batch["labels"]):
            segments = self._segments(labels, batch["objects"][k])
            if segments.compared.any():
                self.score(output.image(k).prediction, segments, take(batch, [k]))

    def segment_map(self, prediction: HeadPrediction, size: tuple[int, int]) -> SegmentMap:
        """Returns the predicted segments of one image at ``size``.

        The prediction is :class:`dpt.types.Masks`, or the :attr:`SegmentMap.codes` of a baseline or
        a file.
        """
        if isinstance(prediction, Tensor):
            return SegmentMap.from_codes(nearest(prediction, size)[0].long())
        masks, classes = (logits[0].float() for logits in prediction)
        rules = {"threshold": self.threshold, "overlap": self.overlap}
        return panoptic_segments(masks, classes, self.things, size=size, **rules)

    def panel(
        self, photo: np.ndarray, output: HeadOutput, labels: Batch, spec: OutputSpec
    ) -> np.ndarray:
        truth, objects = (maps[0] for maps in self.truth(labels, 0))
        found = self.segment_map(output.prediction, (truth.shape[-2], truth.shape[-1]))
        true = self._segments(truth, objects)
        palette: Any = spec.palette or self.palette
        names = spec.class_names or self.class_labels
        spec = replace(spec, class_names=names, palette=palette)
        counts = len(true.classes), len(found.classes)
        captions = f"truth, {counts[0]} segments", f"prediction, {counts[1]} segments"
        return output_panel(
            photo, true.map.codes.numpy(force=True), found.codes.numpy(force=True), spec, captions
        )

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """:attr:`SegmentMap.codes`: of one sample its own, of several the most frequent class of
        stuff."""
        maps = [[nearest(m, size)[0].long() for m in self.truth(each, 0)] for each in samples]
        if len(maps) == 1:
            return {"per position": self._segments(*maps[0]).map.codes[None]}
        labels = torch.stack([classes for classes, _ in maps])
        shares = torch.stack(
            [(labels == c).float().mean(0) * (not thing) for c, thing in enumerate(self.things)]
        )
        overall = shares.mean((1, 2)).argmax()
        return {
            "constant": (overall * OBJECT_IDS).expand(1, *size),
            "per position": (shares.argmax(0) * OBJECT_IDS)[None],
        }


class PanopticObjective(MaskObjective):
    """Objects and areas of stuff without overlap, scored by PQ; see :class:`MaskObjective`."""

    head = "panoptic"

    def make_metrics(self) -> PanopticMetrics:
        return PanopticMetrics(self.things, self.class_labels)

    def score(self, prediction: HeadPrediction, truth: Segments, labels: Batch) -> None:
        height, width = truth.compared.shape
        self.metrics.update(self.segment_map(prediction, (height, width)), truth)


class InstanceObjective(MaskObjective):
    """Objects alone, scored by the AP of their masks; see :class:`MaskObjective`."""

    head = "instance"
    stuff = False

    def make_metrics(self) -> InstanceMetrics:
        return InstanceMetrics(self.class_labels)

    def score(self, prediction: HeadPrediction, truth: Segments, labels: Batch) -> None:
        height, width = truth.compared.shape
        size = height, width
        if isinstance(prediction, Tensor):
            baseline = self.segment_map(prediction, size)
            places = torch.arange(len(baseline.classes), device=prediction.device)
            masks = baseline.ids == places[:, None, None]
            found = masks, baseline.classes, baseline.scores
        else:
            masks, classes = (logits.float() for logits in prediction)
            found = instances(resize(masks, size)[0], classes[0], self.things)
        (stored,) = labels.get("masks", [None])
        true = objects_of(truth) if stored is None else stored
        self.metrics.update(*found, true, int(labels["index"][0]))
