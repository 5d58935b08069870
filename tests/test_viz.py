import tracemalloc

import cv2
import numpy as np
import pytest

from dpt import viz
from dpt.segments import OBJECT_IDS
from dpt.types import OutputSpec

RAMP = np.tile(np.linspace(1, 10, 50, dtype=np.float32), (8, 1))  # nearest at the left


def brightness(picture: np.ndarray) -> np.ndarray:
    return picture.astype(float).sum(2)


@pytest.mark.parametrize("colormap", ["inferno", "magma", "viridis", "gray"])
def test_near_is_brighter_than_far(colormap):
    picture = viz.colorize_depth(RAMP, colormap=colormap)
    assert picture.dtype == np.uint8
    assert picture.shape == (8, 50, 3)
    light = brightness(picture)[0]
    assert light[0] > 1.5 * light[-1]
    assert (np.diff(light) <= 3).all()  # never clearly brighter again


@pytest.mark.parametrize("colormap", ["turbo", "spectral", "inferno", "magma"])
def test_near_is_warmer_than_far(colormap):
    picture = viz.colorize_depth(RAMP, colormap=colormap).astype(int)
    red, blue = picture[0, :, 0], picture[0, :, 2]
    assert (red - blue)[0] > (red - blue)[-1] + 50


@pytest.mark.parametrize("colormap", viz.COLORMAPS)
def test_black_is_for_the_invalid_only(colormap):
    depth = RAMP.copy()
    depth[0, :4] = [0, -1, np.nan, np.inf]
    valid = np.ones_like(depth, bool)
    valid[1] = False
    picture = viz.colorize_depth(depth, valid, colormap=colormap)
    assert (picture[0, :4] == 0).all()
    assert (picture[1] == 0).all()
    assert (brightness(picture)[2:] > 0).all()
    assert (viz.colorize_depth(depth, np.zeros_like(valid), colormap=colormap) == 0).all()


def test_inverse_depth_looks_like_its_depth():
    np.testing.assert_array_equal(
        viz.colorize_depth(RAMP), viz.colorize_depth(1 / RAMP.astype(float), inverse=False)
    )
    shifted = viz.colorize_depth(1 / RAMP - 0.5, inverse=False)  # relative: may be negative
    assert (brightness(shifted) > 0).all()


def test_range_is_shared_when_given():
    near = viz.colorize_depth(RAMP[:, :25], vmin=1, vmax=10)
    both = viz.colorize_depth(RAMP, vmin=1, vmax=10)
    np.testing.assert_array_equal(near, both[:, :25])
    own = viz.colorize_depth(RAMP[:, :25])
    assert not np.array_equal(own, near)


def test_spectral_ends_in_its_own_colors():
    picture = viz.colorize_depth(RAMP, colormap="spectral", vmin=1, vmax=10)
    assert picture[0, 0].tolist() == [158, 1, 66]
    assert picture[0, -1].tolist() == [94, 79, 162]


def test_default_palette_tells_classes_apart():
    palette = viz.default_palette(150)
    assert palette.dtype == np.uint8
    assert palette.shape == (150, 3)
    np.testing.assert_array_equal(palette[:20], viz.default_palette(20))
    away = np.abs(palette[:, None].astype(int) - palette[None]).sum(2) + 1000 * np.eye(150)
    assert away.min() >= 18
    assert away[:20, :20].min() > 60
    assert palette.sum(1).min() > 60  # black is for the ignored


def test_labels_take_their_colors_and_ignored_ones_black():
    labels = np.array([[0, 1], [2, 255]], np.uint8)
    palette = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    picture = viz.colorize_labels(labels, palette)
    assert picture.dtype == np.uint8
    assert picture.reshape(-1, 3).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]]
    moved = viz.colorize_labels(labels, palette + [(9, 9, 9)] * 253, ignore_index=1)
    assert moved[0, 1].tolist() == [0, 0, 0]
    assert moved[1, 1].tolist() == [9, 9, 9]
    np.testing.assert_array_equal(viz.colorize_labels(labels)[0, 1], viz.default_palette(2)[1])


@pytest.mark.parametrize("palette", [None, [[200, 0, 0], [0, 200, 0]]])
def test_segments_take_shades_of_their_classes(palette):
    """A band of a picture looks as in the whole one; without a segment all is black."""
    codes = np.repeat([[1], [1 + OBJECT_IDS], [2 + OBJECT_IDS], [-1]], 8, 0).repeat(8, 1)
    picture = viz.colorize_segments(codes, palette)
    for rows in (slice(0, 8), slice(16, 24), slice(24, 32)):
        band = viz.colorize_segments(codes[rows], palette)
        assert np.array_equal(band[1:], picture[rows][1:])
    first, second = picture[12, 4], picture[20, 4]
    assert (second[first > 0] < first[first > 0]).all()
    assert not viz.colorize_segments(np.full((4, 4), -1), palette).any()
    stuff = viz.colorize_segments(codes, palette, (True, False))
    assert np.array_equal(stuff[12, 4], stuff[20, 4])


