"""Depth protocols against the BTS evaluation, written here from its description in NumPy."""

import numpy as np
import pytest
import torch

from dpt.metrics import DEPTH_ERRORS, DepthMetrics, Protocol

NYU, KITTI = (480, 640), (375, 1242)


def random_maps(size, high, count=2, seed=0):
    """(prediction, truth, valid), float64; the truth is sparse and reaches beyond ``high``."""
    rng = np.random.default_rng(seed)
    truth = rng.uniform(0.2, 1.3 * high, (count, *size))
    prediction = truth * np.exp(rng.normal(0.05, 0.25, truth.shape))
    valid = rng.random(truth.shape) < 0.3
    truth[~valid] = 0
    broken = rng.random(truth.shape)
    prediction[broken < 0.002] = np.nan
    prediction[(broken > 0.002) & (broken < 0.004)] = np.inf
    prediction[(broken > 0.004) & (broken < 0.006)] = -np.inf
    prediction[(broken > 0.006) & (broken < 0.008)] = -1
    return prediction, truth, valid


def crop_mask(crop, height, width):
    mask = np.zeros((height, width), bool)
    if crop == "garg":
        mask[int(0.40810811 * height) : int(0.99189189 * height),
             int(0.03594771 * width) : int(0.96405229 * width)] = True  # fmt: skip
    elif crop == "eigen_kitti":
        mask[int(0.3324324 * height) : int(0.91351351 * height),
             int(0.03594771 * width) : int(0.96405229 * width)] = True  # fmt: skip
    elif crop == "eigen_nyu":
        mask[45:471, 41:601] = True
    else:
        mask[:] = True
    return mask


def compute_errors(gt, pred):
    """The nine numbers of one set of pixels."""
    thresh = np.maximum(gt / pred, pred / gt)
    err = np.log(pred) - np.log(gt)
    return [
        np.mean(np.abs(gt - pred) / gt),
        np.mean((gt - pred) ** 2 / gt),
        np.sqrt(np.mean((gt - pred) ** 2)),
        np.sqrt(np.mean(err**2)),
        np.mean(np.abs(np.log10(pred) - np.log10(gt))),
        100 * np.sqrt(np.mean(err**2) - np.mean(err) ** 2),
        *(np.mean(thresh < 1.25**k) for k in (1, 2, 3)),
    ]


def counted_pixels(prediction, truth, valid, *, low, high, crop, align=None):
    """(truth, prediction) of the scored pixels of each image, the prediction cleaned as BTS does:
    clamp, infinity, NaN; then the mask of the range; then the crop."""
    for pred, gt, known in zip(prediction, truth, valid, strict=True):
        mask = known & (gt > low) & (gt < high) & crop_mask(crop, *gt.shape)
        pred = pred.copy() if align is None else align(pred, gt, mask)
        with np.errstate(invalid="ignore"):
            pred[pred < low] = low
            pred[pred > high] = high
            pred[np.isinf(pred)] = high
            pred[np.isnan(pred)] = low
        yield gt[mask], pred[mask]


def assert_equals_reference(protocol, maps, *, low, high, crop, align=None, dtype=torch.float64):
    metric = DepthMetrics(protocol, all_pooled=True)
    prediction, truth, valid = (torch.from_numpy(a) for a in maps)
    metric.update(prediction.to(dtype), truth.to(dtype), valid)
    found = metric.compute()
    rounded = [a.astype(np.float32).astype(np.float64) for a in maps[:2]]
    arrays = (*rounded, maps[2]) if dtype == torch.float32 else maps
    pixels = list(counted_pixels(*arrays, low=low, high=high, crop=crop, align=align))
    expected = np.mean([compute_errors(*pair) for pair in pixels], axis=0)
    pooled = compute_errors(*(np.concatenate(side) for side in zip(*pixels, strict=True)))
    for k, name in enumerate(DEPTH_ERRORS):
        assert found[name].item() == pytest.approx(expected[k], rel=1e-6), name
        assert found[f"{name}_pooled"].item() == pytest.approx(pooled[k], rel=1e-6), name
    assert metric.pixels.item() == sum(len(gt) for gt, _ in pixels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("name", "size", "high", "crop"),
    [
        ("nyu_eigen", NYU, 10, "eigen_nyu"),
        ("kitti_eigen", KITTI, 80, "eigen_kitti"),
        ("kitti_garg", KITTI, 80, "garg"),
        ("kitti_garg", (376, 1241), 80, "garg"),
    ],
)
def test_named_protocols_equal_the_reference(name, size, high, crop, dtype):
    maps = random_maps(size, high)
    protocol = Protocol(name=name, max_depth=high, crop=crop)
    assert_equals_reference(protocol, maps, low=1e-3, high=high, crop=crop, dtype=dtype)


