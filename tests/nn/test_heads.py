"""Heads: layers by formula, ranges of their outputs, sizes, and messages for wrong arguments."""

import pytest
import torch
import torch.nn.functional as F

from dpt.nn import ClassificationHead, DepthHead, RegressionHead, SegmentationHead


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def features(batch=2, channels=8, size=(6, 10)):
    return torch.randn(batch, channels, *size)


ACTIVATIONS = {
    "relative": ({"kind": "relative"}, torch.relu),
    "sigmoid": ({"kind": "metric", "max_depth": 10.0}, lambda x: 10 * torch.sigmoid(x)),
    "softplus": (
        {"kind": "metric", "max_depth": 10.0, "activation": "softplus"},
        lambda x: torch.log1p(x.exp()),
    ),
}


@pytest.mark.parametrize("size", [(12, 20), (13, 19), (6, 10)])
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_depth_head_by_formula(kind, size):
    arguments, activation = ACTIVATIONS[kind]
    head = DepthHead(in_channels=8, **arguments)
    x = features()
    y = F.interpolate(head.conv1(x), size=size, mode="bilinear", align_corners=True)
    wanted = activation(head.conv3(F.relu(head.conv2(y))))[:, 0]
    found = head(x, size)
    assert found.shape == (2, *size)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_depth_head_has_the_official_widths():
    head = DepthHead(in_channels=256)
    shapes = [tuple(c.weight.shape) for c in (head.conv1, head.conv2, head.conv3)]
    assert shapes == [(128, 256, 3, 3), (32, 128, 3, 3), (1, 32, 1, 1)]


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_depth_ranges(kind):
    arguments, _ = ACTIVATIONS[kind]
    found = DepthHead(in_channels=8, **arguments)(features() * 1e4, (12, 20))
    assert (found >= 0).all()
    assert found.isfinite().all()
    assert (found.max() <= 10) == (kind == "sigmoid")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "absolute"}, r"kind='absolute'.*relative.*metric"),
        ({"kind": "metric"}, "needs max_depth > 0 in metres, not None"),
        ({"kind": "metric", "max_depth": 0.0}, "needs max_depth > 0"),
        ({"kind": "metric", "max_depth": float("nan")}, "needs max_depth > 0"),
        ({"activation": "exp"}, r"activation='exp'.*sigmoid.*softplus"),
    ],
)
def test_wrong_depth_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        DepthHead(in_channels=8, **arguments)


@pytest.mark.parametrize("size", [(12, 20), (13, 19)])
def test_segmentation_head_by_formula(size):
    head = SegmentationHead(in_channels=8, num_classes=5).eval()
    conv, bn, _, dropout, classify = head.layers
    assert conv.bias is None
    assert dropout.p == 0.1
    x = features()
    y = classify(F.relu(bn(conv(x))))
    wanted = F.interpolate(y, size=size, mode="bilinear", align_corners=True)
    found = head(x, size)
    assert found.shape == (2, 5, *size)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_auxiliary_reads_the_penultimate_fusion_output():
    head = SegmentationHead(in_channels=8, num_classes=5).eval()
    maps = [features(size=(3 * 2**i, 5 * 2**i)) for i in range(4)]
    found = head.auxiliary(maps, (48, 80))
    logits = head.auxiliary_layers(maps[2])
    wanted = F.interpolate(logits, size=(48, 80), mode="bilinear", align_corners=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert (
        SegmentationHead(in_channels=8, num_classes=5, auxiliary=False).auxiliary(maps, (4, 4))
        is None
    )
    assert DepthHead(in_channels=8).auxiliary(maps, (4, 4)) is None


def test_classification_reads_the_cls_token():
    head = ClassificationHead(dim=8, num_prefix_tokens=3, num_classes=4)
    tokens = torch.randn(2, 3 + 6, 8)
    found = head(tokens)
    assert found.shape == (2, 4)
    torch.testing.assert_close(found, head.linear(head.norm(tokens[:, 0])))
    tokens[:, 1:] = 0  # registers and patches do not matter
    torch.testing.assert_close(head(tokens), found, rtol=0, atol=0)


def test_without_cls_the_mean_token_is_read():
    head = ClassificationHead(dim=8, num_prefix_tokens=0, num_classes=4)
    tokens = torch.randn(2, 6, 8)
    torch.testing.assert_close(head(tokens), head.linear(head.norm(tokens.mean(1))))


def test_regression_gives_one_number_an_image():
    head = RegressionHead(dim=8, num_prefix_tokens=1)
    tokens = torch.randn(3, 7, 8)
    found = head(tokens)
    assert found.shape == (3,)
    torch.testing.assert_close(found, head.linear(head.norm(tokens[:, 0]))[:, 0])


@pytest.mark.parametrize("classes", [0, -3])
def test_class_counts_below_one(classes):
    with pytest.raises(ValueError, match=f"num_classes >= 1, not {classes}"):
        SegmentationHead(in_channels=8, num_classes=classes)
    with pytest.raises(ValueError, match=f"num_classes >= 1, not {classes}"):
        ClassificationHead(dim=8, num_prefix_tokens=1, num_classes=classes)
