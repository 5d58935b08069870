"""Calibration to known depths: outliers, storage, and inputs that do not determine a fit."""

import csv
import re
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import call, save_checkpoint, small_model

import dpt
from dpt.calibrate import calibrate, fit_calibration, read_maps, read_points
from dpt.types.preprocessing import Calibration

HEADS = {"depth": {"kind": "relative"}}


def tiny(heads=HEADS):
    torch.manual_seed(0)
    return small_model(heads=heads).eval()


def synthetic(*, outliers, count=400):
    """Predictions of a relative model whose 1 / depth is 0.4 · prediction + 0.05, and depths."""
    random = np.random.default_rng(0)
    depth = random.uniform(0.5, 8.0, count)
    prediction = (1 / depth - 0.05) / 0.4
    wrong = random.random(count) < outliers
    depth = np.where(wrong, random.uniform(0.5, 8.0, count), depth)
    return prediction, depth, wrong


# ------------------------------------------------------------------------------ the fit


def test_scale_and_shift_are_found_among_outliers():
    prediction, depth, wrong = synthetic(outliers=0.3)
    actual, inliers = fit_calibration(prediction, depth, space="inverse_depth")
    assert actual.scale == pytest.approx(0.4, rel=1e-3)
    assert actual.shift == pytest.approx(0.05, rel=1e-3)
    assert inliers[~wrong].all()
    assert inliers[wrong].mean() < 0.05


@pytest.mark.parametrize("count", [4, 11])
def test_a_few_noisy_points_are_fitted_by_least_squares(count):
    """The robust fit is off by more than 20 % in some of these trials."""
    for seed in range(200):
        random = np.random.default_rng(seed)
        depth = np.geomspace(0.5, 8.0, count)
        prediction = (1 / depth - 0.05) / 0.4 * random.normal(1, 0.05, count)
        actual, inliers = fit_calibration(prediction, depth, space="inverse_depth")
        assert actual.scale == pytest.approx(0.4, rel=0.2)
        assert inliers.all()


RISING = [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("prediction", "depth", "message"),
    [
        ([1.0, 2.0, np.nan, np.nan], RISING[:4], "2 points of known depth"),
        (RISING, [2.0, 2.01, 2.02, 2.0, 2.01], "between 2 and 2.02 m"),
        ([*np.arange(1.0, 13.0), 3.3], [2.0] * 12 + [9.0], "too near for scale and shift"),
        ([1.0] * 5, RISING, "predicts one value at all points"),
    ],
)
def test_what_does_not_determine_a_fit(prediction, depth, message):
    with pytest.raises(ValueError, match=message) as caught:
        fit_calibration(np.array(prediction), np.array(depth), space="inverse_depth")
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------ the calibration


@pytest.mark.parametrize("form", ["folder", "ckpt"])
def test_it_is_saved_with_the_weights(tmp_path, form):
    model = tiny()
    assert model.calibration is None
    model.calibration = Calibration(scale=0.4, shift=-0.1, max_depth=20.0)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(images)["depth"], tiny()(images)["depth"])  # as before
    if form == "folder":
        model.save_pretrained(tmp_path / "saved")
        path = tmp_path / "saved"
        row = "| depth | depth of each pixel | m | 0.001 to 20 |"  # as dpt.Predictor gives it
        assert row in (path / "README.md").read_text().splitlines()
    else:
        path = tmp_path / "a.ckpt"
        save_checkpoint(model, path)
    again = dpt.DPT.from_pretrained(path)
    assert again.calibration == model.calibration
    assert again.optimize_for_inference(compiled=False).calibration == model.calibration
    again.calibration = None
    assert "calibration" not in again.config.to_dict()


def test_other_formats_do_not_drop_it_silently(tmp_path):
    from dpt.weights.formats import convert

    model = tiny()
    model.calibration = Calibration(scale=0.4)
    model.save_pretrained(tmp_path / "model")
    for other in ("official", "transformers", "depth_anything"):
        with pytest.raises(ValueError, match=f"{other} format has no place for a calibration"):
            convert(tmp_path / "model", tmp_path / "out", to=other)
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "model", tmp_path / "copy", to="dpt")
    assert dpt.DPT.from_pretrained(tmp_path / "copy").calibration == model.calibration


