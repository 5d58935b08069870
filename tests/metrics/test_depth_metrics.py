"""Depth metrics by protocol: against the BTS evaluation in NumPy, and at their limits."""

import math

import numpy as np
import pytest
import torch
from benchmarks.originals import bts_errors

from dpt.metrics import DEPTH_ERRORS, DepthMetrics, Protocol, depth_errors

NYU, KITTI = (480, 640), (375, 1242)


def random_maps(size, high, count=2, seed=0):
    """(prediction, depth, valid), float64; the depth is sparse and reaches beyond ``high``."""
    rng = np.random.default_rng(seed)
    depth = rng.uniform(0.2, 1.3 * high, (count, *size))
    prediction = depth * np.exp(rng.normal(0.05, 0.25, depth.shape))
    valid = rng.random(depth.shape) < 0.3
    depth[~valid] = rng.choice([0, np.nan, np.inf, 1.0], (~valid).sum())
    broken = rng.integers(0, 500, depth.shape)
    for k, value in enumerate((np.nan, np.inf, -np.inf, -1)):
        prediction[broken == k] = value
    return prediction, depth, valid


def crop_mask(crop, height, width):
    rows, columns = {
        "garg": ((0.40810811, 0.99189189), (0.03594771, 0.96405229)),
        "eigen_kitti": ((0.3324324, 0.91351351), (0.03594771, 0.96405229)),
        "eigen_nyu": ((45 / 480, 471 / 480), (41 / 640, 601 / 640)),
        "none": ((0, 1), (0, 1)),
    }[crop]
    mask = np.zeros((height, width), bool)
    top, bottom = (int(fraction * height) for fraction in rows)
    left, right = (int(fraction * width) for fraction in columns)
    mask[top:bottom, left:right] = True
    return mask


def counted_pixels(prediction, depth, valid, *, low, high, crop, align=None):
    """(depth, prediction) of the scored pixels of each image, the prediction cleaned as BTS does:
    clamp, infinity, NaN; then the mask of the range; then the crop."""
    for pred, gt, is_valid in zip(prediction, depth, valid, strict=True):
        with np.errstate(invalid="ignore"):
            mask = is_valid & (gt > low) & (gt < high) & crop_mask(crop, *gt.shape)
            pred = pred.copy() if align is None else align(pred, gt, mask)
            pred[pred < low] = low
            pred[pred > high] = high
            pred[np.isinf(pred)] = high
            pred[np.isnan(pred)] = low
        yield gt[mask], pred[mask]


def assert_equals_reference(protocol, maps, *, align=None, kind="metric", dtype=torch.float64):
    metric = DepthMetrics(protocol, prediction_kind=kind, all_pooled=True)
    prediction, depth, valid = (torch.from_numpy(a) for a in maps)
    prediction, depth = prediction.to(dtype), depth.to(dtype)
    metric.update(prediction, depth, valid)
    scores = metric.scores()
    low, high, crop = protocol.min_depth, protocol.max_depth, protocol.crop
    arrays = prediction.double().numpy(), depth.double().numpy(), maps[2]
    pixels = list(counted_pixels(*arrays, low=low, high=high, crop=crop, align=align))
    rows = [bts_errors(*pair) for pair in pixels]
    pooled = bts_errors(*(np.concatenate(side) for side in zip(*pixels, strict=True)))
    for name in DEPTH_ERRORS:
        expected = np.mean([row[name] for row in rows])
        assert scores[name] == pytest.approx(expected, rel=1e-6), name
        assert scores[f"{name}_pooled"] == pytest.approx(pooled[name], rel=1e-6), name
    assert metric.pixels.item() == sum(len(gt) for gt, _ in pixels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("crop", "size", "high"),
    [("eigen_nyu", NYU, 10), ("eigen_kitti", KITTI, 80), ("garg", KITTI, 80)],
)
def test_protocols_equal_the_reference(crop, size, high, dtype):
    protocol = Protocol(max_depth=high, crop=crop)
    assert_equals_reference(protocol, random_maps(size, high), dtype=dtype)


def fit_scale_shift(source, target, mask):
    fitted = mask & np.isfinite(source)
    scale, shift = np.polyfit(source[fitted], target[fitted], 1)
    return source * scale + shift


def align_median(pred, gt, mask):
    fitted = mask & np.isfinite(pred)
    return pred * (np.median(gt[fitted]) / np.median(pred[fitted]))