def test_overlay_mixes_but_not_with_black():
    image = np.full((2, 2, 3), 100, np.uint8)
    color = np.zeros_like(image)
    color[0] = 200
    mixed = viz.overlay(image, color, 0.25)
    assert mixed.dtype == np.uint8
    assert (mixed[0] == 125).all()
    assert (mixed[1] == 100).all()


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(60, 256, (48, 64, 3), dtype=np.uint8)


def cells(panel: np.ndarray) -> list[np.ndarray]:
    """The four pictures of a panel of 64 × 48 pixels, enlarged four times."""
    return [panel[20:212, k * 260 : k * 260 + 256] for k in range(4)]


def test_depth_panel_shows_truth_and_prediction_in_one_range(image):
    truth = np.full((48, 64), 2.0, np.float32)
    truth[:, 32:] = 8.0
    valid = np.ones_like(truth, bool)
    valid[:12] = False
    prediction = truth.copy()
    prediction[:, 32:] = 2.0
    panel = viz.depth_panel(image, truth, valid, prediction)
    assert panel.dtype == np.uint8
    assert panel.shape[1] == 4 * 260
    _, true, said, error = cells(panel)
    assert (true[:48] == 0).all()
    assert (error[:48] == 0).all()
    np.testing.assert_array_equal(true[48:, :128], said[48:, :128])
    np.testing.assert_array_equal(said[100, 10], said[100, 200])  # 2 m both
    assert not np.array_equal(true[100, 200], said[100, 200])
    blue, red = error[100, 10].astype(int), error[100, 200].astype(int)
    assert blue[2] > blue[0]
    assert red[0] > red[2] + 60


def test_depth_panel_survives_missing_truth_and_bad_predictions(image):
    truth = np.zeros((48, 64), np.float32)
    prediction = np.full((48, 64), 3.0, np.float32)
    panel = viz.depth_panel(image, truth, None, prediction)
    assert (cells(panel)[1] == 0).all()
    assert (brightness(cells(panel)[2]) > 0).all()
    bad = np.full((48, 64), np.nan, np.float32)
    panel = viz.depth_panel(image, truth + 2, None, bad)
    assert (cells(panel)[2] == 0).all()
    assert cells(panel)[3][50, 50].tolist() == [158, 1, 66]  # the worst colour, not a crash


def test_segmentation_panel_marks_the_wrong_pixels(image):
    labels = np.zeros((48, 64), np.uint8)
    labels[:12] = 255
    prediction = np.zeros((48, 64), np.int64)
    prediction[24:] = 2
    panel = viz.segmentation_panel(image, labels, prediction)
    assert panel.dtype == np.uint8
    _, true, said, error = cells(panel)
    palette = viz.default_palette(3)
    assert (true[:48] == 0).all()
    assert (true[48:] == palette[0]).all()
    assert (said[96:] == palette[2]).all()
    assert (error[:48] == 0).all()
    assert (error[96:] == [225, 45, 45]).all()
    dimmed = error[50:94]
    assert 0 < dimmed.max() <= 255 // 3


def colors_of(picture):
    return set(map(tuple, picture.reshape(-1, 3).tolist()))


def test_the_legend_names_the_classes_that_occur(image):
    palette = ((250, 0, 10), (0, 250, 20), (0, 10, 250))
    spec = OutputSpec("x", "logits", channels=3, class_names=("road", "sky"), palette=palette)
    ids = np.array([[0, 0, 2, 255]])
    strip = viz.legend(ids, spec, width=300, limits=(0, 1))
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
def test_any_name_can_be_drawn(image, name):
    labels = np.zeros(image.shape[:2], np.uint8)
    panel = viz.segmentation_panel(image, labels, labels, names=[name])
    assert panel.shape[1] > 0
    assert viz.color_bar("inferno", 0, 1, width=400, unit=name).shape == (36, 400, 3)
    viz.side_by_side([image], [name])


