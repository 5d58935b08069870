"""Depth as a weighted mean of bins: their depths, weights, range and training."""

import pytest
import torch
from tiny import small_model

import dpt
from dpt.nn.heads.dense import DepthBins


def bins(**settings):
    return {"depth": {"kind": "metric", "bins": {"count": 8, "max_depth": 10.0, **settings}}}


def test_depth_is_a_mean_of_bins_with_weights_above_zero():
    bins = DepthBins(count=3, min_depth=1.0, max_depth=9.0)
    assert bins.depths(torch.zeros(0)).tolist() == [1, 5, 9]
    logits = torch.tensor([[-1.0, 0, 2], [-1, -1, -1]])[..., None, None].requires_grad_()
    depth = bins.to_depth(logits)
    assert depth.flatten().tolist() == pytest.approx([(0.1 + 0.5 + 2.1 * 9) / 2.3, 5])
    depth.sum().backward()
    assert logits.grad.isfinite().all()


def test_a_head_with_bins_has_their_range_and_is_saved_with_them(tmp_path):
    model = small_model(heads=bins(min_depth=0.5)).eval()
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
