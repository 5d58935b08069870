"""Predictors that use no trained model, on data where their scores are known."""

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
    assert set(scores) == {"constant", "nearest photo"}
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


def photo(gray, **labels):
    return {"image": np.full((*SIZE, 3), gray, np.uint8), "name": f"photo {gray}", **labels}


def test_the_nearest_photo_is_repeated():
    """Of two scenes, bright and dark, each has labels of its own."""
    dark, bright = (halves(*ids, np.uint8) for ids in ((0, 1), (2, 1)))
    train = Listed([photo(10, labels=dark), photo(240, labels=bright), photo(200)])
    unlabelled = bright.copy()
    unlabelled[:2] = 255
    val = Listed([photo(30, labels=dark), photo(210, labels=unlabelled)])
    objective = {"segmentation": SegmentationObjective(num_classes=3)}
    scores = trivial_scores(objective, train, val, SIZE)
    assert scores["nearest photo"]["val/miou"] == 1  # a photo without labels is passed over
    assert scores["per position"]["val/miou"] < 0.8


def test_a_photo_is_not_its_own_neighbour():
    samples = [photo(10 + k, **depth_sample(left=2.0 + k)) for k in range(3)]
    data = Listed(samples)
    scores = trivial_scores({"depth": DepthObjective(max_depth=10.0)}, data, data, SIZE)
    assert scores["nearest photo"]["val/abs_rel"] > 0.1


def test_unknown_depth_of_the_nearest_photo_is_its_median():
    train = [photo(10, **depth_sample()), photo(20, **depth_sample())]
    train[0]["valid"][:, 6:] = False
    val = Listed([photo(12, **depth_sample())])
    scores = trivial_scores({"depth": DepthObjective(max_depth=10.0)}, Listed(train), val, SIZE)
    assert scores["nearest photo"]["val/abs_rel"] == pytest.approx(0.4 * 6 / 8)


def test_image_level_targets_of_the_nearest_photo():
    train = Listed([photo(10, class_id=2, value=4.0), photo(240, class_id=1, value=8.0)])
    val = Listed([photo(20, class_id=2, value=5.0)])
    objectives = {"classification": ClassificationObjective(num_classes=3),
                  "regression": RegressionObjective()}  # fmt: skip
    scores = trivial_scores(objectives, train, val, SIZE)["nearest photo"]
    assert scores["val/accuracy"] == 1
    assert scores["val/mae"] == pytest.approx(1)


class Counted(Listed):
    """Counts how often samples are read."""

    read = 0

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)


def test_each_sample_is_read_once():
    sizes = [(16, 20), (24, 30)] * 5
    val = Counted([{"labels": halves(0, 1, np.uint8, size=size)} for size in sizes])
    train = Counted([{"labels": halves(0, 1, np.uint8)}] * 3)
    objective = {"segmentation": SegmentationObjective(num_classes=2)}
    scores = trivial_scores(objective, train, val, SIZE)
    assert scores["nearest photo"]["val/miou"] == 1
    assert (train.read, val.read) == (len(train), len(val))


@pytest.mark.slow
def test_workers_do_not_matter():
    samples = [photo(10 * k, **depth_sample(left=2.0 + k)) for k in range(5)]
    data, objectives = Listed(samples), {"depth": DepthObjective(max_depth=10.0)}
    alone, others = (trivial_scores(objectives, data, data, SIZE, num_workers=n) for n in (0, 2))
    assert alone == others


@pytest.mark.slow
def test_real_photos(shared_data):
    """What a model must beat; ``pytest -s -m slow -k real_photos`` prints the guide's figures."""
    from dpt.data.datasets.folder import FolderDataset

    options = {
        "camvid": {"labels": "masks", "num_classes": 11, "ignore_index": 11},
        "rgbd": {"depth": "depth", "depth_scale": 0.001, "invalid_depth": [0, 65535],
                 "max_depth": 10.0},
    }  # fmt: skip
    objectives = {"camvid": {"segmentation": SegmentationObjective(num_classes=11)},
                  "rgbd": {"depth": DepthObjective(max_depth=10.0)}}  # fmt: skip
    found = {}
    for name, arguments in options.items():
        sets = [FolderDataset(root=shared_data / name, split=split, **arguments)
                for split in ("train", "val")]  # fmt: skip
        scores = trivial_scores(objectives[name], *sets, (192, 256))
        print({kind: {k: round(v, 3) for k, v in row.items() if k.count("/") == 1}
               for kind, row in scores.items()})  # fmt: skip
        found[name] = scores
    guide = {  # constant, per position, nearest photo
        ("camvid", "val/miou"): (0.027, 0.167, 0.353),
        ("camvid", "val/pixel_accuracy"): (0.295, 0.590, 0.750),
        ("rgbd", "val/abs_rel"): (0.318, 0.300, 0.229),
        ("rgbd", "val/delta1"): (0.677, 0.377, 0.627),
        ("rgbd", "val/rmse"): (0.506, 0.526, 0.441),
        ("rgbd", "val/rmse_pooled"): (0.513, 0.527, 0.472),
    }
    for (name, key), expected in guide.items():
        scores = [found[name][kind][key] for kind in ("constant", "per position", "nearest photo")]
        assert scores == pytest.approx(expected, abs=1e-3), (name, key)
