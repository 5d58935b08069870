"""Predictors that use no trained model, on data where their scores are known."""

import numpy as np
import pytest
from listed import Listed

from dpt.data.loading import LoaderSettings
from dpt.evaluation.baselines import trivial_scores
from dpt.objectives import (
    ClassificationObjective,
    DepthObjective,
    RegressionObjective,
    SegmentationObjective,
)

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method")

SIZE = (8, 10)


def halves(left, right, dtype, size=SIZE):
    """``left`` in the left 60 % of the frame, ``right`` in the rest."""
    array = np.full(size, right, dtype)
    array[:, : round(0.6 * size[1])] = left
    return array


def depth_sample(left=2.0):
    depth = halves(left, 8.0, np.float32)
    return {"depth": depth, "valid": depth > 0}


def labels_sample(left=0, size=SIZE):
    return {"labels": halves(left, 1, np.uint8, size)}


def gray_sample(gray, **labels):
    return {"image": np.full((*SIZE, 3), gray, np.uint8), "name": f"image {gray}", **labels}


def baselines(train, val=None, **objectives):
    """Scores of objectives, by default those of the labels that the first sample has."""
    usual = {
        "depth": DepthObjective(max_depth=10.0),
        "labels": SegmentationObjective(num_classes=3),
    }
    heads = objectives or {o.head: o for key, o in usual.items() if any(key in s for s in train)}
    val = train if val is None else val
    settings = LoaderSettings(image_size=SIZE, num_workers=0)
    datasets = Listed(train, SIZE), Listed(val, SIZE)
    return trivial_scores(heads, *datasets, range(len(val)), settings)


def test_depth_baselines_are_medians():
    scores = baselines([depth_sample()] * 4)
    assert scores["per position"]["val/abs_rel"] == pytest.approx(0, abs=1e-6)
    # the median is 2 m everywhere: 40 % of the pixels are off by 6 of 8 metres
    assert scores["constant"]["val/abs_rel"] == pytest.approx(0.4 * 6 / 8)
    assert scores["constant"]["val/delta1"] == pytest.approx(0.6)


def test_depth_baselines_use_valid_pixels_alone():
    samples = [depth_sample() for _ in range(3)]
    for sample in samples:
        sample["valid"][:, :2] = False  # never measured here
        sample["depth"][:, :2] = 0
    scores = baselines(samples, [depth_sample()])
    assert scores["per position"]["val/abs_rel"] < scores["constant"]["val/abs_rel"]
    assert all(np.isfinite(v) for v in scores["per position"].values())


def test_labels_may_have_another_size_and_ignored_pixels():
    val = labels_sample(left=2, size=(16, 20))
    val["labels"][:4] = 255
    scores = baselines([labels_sample(left=2)] * 3, [val])
    assert scores["per position"]["val/pixel_accuracy"] == 1
    assert scores["per position"]["val/miou"] == 1
    assert scores["constant"]["val/pixel_accuracy"] == pytest.approx(0.6)
    assert scores["constant"]["val/miou"] == pytest.approx((0.6 + 0) / 2)


def test_image_level_targets_have_no_baseline_per_position():
    objectives = {
        "classification": ClassificationObjective(num_classes=3),
        "regression": RegressionObjective(),
    }
    train = [
        gray_sample(gray, class_id=class_id, value=value)
        for gray, class_id, value in [(9, 1, 2.0), (99, 1, 4.0), (199, 0, 6.0)]
    ]
    val = [gray_sample(98, class_id=1, value=4.0), gray_sample(200, class_id=0, value=1.0)]
    scores = baselines(train, val, **objectives)
    assert set(scores) == {"constant", "nearest photo"}
    assert scores["constant"]["val/accuracy"] == 0.5
    assert scores["constant"]["val/mae"] == pytest.approx(1.5)  # 4 is predicted for 4 and for 1
    assert scores["nearest photo"]["val/accuracy"] == 1
    assert scores["nearest photo"]["val/mae"] == pytest.approx(2.5)


def test_samples_may_lack_labels():
    scores = baselines([depth_sample(), labels_sample()] * 3)
    assert scores["per position"]["val/abs_rel"] == pytest.approx(0, abs=1e-6)
    assert scores["per position"]["val/miou"] == 1


def test_nearest_image_gives_its_labels():
    """Of two scenes, bright and dark, each has labels of its own."""
    dark, bright = labels_sample(0), labels_sample(2)
    train = [gray_sample(10, **dark), gray_sample(240, **bright), gray_sample(200)]
    ignored = bright["labels"].copy()
    ignored[:2] = 255
    scores = baselines(train, [gray_sample(30, **dark), gray_sample(210, labels=ignored)])
    assert scores["nearest photo"]["val/miou"] == 1  # an image without labels is passed over
    assert scores["per position"]["val/miou"] < 0.8


def test_nearest_image_is_another_one():
    scores = baselines([gray_sample(10 + k, **depth_sample(left=2.0 + k)) for k in range(3)])
    assert scores["nearest photo"]["val/abs_rel"] > 0.1
