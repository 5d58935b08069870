"""Several data sets as one: mixed training by weights, where each set labels what it labels."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np

from dpt.data.base import DataError, Dataset, at_hand, draw
from dpt.types import DatasetInfo, Sample, Target


class MixDataset:
    """Draws from several data sets by weight.

    Training: an epoch has ``length`` places, of which each set owns its share, exact to one place.
    A set fills its places from a permutation of its samples that goes on from epoch to epoch:
    each sample is used once before any is used again, whatever the weight. A large set with few
    places is so seen whole in time, and a small one with many several times an epoch.

    Which sample fills a place depends on (seed, epoch, place) alone. Order, sharding over ranks,
    augmentation and resuming are those of any other data set, with the same guarantees: ranks get
    distinct places, and batches do not depend on the number of workers. Sets that are quick in
    some orders alone (packed ones) are gone through in such an order.

    Other splits: the sets one after the other, each sample once, without weights.

    A sample carries the labels that its set has; the loader fills in the others as ignored.

    Args:
        sets: for each set a function from a split's name to the data set.
        split: ``train``, ``val``, ...
        weights: each set's share of the training samples, in any unit; sets not named weigh 1.
        length: samples of a training epoch; None for as many as the sets have together.
        val_on: the set, or sets, that splits other than ``train`` consist of; None for all.
        seed: of the permutations.
    """

    def __init__(
        self,
        *,
        sets: Mapping[str, Callable[[str], Any]],
        split: str,
        weights: Mapping[str, float] | None = None,
        length: int | None = None,
        val_on: str | Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        weights = weights or {}
        if not sets:
            raise DataError("data.sets is empty: add some, as in +data@data.sets.camvid=camvid")
        chosen = [val_on] if isinstance(val_on, str) else list(val_on or sets)
        unknown = [name for name in (*weights, *chosen) if name not in sets]
        if unknown:
            raise DataError(
                f"data.weights or data.val_on name {', '.join(unknown)}, but data.sets has "
                f"{', '.join(sets)}"
            )
        self.is_training = split == "train"
        names = list(sets) if self.is_training else chosen
        self.sets: dict[str, Dataset] = {name: _built(name, sets[name], split) for name in names}
        self._sizes = [len(dataset) for dataset in self.sets.values()]
        self._counts = self._sizes
        if self.is_training:
            shares = {name: float(weights.get(name, 1.0)) for name in names}
            self._counts = _share_out(shares, sum(self._sizes) if length is None else length)
        self._ends = list(accumulate(self._counts))
        self.seed = seed
        self.info = _common_info({name: dataset.info for name, dataset in self.sets.items()})
        self.class_id_names = _agreed(
            {
                name: tuple(cast(Any, dataset).class_id_names)  # every set with this target has it
                for name, dataset in self.sets.items()
                if "class_id" in dataset.info.targets
            }
        )
        self.order = self._merged if any(hasattr(d, "order") for d in self.sets.values()) else None
        self._orders: dict[tuple[int, int], np.ndarray] = {}
        self._orders_of = 0  # the epoch they belong to

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        return self.draw(0, index)

    def draw(self, epoch: int, index: int) -> Sample:
        """The sample at a place of an epoch."""
        number, turn, own_index = self.locate(epoch, index)
        sample = draw(list(self.sets.values())[number], turn, own_index)
        sample["index"] = index
        return sample

    def locate(self, epoch: int, index: int) -> tuple[int, int, int]:
        """Which sample fills a place: the set's number, how often that set has been gone through
        before, and the index in the set."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is not in 0..{len(self) - 1}")
        number = bisect_right(self._ends, index)
        place = index - (self._ends[number] - self._counts[number])
        if not self.is_training:
            return number, 0, place
        turn, place = divmod(epoch * self._counts[number] + place, self._sizes[number])
        return number, turn, int(self._order(epoch, number, turn)[place])

    @property
    def at_hand(self) -> Sequence[int]:
        """The first places of each set, as many as it has samples that cost little to read."""
        starts = [end - count for end, count in zip(self._ends, self._counts, strict=True)]
        return [
            start + place
            for start, count, dataset in zip(starts, self._counts, self.sets.values(), strict=True)
            for place in range(min(count, len(at_hand(dataset))))
        ]

    def preload(self) -> None:
        """Fills the caches of the sets that have one, before workers start."""
        for dataset in self.sets.values():
            if hasattr(dataset, "preload"):
                dataset.preload()

    def validate(self, *, limit: int = 16, seed: int = 0) -> list[str]:
        """Reads some samples of each set; raises DataError for what would spoil a run."""
        return [
            remark
            for dataset in self.sets.values()
            if hasattr(dataset, "validate")
            for remark in dataset.validate(limit=limit, seed=seed)
        ]

    def _merged(self, random: np.random.Generator) -> np.ndarray:
        """All places, those of each set in their order, which is one of its own already."""
        owners = random.permutation(np.repeat(np.arange(len(self._counts)), self._counts))
        order = np.empty(len(self), np.int64)
        order[np.argsort(owners, kind="stable")] = np.arange(len(self))
        return order

    def _order(self, epoch: int, number: int, turn: int) -> np.ndarray:
        """The permutation of a set for one turn through it; those of an epoch are kept."""
        if epoch != self._orders_of:
            self._orders.clear()
            self._orders_of = epoch
        if (number, turn) not in self._orders:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, number, turn)))
            own = getattr(list(self.sets.values())[number], "order", None)
            self._orders[number, turn] = (
                random.permutation(self._sizes[number]) if own is None else own(random)
            )
        return self._orders[number, turn]