def test_the_legend_of_a_panel_takes_little_memory():
    labels = np.zeros((128, 256), np.uint8)
    tracemalloc.start()
    viz.segmentation_panel(np.zeros((128, 256, 3), np.uint8), labels, labels, np.ones((150, 3)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20


def texts(monkeypatch):
    """What is written from now on."""
    written, put = [], viz.cv2.putText
    monkeypatch.setattr(
        viz.cv2, "putText", lambda picture, text, *a: written.append(text) or put(picture, text, *a)
    )
    return written


def test_a_colour_bar_says_range_and_unit(image, monkeypatch):
    written = texts(monkeypatch)
    metric = OutputSpec("x", "depth", unit="m")
    bar = viz.legend(RAMP, metric, width=400, limits=(0.1, 0.5))  # inverse_depth: 10 m to 2 m
    assert written == ["10", "5", "3.33", "2.5", "2 m"]
    written.clear()
    viz.legend(RAMP, metric, width=400, limits=(1 / 2.02, 1 / 2))  # a flat wall
    assert written == ["2.02", "2.015", "2.01", "2.005", "2 m"]
    first, last = viz.color_table("inferno")[[0, 255]]
    row = bar[10].tolist()
    assert row.index(first.tolist()) < row.index(last.tolist())
    written.clear()
    relative = OutputSpec("x", "depth", unit="relative inverse depth")
    viz.legend(RAMP, relative, width=400, limits=(0.0, 8.0))
    assert written == ["0", "8 relative inverse depth"]
    written.clear()
    speed = OutputSpec("x", "map", channels=1, unit="m/s")
    viz.output_panel(image, RAMP, RAMP, speed)
    assert written[-1] == "10 m/s"
    written.clear()
    viz.depth_panel(image, RAMP, None, RAMP)
    assert "0.5" in written
    assert any(text.endswith(" m") for text in written)
    rgb = OutputSpec("x", "map", channels=3)
    assert len(viz.legend(np.zeros((3, 4, 4)), rgb, width=400, limits=(0, 1))) == 0


def test_large_pictures_keep_their_size():
    image = np.zeros((200, 300, 3), np.uint8)
    labels = np.zeros((200, 300), np.uint8)
    assert viz.segmentation_panel(image, labels, labels).shape[1] == 4 * 304


def test_stack_and_save(tmp_path, image):
    panel = viz.stack([image, image[:10, :20]])
    assert panel.shape == (58, 64, 3)
    path = tmp_path / "panels" / "one.png"
    viz.save_png(path, image)
    viz.save_png(path, panel)  # over the old one
    read = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
    np.testing.assert_array_equal(read, panel)
    assert [file.name for file in path.parent.iterdir()] == ["one.png"]


def test_mistakes_are_named():
    flat = np.ones((48, 64), np.float32)
    with pytest.raises(ValueError, match=r"jet.*inferno"):
        viz.colorize_depth(flat, colormap="jet")
    with pytest.raises(ValueError, match=r"\(H, W\)"):
        viz.colorize_depth(flat[None])
    with pytest.raises(ValueError, match="vmin"):
        viz.colorize_depth(flat, vmin=3, vmax=2)
    with pytest.raises(ValueError, match=r"label 7.*2 rows"):
        viz.colorize_labels(np.array([[7]]), [(1, 1, 1), (2, 2, 2)])
    with pytest.raises(ValueError, match="integers"):
        viz.colorize_labels(flat)


def test_outputs_are_drawn_as_declared():
    ids = np.array([[0, 1]])
    palette = ((1, 2, 3), (4, 5, 6))
    logits = OutputSpec("x", "logits", channels=2, palette=palette)
    wanted = viz.colorize_labels(ids, palette)
    np.testing.assert_array_equal(viz.colorize_output(ids, logits), wanted)
    scores = np.array([[[9.0, 0.0]], [[0.0, 9.0]]])
    np.testing.assert_array_equal(viz.colorize_output(scores, logits), wanted)
    metric, relative = OutputSpec("x", "depth", unit="m"), OutputSpec("x", "depth", unit="1")
    np.testing.assert_array_equal(
        viz.colorize_output(RAMP, metric), viz.colorize_output(1 / RAMP.astype(float), relative)
    )
    normals = OutputSpec("x", "map", channels=3, value_range=(-1.0, 1.0))
    up = np.array([0.0, 0.0, 1.0])[:, None, None]
    assert viz.colorize_output(up, normals).tolist() == [[[128, 128, 255]]]
    speed = viz.colorize_output(
        np.array([[[0.0, 1.0, np.nan]]]), OutputSpec("x", "map", channels=1)
    )
    assert speed[0, 2].tolist() == [0, 0, 0]
    assert brightness(speed)[0, 1] > brightness(speed)[0, 0] > 0
    with pytest.raises(ValueError, match="no picture"):
        viz.colorize_output(np.zeros(3), OutputSpec("x", "vector", dense=False))
