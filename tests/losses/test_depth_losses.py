"""Depth losses against their formulas written out in NumPy, and what every loss here promises."""

import math

import numpy as np
import pytest
import torch

from dpt.losses import CombinedLoss, GradientMatchingLoss, ScaleShiftInvariantLoss, SILogLoss

FORMS = ("bts", "depth_anything", "eigen")
LOSSES = {
    **{form: SILogLoss(form=form) for form in FORMS},
    "gradient": GradientMatchingLoss(),
    "ssi": ScaleShiftInvariantLoss(),
}


@pytest.fixture(params=LOSSES, ids=str)
def loss(request):
    return LOSSES[request.param]


def example(batch=4, height=12, width=14, seed=0):
    """(prediction, target, valid) float64; invalid targets hold NaN, infinity, 0 or -1."""
    rng = np.random.default_rng(seed)
    prediction = torch.from_numpy(rng.uniform(0.5, 9, (batch, height, width)))
    valid = torch.from_numpy(rng.random((batch, height, width)) < 0.7)
    target = torch.from_numpy(rng.uniform(0.5, 9, (batch, height, width)))
    rubbish = torch.from_numpy(rng.choice([math.nan, math.inf, 0.0, -1.0], target.shape))
    return prediction, torch.where(valid, target, rubbish), valid


def mean_of_images(reference, maps, **settings):
    images = zip(*(values.numpy() for values in maps), strict=True)
    return np.mean([reference(*image, **settings) for image in images])


def silog_reference(p, t, m, form):
    e = np.log(p[m]) - np.log(t[m])
    return {
        "bts": 10 * np.sqrt((e**2).mean() - 0.85 * e.mean() ** 2),
        "depth_anything": np.sqrt((e**2).mean() - 0.5 * e.mean() ** 2),
        "eigen": (e**2).sum() / e.size - 0.5 / e.size**2 * e.sum() ** 2,
    }[form]


def ssi_reference(p, t, m, trim, weight, scales):
    def unit(d):
        median = np.median(d[m])
        return (d - median) / np.abs(d[m] - median).mean()

    with np.errstate(all="ignore"):
        r = np.where(m, unit(p) - unit(1 / t), 0)
    ordered = np.sort(np.abs(r[m]))
    kept = math.floor((1 - trim) * len(ordered) + 1e-9)
    return ordered[:kept].sum() / (2 * m.sum()) + weight * gradient_reference(r, m, scales)


def gradient_reference(r, m, scales):
    total = 0.0
    for k in range(scales):
        rk, mk = r[:: 2**k, :: 2**k], m[:: 2**k, :: 2**k]
        for axis in (0, 1):  # NaN without two valid neighbours
            gradients = np.diff(np.where(mk, rk, np.nan), axis=axis)
            total += np.nansum(np.abs(gradients)) / max(mk.sum(), 1)
    return total


@pytest.mark.parametrize("form", FORMS)
def test_silog_is_the_formula_per_image(form):
    maps = example()
    expected = mean_of_images(silog_reference, maps, form=form)
    assert SILogLoss(form=form)(*maps).item() == pytest.approx(expected)


def test_silog_pulls_up_a_prediction_of_zero():
    prediction = torch.tensor([[[0.0, 2.0, 5e-4]]], requires_grad=True)
    target = torch.full((1, 1, 3), 2.0)
    value = SILogLoss(form="bts")(prediction, target, torch.ones(1, 1, 3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value, prediction)
    assert value.isfinite()
    assert gradient[0, 0, 0] < 0
    assert gradient[0, 0, 2] < 0


@pytest.mark.parametrize(("trim", "weight", "scales"), [(0.2, 0.5, 4), (0.0, 0.0, 1), (0.1, 2, 2)])
def test_ssi_is_the_formula_per_image(trim, weight, scales):
    maps = example()
    expected = mean_of_images(ssi_reference, maps, trim=trim, weight=weight, scales=scales)
    loss = ScaleShiftInvariantLoss(trim=trim, gradient_weight=weight, gradient_scales=scales)
    assert loss(*maps).item() == pytest.approx(expected)


def test_ssi_ignores_scale_and_shift_of_the_prediction():
    loss = LOSSES["ssi"]
    prediction, target, valid = example()
    value = loss(prediction, target, valid)
    torch.testing.assert_close(loss(3.7 * prediction - 12, target, valid), value)
    torch.testing.assert_close(loss(prediction, 5 * target, valid), value)
    perfect = 0.3 / torch.where(valid, target, 1.0) + 2
    assert loss(perfect, target, valid).item() == pytest.approx(0, abs=1e-12)
    assert loss(-perfect, target, valid) > 0.5


def test_values_of_invalid_pixels_have_no_effect(loss):
    prediction, target, valid = example()
    valid[1] = False
    broken = torch.where(valid, prediction, math.nan).requires_grad_()
    clean = torch.where(valid, target, 1.0)
    value = loss(broken, target, valid)
    (gradient,) = torch.autograd.grad(value, broken)
    assert value.isfinite()
    assert gradient.isfinite().all()
    assert (gradient[~valid] == 0).all()
    assert (gradient[0] != 0).any()
    torch.testing.assert_close(loss(prediction, clean, valid), value, rtol=0, atol=0)


def test_nan_in_a_valid_pixel_is_not_hidden(loss):
    prediction, target, valid = example()
    assert loss(torch.where(valid, torch.nan, prediction), target, valid).isnan()


@pytest.mark.parametrize("count", [0, 1])
def test_no_or_one_valid_pixel(loss, count):
    prediction, target, valid = example(batch=1)
    valid = torch.zeros_like(valid)
    target[0, 3, 3] = 2.0
    valid[0, 3, 3] = count == 1
    prediction = prediction.requires_grad_()
    value = loss(prediction, target, valid)
    (gradient,) = torch.autograd.grad(value, prediction)
    assert gradient.isfinite().all()
    if count == 0:
        assert value.item() == 0
        assert (gradient == 0).all()


def test_a_perfect_or_constant_prediction_has_a_finite_gradient(loss):
    _, target, valid = example()
    clean = torch.where(valid, target, 1.0)
    for prediction in (clean, 1 / clean, torch.ones_like(clean), torch.zeros_like(clean)):
        leaf = prediction.float().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, target.float(), valid), leaf)
        assert gradient.isfinite().all()
        assert gradient.norm() < 1e3


def test_two_halves_average_to_the_whole(loss):
    prediction, target, valid = example()
    valid[3] = False  # counts as an image all the same
    halves = [loss(prediction[s], target[s], valid[s]) for s in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(loss(prediction, target, valid), sum(halves) / 2)


def test_half_precision_inputs_and_autocast(loss):
    prediction, target, valid = example()
    prediction, target = prediction.bfloat16(), target.float()
    expected = loss(prediction.float(), target, valid)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(prediction, target, valid)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0, atol=0)


def test_combined_loss():
    prediction, target, valid = example()
    silog, gradient = LOSSES["bts"], LOSSES["gradient"]
    both = CombinedLoss({"silog": silog, "gradient": gradient}, {"gradient": 0.5})
    expected = silog(prediction, target, valid) + 0.5 * gradient(prediction, target, valid)
    torch.testing.assert_close(both(prediction, target, valid), expected)
    with pytest.raises(ValueError, match="typo"):
        CombinedLoss({"silog": silog}, {"typo": 1.0})
