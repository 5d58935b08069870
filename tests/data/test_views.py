"""augment.views and augment.crops: random views of an image."""

import numpy as np
import pytest

from dpt.data import TrainTransform, collate_train
from dpt.data.transforms import draw_recolored_crop

SIZE = (32, 48)


@pytest.fixture
def image():
    return np.random.default_rng(0).integers(0, 255, (60, 100, 3), np.uint8)


def test_views_and_crops_travel_into_the_batch(image):
    transform = TrainTransform(image_size=SIZE, views=2, crops=3, crop_size=[16, 20])
    samples = [transform({"image": image}, seed=seed) for seed in (1, 2)]
    batch = collate_train(samples, [])
    assert batch["image"].shape == (2, 3, *SIZE)
    assert batch["views"].large.shape == (2, 2, 3, *SIZE)
    assert batch["views"].small.shape == (2, 3, 3, 16, 20)
    for name in ("large", "small"):
        stacked = np.stack([getattr(sample["views"], name) for sample in samples])
        assert np.array_equal(getattr(batch["views"], name).movedim(-3, -1), stacked)


def test_views_differ_and_depend_on_the_seed_alone(image):
    transform = TrainTransform(image_size=SIZE, views=2, crops=1)
    one, same, other = (transform({"image": image}, seed=seed)["views"] for seed in (1, 1, 2))
    assert one.small.shape == (1, 16, 24, 3)  # half of image_size
    for first, second, third in zip(one, same, other, strict=True):
        assert np.array_equal(first, second)
        assert not np.array_equal(first, third)
    assert not np.array_equal(*one.large)


@pytest.mark.parametrize("area", [(0.05, 0.05), (0.3, 0.6), (1.0, 1.0)])
def test_draw_recolored_crop_has_the_area(area, monkeypatch):
    """Red grows to the right, green downwards, so that the extent of a crop can be read off."""
    monkeypatch.setattr("dpt.data.transforms.change_strongly", lambda image, *_: image)
    size = 200
    ramp = np.linspace(0, 120, size)  # solarising changes bright colours alone
    image = np.zeros((size, size, 3), np.uint8)
    image[..., 0], image[..., 1] = ramp, ramp[:, None]
    random = np.random.default_rng(0)
    areas = []
    for _ in range(50):
        crop = draw_recolored_crop(image, random, (50, 50), area).astype(float)
        width, height = (np.ptp(crop[..., k]) / 120 for k in (0, 1))
        areas.append(width * height)
        assert 0.6 < width / height < 1.67  # 3/4 to 4/3, and what two pixels make of it
    assert min(areas) > 0.7 * area[0]
    assert max(areas) < 1.1 * area[1]
    assert area[0] == area[1] or max(areas) - min(areas) > 0.2
