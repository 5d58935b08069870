"""Depth as a weighted mean of bins: their depths, weights, range and training."""

import math

import pytest
import torch
from tiny import small_model

import dpt
from dpt.nn.heads.dense import DepthBins

ENDS = {"count": 3, "min_depth": 1.0, "max_depth": 9.0}


def bins(**settings):
    return {"depth": {"kind": "metric", "bins": {"count": 8, "max_depth": 10.0, **settings}}}


@pytest.mark.parametrize(("spacing", "middle"), [("linear", 5.0), ("log", 3.0), ("mixed", 4.0)])
def test_depths_of_three_bins(spacing, middle):
    depths = DepthBins(**ENDS, spacing=spacing).depths(torch.zeros(0, dtype=torch.float64))
    torch.testing.assert_close(depths, torch.tensor([1.0, middle, 9.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"eps": 0.1}, (0.1 * 1 + 0.1 * 5 + 2.1 * 9) / 2.3),
        ({"eps": 1e-8}, 9.0),
        (
            {"weights": "softmax"},
            (math.exp(-1) * 1 + 5 + math.exp(2) * 9) / (math.exp(-1) + 1 + math.exp(2)),
        ),
        ({"weights": "sigmoid"}, (0.26894142 * 1 + 0.5 * 5 + 0.88079708 * 9) / 1.6497385),
    ],
)
def test_depth_of_one_pixel(weights, expected):
    logits = torch.tensor([-1.0, 0.0, 2.0])[None, :, None, None]
    depth = DepthBins(**ENDS, **weights).to_depth(logits)
    assert depth.shape == (1, 1, 1, 1)
    assert depth.item() == pytest.approx(expected, abs=1e-5)


def test_depth_of_a_pixel_without_a_positive_logit_is_the_mean_of_the_bins():
    logits = torch.full((1, 3, 1, 1), -1.0, requires_grad=True)
    depth = DepthBins(**ENDS, spacing="mixed", eps=1e-8).to_depth(logits)
    assert depth.item() == pytest.approx((1 + 4 + 9) / 3, abs=1e-5)
    depth.sum().backward()
    assert logits.grad.isfinite().all()


def test_a_head_with_bins_has_their_range_and_is_saved_with_them(tmp_path):
    model = small_model(heads=bins(spacing="log", min_depth=0.5)).eval()
    assert model.outputs["depth"].value_range == (0.5, 10.0)
    images = 100 * torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        depth = model(images)["depth"]
    assert depth.shape == (1, 64, 96)
    assert depth.dtype == torch.float32
    assert 0.5 <= depth.min() < depth.max() <= 10.0
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert model(images)["depth"].dtype == torch.float32
    model.save_pretrained(tmp_path)
    again = dpt.DPT.from_pretrained(tmp_path)
    assert again.config == model.config
    with torch.no_grad():
        assert torch.equal(again(images)["depth"], depth)
