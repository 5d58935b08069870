"""The geometry of crops: points, images, labels, objects and depth are mapped alike."""

import numpy as np
import pytest

from dpt.data.view import GREY, resize_image, resize_map, view_image, view_map, view_sample
from dpt.geometry import View, Window
from dpt.types.samples import IGNORE_INDEX

H, W = 120, 160
ROWS, COLUMNS = np.mgrid[:H, :W]


def coordinates():
    """A sample in which the image, the depth, and labels with objects tell row and column."""
    return {
        "image": np.dstack([ROWS, COLUMNS, np.full((H, W), 200)]).astype(np.uint8),
        "labels": ROWS.astype(np.uint8),
        "objects": (COLUMNS + 1).astype(np.uint16),
        "depth": (1 + ROWS + COLUMNS / 1000).astype(np.float32),
        "valid": np.ones((H, W), bool),
    }


def random_view(seed: int) -> View:
    """A random window with zoom; half of the views mirrored, two thirds rotated."""
    random = np.random.default_rng(seed)
    size = tuple(random.integers(20, 150, 2).tolist())
    height, width = random.integers(10, 200, 2).tolist()
    top, left = random.integers(-20, 40, 2).tolist()
    view = View.of_window(Window(top, left, height, width), size)
    view = view.flipped() if random.random() < 0.5 else view
    return view.rotated(random.uniform(-180, 180)) if seed % 3 else view


@pytest.mark.parametrize("first_seed", range(0, 300, 50))
def test_view_random_points_labels_and_depth_agree_to_a_pixel(first_seed):
    for seed in range(first_seed, first_seed + 50):
        view, sample = random_view(seed), coordinates()
        out = view_sample(sample, view)
        assert all(array.shape[:2] == view.size for array in out.values())
        pixels = np.argwhere(np.ones(view.size))[:, ::-1]
        sources = view.inverse((H, W)).map_points(pixels).reshape(*view.size, 2)
        tolerance = 0.51
        inside = out["valid"]
        rows, columns = out["labels"][inside], out["objects"][inside].astype(int) - 1
        assert np.abs(columns - sources[inside][:, 0]).max(initial=0) <= tolerance
        assert np.abs(rows - sources[inside][:, 1]).max(initial=0) <= tolerance
        assert np.array_equal(out["depth"][inside], sample["depth"][rows, columns])
        for name, fill in (("labels", IGNORE_INDEX), ("objects", 0), ("depth", 0)):
            assert (out[name][~inside] == fill).all()

        margin = 1 + 2 * max(1, view.shrinks_by)
        distance = np.minimum(sources, np.array([W - 1, H - 1]) - sources).min(axis=-1)
        inner, outer = distance > margin, distance < -margin
        assert inside[inner].all()
        assert not inside[outer].any()
        assert (out["image"][outer] == GREY).all()
        difference = out["image"][inner][:, 1::-1] - sources[inner]
        assert np.abs(difference).max(initial=0) <= tolerance + 0.5


def test_view_beyond_the_image_shows_what_its_matrix_says():
    """Windows of zoom 0.5 to 1, whose parts inside the image are no whole pixels of the result."""
    ramp = np.dstack([COLUMNS, ROWS]).astype(np.float32)
    for side in range(121, 240, 7):
        view = View.of_window(Window(120 - side, 160 - side, side, side), (90, 90))
        pixels = np.argwhere(np.ones(view.size))[:, ::-1]
        sources = view.inverse((H, W)).map_points(pixels).reshape(*view.size, 2)
        shown = view_image(ramp, view)
        inner = ((sources > 2) & (sources < np.array([W, H]) - 3)).all(axis=-1)
        assert np.abs(shown - sources)[inner].max() < 0.05


def test_view_of_window_is_a_slice_and_a_resize():
    sample, window = coordinates(), Window(11, 20, 60, 90)
    view = View.of_window(window, (40, 50))
    part = np.s_[11:71, 20:110]
    assert view.window == view.flipped().window == window
    image = resize_image(sample["image"][part], (40, 50))
    assert np.array_equal(view_image(sample["image"], view), image)
    assert np.array_equal(view_image(sample["image"], view.flipped()), image[:, ::-1])
    labels = resize_map(sample["labels"][part], (40, 50))
    assert np.array_equal(view_map(sample["labels"], view, 0), labels)


def test_view_rotates_counterclockwise():
    view = View.of_window(Window(0, 0, 9, 9), (9, 9)).rotated(90)
    np.testing.assert_allclose(view.map_points(np.array([[8.0, 4.0]])), [[4, 0]], atol=1e-9)
    image = np.arange(81, dtype=np.uint8).reshape(9, 9)
    assert np.array_equal(view_map(image, view, 0), np.rot90(image))


def test_view_sample_long_image_rotated():
    # OpenCV 4 warps no array with a side of 2**15 - 1 or more
    size, columns = (50, 40_000), np.arange(40_000, dtype=np.float32)
    sample = {
        "image": np.broadcast_to(columns[:, None] // 200, (*size, 3)).astype(np.uint8),
        "depth": np.broadcast_to(columns, size),
        "valid": np.ones(size, bool),
    }
    view = View.of_window(Window(0, 36_000, 50, 50), (50, 50)).rotated(3)
    out = view_sample(sample, view)
    column = view.inverse(size).map_points(np.array([[10, 25]]))[0, 0]
    assert out["valid"][25, 10]
    assert out["depth"][25, 10] == pytest.approx(column, abs=1)
    assert out["image"][25, 10, 0] == round(column) // 200