# ------------------------------------------------------------------------------ from files


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two pictures, and the model's own prediction for each at their size."""
    folder, model, random = tmp_path_factory.mktemp("scene"), tiny(), np.random.default_rng(0)
    (folder / "images").mkdir()
    paths = {name: folder / "images" / f"{name}.png" for name in ("a", "b")}
    for path in paths.values():
        low = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        Image.fromarray(low).resize((100, 80), Image.Resampling.BICUBIC).save(path)
    last = model.heads["depth"].conv3
    with torch.no_grad():  # an untrained model hardly distinguishes pixels
        last.weight.abs_().mul_(30)
        last.bias.sub_(0.98 * min(p.depth.min() for p in dpt.Predictor(model)([*paths.values()])))
    maps = {name: dpt.Predictor(model)(path).depth for name, path in paths.items()}
    model.save_pretrained(folder / "model")
    return folder, model, maps


@pytest.fixture
def scene(made, tmp_path):
    """A copy, to be changed."""
    folder, model, maps = made
    return shutil.copytree(folder, tmp_path, dirs_exist_ok=True), deepcopy(model), maps


def metres(prediction):
    """Known depths that a model with this prediction is calibrated to by 3 and 0.2."""
    return 1 / (3.0 * prediction + 0.2)


def write_table(path, rows, header=("image", "x", "y", "depth_m")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def table_of(maps, *, wrong=0):
    random = np.random.default_rng(1)
    rows = []
    for name, prediction in maps.items():
        for _ in range(20):
            y, x = random.integers(80), random.integers(100)
            rows.append([f"{name}.png", x, y, metres(prediction[y, x])])
    for row in rows[:wrong]:
        row[3] *= 4
    return rows


def test_points_of_a_table_give_the_scale_and_shift(scene):
    folder, model, maps = scene
    write_table(folder / "points.csv", table_of(maps, wrong=10))
    known = read_points(folder / "points.csv", images=folder / "images")
    report = calibrate(model, known)
    assert report.calibration.scale == pytest.approx(3.0, rel=1e-3)
    assert report.calibration.shift == pytest.approx(0.2, rel=1e-2)
    assert report.overall.points == 40
    assert report.overall.inliers == pytest.approx(0.75)
    by_name = {r.name: r for r in report.images}
    assert by_name["b.png"].inliers == 1.0
    assert by_name["b.png"].abs_rel < 1e-3
    assert model.calibration is None


def test_sparse_maps_of_another_size_in_millimetres(scene):
    folder, model, maps = scene
    (folder / "depth").mkdir()
    for name, prediction in maps.items():
        depth = metres(prediction)[1::2, 1::2] * 10000
        sparse = np.where(np.random.default_rng(0).random(depth.shape) < 0.2, depth, 0)
        Image.fromarray(sparse.astype(np.uint16)).save(folder / "depth" / f"{name}.png")
    known = read_maps(folder / "images", folder / "depth", scale=0.0001, invalid=[0])
    assert all(0 < len(points.depth) < 2000 for points in known)
    report = calibrate(model, known)
    assert report.calibration.scale == pytest.approx(3.0, rel=0.05)
    assert report.overall.abs_rel < 0.01


def save_pair(folder, orientation, map_size):
    """Saves a photo of 80x60 stored pixels and a map, in millimetres from 1000 at the upper left;
    returns the folders."""
    image, depth = folder / "images" / "a.jpg", folder / "depth" / "a.png"
    for path in (image, depth):
        path.parent.mkdir(exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (80, 60)).save(image, exif=exif)
    values = 1000 + np.arange(np.prod(map_size), dtype=np.uint16).reshape(map_size[::-1])
    Image.fromarray(values).save(depth)
    return image.parent, depth.parent


@pytest.mark.parametrize(
    ("orientation", "map_size", "is_upright"),
    [(6, (80, 60), False), (6, (41, 30), False), (6, (60, 80), True), (1, (80, 60), True)],
    ids=["stored", "smaller", "upright", "not_turned"],
)
def test_a_map_fits_the_stored_or_the_upright_pixels(tmp_path, orientation, map_size, is_upright):
    (known,) = read_maps(*save_pair(tmp_path, orientation, map_size))
    assert known.exif == is_upright
    first = known.depth.argmin()
    assert known.depth[first] <= 1.1  # metres
    assert known.y[first] < 0.1


@pytest.mark.parametrize("space", ["inverse_depth", "depth"])
def test_metres_stay_within_their_limits(space):
    """Pixels at the limits would otherwise be points or not by the rounding of a reciprocal."""
    extremes = torch.tensor([-1.0, 1e9])
    for limit in np.linspace(3, 900, 200).astype(np.float32):
        limits = {"min_depth": float(limit) / 50, "max_depth": float(limit)}
        metres = Calibration(1.0, space=space, **limits).to_metres(extremes).numpy()
        assert np.float32(limits["min_depth"]) <= metres.min()
        assert metres.max() <= limit
        np.testing.assert_allclose(np.sort(metres), [*limits.values()], rtol=1e-6)


def table_beside_images(folder, maps, **options):
    table = folder / "images" / "points.csv"
    write_table(table, table_of(maps, **options))
    return table


def test_the_command_reports_and_saves(scene, capsys, refused):
    folder, _, maps = scene
    table = table_beside_images(folder, maps, wrong=4)
    call("calibrate", folder / "model", "--points", table, "--out", folder / "new")
    said = capsys.readouterr().out
    assert "all images" in said
    assert "90.0%" in said
    saved = dpt.DPT.from_pretrained(folder / "new").calibration
    assert f"1 / depth = {saved.scale:.6g} x prediction {saved.shift:+.6g}" in said
    (folder / "link").symlink_to(folder / "model")
    (folder / "dead").symlink_to("nothing")
    for out in ("new", "model", "link", "images", "images/points.csv", "dead"):
        command = ("calibrate", folder / "model", "--points", table, "--out", folder / out)
        assert str(folder / out) in refused(call, *command)
    assert not (folder / "nothing").exists()


def test_depths_in_another_unit_are_not_saved(scene, refused):
    folder, _, maps = scene
    (folder / "depth").mkdir()
    for name, prediction in maps.items():
        stored = (1000 * metres(prediction)).astype(np.uint16)
        Image.fromarray(stored).save(folder / "depth" / f"{name}.png")
    command = ("calibrate", folder / "model", "--images", folder / "images")
    command += ("--depth", folder / "depth", "--out", folder / "new", "--depth-scale")
    assert "check --depth-scale" in refused(call, *command, 1)
    assert not (folder / "new").exists()
    call(*command, 0.001)
    assert (folder / "new").exists()


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([["a.png", 1, 2, 3.0]], ("image", "u", "v", "depth"), "no column x, y, depth_m"),
        ([["a.png", 1, "two", 3.0]], None, "line 2: .* are not all numbers"),
        ([["a.png", 1, 2, "nan"]], None, "line 2: depth_m=nan must be above 0"),
        ([["a.png", 100, 2, 3.0]], None, r"line 2: x=100, y=2 is outside"),
        ([["a.png", 1, 2, 3.0]], None, "1 points of known depth: at least 4"),
    ],
)
def test_mistakes_in_a_table_are_one_line(scene, refused, rows, header, message):
    folder, _, _ = scene
    table = folder / "images" / "points.csv"
    write_table(table, rows, *([header] if header else []))
    command = ("calibrate", folder / "model", "--points", table, "--out", folder / "new")
    error = refused(call, *command)
    assert re.search(message, error), error
    assert not (folder / "new").exists()
