"""Colour changes against torchvision's, where that clips nothing; hue by what it must keep;
pixel transforms of albumentations (``augment.extra``)."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as peer

from dpt.data import TrainTransform
from dpt.data.transforms import change_colors

SAME = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}


def picture():
    return np.random.default_rng(0).integers(80, 160, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("what", ["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.6, 1.4])
def test_one_change_is_torchvisions(what, factor):
    image = picture()
    tensor = torch.from_numpy(image).permute(2, 0, 1)
    wanted = getattr(peer, f"adjust_{what}")(tensor, factor).permute(1, 2, 0).numpy()
    found = change_colors(image, **{**SAME, what: factor})
    assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1  # it rounds down


FOG = {"kind": "RandomFog", "p": 0.5}
NOISE = {"kind": "SaltAndPepper", "p": 0.5}


def test_extra_changes_the_image_alone_as_the_seed_says():
    sample = {"image": picture(), "labels": np.zeros((20, 30), np.uint8)}
    transform = TrainTransform(image_size=[20, 30], hflip=0, extra=[FOG, NOISE])
    outs = [transform(sample, seed=seed) for seed in range(12)]
    again = [transform(sample, seed=seed) for seed in reversed(range(12))][::-1]
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(outs, again, strict=True))
    assert len({out["image"].tobytes() for out in outs}) > 6
    assert not any(out["labels"].any() for out in outs)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "Affine"},
        {"kind": "Normalize"},  # not 8 bits
        {"kind": "core.utils.os"},
    ],
    ids=str,
)
def test_extra_refuses_all_but_pixel_transforms(settings):
    with pytest.raises(ValueError, match=r"^augment\.extra\.1\.kind=[^\n]*$"):
        TrainTransform(image_size=[20, 30], extra=[FOG, settings])