def fit_scale_shift(source, target, mask):
    known = mask & np.isfinite(source)
    matrix = np.stack([source[known], np.ones(known.sum())], axis=1)
    return np.linalg.lstsq(matrix, target[known], rcond=None)[0]


def align_median(pred, gt, mask):
    known = mask & np.isfinite(pred)
    return pred * (np.median(gt[known]) / np.median(pred[known]))


def align_scale_shift(pred, gt, mask):
    scale, shift = fit_scale_shift(pred, gt, mask)
    return pred * scale + shift


def align_in_inverse_depth(pred, gt, mask):
    usable = np.isfinite(pred) & (pred > 0)
    inverse = np.where(usable, 1 / np.where(usable, pred, 1), np.nan)
    scale, shift = fit_scale_shift(inverse, 1 / np.where(mask, gt, 1), mask)
    inverse = np.clip(inverse * scale + shift, 1 / 10, 1 / 1e-3)
    return 1 / inverse


@pytest.mark.parametrize(
    ("settings", "align"),
    [
        ({"alignment": "median"}, align_median),
        ({"alignment": "scale_shift"}, align_scale_shift),
        ({"alignment": "scale_shift", "space": "inverse_depth"}, align_in_inverse_depth),
    ],
)
def test_alignments_equal_the_reference(settings, align):
    prediction, truth, valid = random_maps((40, 60), 10)
    # of what is not finite and positive, the reference says what becomes of NaN alone
    prediction = np.where(np.isfinite(prediction) & (prediction > 0), prediction, np.nan)
    assert_equals_reference(
        Protocol(max_depth=10, **settings), (prediction, truth, valid),
        low=1e-3, high=10, crop="none", align=align,
    )  # fmt: skip


def test_the_fit_sees_only_what_counts():
    """Pixels outside the crop or the range must not pull the alignment."""
    truth = torch.linspace(1, 9, 48).view(1, 6, 8).double()
    prediction = truth / 2 + 0.3
    prediction[:, 0], truth[:, 5, :4] = 100, 50
    metric = DepthMetrics(max_depth=10, crop=(1, 6, 0, 8), alignment="scale_shift")
    metric.update(prediction, truth, torch.ones_like(truth, dtype=torch.bool))
    assert metric.compute()["abs_rel"].item() == pytest.approx(0, abs=1e-12)
    assert metric.pixels.item() == 4 * 8 + 4


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"crop": "eigen"}, "'garg'"),
        ({"crop": (5, 5, 0, 3)}, "top < bottom"),
        ({"space": "disparity"}, "'inverse_depth'"),
        ({"min_depth": 90}, "0 < min_depth < max_depth"),
    ],
)
def test_mistakes_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        DepthMetrics(max_depth=80, **settings)


@pytest.mark.parametrize(
    ("settings", "size", "says"),
    [
        ({"crop": "eigen_nyu"}, (240, 320), "480x640 pixels .* one has 240x320"),
        ({"crop": (0, 300, 0, 320)}, (240, 320), "reaches beyond a map of 240x320"),
    ],
)
def test_a_crop_for_another_size_is_refused(settings, size, says):
    metric = DepthMetrics(max_depth=10, **settings)
    with pytest.raises(ValueError, match=says):
        metric.update(torch.ones(size), torch.ones(size), torch.ones(size).bool())
