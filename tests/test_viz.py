"""Pictures: colours, legends and panels."""

import cv2
import numpy as np
import pytest

from dpt import viz
from dpt.types.outputs import OutputSpec

RAMP = np.tile(np.linspace(1, 10, 50, dtype=np.float32), (8, 1))  # nearest at the left
METRIC = OutputSpec("x", "depth", unit="m")
RELATIVE = OutputSpec("x", "depth", unit="relative inverse depth")
SPEED = OutputSpec("x", "map", channels=1, unit="m/s")


def brightness(picture: np.ndarray) -> np.ndarray:
    return picture.astype(float).sum(2)


@pytest.mark.parametrize("colormap", viz.COLORMAPS)
def test_colorize_depth_shows_near_bright_or_warm_and_only_invalid_black(colormap):
    depth = RAMP.copy()
    depth[0, :4] = [0, -1, np.nan, np.inf]
    valid = np.ones_like(depth, bool)
    valid[1] = False
    picture = viz.colorize_depth(depth, valid, colormap=colormap)
    assert (picture.dtype, picture.shape) == (np.uint8, (8, 50, 3))
    assert (picture[0, :4] == 0).all()
    assert (picture[1] == 0).all()
    assert (brightness(picture)[2:] > 0).all()
    assert (viz.colorize_depth(depth, np.zeros_like(valid), colormap=colormap) == 0).all()
    if colormap not in ("turbo", "spectral"):
        light = brightness(picture)[2]
        assert light[0] > 1.5 * light[-1]
        assert (np.diff(light) <= 3).all()  # never clearly brighter again
    if colormap not in ("viridis", "gray"):
        warmth = picture[2, :, 0].astype(int) - picture[2, :, 2]
        assert warmth[0] > warmth[-1] + 50


def test_default_palette_tells_classes_apart():
    palette = viz.default_palette(150)
    assert (palette.dtype, palette.shape) == (np.uint8, (150, 3))
    np.testing.assert_array_equal(palette[:20], viz.default_palette(20))
    distance = np.abs(palette[:, None].astype(int) - palette[None]).sum(2) + 1000 * np.eye(150)
    assert distance.min() >= 18
    assert distance[:20, :20].min() > 60
    assert palette.sum(1).min() > 60  # black is for the ignored


def test_background_is_grey_unless_the_palette_is_given():
    spec = OutputSpec("x", "logits", channels=2, class_names=("Background", "nucleus"))
    ids = np.array([[0, 1]])
    grey, nucleus = viz.colorize_output(ids, spec)[0].tolist()
    assert len(set(grey)) == 1
    assert nucleus == viz.default_palette(2)[1].tolist()
    panel = viz.segmentation_panel(np.zeros((1, 2, 3), np.uint8), ids, ids, None, spec.class_names)
    assert grey in panel.reshape(-1, 3).tolist()
    assert viz.as_palette([(1, 2, 3), (4, 5, 6)], 2, spec.class_names).tolist()[0] == [1, 2, 3]


def test_colorize_labels_takes_the_palette_and_black():
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    palette = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    picture = viz.colorize_labels(labels, palette)
    assert picture.reshape(-1, 3).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]
    moved = viz.colorize_labels(labels, palette + [(9, 9, 9)] * 253, ignore_index=1)
    assert moved[:, 1].tolist() == [[0, 0, 0], [9, 9, 9]]
    np.testing.assert_array_equal(viz.colorize_labels(labels)[0, 1], viz.default_palette(2)[1])


def test_colorize_output_draws_as_declared():
    ids = np.array([[0, 1]])
    palette = ((1, 2, 3), (4, 5, 6))
    logits = OutputSpec("x", "logits", channels=2, palette=palette)
    expected = viz.colorize_labels(ids, palette)
    np.testing.assert_array_equal(viz.colorize_output(ids, logits), expected)
    scores = np.array([[[9.0, 0.0]], [[0.0, 9.0]]])
    np.testing.assert_array_equal(viz.colorize_output(scores, logits), expected)
    relative = viz.colorize_output(1 / RAMP.astype(float), RELATIVE)
    np.testing.assert_array_equal(viz.colorize_output(RAMP, METRIC), relative)
    normals = OutputSpec("x", "map", channels=3, value_range=(-1.0, 1.0))
    up = np.array([0.0, 0.0, 1.0])[:, None, None]
    assert viz.colorize_output(up, normals).tolist() == [[[128, 128, 255]]]
    speed = np.array([[[0.0, 1.0, np.nan]]])
    picture = viz.colorize_output(speed, SPEED)
    assert picture[0, 2].tolist() == [0, 0, 0]
    assert brightness(picture)[0, 1] > brightness(picture)[0, 0] > 0


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(60, 256, (48, 64, 3), dtype=np.uint8)


def cells(panel: np.ndarray) -> list[np.ndarray]:
    """The four pictures of a panel of 64 × 48 pixels, enlarged four times."""
    assert (panel.dtype, panel.shape[1]) == (np.uint8, 4 * 260)
    return [panel[20:212, k * 260 : k * 260 + 256] for k in range(4)]


