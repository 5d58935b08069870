"""Heads: layers by formula, ranges of their outputs, sizes, and messages for wrong settings."""

import pytest
import torch
import torch.nn.functional as F

import dpt
from dpt.nn import Encoder, Features
from dpt.nn.base import FusedMap
from dpt.nn.heads.dense import (
    DepthHead,
    DepthHeadConfig,
    InpaintingHead,
    LinearSegmentationHead,
    SegmentationHead,
    SegmentationHeadConfig,
)
from dpt.nn.heads.image import ClassificationHeadConfig
from dpt.types.outputs import Tokens
from dpt.weights.formats import convert

GRID = (3, 5)


def encoder(prefix=1, dim=8, levels=4):
    """The declarations of an encoder, which is all that heads read of it."""
    made = Encoder()
    made.embed_dims, made.num_prefix_tokens = (dim,) * levels, (prefix,) * levels
    made.strides, made.pad_multiple = (16,) * levels, 16
    return made


def features(prefix=1, batch=2):
    """Tokens of four levels and four maps with 8 channels, the last for 12 × 20 pixels."""
    tokens = [torch.randn(batch, prefix + GRID[0] * GRID[1], 8) for _ in range(4)]
    sizes = [(1, 2), (2, 3), (3, 5), (6, 10)]
    maps = [FusedMap(torch.randn(batch, 8, h, w), (2 * h, 2 * w)) for h, w in sizes]
    return Features(encoder(prefix), Tokens(tokens, [GRID] * 4), maps)


def upsampled(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=True)


# --- Depth

ACTIVATIONS = {
    "relative": ({}, torch.relu),
    "sigmoid": ({"kind": "metric", "max_depth": 10.0}, lambda x: 10 * torch.sigmoid(x)),
    "inverse": (
        {"kind": "metric", "activation": "inverse", "scale": 0.5, "shift": 0.1},
        lambda x: 1 / (0.5 * torch.relu(x) + 0.1),
    ),
    "inverse without a shift": (
        {"kind": "metric", "activation": "inverse"},
        lambda x: 1 / torch.relu(x).clamp_min(1e-8),
    ),
    "relu": (
        {"kind": "metric", "activation": "relu", "min_depth": 0.2},
        lambda x: torch.relu(x) + 0.2,
    ),
}


