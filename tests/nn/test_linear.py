"""The linear head beside DINOv2's in a few plain lines, alone and in a model without a decoder."""

import pytest
import torch
import torch.nn.functional as F

import dpt
from dpt.nn import LinearSegmentationHead
from dpt.types import Tokens
from dpt.weights.formats import convert

GRID = (3, 5)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def bn_head(tokens, norm, linear, size, *, levels, prefix):
    """DINOv2's BNHead: its taps as maps, side by side, batch norm, 1×1 convolution, resized."""
    maps = [
        level[:, prefix:].reshape(len(level), *grid, -1).permute(0, 3, 1, 2)
        for level, grid in zip(tokens.levels[-levels:], tokens.grids[-levels:], strict=True)
    ]
    x = torch.cat(maps, dim=1)
    mean, var = norm.running_mean, norm.running_var
    if norm.training:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
    x = x * norm.weight[:, None, None] + norm.bias[:, None, None]
    logits = torch.einsum("bchw,kc->bkhw", x, linear.weight[:, :, 0, 0])
    logits = logits + linear.bias[:, None, None]
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False)


def scramble(head):
    for tensor in (head.norm.weight, head.norm.bias, head.norm.running_mean, head.linear.bias):
        torch.nn.init.normal_(tensor)
    torch.nn.init.uniform_(head.norm.running_var, 0.5, 2.0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("levels", [1, 4])
def test_it_is_dinov2s(levels, training):
    head = LinearSegmentationHead(
        embed_dims=[8] * 4, num_prefix_tokens=[3] * 4, num_classes=6, levels=levels
    ).train(training)
    scramble(head)
    tokens = Tokens([torch.randn(2, 3 + 15, 8) for _ in range(4)], [GRID] * 4)
    wanted = bn_head(tokens, head.norm, head.linear, (42, 70), levels=levels, prefix=3)
    found = head(head.reads(tokens, [])[-1], (42, 70))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def model_of(**options):
    encoder = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3], "final_norm": True,
               "patch_size": 14, "image_size": (42, 42)}  # fmt: skip
    heads = {"segmentation": {"kind": "linear", "num_classes": 5, **options}}
    model = dpt.create_model("dpt_tiny", heads=heads, encoder=encoder)
    scramble(model.heads["segmentation"])
    return model.eval()


@torch.no_grad()
def test_a_model_with_nothing_else_has_no_decoder():
    model = model_of(levels=4)
    assert model.decoder is None
    head, images = model.heads["segmentation"], torch.randn(2, 3, 28, 42)
    found = model(images)["segmentation"]
    tokens = model.encoder(images)
    wanted = bn_head(tokens, head.norm, head.linear, (28, 42), levels=4, prefix=1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.predict_labels(images), found.argmax(1))
    assert model(images[..., :25, :41])["segmentation"].shape == (2, 5, 25, 41)


@torch.no_grad()
def test_it_is_saved_and_made_ready_for_prediction(tmp_path):
    model, images = model_of(), torch.randn(1, 3, 28, 42)
    wanted = model(images)["segmentation"]
    model.save_pretrained(tmp_path)
    assert torch.equal(dpt.DPT.from_pretrained(tmp_path)(images)["segmentation"], wanted)
    fast = model.optimize_for_inference(compiled=False)
    torch.testing.assert_close(fast(images)["segmentation"], wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_beside_a_head_that_has_a_decoder():
    heads = {"segmentation": {"kind": "linear", "num_classes": 5}, "depth": {"kind": "relative"}}
    model = dpt.create_model("dpt_tiny", heads=heads, image_size=(32, 32)).eval()
    assert model.decoder is not None
    images = torch.randn(1, 3, 32, 48)
    outputs = model(images)
    assert outputs["depth"].shape == (1, 32, 48)
    model.decoder = None
    del model.heads["depth"]
    assert torch.equal(model(images)["segmentation"], outputs["segmentation"])


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"levels=5: the encoder gives 4 \(model.encoder.out_ind"):
        model_of(levels=5)
    with pytest.raises(ValueError, match="segmentation head has no auxiliary; it takes"):
        model_of(auxiliary=True)
    model_of().save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="the official format has no linear segmentation head"):
        convert(tmp_path / "model", tmp_path / "out.pt", to="official")
