"""Several data sets as one: training by weights, where each set has its own targets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np

from dpt.data.base import Dataset, Files
from dpt.files import DataError, few
from dpt.plugins import register
from dpt.types.samples import DatasetInfo, Sample, Target
from dpt.validation import Count, Positive


@register("mix")
class MixDataset(Dataset):
    """Draws from several data sets by weight.

    Training: an epoch has ``length`` samples, and each set contributes its fraction, rounded to a
    whole number. The random order of a set continues from epoch to epoch, so that each of its
    samples is used once before any is used again. The sample at a position of an epoch depends on
    the epoch and the position only.

    Other splits: the sets one after the other, each sample once, without weights.

    A sample carries the targets of its set; the loader marks the others as ignored.

    Args:
        sets: for each set a function from a split's name to the data set.
        weights: the amount of each set in the training samples, in any unit; the default is 1.
        length: samples of a training epoch; None for as many as the sets have together.
        val_on: the set, or sets, that splits other than ``train`` consist of; None for all.
    """

    changes_every_epoch = True

    def __init__(
        self,
        *,
        sets: Mapping[str, Callable[[str], Dataset]],
        split: str,
        weights: Mapping[str, Positive] | None = None,
        length: Count | None = None,
        val_on: str | Sequence[str] | None = None,
    ) -> None:
        weights = weights or {}
        chosen = [val_on] if isinstance(val_on, str) else list(val_on or sets)
        unknown_names = sorted({*weights, *chosen} - {*sets})
        if not sets or unknown_names:
            fault = f"data.weights or data.val_on name {unknown_names}"
            raise DataError(f"data.sets has {[*sets]}, but {fault}")
        self.is_training = split == "train"
        by_name = {n: _make_set(n, sets[n], split) for n in (sets if self.is_training else chosen)}
        self.sets = list(by_name.values())
        self._sizes = self._counts = [len(dataset) for dataset in self.sets]
        if self.is_training:
            all_weights = [weights.get(name, 1.0) for name in sets]
            self._counts = _apportion(all_weights, length or sum(self._sizes))
        self._orders: dict[tuple[int, int, int], np.ndarray] = {}
        self._take_attributes(by_name)

    def _take_attributes(self, sets: Mapping[str, Dataset]) -> None:
        """Sets what describes a data set from what its sets have."""
        self.info = _common_info({name: dataset.info for name, dataset in sets.items()})
        names = {n: d.class_id_names for n, d in sets.items() if "class_id" in d.info.targets}
        self.class_id_names = _common_classes(names)
        images, maps = zip(*(dataset.unpaired for dataset in self.sets), strict=True)
        self.unpaired = [*dict.fromkeys(chain(*images))], [*dict.fromkeys(chain(*maps))]
        self.notes = [note for dataset in self.sets for note in dataset.notes]
        faults = [dataset.objects_fault for dataset in self.sets]
        self.objects_fault = faults[0] if all(faults) else ""
        self.is_sharded = any(dataset.is_sharded for dataset in self.sets)
        self.reads_files = any(dataset.reads_files for dataset in self.sets)

    def __len__(self) -> int:
        return sum(self._counts)

    def __getitem__(self, index: int) -> Sample:
        return self.draw(0, index)

    def draw(self, epoch: int, index: int) -> Sample:
        number, turn, index_in_set = self.locate(epoch, index)
        sample = self.sets[number].draw(turn, index_in_set)
        self.sets[number].check(sample)
        sample["index"] = index
        return sample

    def name(self, index: int) -> str:
        number, _, index_in_set = self.locate(0, index)
        return self.sets[number].name(index_in_set)

    def check(self, sample: Sample) -> None:
        """Does nothing: :meth:`draw` lets the sample's own set check it."""

    def locate(self, epoch: int, index: int) -> tuple[int, int, int]:
        """Returns the number of the set, the completed passes through it, and the index in it."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        starts = [0, *accumulate(self._counts)]
        number = bisect_right(starts, index) - 1
        position = index - starts[number]
        if not self.is_training:
            return number, 0, position
        turn, position = divmod(epoch * self._counts[number] + position, self._sizes[number])
        return number, turn, int(self._order(epoch, number, turn)[position])

    def epoch_order(self, random: np.random.Generator) -> np.ndarray:
        if not self.is_sharded:
            return super().epoch_order(random)
        # the positions of each set stay in order: they already follow the set's own random order
        owners = random.permutation(np.repeat(np.arange(len(self._counts)), self._counts))
        order = np.empty(len(self), np.int64)
        order[np.argsort(owners, kind="stable")] = np.arange(len(self))
        return order

    def without_repeats(self) -> MixDataset:
        once = copy(self)
        once.is_training = once.changes_every_epoch = False
        once.sets = [dataset.without_repeats() for dataset in self.sets]
        once._sizes = once._counts = [len(dataset) for dataset in once.sets]
        return once

    @property
    def distinct_indices(self) -> Sequence[int]:
        starts = accumulate(self._counts, initial=0)
        numbers = zip(starts, self._counts, self._sizes, strict=False)
        return [i for start, *sizes in numbers for i in range(start, start + min(sizes))]

    @property
    def groups(self) -> Sequence[str]:
        return [group for dataset in self.sets for group in dataset.groups]

    def files(self, index: int) -> Files | None:
        number, _, index_in_set = self.locate(0, index)
        return self.sets[number].files(index_in_set)

    def damaged_files(self) -> Sequence[str]:
        return [line for dataset in self.sets for line in dataset.damaged_files()]

    def preload(self) -> None:
        for dataset in self.sets:
            dataset.preload()

    def validate(self, *, limit: int = 16) -> list[str]:
        return [line for d in self.sets for line in d.validate(limit=limit)]

    def _order(self, epoch: int, number: int, turn: int) -> np.ndarray:
        """Returns the permutation of a set for one pass through it; keeps those of one epoch."""
        key = (epoch, number, turn)
        if key not in self._orders:
            self._orders = {k: order for k, order in self._orders.items() if k[0] == epoch}
            random = np.random.default_rng(np.random.SeedSequence((0, number, turn)))
            self._orders[key] = self.sets[number].epoch_order(random)
        return self._orders[key]


def _make_set(name: str, make: Callable[[str], Dataset], split: str) -> Dataset:
    try:
        dataset = make(split)
    except DataError as error:
        raise DataError(f"data.sets.{name}: {error}") from None
    if len(dataset) == 0:
        raise DataError(f"data.sets.{name}: the data set is empty")
    return dataset


def _apportion(weights: Sequence[float], total: int) -> list[int]:
    """Returns whole numbers in the ratio of the weights that sum to ``total`` (largest
    remainders)."""
    exact = [weight * total / sum(weights) for weight in weights]
    counts = [int(number) for number in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _common_info(infos: Mapping[str, DatasetInfo]) -> DatasetInfo:
    """Returns the targets of all sets, their common classes, and the widest depth range."""
    targets: tuple[Target, ...] = tuple(dict.fromkeys(t for i in infos.values() for t in i.targets))
    named: Target = "labels" if "labels" in targets else "class_id"
    with_names = {name: info for name, info in infos.items() if named in info.targets}
    palettes = [info.palette for info in with_names.values() if info.palette]
    things = {info.things for info in infos.values() if info.things}
    if len(things) > 1:
        raise DataError("data.sets differ in the classes that are things: set data.things of each")
    return replace(
        _common_depth([info for info in infos.values() if "depth" in info.targets]),
        targets=targets,
        class_names=_common_classes({name: i.class_names for name, i in with_names.items()}),
        palette=palettes[0] if palettes else (),
        things=next(iter(things), ()),
    )


def _common_depth(infos: Sequence[DatasetInfo]) -> DatasetInfo:
    """Returns the smallest ``min_depth``, the largest ``max_depth`` if any is known, and whether
    all sets have metres."""
    return DatasetInfo(
        targets=(),
        min_depth=min((info.min_depth for info in infos), default=DatasetInfo.min_depth),
        max_depth=max((info.max_depth for info in infos if info.max_depth), default=None),
        has_metres=all(info.has_metres for info in infos),
    )


def _common_classes(names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Returns the list of classes of all sets; a DataError names two sets that differ."""
    first, expected = next(iter(names.items()), ("", ()))
    for name, classes in names.items():
        if classes != expected:
            fault = f"data.sets.{name} has the classes {few(classes)}, and {first} {few(expected)}"
            raise DataError(f"{fault}: give all the same, or switch off the labels of one")
    return expected
