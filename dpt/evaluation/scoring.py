"""Scores of single images, and the scores, intervals and pictures of a data set.

Images that are not independent of each other, such as the frames of one video, are a block.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist
from torch import Tensor

from dpt.data import Dataset
from dpt.data.splits import groups_shown
from dpt.files import few, plural
from dpt.metrics import Interval, LeftOut, confidence_intervals, left_out
from dpt.metrics.intervals import MOST_LEFT_OUT
from dpt.metrics.protocols import Note
from dpt.objectives import Objective, base
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import Batch
from dpt.viz import shrink

IMAGES = "image"
FOLDERS = "folder"
MATCHES = "block"
"""The kind of blocks by a regular expression."""


class Blocks(NamedTuple):
    """The block of each image."""

    kind: str
    """What a block is: ``image``, ``folder``, ``sequence``, ``group`` or ``block``."""
    names: tuple[str, ...]
    numbers: np.ndarray
    """int64 (N,), positions in ``names``."""

    @classmethod
    def of(cls, kind: str, keys: Sequence[str]) -> "Blocks":
        """Returns blocks of images that have the same key."""
        names, numbers = np.unique(keys, return_inverse=True)
        return cls(kind, tuple(names.tolist()), numbers)

    def __str__(self) -> str:
        return plural(len(self.names), self.kind)

    def at(self, indices: Sequence[int]) -> "Blocks":
        """Returns the blocks of some of the images."""
        return self.of(self.kind, [self.names[k] for k in self.numbers[indices]])

    def joined(self) -> "Blocks":
        """Returns these blocks, or at most ``MOST_LEFT_OUT`` groups of them."""
        count = len(self.names)
        if count <= MOST_LEFT_OUT:
            return self
        names = [few(self.names[k::MOST_LEFT_OUT], 1) for k in range(MOST_LEFT_OUT)]
        return Blocks(self.kind, tuple(names), self.numbers % MOST_LEFT_OUT)


def blocks_of(dataset: Dataset, rule: str | None) -> Blocks:
    """Returns the blocks of a data set's images.

    Args:
        rule: ``image``: each image is a block; ``folder``: images of one folder are; or a regular
            expression: images in whose names it matches the same text are, those without a match
            are blocks of their own. None: the groups of ``data.group_by``, or else folders, if
            there are several, or else sequences, if the names show several (``a_01``, ``a_02``),
            or else images. Folders of classes are no blocks.
    """
    names = [dataset.name(index) for index in range(len(dataset))]
    if rule is None:
        return _natural_blocks(dataset, names)
    if rule == IMAGES:
        return Blocks.of(IMAGES, names)
    try:
        matches = [re.search(".*/" if rule == FOLDERS else rule, name) for name in names]
    except re.error as error:
        raise ValueError(f"blocks={rule}: is not a regular expression: {error}") from None
    if not any(matches):
        raise ValueError(f"blocks={rule}: matches no image's name, such as {names[0]}")
    keys = [match[0] if match else name for match, name in zip(matches, names, strict=True)]
    return Blocks.of(FOLDERS if rule == FOLDERS else MATCHES, keys)


def _natural_blocks(dataset: Dataset, names: Sequence[str]) -> Blocks:
    if len(dataset.groups) == len(names):
        return Blocks.of("group", dataset.groups)
    groups_of = {} if dataset.info.targets == ("class_id",) else groups_shown(names)
    for kind, groups in groups_of.items():
        # numbers alone are times or years, as of TUM and VOC
        if kind == FOLDERS or all(re.search("[A-Za-z]", group) for group in groups):
            return Blocks.of(kind, groups)
    return Blocks.of(IMAGES, names)


PICTURE_WIDTH = 1400
"""Largest width of a row of pictures, in pixels."""
WORST_IMAGES = 4
"""The number of the worst images that are drawn for each dense head."""


class PanelPicture(NamedTuple):
    """A row of pictures of one image, uint8 RGB."""

    caption: str
    rgb: np.ndarray
    rank: tuple[float, int] = (0.0, 0)  # sorts the worst image first


@dataclass(frozen=True)
class ImageScore:
    """The scores of one image."""

    name: str
    scores: dict[str, float]
    """By name, without scores of classes and pooled ones; NaN without a label."""
    states: dict[str, object] = field(default_factory=dict)
    """What the image leaves in the metric of each objective."""
    is_finite: bool = True
    """Whether the prediction holds neither NaN nor infinity."""


_RGB = Preprocessing()


class Scorer:
    """Scores each image, and computes the data set's scores from the metric states of all images.

    Attributes:
        objectives: those that score single images.
        whole: the others, by name; their scores are known after :meth:`gather`.
        outputs: what each head predicts.
        preprocessing: of the images, for their pictures.
        images: the scores of each image by its index.
        worst: pictures of the worst images of each dense objective.
        examples: pictures of other images, for the report.
        notes: facts for ``metrics.json`` about how the scores were computed.
        blocks: the groups of images that the intervals are over; this and the following after
            :meth:`finish`.
        intervals: of each score.
        left_out: the scores without each block (:meth:`Blocks.joined`).
        first_scores: the name of the first score of each objective that scores single images.
        confusions: of the objectives that have one.
        rules: scores by the rules of other projects, if the protocol asks for them.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        outputs: Mapping[str, OutputSpec],
        preprocessing: Preprocessing = _RGB,
    ) -> None:
        self.preprocessing = preprocessing
        self.objectives = {k: o for k, o in objectives.items() if o.metrics.by_image}
        self.whole = {k: o for k, o in objectives.items() if not o.metrics.by_image}
        self.whole_scores: dict[str, float] = {}
        self.outputs = dict(outputs)
        self.images: dict[int, ImageScore] = {}
        self.worst: dict[str, list[PanelPicture]] = {
            k: [] for k, o in self.objectives.items() if o.dense
        }
        self.examples: list[PanelPicture] = []
        self.notes: dict[str, Note] = {
            key: note for o in objectives.values() for key, note in o.notes.items()
        }
        # refuses two scores of one name before anything is scored
        base.merged_scores({k: o.metrics.scores() for k, o in self.objectives.items()})

    def add(self, outputs: Mapping[str, HeadOutput], labels: Batch, images: Tensor) -> None:
        """Scores B images: ``outputs`` of each head, ``images`` (B, C, H, W) as they are read."""
        for objective in self.whole.values():
            objective.update(outputs[objective.head], labels)
        for k, index in enumerate(labels["index"].tolist()):
            of_image = {name: output.image(k) for name, output in outputs.items()}
            self._add_image(index, of_image, base.take(labels, [k]), images[k])

    def _add_image(
        self, index: int, outputs: Mapping[str, HeadOutput], labels: Batch, image: Tensor
    ) -> None:
        is_finite = not base.nonfinite_names(outputs, labels)
        image_score = self.images[index] = ImageScore(labels["name"][0], {}, {}, is_finite)
        for key, objective in self.objectives.items():
            metric, output = objective.metrics, outputs[objective.head]
            metric.reset()
            objective.update(output, labels)
            image_score.states[key] = metric.state()
            metric.reset()
            scores = metric.resampler([image_score.states[key]])(np.ones(1))
            for name, value in scores.items():
                if "/" not in name and "_pooled" not in name:
                    image_score.scores[name] = value
            if key not in self.worst:
                continue
            name, value = next(iter(scores.items()))
            rank = (-value if name in metric.lower_is_better else value), index
            pictures = self.worst[key]
            if isnan(value) or (len(pictures) == WORST_IMAGES and rank > pictures[-1].rank):
                continue
            spec = self.outputs[objective.head]
            row = objective.panel(self.preprocessing.picture(image), output, labels, spec)
            assert row is not None, "a dense objective has panels"
            caption = f"{image_score.name}: {name} {value:.3g}"
            self._keep_worst(key, [PanelPicture(caption, shrink(row, PICTURE_WIDTH), rank)])

    def _keep_worst(self, key: str, pictures: list[PanelPicture]) -> None:
        ranked = sorted([*self.worst[key], *pictures], key=lambda picture: picture.rank)
        self.worst[key] = ranked[:WORST_IMAGES]

    def gather(self) -> None:
        """Gives every process the scored images of all processes."""
        whole = {key: objective.compute() for key, objective in self.whole.items()}
        self.whole_scores = base.merged_scores(whole)
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (self.images, self.worst))
        del gathered[dist.get_rank()]
        for images, worst in gathered:
            self.images.update(images)
            for key, pictures in worst.items():
                self._keep_worst(key, pictures)

    @cached_property
    def states(self) -> dict[str, list[Any]]:
        """What each image left in the metric of each objective, in the order of the data set."""
        images = [self.images[index] for index in sorted(self.images)]
        return {key: [image.states[key] for image in images] for key in self.objectives}

    @cached_property
    def scores(self) -> dict[str, float]:
        """The scores of all images, which do not depend on batches or processes."""
        once = np.ones(len(self.images))
        scores = {k: o.metrics.resampler(self.states[k])(once) for k, o in self.objectives.items()}
        return base.merged_scores({**scores, " and ".join(self.whole): self.whole_scores})

    @property
    def every_objective(self) -> list[Objective]:
        return [*self.objectives.values(), *self.whole.values()]

    @property
    def lower_is_better(self) -> set[str]:
        """The names of the scores that are better if lower."""
        return base.lower_is_better(self.every_objective)

    @property
    def headlines(self) -> list[str]:
        """The name of the first score of each objective, by which its images are sorted."""
        return [*self.first_scores.values(), *self.whole_scores][: len(self.first_scores) + 1]

    def finish(self, blocks: Blocks) -> None:
        """Computes intervals, which takes long, and what else needs all images.

        Args:
            blocks: of all images of the data set.
        """
        self.images = dict(sorted(self.images.items()))
        self.blocks = blocks.at([*self.images])
        joined = self.blocks.joined().numbers
        self.left_out = LeftOut({}, {}, np.bincount(joined))
        self.intervals = dict.fromkeys(self.whole_scores, Interval(nan, nan))
        self.first_scores: dict[str, str] = {}
        for key, objective in self.objectives.items():
            metric, states = objective.metrics, self.states[key]
            of_metric = confidence_intervals(metric, states, self.blocks.numbers)
            self.intervals |= of_metric
            self.first_scores[key] = next(iter(of_metric))
            without = left_out(metric, states, joined)
            self.left_out.scores.update(without.scores)
            self.left_out.without.update(without.without)
        metrics = {key: objective.metrics for key, objective in self.objectives.items()}
        confusions = [metric.confusion_of(self.states[key]) for key, metric in metrics.items()]
        self.confusions = [confusion for confusion in confusions if confusion is not None]
        tables = [metric.rule_table(self.scores) for metric in metrics.values()]
        self.rules = [table for table in tables if table is not None]