@pytest.mark.parametrize("size", [(24, 40), (25, 39)])
@pytest.mark.parametrize("upsample", ["image", "double"])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_depth_by_formula(kind, upsample, size):
    settings, activation = ACTIVATIONS[kind]
    head = DepthHead(DepthHeadConfig(upsample=upsample, **settings), 8)
    x = features()
    y = upsampled(head.conv1(x.map), size if upsample == "image" else (24, 40))
    wanted = activation(head.conv3(F.relu(head.conv2(y))))
    if size != wanted.shape[-2:]:
        wanted = F.interpolate(wanted, size=size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(head(x, size), wanted[:, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_depth_in_half_precision_is_not_rounded_to_half_precision(weights):
    """Within an autocast, and with weights of half precision."""
    head = DepthHeadConfig(kind="metric", max_depth=80.0).build(encoder(), 8).to(weights)
    x = features()
    x.maps = [FusedMap(map_.to(weights), size) for map_, size in x.maps]
    with torch.autocast("cpu", torch.bfloat16, enabled=weights == torch.float32):
        depth = head(x, (24, 40))
    assert depth.dtype == torch.float32
    assert not torch.equal(depth, depth.bfloat16().float())


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_depth_lies_in_the_declared_range(kind):
    head = DepthHead(DepthHeadConfig(**ACTIVATIONS[kind][0]), 8)
    x = features()
    x.maps[-1].map.mul_(1e4)
    found = head(x, (12, 20))
    assert (found >= 0).all()
    assert found.isfinite().all()
    assert head.output.value_range == ((0.0, 10.0) if kind in ("sigmoid", "inverse") else None)
    assert (kind not in ("sigmoid", "inverse")) or found.max() <= 10
    assert head.output.unit == ("relative inverse depth" if kind == "relative" else "m")
    assert head.output.is_inverse_depth == (kind == "relative")


# --- Segmentation


@pytest.mark.parametrize("size", [(24, 40), (25, 39)])
def test_segmentation_by_formula(size):
    head = SegmentationHead(SegmentationHeadConfig(num_classes=5), 8).eval()
    conv, bn, _, dropout, classify = head.layers
    assert conv.bias is None
    assert dropout.p == 0.1
    x = features()
    small = classify(F.relu(bn(conv(x.map))))
    torch.testing.assert_close(head.raw(x, size).prediction, small)
    torch.testing.assert_close(head(x, size), upsampled(small, size))


def test_auxiliary_logits_are_of_the_penultimate_fusion():
    head = SegmentationHead(SegmentationHeadConfig(num_classes=5, dropout=0.0), 8)
    x = features()
    wanted = head.auxiliary_layers(upsampled(*x.maps[-2]))
    torch.testing.assert_close(head.raw(x, (24, 40)).auxiliary, wanted)
    without = SegmentationHead(SegmentationHeadConfig(num_classes=5, auxiliary=False), 8)
    for other in (head.eval(), without, DepthHead(DepthHeadConfig(), 8)):
        assert other.raw(x, (24, 40)).auxiliary is None


def bn_head(tokens, norm, linear, size, *, prefix):
    """DINOv2's BNHead: the deepest patch tokens, batch norm, 1×1 convolution, resized."""
    level, grid = tokens.levels[-1], tokens.grids[-1]
    x = level[:, prefix:].reshape(len(level), *grid, -1).permute(0, 3, 1, 2)
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
def test_a_linear_segmentation_head_is_dinov2s(training):
    config = SegmentationHeadConfig(num_classes=6, kind="linear", dropout=0.0)
    head = LinearSegmentationHead(config, encoder(prefix=3)).train(training)
    scramble(head)
    x = features(prefix=3)
    wanted = bn_head(x.tokens, head.norm, head.linear, (42, 70), prefix=3)
    torch.testing.assert_close(head(x, (42, 70)), wanted, rtol=1e-5, atol=1e-5)


def linear_model(**options):
    sizes = {
        "embed_dim": 48,
        "num_blocks": 4,
        "out_indices": [0, 1, 2, 3],
        "final_norm": True,
        "patch_size": 14,
        "image_size": [42, 42],
    }
    heads = {"segmentation": {"kind": "linear", "num_classes": 5, **options}}
    model = dpt.create_model("dpt_tiny", heads=heads, encoder=sizes)
    scramble(model.heads["segmentation"])
    return model.eval()


@torch.no_grad()
def test_a_model_with_a_linear_head_alone_has_no_decoder(tmp_path):
    model, images = linear_model(), torch.randn(2, 3, 28, 42)
    assert model.decoder is None
    head, tokens = model.heads["segmentation"], model.encoder(images)
    found = model(images)["segmentation"]
    wanted = bn_head(tokens, head.norm, head.linear, (28, 42), prefix=1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert model(images[..., :25, :41])["segmentation"].shape == (2, 5, 25, 41)
    fast = model.optimize_for_inference(compiled=False)
    torch.testing.assert_close(fast(images)["segmentation"], found, rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path / "model")
    again = dpt.DPT.from_pretrained(tmp_path / "model")
    assert torch.equal(again(images)["segmentation"], found)
    with pytest.raises(ValueError, match="official"):
        convert(tmp_path / "model", tmp_path / "out.pt", to="official")


# --- Tokens


def test_classification_reads_the_cls_token():
    head = ClassificationHeadConfig(num_classes=4).build(encoder(prefix=3), 8)
    x = features(prefix=3)
    tokens = x.tokens.levels[-1]
    found = head(x, (1, 1))
    assert found.shape == (2, 4)
    torch.testing.assert_close(found, head.linear(head.norm(tokens[:, 0])))
    tokens[:, 1:] = 0  # registers and patches do not matter
    torch.testing.assert_close(head(x, (1, 1)), found, rtol=0, atol=0)


def test_without_cls_the_mean_token_is_read():
    head = ClassificationHeadConfig(num_classes=4).build(encoder(prefix=0), 8)
    x = features(prefix=0)
    mean = x.tokens.levels[-1].mean(1)
    torch.testing.assert_close(head(x, (1, 1)), head.linear(head.norm(mean)))


def test_inpainting_places_the_pixels_of_each_token():
    head = InpaintingHead(encoder(prefix=2))
    x = features(prefix=2)
    found = head(x, (48, 80))
    assert found.shape == (2, 3, 48, 80)
    values = head.linear(head.norm(x.tokens.levels[-1][:, 2 + 7]))  # row 1, column 2
    patch = found[:, :, 16:32, 32:48]
    torch.testing.assert_close(patch, values.view(2, 3, 16, 16))


# --- Settings


def test_segmentation_head_starts_at_its_prior():
    """Before training, every pixel has the probabilities of the classes: the constant baseline."""
    prior = (0.2, 0.7, 0.1)
    config = SegmentationHeadConfig(num_classes=3, prior=prior)
    head = SegmentationHead(config, 8).eval()
    logits = head(features(), (48, 80))
    expected = torch.tensor(prior).view(3, 1, 1).expand(2, 3, 48, 80)
    torch.testing.assert_close(logits.softmax(1), expected)
    assert (logits.argmax(1) == 1).all()
    assert head.auxiliary_layers is not None
    torch.testing.assert_close(head.auxiliary_layers[-1].bias.exp(), torch.tensor(prior))


def test_segmentation_head_draws_its_weights_in_the_order_of_its_layers():
    """Another order would change every seeded run."""
    torch.manual_seed(0)
    head = SegmentationHead(SegmentationHeadConfig(num_classes=3, auxiliary=False), 8)
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.Conv2d(8, 3, 1)
    assert torch.equal(head.layers[0].weight, layers[0].weight)
    assert torch.equal(head.layers[-1].weight, layers[1].weight)
