"""Splits as index lists: golden values, and what holds for any names."""

import numpy as np
import pytest

from dpt.data.splits import by_fraction, evenly, folds, group_names, natural_key, tiles_beside
from dpt.files import DataError

COUNTS = {"a": 3, "b": 5, "c": 4}
FRAMES = [f"{drive}_{i:02}" for drive, count in COUNTS.items() for i in range(count)]
DRIVES = [name[0] for name in FRAMES]
COPIES = [f"{i}_jpg.rf.{k}{i:07x}.jpg" for i in range(3) for k in "ab"]


def test_natural_key_orders_numbers():
    names = ["f10", "f9", "e", "f9b", "f1"]
    assert sorted(names, key=natural_key) == ["e", "f1", "f9", "f9b", "f10"]


def test_group_names():
    assert group_names(COPIES, None) == [f"{i}_jpg" for i in (0, 0, 1, 1, 2, 2)]
    assert group_names(["x/a1.png", "y/a2.png"], "a.") == ["a1", "a2"]
    assert group_names(["x/a1.png", "y/a2.png"], "(.)/a") == ["x", "y"]


@pytest.mark.parametrize(
    ("train", "val", "count"),
    [
        (["t/a_0_0.png", "t/a_64_64.png"], ["v/a_0_64.png", "v/a_64_0.png"], 2),
        (["t/a_r1_c0.png", "t/a_r0_c1.png"], ["v/a_r1_c1.png"], 1),
        (["t/a_0_0.png", "t/a_0_64.png"], ["v/b_0_0.png", "v/0003.png"], 0),  # other scenes
        (["t/IMG_2019_07_01.jpg", "t/IMG_2019_08_02.jpg"], ["v/IMG_2019_07_02.jpg"], 0),
        (["t/scan_0_0.png", "t/scan_0_1.png"], ["v/scan_1_0.png"], 0),  # images of another patient
        (["t/0001TP_00690.png", "t/0016E5_00390.png"], ["v/0016E5_07959.png"], 0),
    ],
)
def test_tiles_beside_those_of_another_split(train, val, count):
    assert len(tiles_beside(val, train)) == count


def test_folds_of_single_images_are_stretches_in_natural_order():
    names = [str(i) for i in range(20)][::-1]
    train, val = folds(names, 5, 2, gap=3)
    assert sorted(int(names[i]) for i in val) == [8, 9, 10, 11]
    assert sorted(int(names[i]) for i in train) == [*range(5), *range(15, 20)]
    assert train == sorted(train)


@pytest.mark.parametrize(("gap", "left_out"), [(2, 4), (6, 12)])
def test_folds_mix_classes_in_proportion(gap, left_out):
    names = [f"{name}{i}" for name in ("ant", "bee", "cat") for i in range(9)]
    class_ids = [k for k in range(3) for _ in range(9)]
    train, val = folds(names, 3, 1, gap, class_ids)
    assert [names[i][-1] for i in val] == [*"345"] * 3
    assert len(train) == 27 - 9 - left_out


def test_by_fraction_golden_values():
    """They are the same on every machine and in every version: scores depend on them."""
    fractions = {"train": 0.5, "val": 0.25, "test": 0.25}
    golden = {"train": [1, 3, 4, 5, 7, 8], "val": [0, 6, 9], "test": [2, 10, 11]}
    assert by_fraction(FRAMES, fractions) == golden
    golden = {"train": [*range(3, 12)], "val": [0, 1, 2]}
    assert by_fraction(DRIVES, {"train": 0.7, "val": 0.3}) == golden


def test_by_fraction_divides_labels_too():
    names = [str(i) for i in range(40)]
    splits = by_fraction(names, {"train": 0.9, "val": 0.1}, [i < 10 for i in range(40)])
    assert [len(indices) for indices in splits.values()] == [36, 4]
    assert [sum(i < 10 for i in indices) for indices in splits.values()] == [9, 1]


def test_by_fraction_of_a_new_image_moves_few():
    names = [str(i) for i in range(50)]
    before, after = (by_fraction(n, {"train": 0.9, "val": 0.1}) for n in (names, [*names, "new"]))
    assert len({*before["val"]} ^ {*after["val"]} - {50}) <= 1
    assert sorted(before["train"] + before["val"]) == [*range(50)]


@pytest.mark.parametrize("fractions", [{"train": 0.9, "val": 0.2}, {"train": 1, "val": 0}])
def test_by_fraction_of_faulty_fractions(fractions):
    with pytest.raises(DataError, match=r"data\.fractions="):
        by_fraction(FRAMES, fractions)


def test_by_fraction_needs_an_image_for_each_split():
    halves = {"train": 0.9, "val": 0.1}
    assert [len(part) for part in by_fraction(["a", "b"], halves).values()] == [1, 1]
    with pytest.raises(DataError, match=r"data\.fractions="):
        by_fraction(["a"], halves)


def test_evenly_spaced_among_each_kind_of_labels():
    names = [f"f{i}" for i in range(1, 101)]
    assert [names[i] for i in evenly(names, [[True]] * 100, 4)] == ["f1", "f26", "f51", "f76"]
    kinds = [[i % 2 == 0, i % 2 == 1] for i in range(12)]
    assert evenly(names[:12], kinds, 2) == [0, 1]
    assert evenly(names[:3], [[False], [True], [True]], None) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_splits_of_random_groups_are_whole(seed):
    random = np.random.default_rng(seed)
    groups = [f"g{k}" for k in random.integers(0, 12, random.integers(12, 60))]
    count = len(set(groups))
    fractions = by_fraction(groups, {"train": 0.6, "val": 0.4})
    for train, val in (folds(groups, count // 2, 1), fractions.values()):
        assert not {groups[i] for i in train} & {groups[i] for i in val}
        assert sorted(train + val) == [*range(len(groups))]
