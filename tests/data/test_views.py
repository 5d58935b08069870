"""augment.views and augment.crops: random views of a photo."""

import numpy as np
import pytest

from dpt.config.objects import check_arguments
from dpt.data import TrainTransform, collate_train
from dpt.data.transforms import draw_recolored_crop

SIZE = (32, 48)


@pytest.fixture
def photo():
    return np.random.default_rng(0).integers(0, 255, (60, 100, 3), np.uint8)


def test_views_and_crops_travel_into_the_batch(photo):
    transform = TrainTransform(image_size=SIZE, views=2, crops=3, crop_size=[16, 20])
    samples = [transform({"image": photo}, seed=seed) for seed in (1, 2)]
    batch = collate_train(samples, [])
    assert batch["image"].shape == (2, 3, *SIZE)
    assert batch["views"].shape == (2, 2, 3, *SIZE)
    assert batch["crops"].shape == (2, 3, 3, 16, 20)
    for key in ("views", "crops"):
        for sample, found in zip(samples, batch[key], strict=True):
            assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), sample[key])


def test_views_differ_and_depend_on_the_seed_alone(photo):
    transform = TrainTransform(image_size=SIZE, views=2, crops=1)
    one, same, other = (transform({"image": photo}, seed=seed) for seed in (1, 1, 2))
    assert one["crops"].shape == (1, 16, 24, 3)  # half of image_size
    for key in ("views", "crops"):
        assert np.array_equal(one[key], same[key])
        assert not np.array_equal(one[key], other[key])
    assert not np.array_equal(*one["views"])


def test_views_leave_the_image_as_it_was(photo):
    options = {"image_size": SIZE, "zoom": (1.0, 2.0), "color": 0.5, "hflip": 0.5}
    without = TrainTransform(**options)({"image": photo}, seed=3)
    given = TrainTransform(**options, views=2)({"image": photo}, seed=3)
    assert "views" not in without
    assert np.array_equal(given["image"], without["image"])


@pytest.mark.parametrize("area", [(0.05, 0.05), (0.3, 0.6), (1.0, 1.0)])
def test_the_area_of_views(area):
    """Red grows to the right, green downwards, so that the extent of a view can be read off."""
    size = 200
    ramp = np.linspace(0, 120, size)  # solarising changes bright colours alone
    photo = np.zeros((size, size, 3), np.uint8)
    photo[..., 0], photo[..., 1] = ramp, ramp[:, None]
    random, found = np.random.default_rng(0), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpt.data.transforms.strongly_changed", lambda image, *_: image)
        for _ in range(50):
            view = draw_recolored_crop(photo, random, (50, 50), area).astype(float)
            w, h = (np.ptp(view[..., k]) / 120 for k in (0, 1))
            found.append(w * h)
            assert 0.6 < w / h < 1.67  # 3/4 to 4/3, and what two pixels make of it
    assert min(found) > 0.7 * area[0]
    assert max(found) < 1.1 * area[1]
    assert area[0] == area[1] or max(found) - min(found) > 0.2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"views": -1}, r"augment\.views=-1"),
        ({"crops": 65}, r"augment\.crops=65"),
        ({"crop_size": (16,)}, r"augment\.crop_size=\[16\]"),
        ({"crop_size": (49, 20)}, r"augment\.crop_size=\[49, 20\].*at most 48 pixels"),
    ],
)
def test_wrong_settings_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        TrainTransform(
            **check_arguments(TrainTransform, {"image_size": SIZE, **options}, "augment")
        )