def fit_inverse_depth(inverse, gt, mask):
    inverse = fit_scale_shift(inverse, 1 / np.where(mask, gt, 1), mask)
    return 1 / np.clip(inverse, 1 / 10, 1 / 1e-3)


def align_in_inverse_depth(pred, gt, mask):
    return fit_inverse_depth(1 / pred, gt, mask)


@pytest.mark.parametrize(
    ("alignment", "space", "align", "kind"),
    [
        ("median", None, align_median, "metric"),
        ("scale_shift", None, fit_scale_shift, "metric"),
        ("scale_shift", "inverse_depth", align_in_inverse_depth, "metric"),
        (None, None, fit_inverse_depth, "relative"),
    ],
)
def test_alignments_equal_the_reference(alignment, space, align, kind):
    prediction, depth, valid = random_maps((40, 60), 10)
    # the reference defines what becomes of NaN alone
    prediction = np.where(np.isfinite(prediction) & (prediction > 0), prediction, np.nan)
    prediction = prediction if kind == "metric" else 1 / prediction
    protocol = Protocol(max_depth=10, alignment=alignment, space=space)
    assert_equals_reference(protocol, (prediction, depth, valid), align=align, kind=kind)


def test_alignment_sees_only_pixels_that_count():
    """Pixels outside the crop or the range must not pull the fit."""
    depth = torch.linspace(1, 9, 48).view(1, 6, 8).double()
    prediction = depth / 2 + 0.3
    prediction[:, 0], depth[:, 5, :4] = 100, 50
    metric = DepthMetrics(max_depth=10, crop=(1, 6, 0, 8), alignment="scale_shift")
    metric.update(prediction, depth, torch.ones_like(depth, dtype=torch.bool))
    assert metric.scores()["abs_rel"] == pytest.approx(0, abs=1e-12)
    assert metric.pixels.item() == 4 * 8 + 4


@pytest.mark.parametrize("alignment", ["median", "scale_shift"])
def test_alignment_survives_non_finite_predictions(alignment):
    prediction, depth, valid = (torch.from_numpy(a) for a in random_maps((40, 60), 10))
    metric = DepthMetrics(max_depth=20.0, alignment=alignment)
    metric.update(torch.where(prediction.isfinite(), 0.5 * depth, prediction), depth, valid)
    scores = metric.scores()
    assert scores["delta1"] > 0.9
    assert all(map(math.isfinite, scores.values()))


def test_depth_errors_by_hand():
    prediction, target = torch.tensor([[[2.0, 1.25, 7.0]]]), torch.tensor([[[1.0, 1.0, math.nan]]])
    errors = depth_errors(prediction, target, torch.tensor([[[True, True, False]]]))[0].tolist()
    logs = np.log([2, 1.25])
    expected = [0.625, 0.53125, math.sqrt(0.53125), math.sqrt((logs**2).mean())]
    expected += [np.log10([2, 1.25]).mean(), 100 * logs.std(), 0, 0.5, 0.5]  # 1.25 is not < 1.25
    assert errors == pytest.approx(expected)


def test_range_is_strict():
    target = torch.tensor([[1.0, 10.0, 5.0, 0.5, 20.0]])
    metric = DepthMetrics(max_depth=10.0, min_depth=1.0)
    metric.update(target + 1, target, torch.ones(1, 5, dtype=torch.bool))
    assert metric.pixels.item() == 1
    assert metric.scores()["rmse"] == metric.scores()["rmse_pooled"] == pytest.approx(1)


def test_states_keep_their_precision_with_the_model():
    module = torch.nn.Module()
    module.metric = DepthMetrics(max_depth=10.0)
    module.to(torch.bfloat16).half()  # the first is what Lightning's "bf16-true" does
    prediction, depth, valid = (torch.from_numpy(a) for a in random_maps((20, 30), 10))
    module.metric.update(prediction.bfloat16(), depth, valid)
    assert module.metric.errors.dtype == torch.float64
    before = module.metric.scores()
    module.to(torch.bfloat16)
    assert module.metric.scores() == before
    module.metric.reset()
    assert module.metric.errors.dtype == torch.float64
    assert module.metric.images.item() == 0


@pytest.mark.parametrize("crop", ["eigen_nyu", (0, 300, 0, 320)])
def test_crop_for_another_size_is_refused(crop):
    metric, maps = DepthMetrics(max_depth=10, crop=crop), torch.ones(240, 320)
    with pytest.raises(ValueError, match="240x320"):
        metric.update(maps, maps, maps.bool())
