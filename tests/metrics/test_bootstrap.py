"""Confidence intervals: of known distributions, reproducible, for every metric alike."""

import math

import numpy as np
import pytest
import torch

from dpt.metrics import (
    ClassificationMetrics,
    DepthMetrics,
    RegressionMetrics,
    SegmentationMetrics,
    confidence_intervals,
)


def states_of(metric, images):
    """What each image alone leaves in the metric."""
    rows = []
    for image in images:
        metric.reset()
        metric.update(*image)
        rows.append(metric.state())
    metric.reset()
    return rows


def depth_images(count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        target = torch.from_numpy(rng.uniform(1, 9, (1, 6, 7)))
        factor = float(np.exp(rng.normal(0, 0.1)))
        yield target * factor, target, torch.from_numpy(rng.random(target.shape) < 0.7)


def test_the_sum_of_images_scores_as_all_at_once():
    for metric, images in (
        (DepthMetrics(max_depth=10, all_pooled=True), list(depth_images(5))),
        (SegmentationMetrics(3),
         [tuple(torch.randint(3, (2, 1, 8, 9), dtype=torch.uint8)) for _ in range(4)]),
        (ClassificationMetrics(7), [(torch.randn(1, 7), torch.tensor([k])) for k in range(5)]),
        (RegressionMetrics(), [(torch.randn(1), torch.randn(1)) for _ in range(5)]),
    ):  # fmt: skip
        states = states_of(metric, images)
        for image in images:
            metric.update(*image)
        total = metric.vector()
        whole = {k: float(v) for k, v in metric.compute().items()}
        assert metric.scores_of(total) == pytest.approx(whole, rel=1e-6, nan_ok=True)
        once = metric.resampler(states)(np.ones(len(images)))
        assert once == pytest.approx(whole, rel=1e-6, nan_ok=True)


def test_scoring_a_vector_leaves_the_metric_alone():
    metric = DepthMetrics(max_depth=10)
    metric.update(*next(depth_images(1)))
    before = metric.vector()
    metric.scores_of(torch.zeros_like(before))
    assert torch.equal(metric.vector(), before)
    assert metric.images.dtype == torch.int64


def test_the_interval_of_a_mean_is_the_textbooks():
    """1.96 standard errors to either side of the mean of independent numbers."""
    errors = np.random.default_rng(3).normal(size=400)
    metric = RegressionMetrics()
    zero = torch.zeros(1)
    images = [(torch.tensor([float(abs(e))]), zero) for e in errors]
    low, high = confidence_intervals(metric, states_of(metric, images))["mae"]
    mean = np.abs(errors).mean()
    margin = 1.96 * np.abs(errors).std() / math.sqrt(len(errors))
    assert low == pytest.approx(mean - margin, abs=0.15 * margin)
    assert high == pytest.approx(mean + margin, abs=0.15 * margin)


def test_it_holds_the_score_and_repeats():
    metric = DepthMetrics(max_depth=10, all_pooled=True)
    states = states_of(metric, depth_images(30))
    found = confidence_intervals(metric, states)
    scores = metric.resampler(states)(np.ones(30))
    for name in ("abs_rel", "rmse", "rmse_pooled", "delta1_pooled", "delta1"):
        assert found[name][0] <= scores[name] <= found[name][1], name
    assert found["abs_rel"][0] < found["abs_rel"][1]
    again = confidence_intervals(metric, states)
    assert all(again[name] == pytest.approx(found[name], abs=0, nan_ok=True) for name in found)


def test_images_of_a_block_are_drawn_together():
    metric = RegressionMetrics()
    states = states_of(metric, [(torch.tensor([e]), torch.zeros(1)) for e in (0.0, 2.0) * 4])
    low, high = confidence_intervals(metric, states, np.repeat(np.arange(4), 2))["mae"]
    assert low == high == 1.0
    low, high = confidence_intervals(metric, states, np.arange(8) % 2)["mae"]
    assert (low, high) == (0.0, 2.0)


def test_pooled_values_resample_images_not_pixels():
    """An image with all the pixels decides the pooled error whether it is drawn or not."""
    metric = DepthMetrics(max_depth=10)
    big, small = torch.full((1, 50, 50), 5.0), torch.full((1, 1, 1), 5.0)
    images = [(big * 1.5, big, big > 0), *((small, small, small > 0) for _ in range(3))]
    low, high = confidence_intervals(metric, states_of(metric, images))["rmse_pooled"]
    assert low == 0  # not drawn
    assert high == pytest.approx(2.5, abs=1e-2)


def test_no_interval_of_one_image_or_of_what_hardly_occurs():
    metric = SegmentationMetrics(3)
    one = torch.zeros(1, 4, 4, dtype=torch.uint8)
    found = confidence_intervals(metric, states_of(metric, [(one, one)]))
    assert all(math.isnan(low) and math.isnan(high) for low, high in found.values())
    many = [(one, one)] * 5
    found = confidence_intervals(metric, states_of(metric, many))
    assert found["iou/0"] == (1, 1)
    assert all(math.isnan(bound) for bound in found["iou/2"])
