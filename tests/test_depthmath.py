"""Masked arithmetic against NumPy on the valid pixels alone."""

import math

import numpy as np
import pytest
import torch

from dpt import depthmath as dm

BAD = (math.nan, math.inf, -math.inf, 0.0)


@pytest.fixture
def holes():
    """(values, valid) float64 (4, 5, 6): 17, 12, 1 and 0 valid pixels; rubbish elsewhere."""
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.uniform(0.5, 9.0, (4, 5, 6)))
    valid = torch.zeros(4, 30, dtype=torch.bool)
    for image, count in enumerate((17, 12, 1, 0)):
        valid[image, torch.from_numpy(rng.permutation(30)[:count])] = True
    valid = valid.view(4, 5, 6)
    rubbish = torch.from_numpy(rng.choice(BAD, (4, 5, 6)))
    return torch.where(valid, values, rubbish), valid


def test_masked_mean_and_median_equal_numpy(holes):
    values, valid = holes
    for ours, numpys in ((dm.masked_mean, np.mean), (dm.masked_median, np.median)):
        expected = [numpys(v[m].numpy()) for v, m in zip(values[:3], valid[:3], strict=True)]
        torch.testing.assert_close(ours(values, valid).tolist(), [*expected, 0.0])


def test_gradients_stay_inside_valid(holes):
    values, valid = holes
    values = values.requires_grad_()
    shift, scale = dm.median_mad(values, valid)
    total = dm.masked_mean(values, valid).sum() + dm.masked_median(values, valid).sum()
    (gradient,) = torch.autograd.grad(total + shift.sum() + scale.sum(), values)
    assert gradient.isfinite().all()
    assert (gradient[~valid] == 0).all()
    assert (gradient[valid] != 0).any()


def test_inverse_depth():
    depth = torch.tensor([2.0, 0.0, math.nan, 4.0, 0.0, -1.0], requires_grad=True)
    valid = torch.tensor([True, False, False, False, True, True])
    inverse = dm.inverse_depth(depth, valid)
    assert inverse.tolist() == [0.5, 0, 0, 0, 0, 0]
    (gradient,) = torch.autograd.grad(inverse.sum(), depth)
    assert gradient.tolist() == [-0.25, 0, 0, 0, 0, 0]


def test_align_scale_shift_is_least_squares(holes):
    target, valid = holes
    rng = np.random.default_rng(1)
    prediction = torch.from_numpy(rng.normal(size=(4, 5, 6)))
    scale, shift = dm.align_scale_shift(prediction, target, valid)
    for i in (0, 1):
        p, t = prediction[i][valid[i]].numpy(), target[i][valid[i]].numpy()
        expected = np.linalg.lstsq(np.stack([p, np.ones_like(p)], 1), t, rcond=None)[0]
        np.testing.assert_allclose([scale[i], shift[i]], expected, rtol=1e-9)
    one_pixel, nothing = target[2][valid[2]].item(), 0.0
    assert scale[2:].tolist() == [0, 0]
    assert shift[2:].tolist() == [one_pixel, nothing]


def test_align_median(holes):
    target, valid = holes
    prediction = torch.where(valid, 2.5 * target, 1.0)
    scale = dm.align_median(prediction, target, valid)
    torch.testing.assert_close(scale.tolist(), [0.4, 0.4, 0.4, 1.0])
    assert (dm.align_median(torch.zeros_like(target), target, valid) == 1).all()
