"""What masks say about training: fractions, the width of structures, and whether there is an up."""

import numpy as np
import pytest

from dpt.data.statistics import statistics_of, uprightness_of, width_of

SIDE = 96


def strip(width):
    mask = np.zeros((SIDE, SIDE), bool)
    mask[:, 20 : 20 + width] = True
    return mask


@pytest.mark.parametrize(("width", "expected"), [(2, 2), (4, 4), (10, 10), (40, 40)])
def test_width_of_a_strip(width, expected):
    assert width_of(strip(width)) == pytest.approx(expected, abs=0.01)
    assert width_of(strip(width).T) == pytest.approx(expected, abs=0.01)


def test_statistics_leave_out_unlabelled_pixels_and_the_most_frequent_class():
    labels = np.zeros((SIDE, SIDE), np.uint8)
    labels[strip(4)] = 1
    labels[-SIDE // 2 :] = 255
    statistics = statistics_of([labels, labels], 3)
    assert statistics.counts == [SIDE * (SIDE - 4), SIDE * 4, 0]
    assert statistics.thickness == pytest.approx(4, abs=0.2)
    assert statistics.images == 2


def blocks(seed, fraction):
    random = np.random.default_rng(seed)
    return np.kron(random.random((8, 8)) < fraction, np.ones((12, 12))).astype(np.uint8)


@pytest.mark.parametrize("count", [20, 40])
def test_uprightness_of_blocks_anywhere_is_small(count):
    assert statistics_of([blocks(seed, 0.2) for seed in range(count)], 2).uprightness < 0.1


@pytest.mark.parametrize("half", [np.s_[:48], np.s_[:, :48]], ids=["top", "left"])
def test_uprightness_of_one_side_is_large(half):
    def of_half(seed):
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[half] = blocks(seed, 0.2)[half]
        return mask

    assert statistics_of([of_half(seed) for seed in range(12)], 2).uprightness > 0.4


def test_uprightness_of_equal_masks_is_the_difference_of_the_mean_masks():
    fractions = np.zeros((5, 1, 4, 4), np.float32)
    fractions[:, 0, 0, 0] = fractions[:, 0, 3, 0] = 1  # equal upside down, half so by a quarter
    assert uprightness_of(fractions) == pytest.approx(0.5)
    assert uprightness_of(np.ones((5, 1, 4, 4), np.float32)) == 0
