"""Predictors that never look at the image, on data where their scores are known."""

import numpy as np
import pytest
import torch

from dpt.data import Dataset
from dpt.evaluation.baselines import trivial_scores
from dpt.objectives import (
    ClassificationObjective,
    DepthObjective,
    RegressionObjective,
    SegmentationObjective,
)
from dpt.types import DatasetInfo

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method")

SIZE = (8, 10)


class Listed(Dataset):
    """Samples from a list."""

    info = DatasetInfo(targets=("depth", "labels", "class_id", "value"), max_depth=10.0)

    def __init__(self, samples):
        self.samples = [{"image": np.zeros((*SIZE, 3), np.uint8), **s} for s in samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def halves(left, right, dtype, size=SIZE, share=0.6):
    """``left`` in the left 60 % of the frame, ``right`` in the rest."""
    array = np.full(size, right, dtype)
    array[:, : round(share * size[1])] = left
    return array


def depth_sample(left=2.0, right=8.0, **options):
    depth = halves(left, right, np.float32, **options)
    return {"depth": depth, "valid": depth > 0}


def test_depth():
    data = Listed([depth_sample() for _ in range(4)])
    scores = trivial_scores({"depth": DepthObjective(max_depth=10.0)}, data, data, SIZE)
    assert scores["per position"]["val/abs_rel"] == pytest.approx(0, abs=1e-6)
    # the median is 2 m everywhere: 40 % of the pixels are off by 6 of 8 metres
    assert scores["constant"]["val/abs_rel"] == pytest.approx(0.4 * 6 / 8)
    assert scores["constant"]["val/delta1"] == pytest.approx(0.6)


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_cache_may_hold_read_only_arrays():
    samples = [depth_sample() for _ in range(4)]
    for sample in samples:
        sample["depth"].setflags(write=False)
    data = Listed(samples)
    torch.set_warn_always(True)
    try:
        trivial_scores({"depth": DepthObjective(max_depth=10.0)}, data, data, SIZE)
    finally:
        torch.set_warn_always(False)


def test_relative_depth_is_scored_after_alignment():
    data = Listed([depth_sample() for _ in range(4)])
    objective = DepthObjective(kind="relative", max_depth=10.0)
    scores = trivial_scores({"depth": objective}, data, data, SIZE)
    assert scores["per position"]["val/abs_rel"] == pytest.approx(0, abs=1e-4)
    assert scores["constant"]["val/abs_rel"] > 0.1


def test_depth_learns_from_valid_pixels_alone():
    samples = [depth_sample() for _ in range(3)]
    for sample in samples:
        sample["valid"][:, :2] = False  # one place never measured
        sample["depth"][:, :2] = 0
    scores = trivial_scores(
        {"depth": DepthObjective(max_depth=10.0)}, Listed(samples), Listed([depth_sample()]), SIZE
    )
    assert scores["per position"]["val/abs_rel"] < scores["constant"]["val/abs_rel"]
    assert all(np.isfinite(v) for v in scores["per position"].values())


def test_labels_at_another_size_and_with_ignored_pixels():
    train = Listed([{"labels": halves(2, 1, np.uint8)} for _ in range(3)])
    labels = halves(2, 1, np.uint8, size=(16, 20))
    labels[:4] = 255
    scores = trivial_scores(
        {"segmentation": SegmentationObjective(num_classes=3)}, train, Listed([{"labels": labels}]),
        SIZE,
    )  # fmt: skip
    assert scores["per position"]["val/pixel_accuracy"] == 1
    assert scores["per position"]["val/miou"] == 1
    assert scores["constant"]["val/pixel_accuracy"] == pytest.approx(0.6)
    assert scores["constant"]["val/miou"] == pytest.approx((0.6 + 0) / 2)


def test_image_level_targets_have_a_constant_alone():
    train = Listed([{"class_id": c, "value": v} for c, v in [(1, 2.0), (1, 4.0), (0, 6.0)]])
    val = Listed([{"class_id": c, "value": v} for c, v in [(1, 4.0), (0, 1.0)]])
    objectives = {"classification": ClassificationObjective(num_classes=3),
                  "regression": RegressionObjective()}  # fmt: skip
    scores = trivial_scores(objectives, train, val, SIZE)
    assert set(scores) == {"constant"}
    assert scores["constant"]["val/accuracy"] == 0.5
    assert scores["constant"]["val/mae"] == pytest.approx(1.5)  # 4 is said of 4 and of 1


def test_joint_with_partial_labels():
    samples = [depth_sample(), {"labels": halves(0, 1, np.uint8)}] * 3
    objectives = {"depth": DepthObjective(max_depth=10.0),
                  "segmentation": SegmentationObjective(num_classes=2)}  # fmt: skip
    scores = trivial_scores(objectives, Listed(samples), Listed(samples), SIZE)
    assert scores["per position"]["val/abs_rel"] == pytest.approx(0, abs=1e-6)
    assert scores["per position"]["val/miou"] == 1


def test_a_label_that_is_not_among_the_samples_seen():
    """Every second image has depth, and of 400 every second one is looked at."""
    samples = [{"labels": halves(0, 1, np.uint8)}, depth_sample()] * 200
    objectives = {"depth": DepthObjective(max_depth=10.0),
                  "segmentation": SegmentationObjective(num_classes=2)}  # fmt: skip
    scores = trivial_scores(objectives, Listed(samples), Listed(samples[:4]), SIZE)
    assert scores["per position"]["val/miou"] == 1


def test_objectives_are_left_empty():
    data = Listed([depth_sample()])
    objective = DepthObjective(max_depth=10.0)
    trivial_scores({"depth": objective}, data, data, SIZE)
    assert np.isnan(objective.compute()["abs_rel"])
