from collections import Counter

import numpy as np
import pytest

from dpt.data import EpochSampler, loading
from dpt.data.loading import nearby_permutation


def on_rank(monkeypatch, rank: int, world: int) -> None:
    monkeypatch.setattr(loading, "_rank_and_world", lambda: (rank, world))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 7, 12])
def test_evaluation_covers_each_index_once(monkeypatch, world, length):
    sampler = EpochSampler(length, seed=0, shuffle=False, order=lambda random: 1 / 0)
    sampler.set_epoch(3)
    seen = []
    for rank in range(world):
        on_rank(monkeypatch, rank, world)
        shard = list(sampler)
        assert len(sampler) == len(shard)
        assert shard == sorted(shard)
        seen += shard
    assert sorted(seen) == [(0, i) for i in range(length)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [1, 7, 12])
def test_training_gives_every_rank_the_same_number(monkeypatch, world, length):
    sampler = EpochSampler(length, seed=0, shuffle=True)
    sampler.set_epoch(2)
    shards = []
    for rank in range(world):
        on_rank(monkeypatch, rank, world)
        shards.append(list(sampler))
        assert len(sampler) == len(shards[-1]) == -(-length // world)
    counts = Counter(index for shard in shards for _, index in shard)
    assert set(counts) == set(range(length))
    assert {epoch for shard in shards for epoch, _ in shard} == {2}
    if length >= world:
        assert max(counts.values()) <= 2
        assert sum(counts.values()) - length == -length % world


def test_order_depends_on_seed_and_epoch():
    def order(seed: int, epoch: int) -> list[int]:
        sampler = EpochSampler(50, seed=seed, shuffle=True)
        sampler.set_epoch(epoch)
        return [index for _, index in sampler]

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)
    assert order(0, 1) != sorted(order(0, 1))


def test_start_skips_what_was_used_in_this_epoch():
    sampler = EpochSampler(10, seed=0, shuffle=True)
    sampler.set_epoch(4)
    whole = list(sampler)
    sampler.start = 3
    sampler.set_epoch(4)
    assert list(sampler) == whole[3:]
    assert len(sampler) == 10  # of the whole epoch: the trainer counts the batches used before
    sampler.set_epoch(5)
    assert len(list(sampler)) == 10


# ------------------------------------------------------------------------- orders of shards


def shards_in_use(order, sizes):
    """Counts the shards that are begun and not done with, at every position of an order."""
    shard = np.repeat(np.arange(len(sizes)), sizes)[order]
    positions = [np.flatnonzero(shard == number) for number in range(len(sizes))]
    begin, end = np.array([(p[0], p[-1]) for p in positions]).T
    at = np.arange(len(order))[:, None]
    return ((begin <= at) & (at <= end)).sum(1)


@pytest.mark.parametrize(("count", "window"), [(1, 1), (1, 9), (40, 1), (40, 7), (40, 200)])
def test_nearby_permutation_is_one_and_needs_few_shards_at_a_time(count, window):
    random = np.random.default_rng(count + window)
    sizes = random.integers(1, 30, count)
    order = nearby_permutation(sizes, window=window, random=random)
    assert sorted(order) == list(range(sizes.sum()))
    assert shards_in_use(order, sizes).max() <= window + 1