def test_depth_panel_shows_both_depths_in_one_range(image):
    ground_truth = np.full((48, 64), 2.0, np.float32)
    ground_truth[:, 32:] = 8.0
    valid = np.ones_like(ground_truth, bool)
    valid[:12] = False
    prediction = np.full_like(ground_truth, 2.0)
    _, expected, predicted, error = cells(viz.depth_panel(image, ground_truth, valid, prediction))
    assert (expected[:48] == 0).all()
    assert (error[:48] == 0).all()
    np.testing.assert_array_equal(expected[48:, :128], predicted[48:, :128])
    np.testing.assert_array_equal(predicted[100, 10], predicted[100, 200])  # 2 m both
    assert not np.array_equal(expected[100, 200], predicted[100, 200])
    left, right = error[100, 10].astype(int), error[100, 200].astype(int)
    assert left[2] > left[0]  # blue
    assert right[0] > right[2] + 60  # red


def test_depth_panel_survives_missing_and_bad_depth(image):
    nothing, bad = np.zeros((48, 64), np.float32), np.full((48, 64), np.nan, np.float32)
    _, expected, predicted, _ = cells(viz.depth_panel(image, nothing, None, nothing + 3))
    assert (expected == 0).all()
    assert (brightness(predicted) > 0).all()
    _, _, predicted, error = cells(viz.depth_panel(image, nothing + 2, None, bad))
    assert (predicted == 0).all()
    assert error[50, 50].tolist() == [158, 1, 66]  # the worst colour, not a crash


def test_segmentation_panel_marks_the_wrong_pixels(image):
    labels = np.zeros((48, 64), np.uint8)
    labels[:12] = 255
    prediction = np.zeros((48, 64), np.int64)
    prediction[24:] = 2
    _, expected, predicted, error = cells(viz.segmentation_panel(image, labels, prediction))
    palette = viz.default_palette(3)
    assert (expected[:48] == 0).all()
    assert (expected[48:] == palette[0]).all()
    assert (predicted[96:] == palette[2]).all()
    assert (error[:48] == 0).all()
    assert (error[96:] == [225, 45, 45]).all()
    assert 0 < error[50:94].max() <= 255 // 3  # dimmed
    large = np.zeros((200, 300, 3), np.uint8)  # keeps its size
    assert viz.segmentation_panel(large, large[..., 0], large[..., 0]).shape[1] == 4 * 304


def colors_of(picture):
    return set(map(tuple, picture.reshape(-1, 3).tolist()))


def test_legend_names_the_classes_that_occur(image):
    palette = ((250, 0, 10), (0, 250, 20), (0, 10, 250))
    spec = OutputSpec("x", "logits", channels=3, class_names=("road", "sky"), palette=palette)
    strip = viz.legend(np.array([[0, 0, 2, 255]]), spec, width=300, limits=(0, 1))
    assert strip.shape == (20, 300, 3)
    assert colors_of(strip) & set(palette) == {palette[0], palette[2]}
    assert (strip[5, 6] == palette[0]).all()  # the more frequent first
    everything = viz.legend(np.array([[0, 1, 2]]), spec, width=300, limits=(0, 1))
    assert everything.shape == strip.shape  # of equal height: frames of a video
    many = OutputSpec("x", "logits", channels=150)
    assert viz.legend(np.arange(150)[None], many, width=2500, limits=(0, 1)).shape == (120, 2500, 3)
    labels = np.zeros((48, 64), np.uint8)
    panel = viz.segmentation_panel(image, labels, labels, palette, ("road",))
    assert palette[0] in colors_of(panel[212:])


@pytest.mark.parametrize("name", ["\udc80", "名前", "a\0b", "\x1b[31m", "x" * 10_000])
def test_pictures_hold_any_name(image, name):
    labels = np.zeros(image.shape[:2], np.uint8)
    viz.segmentation_panel(image, labels, labels, names=[name])
    viz.color_bar("inferno", 0, 1, width=400, unit=name)
    viz.side_by_side([image], [name])


@pytest.mark.parametrize(
    ("spec", "limits", "texts"),
    [
        (METRIC, (0.1, 0.5), ["10", "5", "3.33", "2.5", "2 m"]),  # limits of inverse depth
        (METRIC, (1 / 2.02, 1 / 2), ["2.02", "2.015", "2.01", "2.005", "2 m"]),  # a flat wall
        (RELATIVE, (0.0, 8.0), ["0", "8 relative inverse depth"]),
        (SPEED, (1, 10), ["1", "3.25", "5.5", "7.75", "10 m/s"]),
        (OutputSpec("x", "map", channels=3), (0, 1), []),
    ],
)
def test_legend_says_range_and_unit(monkeypatch, spec, limits, texts):
    written, put = [], cv2.putText
    monkeypatch.setattr(
        viz.cv2, "putText", lambda picture, text, *a: written.append(text) or put(picture, text, *a)
    )
    strip = viz.legend(RAMP, spec, width=400, limits=limits)
    assert written == texts
    assert len(strip) == (36 if texts else 0)
    if spec is METRIC:
        first, last = viz.color_table("inferno")[[0, 255]].tolist()
        assert strip[10].tolist().index(first) < strip[10].tolist().index(last)
