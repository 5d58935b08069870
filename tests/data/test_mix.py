"""Several data sets as one: fractions, turns, ranks, workers, labels that some lack."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_loading import equal

from dpt.data import DataError, Dataset, MixDataset, TrainTransform, make_loader
from dpt.data.loading import LoaderSettings
from dpt.types.samples import DatasetInfo, Sample

DEPTH = DatasetInfo(targets=("depth",), max_depth=10.0, min_depth=0.1)
LABELS = DatasetInfo(targets=("labels",), class_names=("sky", "road"), palette=((1, 2, 3),) * 2)
STREETS = replace(LABELS, class_names=("sky", "street"))
ONE, TWO = (replace(LABELS, things=things) for things in ((True, False), (True, True)))


class Numbers(Dataset):
    """Grey pictures of brightness ``first + index``, with the labels that ``info`` names."""

    def __init__(self, length: int, *, info: DatasetInfo = LABELS, first: int = 0) -> None:
        self.length, self.info, self.first = length, info, first
        self.preloaded = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        shape = (32, 40)
        sample: Sample = {"image": np.full((*shape, 3), self.first + index, np.uint8)}
        if "labels" in self.info.targets:
            sample["labels"] = np.full(shape, index % 2, np.uint8)
        if "depth" in self.info.targets:
            sample["depth"] = np.full(shape, 1 + index % 7, np.float32)
            sample["valid"] = np.ones(shape, bool)
        return sample

    def preload(self) -> None:
        self.preloaded += 1

    def validate(self, *, limit: int) -> list[str]:
        return [f"{self.length} numbers"]


def mix(split="train", sets=None, **options):
    """The set a of 10 numbers with labels, b of 60 with depth, c of 5 with labels."""
    if sets is None:
        b = Numbers(60, info=DEPTH, first=100)
        sets = {"a": Numbers(10), "b": b, "c": Numbers(5, first=200)}
    factories = {name: lambda split, dataset=dataset: dataset for name, dataset in sets.items()}
    return MixDataset(sets=factories, split=split, **options)


def drawn(dataset, epoch):
    """The brightness of every position of an epoch: it tells the set and the sample."""
    return [int(dataset.draw(epoch, i)["image"][0, 0, 0]) for i in range(len(dataset))]


def set_of(value):
    return "a" if value < 100 else "b" if value < 200 else "c"


# ------------------------------------------------------------------------- fractions and turns


@pytest.mark.parametrize(
    ("weights", "length", "expected"),
    [
        (None, None, {"a": 25, "b": 25, "c": 25}),
        ({"a": 2, "b": 1, "c": 1}, 100, {"a": 50, "b": 25, "c": 25}),
        ({"a": 0.2, "b": 0.3, "c": 0.5}, 10, {"a": 2, "b": 3, "c": 5}),
        ({"b": 2}, 10, {"a": 3, "b": 5, "c": 2}),  # 2.5, 5, 2.5: a place goes to the first
    ],
)
def test_mix_counts_follow_the_weights(weights, length, expected):
    dataset = mix(weights=weights, length=length)
    for epoch in range(3):
        assert Counter(map(set_of, drawn(dataset, epoch))) == expected


def test_mix_each_sample_once_before_any_again():
    """b of 60 gets 16 places an epoch, c of 5 gets 8: turns end inside epochs."""
    dataset = mix(weights={"a": 1, "b": 2, "c": 1}, length=32)
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for epoch in range(15):
        for value in drawn(dataset, epoch):
            seen[set_of(value)].append(value)
    for name, size in {"a": 10, "b": 60, "c": 5}.items():
        turns = [seen[name][i : i + size] for i in range(0, len(seen[name]), size)]
        assert len(turns) >= 4
        assert all(len(set(turn)) == len(turn) for turn in turns)
        assert turns[0] != turns[1]  # in another order
    assert len(set(seen["b"])) == 60


# ------------------------------------------------------------------------- workers


def two_epochs(num_workers, start=0):
    loader = make_loader(
        mix(weights={"b": 2}, length=24),
        TrainTransform(image_size=[32, 32], zoom=[1.0, 2.0], color=0.5),
        LoaderSettings(batch_size=4, num_workers=num_workers),
        ("labels", "depth"),
        training=True,
        seed=3,
    )
    loader.sampler.start = start
    batches = list(loader)
    loader.sampler.set_epoch(1)
    return batches + list(loader)


def test_mix_batches_do_not_depend_on_workers():
    alone = two_epochs(0)
    assert len(alone) == 12
    assert equal(two_epochs(2), alone)


def test_mix_resumed_inside_an_epoch_goes_on_as_if_nothing_had_happened():
    assert equal(two_epochs(0, start=8), two_epochs(0)[2:])


# ------------------------------------------------------------------------- other splits, info


def test_mix_validation_takes_each_sample_once():
    dataset = mix("val", weights={"a": 9}, length=3)
    assert drawn(dataset, 0) == drawn(dataset, 5)
    assert drawn(dataset, 0) == [*range(10), *range(100, 160), *range(200, 205)]
    assert dataset[12]["index"] == 12


def test_mix_without_repeats_takes_each_sample_once():
    train = mix(weights={"b": 50}, sets={"a": Numbers(3), "b": mix(length=7)})
    once = train.without_repeats()
    assert len(once) == 3 + 75 != len(train)
    values = [int(once.draw(epoch, i)["image"][0, 0, 0]) for epoch in (0, 5) for i in range(78)]
    assert values == 2 * [*range(3), *range(10), *range(100, 160), *range(200, 205)]
    assert not once.changes_every_epoch
    assert train.changes_every_epoch


def test_mix_val_on_one_set_does_not_ask_for_the_others():
    def absent(split):
        assert split == "train"
        return Numbers(60, info=DEPTH)

    sets = {"a": lambda split: Numbers(10), "b": absent}
    assert len(MixDataset(sets=sets, split="val", val_on="a")) == 10
    assert len(MixDataset(sets=sets, split="train", val_on="a")) == 70
    three = {**sets, "c": lambda split: Numbers(5, first=200)}
    both = MixDataset(sets=three, split="val", val_on=["c", "a"])
    assert drawn(both, 0) == [*range(200, 205), *range(10)]


def test_mix_info_is_common():
    wide = replace(DEPTH, min_depth=0.5, max_depth=80.0)
    made = {"a": Numbers(4), "b": Numbers(4, info=DEPTH), "c": Numbers(4, info=wide)}
    info = mix(sets=made).info
    targets = ("labels", "depth")
    assert info == replace(LABELS, targets=targets, min_depth=0.1, max_depth=80.0)
    assert mix(sets={"b": made["b"]}).info == DEPTH
    assert mix(sets={"a": made["a"]}).info == LABELS


# ------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"sets": {}}, "data.sets"),
        ({"weights": {"x": 1}}, "data.weights or data.val_on name"),
        ({"val_on": "y"}, "data.weights or data.val_on name"),
        ({"sets": {"a": Numbers(0)}}, "data.sets.a: "),
        ({"sets": {"a": Numbers(3), "b": Numbers(3, info=STREETS)}}, "data.sets.b has the classes"),
        ({"sets": {"a": Numbers(3, info=ONE), "b": Numbers(3, info=TWO)}}, "things"),
    ],
)
def test_mix_wrong_settings_are_named(options, key):
    with pytest.raises(DataError, match=key):
        mix(**options)
