"""Which samples come next: one sampler for training and evaluation, on any number of ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch.distributed as dist
import torch.utils.data


@dataclass(eq=False)
class EpochSampler(torch.utils.data.Sampler[tuple[int, int]]):
    """Yields (epoch, index), so that workers have the epoch.

    Training (``shuffle``): a permutation drawn from (seed, epoch), the same on every rank, of which
    each rank takes every world-th entry; some are repeated so that all ranks get the same number.
    Evaluation: 0..length-1 shared out without padding, so that each image counts exactly once on
    any number of ranks; always as epoch 0.

    Rank and world size are read when iterating: the sampler may be built before the process group.
    ``order`` draws the permutations, int (length,); None draws plain ones. ``part`` are the indices
    that evaluation takes in place of all.
    """

    length: int
    _: KW_ONLY
    seed: int
    shuffle: bool
    order: Callable[[np.random.Generator], np.ndarray] | None = None
    part: Sequence[int] | None = None

    epoch = 0
    start = 0  # entries of this rank already used in this epoch, when resuming inside it

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutation; Lightning calls it before every epoch."""
        self.start = self.start if epoch == self.epoch else 0
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns the number of this rank's indices in a whole epoch, whatever ``start`` is."""
        rank, world = _rank_and_world()
        return len(range(rank, self._total(world), world))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.arange(self.length) if self.part is None else np.array(self.part)
        if self.shuffle:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, self.epoch)))
            order = random.permutation(self.length) if self.order is None else self.order(random)
        rank, world = _rank_and_world()
        for index in np.resize(order, self._total(world))[rank::world][self.start :]:
            yield self.epoch if self.shuffle else 0, int(index)

    def _total(self, world: int) -> int:
        if self.shuffle:
            return -(-self.length // world) * world
        return self.length if self.part is None else len(self.part)


def nearby_permutation(
    sizes: Sequence[int], *, window: int, random: np.random.Generator
) -> np.ndarray:
    """Draws an order of the samples of shards, int (sum(sizes),), with few shards in use at once.

    Shards are shuffled. Each sample of the shard at position p gets a random key in p ± window/2
    (cut at both ends); samples are sorted by key. At most ``window`` + 1 shards are then in use at
    a time (``window`` is at least 1). If it is twice their number, every order is equally likely.
    """
    count = len(sizes)
    position = np.empty(count)
    position[random.permutation(count)] = np.arange(count)
    begin = np.maximum(position - window / 2, -0.5)
    end = np.minimum(position + window / 2, count - 0.5)
    shard = np.repeat(np.arange(count), sizes)
    return np.argsort(random.uniform(begin[shard], end[shard]))


def _rank_and_world() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
