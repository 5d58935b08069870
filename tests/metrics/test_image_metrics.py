"""Image-level metrics against NumPy and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional import r2_score

from dpt.metrics import ClassificationMetrics, RegressionMetrics


def test_classification_counts_known_images_only():
    metric = ClassificationMetrics(7)
    logits = torch.tensor(
        [
            [7.0, 6, 5, 4, 3, 2, 1],
            [7.0, 6, 5, 4, 3, 2, 1],
            [7.0, 6, 5, 4, 3, 2, 1],
            [1.0, 2, 3, 4, 5, 6, 7],
        ]
    )
    metric.update(logits, torch.tensor([0, 4, 5, -1]))
    result = metric.compute()
    assert result["accuracy"].item() == pytest.approx(1 / 3)
    assert result["top5_accuracy"].item() == pytest.approx(2 / 3)


def test_top5_needs_more_than_five_classes():
    metric = ClassificationMetrics(3)
    metric.update(torch.eye(3), torch.tensor([0, 1, 0]))
    result = metric.compute()
    assert set(result) == {"accuracy"}
    assert result["accuracy"].item() == pytest.approx(2 / 3)


def test_regression_is_numpys():
    rng = np.random.default_rng(0)
    target = torch.from_numpy(rng.normal(50, 3, 40)).float()
    prediction = target + torch.from_numpy(rng.normal(0, 1, 40)).float()
    target[::7] = math.nan
    metric = RegressionMetrics()
    for part in (slice(0, 11), slice(11, 40)):
        metric.update(prediction[part], target[part])
    known = ~target.isnan()
    error = (prediction - target)[known].double().numpy()
    result = metric.compute()
    assert result["mae"].item() == pytest.approx(np.abs(error).mean(), rel=1e-5)
    assert result["rmse"].item() == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
    expected = r2_score(prediction[known].double(), target[known].double()).item()
    assert result["r2"].item() == pytest.approx(expected, rel=1e-6)


def test_nothing_known_is_nan():
    regression, classification = RegressionMetrics(), ClassificationMetrics(9)
    regression.update(torch.ones(2), torch.full((2,), math.nan))
    classification.update(torch.ones(2, 9), torch.tensor([-1, -1]))
    for metric in (regression, classification):
        assert all(math.isnan(v) for v in metric.compute().values())


def test_r2_of_equal_targets_is_nan():
    metric = RegressionMetrics()
    metric.update(torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 0.1))
    assert math.isnan(metric.compute()["r2"])
    assert metric.compute()["mae"].item() == pytest.approx(1.9)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"logits must be \(2, 4\), got \(2, 3\)"):
        ClassificationMetrics(4).update(torch.ones(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="must have one shape"):
        RegressionMetrics().update(torch.ones(2, 1), torch.ones(2))
