from collections import Counter

import pytest

from dpt.data import EpochSampler, samplers


def on_rank(monkeypatch, rank: int, world: int) -> None:
    monkeypatch.setattr(samplers, "_rank_and_world", lambda: (rank, world))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 7, 12])
def test_evaluation_covers_each_index_once(monkeypatch, world, length):
    sampler = EpochSampler(length, seed=0, shuffle=False)
    sampler.set_epoch(3)
    seen = []
    for rank in range(world):
        on_rank(monkeypatch, rank, world)
        shard = list(sampler)
        assert len(sampler) == len(shard)
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


def test_ranks_share_one_permutation(monkeypatch):
    sampler = EpochSampler(10, seed=4, shuffle=True)
    whole = list(sampler)
    on_rank(monkeypatch, 1, 3)
    assert list(sampler) == [*whole, *whole][1:12:3]


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


def test_rank_is_read_from_the_process_group(tmp_path):
    import torch.distributed as dist

    assert samplers._rank_and_world() == (0, 1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        assert samplers._rank_and_world() == (0, 1)
    finally:
        dist.destroy_process_group()
