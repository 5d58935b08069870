"""Test-time augmentation against its definitions, on a model whose answers can be worked out."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dpt.nn.tta import augmented, flipped_mean, mirror, multi_scale, slide
from dpt.types.outputs import OutputSpec
from dpt.types.samples import Inputs

K = 3
SPECS = {
    "depth": OutputSpec("depth", "depth", unit="m"),
    "segmentation": OutputSpec("segmentation", "logits", channels=K),
    "classification": OutputSpec("classification", "logits", channels=K, dense=False),
    "regression": OutputSpec("regression", "vector", dense=False),
}


def uneven(inputs):
    """Outputs that depend on the place: neither symmetric nor equal in all windows."""
    x = inputs.images.mean(1)
    ramp = torch.linspace(0, 1, x.shape[-1])
    depth = x + ramp
    logits = torch.stack([x, 2 * x * ramp, ramp.expand_as(x)], 1) * 3
    pooled = logits.mean((2, 3))
    return {
        "depth": depth,
        "segmentation": logits,
        "classification": pooled,
        "regression": depth.mean((1, 2)),
    }


@pytest.fixture
def images():
    return torch.randn(2, 3, 10, 14, generator=torch.Generator().manual_seed(0))


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


def test_signs_of_channels_change_with_the_mirror():
    normals = torch.randn(2, 3, 4, 5)
    spec = OutputSpec("normals", "map", channels=3, flip_signs=(-1.0, 1.0, 1.0))
    found = mirror(normals, spec)
    assert torch.equal(found[:, 0], -normals[:, 0].flip(-1))
    assert torch.equal(found[:, 1:], normals[:, 1:].flip(-1))
    direction = OutputSpec("direction", "vector", channels=2, dense=False, flip_signs=(-1.0, 1.0))
    assert mirror(torch.ones(1, 2), direction).tolist() == [[-1.0, 1.0]]


def test_classes_exchange_their_sides_in_the_mirror():
    names = ("left lung", "right lung", "heart")
    spec = OutputSpec("segmentation", "logits", channels=K, class_names=names)
    logits = torch.randn(2, K, 4, 5)
    assert torch.equal(mirror(logits, spec), logits[:, [1, 0, 2]].flip(-1))
    lone = OutputSpec("segmentation", "logits", channels=K, class_names=("left lung", "a", "b"))
    with pytest.raises(ValueError, match=r"flip: .*segmentation"):
        flipped_mean(uneven, {"segmentation": lone}, Inputs(torch.zeros(1, 3, 4, 6)))


def test_flip_by_definition(images):
    a, b = uneven(Inputs(images)), uneven(Inputs(images.flip(-1)))
    found = flipped_mean(uneven, SPECS, Inputs(images))
    torch.testing.assert_close(found["depth"], (a["depth"] + b["depth"].flip(-1)) / 2)
    torch.testing.assert_close(found["regression"], (a["regression"] + b["regression"]) / 2)
    mean = (a["segmentation"].softmax(1) + b["segmentation"].flip(-1).softmax(1)) / 2
    torch.testing.assert_close(found["segmentation"].softmax(1), mean)
    mean = (a["classification"].softmax(1) + b["classification"].softmax(1)) / 2
    torch.testing.assert_close(found["classification"].exp(), mean)


def test_sides_are_rounded(images):
    sizes = []

    def spy(x):
        sizes.append(tuple(x.images.shape[-2:]))
        return uneven(x)

    augmented(spy, SPECS, scales=[0.1, 0.5, 1.0, 1.5], multiple_of=4)(Inputs(images))
    assert sizes == [(4, 4), (4, 8), (10, 14), (16, 20)]  # scale 1 is left as it is


def reference_slide(images, window, stride):
    """mmsegmentation's slide_inference, written from its description."""
    height, width = images.shape[-2:]
    total, count = np.zeros((len(images), K, height, width)), np.zeros((height, width))
    tops = range(max(height - window[0] + stride[0] - 1, 0) // stride[0] + 1)
    lefts = range(max(width - window[1] + stride[1] - 1, 0) // stride[1] + 1)
    for top in tops:
        for left in lefts:
            y2 = min(top * stride[0] + window[0], height)
            x2 = min(left * stride[1] + window[1], width)
            y1, x1 = max(y2 - window[0], 0), max(x2 - window[1], 0)
            logits = uneven(Inputs(images[..., y1:y2, x1:x2]))["segmentation"]
            total[:, :, y1:y2, x1:x2] += logits.numpy()
            count[y1:y2, x1:x2] += 1
    assert count.min() > 0
    return torch.from_numpy(total / count).float()


@pytest.mark.parametrize(
    ("window", "stride"),
    [((6, 6), (4, 4)), ((10, 14), (3, 3)), ((4, 5), (4, 5)), ((20, 6), (7, 5)), ((7, 3), (1, 2))],
)
def test_slide_by_definition(images, window, stride):
    found = slide(uneven, SPECS, Inputs(images), window=window, stride=stride)
    torch.testing.assert_close(found["segmentation"], reference_slide(images, window, stride))
    assert found["depth"].shape == (2, 10, 14)
    assert found["classification"].shape == (2, K)


def test_slide_gives_the_field_of_view_of_the_whole_image(images):
    focal = 5.0  # pixels, in every window

    def fov(x):
        degrees = 2 * math.degrees(math.atan(x.images.shape[-1] / 2 / focal))
        return {"fov": torch.full((len(x.images),), degrees)}

    specs = {"fov": OutputSpec("fov", "fov", dense=False)}
    found = slide(fov, specs, Inputs(images), window=(6, 8), stride=(4, 4))
    torch.testing.assert_close(found["fov"], fov(Inputs(images))["fov"])


def test_all_of_them_are_one_mean_over_flips_and_scales(images):
    found = augmented(uneven, SPECS, flip=True, scales=(1.0, 0.5), window=(6, 8), stride=(4, 4))(
        Inputs(images)
    )
    views = []
    for size in ((10, 14), (5, 7)):
        small = images
        if size != (10, 14):
            small = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        for flips in (False, True):
            view = small.flip(-1) if flips else small
            logits = reference_slide(view, (6, 8), (4, 4))
            logits = logits.flip(-1) if flips else logits
            logits = F.interpolate(logits, size=(10, 14), mode="bilinear", align_corners=True)
            views.append(logits)
    mean = torch.stack([logits.softmax(1) for logits in views]).mean(0)
    torch.testing.assert_close(found["segmentation"].softmax(1), mean, rtol=1e-5, atol=1e-6)


def test_sure_predictions_stay_finite(images):
    def sure(x):
        return {"segmentation": uneven(x)["segmentation"] * 1e4}

    assert flipped_mean(sure, SPECS, Inputs(images))["segmentation"].isfinite().all()


def test_half_precision_outputs_are_averaged_in_float32(images):
    def half(x):
        return {k: v.bfloat16() for k, v in uneven(x).items()}

    for form in ({"flip": True}, {"window": (6, 6)}, {"scales": (0.5, 1.0)}):
        assert all(
            v.dtype is torch.float32
            for v in augmented(half, SPECS, **form)(Inputs(images)).values()
        )


def test_mistakes_are_named(images):
    with pytest.raises(ValueError, match="stride="):
        slide(uneven, SPECS, Inputs(images), window=(4, 4), stride=(5, 4))
    for scales in ([], [0.0], [1e9], [float("nan")]):
        with pytest.raises(ValueError, match="scales="):
            multi_scale(uneven, SPECS, Inputs(images), scales=scales)
