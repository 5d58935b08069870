"""Which samples come next: one sampler for training and evaluation, on any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch.distributed as dist
import torch.utils.data


class EpochSampler(torch.utils.data.Sampler[tuple[int, int]]):
    """Yields (epoch, index), so that the workers know the epoch too.

    Training (``shuffle``): a permutation drawn from (seed, epoch), the same on every rank, of
    which each rank takes every world-th entry; it wraps round so that all ranks get the same
    number. Evaluation: the unpadded shards of 0..length-1, so that each image counts exactly once
    on any number of ranks, some ranks having one more; always as epoch 0.

    Rank and world size are read when iterating: the sampler may be built before the processes
    meet.

    Args:
        length: of the data set.
        seed: of the permutations.
        shuffle: draw a new order every epoch.
        pad: give every rank the same number of indices by repeating some; None means: as
            ``shuffle``. Needed where ranks wait for one another at every step.
    """

    def __init__(self, length: int, *, seed: int, shuffle: bool, pad: bool | None = None) -> None:
        self.length = length
        self.seed = seed
        self.shuffle = shuffle
        self.pad = shuffle if pad is None else pad
        self.epoch = 0
        self.start = 0  # entries of this rank already used in this epoch, when resuming inside it

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutation; Lightning calls it before every epoch."""
        if epoch != self.epoch:
            self.start = 0
        self.epoch = epoch

    def __len__(self) -> int:
        """How many indices this rank gets in a whole epoch, wherever in it it starts."""
        rank, world = _rank_and_world()
        total = -(-self.length // world) * world if self.pad else self.length
        return len(range(rank, total, world))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        rank, world = _rank_and_world()
        if self.shuffle:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, self.epoch)))
            order = random.permutation(self.length)
        else:
            order = np.arange(self.length)
        if self.pad:
            order = np.resize(order, -(-self.length // world) * world)
        epoch = self.epoch if self.shuffle else 0
        for index in order[rank::world][self.start :]:
            yield epoch, int(index)


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