def _built(name: str, make: Callable[[str], Any], split: str) -> Any:
    try:
        dataset = make(split)
    except DataError as error:  # which speaks of data.root, as if the set were alone
        raise DataError(f"data.sets.{name}: {error}") from None
    if len(dataset) == 0:
        raise DataError(f"data.sets.{name}: the data set is empty")
    return dataset


def _share_out(weights: Mapping[str, float], total: int) -> list[int]:
    """Whole numbers in the ratio of the weights that sum to ``total`` (largest remainders)."""
    if not all(math.isfinite(w) and w > 0 for w in weights.values()):
        raise DataError(f"data.weights={dict(weights)}: must be above 0; leave out other sets")
    if total < 1:
        raise DataError(f"data.length={total}: must be at least 1")
    exact = [w * total / sum(weights.values()) for w in weights.values()]
    counts = [int(e) for e in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def _common_info(infos: Mapping[str, DatasetInfo]) -> DatasetInfo:
    """What the mix gives: the labels of any set, one list of classes, the widest depth range."""
    targets: tuple[Target, ...] = tuple(dict.fromkeys(t for i in infos.values() for t in i.targets))
    named: Target = "labels" if "labels" in targets else "class_id"
    with_names = {name: info for name, info in infos.items() if named in info.targets}
    with_depth = [info for info in infos.values() if "depth" in info.targets]
    return DatasetInfo(
        targets=targets,
        class_names=_agreed({name: info.class_names for name, info in with_names.items()}),
        palette=next((info.palette for info in with_names.values() if info.palette), ()),
        min_depth=min((info.min_depth for info in with_depth), default=DatasetInfo.min_depth),
        max_depth=max((info.max_depth for info in with_depth if info.max_depth), default=None),
    )


def _agreed(names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The one list of classes that all have; a DataError names two sets that differ."""
    (first, expected), *others = names.items() or [("", ())]
    for name, found in others:
        if found != expected:
            raise DataError(
                f"data.sets.{first} has {len(expected)} classes ({', '.join(expected[:3])}, ...), "
                f"data.sets.{name} has {len(found)} ({', '.join(found[:3])}, ...): a mix has one "
                f"list of classes; give both the same, or let one give no labels (for most sets "
                f"data.sets.{name}.labels=null)"
            )
    return expected
