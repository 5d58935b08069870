"""States of single images and confidence intervals, for every metric alike."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dpt.metrics import (
    ClassificationMetrics,
    DepthMetrics,
    LeftOut,
    RegressionMetrics,
    RetrievalMetrics,
    SegmentationMetrics,
    confidence_intervals,
)
from dpt.metrics.intervals import FEW_BLOCKS, left_out
from dpt.metrics.segmentation import PanopticMetrics
from dpt.segments import segments_of


def states_of(metric, images):
    """What each image alone leaves in the metric."""
    states = []
    for image in images:
        metric.reset()
        metric.update(*image)
        states.append(metric.state())
    metric.reset()
    return states


def depth_images(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        target = torch.from_numpy(rng.uniform(1, 9, (1, 6, 7)))
        factor = float(np.exp(rng.normal(0, 0.1)))
        yield target * factor, target, torch.from_numpy(rng.random(target.shape) < 0.7)


def panoptic_images(count):
    for _ in range(count):
        predicted, true = torch.randint(3, (2, 4, 2)).repeat_interleave(4, -1)
        objects = torch.ones(4, 8, dtype=torch.int64)
        things = (True, False, False)
        yield segments_of(predicted, objects, things).map, segments_of(true, objects, things)


@pytest.mark.parametrize(
    ("metric", "images"),
    [
        (DepthMetrics(max_depth=10, all_pooled=True), depth_images),
        (SegmentationMetrics(3), lambda n: torch.randint(3, (n, 2, 8, 9), dtype=torch.uint8)),
        (
            ClassificationMetrics(7),
            lambda n: [(torch.randn(1, 7), k[None]) for k in torch.arange(n)],
        ),
        (RegressionMetrics(), lambda n: torch.randn(n, 2, 1)),
        (PanopticMetrics((True, False, False)), panoptic_images),
    ],
)
def test_states_of_images_score_as_all_at_once(metric, images):
    images = list(images(5))
    rescore = metric.resampler(states_of(metric, images))
    metric.update(*images[0])
    before = metric.vector()
    scores = rescore(np.ones(5))
    assert torch.equal(metric.vector(), before)  # the metric's own states stay
    for image in images[1:]:
        metric.update(*image)
    expected = {name: float(value) for name, value in metric.compute().items()}
    assert scores == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert metric.scores() == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_interval_of_a_mean_is_that_of_textbooks():
    """1.96 standard errors to either side of the mean of independent numbers."""
    errors = np.abs(np.random.default_rng(3).normal(size=400))
    metric = RegressionMetrics()
    images = [(torch.tensor([float(error)]), torch.zeros(1)) for error in errors]
    low, high = confidence_intervals(metric, states_of(metric, images))["mae"]
    margin = 1.96 * errors.std() / math.sqrt(len(errors))
    assert low == pytest.approx(errors.mean() - margin, abs=0.15 * margin)
    assert high == pytest.approx(errors.mean() + margin, abs=0.15 * margin)


def test_images_of_a_block_are_drawn_together():
    metric = RegressionMetrics()
    images = [(torch.tensor([e]), torch.zeros(1)) for e in (0.0, 2.0) * FEW_BLOCKS]
    states = states_of(metric, images)
    blocks = np.arange(2 * FEW_BLOCKS)
    assert confidence_intervals(metric, states, blocks // 2)["mae"] == (1, 1)
    assert np.isnan(confidence_intervals(metric, states, blocks % 4)["mae"]).all()  # too few
    low, high = left_out(metric, states, blocks % 2).interval("mae")
    margin = 12.7062047  # t with 1 degree of freedom
    assert (low, high) == pytest.approx((1 - margin, 1 + margin))


def test_a_large_block_costs_certainty():
    """CV2 and its degrees of freedom for a mean, written down from Bell and McCaffrey 2002."""
    values, sizes = np.array([0.1, 0.4, 0.2]), np.array([20, 12, 8])
    h = sizes / sizes.sum()
    mean = h @ values
    residuals = values - mean
    variance = (h**2 * residuals**2 / (1 - h)).sum()
    projection = np.eye(40) - 1 / 40  # onto the residuals of single images
    columns = []
    for number, size in enumerate(sizes):
        is_in = np.repeat(np.arange(3), sizes) == number
        columns.append(projection[:, is_in].sum(1) / np.sqrt(1 - h[number]) / 40)
        assert is_in.sum() == size
    products = np.array(columns) @ np.array(columns).T
    freedom = np.trace(products) ** 2 / (products**2).sum()
    without = (mean - h * values) / (1 - h)
    low, high = LeftOut({"x": mean}, {"x": without}, sizes).interval("x")
    assert high - mean == pytest.approx(stats.t.ppf(0.975, freedom) * np.sqrt(variance))
    assert mean - low == pytest.approx(high - mean)
    assert freedom == pytest.approx(1.75)  # not 2


def test_one_image_and_rare_classes_have_no_interval():
    metric = SegmentationMetrics(3)
    image = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    for interval in confidence_intervals(metric, states_of(metric, [image])).values():
        assert all(map(math.isnan, interval))
    intervals = confidence_intervals(metric, states_of(metric, [image] * 5))
    assert intervals["iou/0"] == (1, 1)
    assert all(map(math.isnan, intervals["iou/2"]))


@pytest.mark.parametrize(
    ("metric", "unknown"),
    [
        (RegressionMetrics(), (torch.ones(2), torch.full((2,), math.nan))),
        (ClassificationMetrics(9), (torch.ones(2, 9), torch.tensor([-1, -1]))),
        (SegmentationMetrics(2), (torch.zeros(2, 2).byte(), torch.full((2, 2), 255))),
        (DepthMetrics(max_depth=10.0), (torch.ones(3, 3), torch.ones(3, 3), torch.zeros(3, 3) > 0)),
    ],
)
def test_scores_without_labels_are_nan(metric, unknown):
    metric.update(*unknown)
    assert all(map(math.isnan, metric.scores().values()))


def test_intervals_end_at_the_limits_of_a_score():
    """The IoU of a class that one block in six hits, and that of one that nearly all hit."""
    rare = SegmentationMetrics(2)
    images = []
    for hits in (0, 0, 0, 0, 0, 30):
        labels = torch.ones(1, 10, 10, dtype=torch.uint8)
        labels[0, :5] = 0
        prediction = torch.ones_like(labels)
        prediction.view(-1)[:hits] = 0
        images.append((prediction, labels))
    states = states_of(rare, images)
    raw = left_out(rare, states, np.arange(6)).interval("iou/0")
    assert raw.low < 0
    assert confidence_intervals(rare, states)["iou/0"] == (0.0, raw.high)
    assert RegressionMetrics().limits_of("r2") == (-math.inf, 1.0)
    assert DepthMetrics().limits_of("abs_rel") == (0.0, math.inf)
    assert DepthMetrics().limits_of("delta1") == (0.0, 1.0)
    assert RetrievalMetrics().limits_of("anything") == (-math.inf, math.inf)
