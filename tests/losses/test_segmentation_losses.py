"""Segmentation losses against PyTorch, naive references and hand computation."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dpt.losses import CrossEntropyLoss, DiceLoss, FocalLoss

K = 5
LOSSES = {
    "ce": CrossEntropyLoss(),
    "ce_weighted": CrossEntropyLoss(class_weights=[1, 2, 0.5, 3, 1], label_smoothing=0.1),
    "focal": FocalLoss(),
    "dice": DiceLoss(),
}


@pytest.fixture(params=LOSSES, ids=str)
def loss(request):
    return LOSSES[request.param]


def example(batch=4, height=7, width=9, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(size=(batch, K, height, width)) * 2)
    labels = torch.from_numpy(rng.integers(0, K - 1, (batch, height, width)).astype(np.uint8))
    labels[torch.from_numpy(rng.random(labels.shape) < 0.2)] = 255
    return logits, labels


def test_cross_entropy_is_pytorchs_mean_per_image():
    logits, labels = example()
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    for weight, smoothing in ((None, 0.0), (None, 0.1), (weights, 0.1)):
        settings = {"weight": weight, "label_smoothing": smoothing, "ignore_index": 255}
        images = zip(logits[:, None], labels[:, None].long(), strict=True)
        expected = torch.stack([F.cross_entropy(x, y, **settings) for x, y in images]).mean()
        loss = CrossEntropyLoss(label_smoothing=smoothing, class_weights=weight)
        torch.testing.assert_close(loss(logits, labels), expected)


def test_logit_adjustment_takes_a_share_of_the_weights_back():
    share, counts = 0.5, torch.tensor([90, 9, 1])
    weight = (counts / counts.sum()) ** -0.5
    labels = torch.arange(3).repeat_interleave(counts).reshape(1, 10, 10)
    loss = CrossEntropyLoss(class_weights=weight.tolist(), logit_adjustment=share)
    # pixels that cannot be told apart: the best logits are ln(frequency · w ** (1 - share))
    best = (counts * weight ** (1 - share)).double().log().requires_grad_()
    value = loss(best[None, :, None, None].expand(1, 3, 10, 10), labels)
    shifted = (best + share * weight.log())[None, :, None, None].expand(1, 3, 10, 10)
    torch.testing.assert_close(value, F.cross_entropy(shifted, labels, weight=weight.double()))
    (gradient,) = torch.autograd.grad(value, best)
    torch.testing.assert_close(gradient, torch.zeros_like(best), atol=1e-7, rtol=0)


def test_focal_by_hand():
    logits = torch.tensor([[[[0.0]], [[math.log(3.0)]]]])  # probabilities 1/4, 3/4
    label = torch.ones(1, 1, 1, dtype=torch.uint8)
    assert FocalLoss()(logits, label).item() == pytest.approx(0.25**2 * -math.log(0.75))
    logits, labels = example()
    torch.testing.assert_close(
        FocalLoss(gamma=0)(logits, labels), CrossEntropyLoss()(logits, labels)
    )


def test_dice_by_hand():
    # class 0: p0 = .5, .8; class 1: p1 = .9; class 2 is absent; the last pixel is ignored
    p = torch.tensor([[0.5, 0.3, 0.2], [0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.1, 0.1, 0.8]])
    logits = p.log().t().reshape(1, 3, 2, 2)
    labels = torch.tensor([[[0, 0], [1, 255]]])
    dice0 = 2 * (0.5 + 0.8) / (0.5 + 0.8 + 0.05 + 2)
    dice1 = 2 * 0.9 / (0.3 + 0.1 + 0.9 + 1)
    expected = 1 - (dice0 + dice1) / 2
    assert DiceLoss()(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_ignored_pixels_reach_nothing(loss):
    logits, labels = example()
    ignored = (labels == 255)[:, None]
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    assert (gradient[ignored.expand_as(gradient)] == 0).all()
    assert (gradient[~ignored.expand_as(gradient)] != 0).any()
    torch.testing.assert_close(loss(torch.where(ignored, 30.0 - logits, logits), labels), value)


def test_a_wholly_ignored_image_is_zero(loss):
    logits, labels = example(batch=2)
    labels[1] = 255
    leaf = logits.requires_grad_()
    value = loss(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    torch.testing.assert_close(value, loss(logits[:1], labels[:1]) / 2)
    assert gradient.isfinite().all()
    assert (gradient[1] == 0).all()


def test_perfect_logits_have_a_finite_gradient(loss):
    _, labels = example()
    target = torch.where(labels == 255, 0, labels).long()
    logits = (300.0 * F.one_hot(target, K).permute(0, 3, 1, 2)).requires_grad_()
    value = loss(logits, labels)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    if loss is not LOSSES["ce_weighted"]:  # smoothing punishes certainty
        assert value.item() == pytest.approx(0, abs=1e-6)


def test_two_halves_average_to_the_whole(loss):
    logits, labels = example()
    labels[3] = 255
    halves = [loss(logits[s], labels[s]) for s in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(loss(logits, labels), sum(halves) / 2)


def test_smaller_logits_are_resized_to_the_labels(loss):
    logits, labels = example()
    small = logits[:, :, :4, :5]
    resized = F.interpolate(small, labels.shape[-2:], mode="bilinear", align_corners=True)
    torch.testing.assert_close(loss(small, labels), loss(resized, labels))


def test_half_precision_inputs_and_autocast(loss):
    logits, labels = example()
    logits = logits.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(logits[:, :, :4, :5], labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(logits[:, :, :4, :5].float(), labels))
