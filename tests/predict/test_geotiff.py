"""TIFF files of any size, predicted by windows: seams, georeference, "no data" and memory."""

import subprocess
import sys
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import call, small_model

import dpt
from dpt.data.formats.bands import FilePart, needs_windows, open_raster
from dpt.data.formats.io import image_of_bands, read_image
from dpt.geometry import Camera
from dpt.predict.inputs import part_of
from dpt.predict.pipeline import RasterPrediction
from dpt.types.outputs import OutputSpec
from dpt.types.preprocessing import Preprocessing

rasterio = pytest.importorskip("rasterio")
CRS, TRANSFORM = "EPSG:32633", rasterio.transform.from_origin(500_000, 5_000_000, 10, 10)
NODATA = -9999
BANDS = Preprocessing(mean=(0.0,) * 2, std=(1.0,) * 2, pixels="bands", image_size=(32, 48))


def write(path, bands, *, nodata=NODATA, georeferenced=True):
    """Writes bands (H, W, C)."""
    place = {"crs": CRS, "transform": TRANSFORM} if georeferenced else {}
    profile = {"driver": "GTiff", "height": bands.shape[0], "width": bands.shape[1], **place}
    count, dtype = bands.shape[2], bands.dtype
    with rasterio.open(path, "w", **profile, count=count, dtype=dtype, nodata=nodata) as file:
        file.write(np.moveaxis(bands, 2, 0))
    return path


class PixelRuntime:
    """Outputs that depend on each pixel alone, so that every way to cut an image gives the same."""

    device = torch.device("cpu")
    calibration = None

    def __init__(self, preprocessing=BANDS):
        self.preprocessing = preprocessing
        self.outputs = {
            "segmentation": OutputSpec("segmentation", "logits", channels=2),
            "depth": OutputSpec("depth", "depth", unit="m", value_range=(0.0, 1000.0)),
        }

    def __call__(self, inputs):
        return {"segmentation": inputs.images[:, :2], "depth": inputs.images[:, 0]}


def predict(path, out, predictor):
    """Writes the outputs of a raster into ``out``."""
    paths = {"segmentation": out / "labels.tif", "depth": out / "depth.tif"}
    with open_raster(path, part_of(predictor.preprocessing)) as source:
        prediction = RasterPrediction(predictor, source)
        steps = list(prediction.write(paths))
    assert len(steps) == len(prediction)
    with rasterio.open(out / "labels.tif") as a, rasterio.open(out / "depth.tif") as b:
        return a.read(1), b.read(1), a.profile


@pytest.mark.parametrize("size", [(20, 30), (32, 48), (33, 49), (100, 45), (75, 201)])
@pytest.mark.parametrize("panel", [64, 2048])
def test_windows_leave_no_seams(tmp_path, monkeypatch, size, panel):
    monkeypatch.setattr("dpt.predict.pipeline.PANEL", panel)
    bands = np.random.default_rng(0).integers(0, 900, (*size, 2)).astype(np.int16)
    path = write(tmp_path / "a.tif", bands)
    labels, depth, _ = predict(path, tmp_path, dpt.Predictor(PixelRuntime(), batch_size=3))
    assert np.array_equal(labels, bands.argmax(axis=2))
    assert np.allclose(depth, bands[..., 0], atol=0.01)


def test_pixels_without_data_and_georeference_are_kept(tmp_path):
    bands = np.random.default_rng(0).integers(0, 900, (75, 101, 2)).astype(np.int16)
    bands[:10, :20] = NODATA
    bands[70:, :, 0] = NODATA  # one band alone counts as its mean
    path = write(tmp_path / "a.tif", bands)
    labels, depth, profile = predict(path, tmp_path, dpt.Predictor(PixelRuntime()))
    assert (labels[:10, :20] == 255).all()
    assert (labels == 255).sum() == 200
    assert np.isnan(depth[:10, :20]).all()
    assert np.isfinite(depth[70:]).all()
    assert (profile["crs"], profile["transform"]) == (rasterio.CRS.from_string(CRS), TRANSFORM)
    assert (profile["dtype"], profile["nodata"]) == ("uint8", 255)


def test_ground_control_points_and_sensor_model_are_kept(tmp_path):
    corners = [(0, 0), (0, 30), (20, 0), (20, 30)]
    points = [
        rasterio.control.GroundControlPoint(row, column, 10 + column / 9, 50 - row / 7, 0)
        for row, column in corners
    ]
    axes = ["height", "lat", "long", "line", "samp"]
    numbers = {f"{axis}_{name}": 2.0 for axis in axes for name in ("off", "scale")}
    names = [f"{axis}_{part}_coeff" for axis in axes[3:] for part in ("num", "den")]
    sensor = rasterio.rpc.RPC(**numbers, **{name: [1.0, *range(19)] for name in names})
    path = write(tmp_path / "a.tif", np.ones((20, 30, 2), np.int16), georeferenced=False)
    with rasterio.open(path, "r+") as file:
        file.gcps, file.rpcs = (points, CRS), sensor
    assert needs_windows(path)
    predict(path, tmp_path, dpt.Predictor(PixelRuntime()))
    with rasterio.open(tmp_path / "labels.tif") as file:
        written, crs = file.gcps
        assert [p.asdict() for p in written] == [
            {**p.asdict(), "id": ANY, "info": ANY} for p in points
        ]
        assert crs == CRS
        assert file.rpcs.to_dict() == {**sensor.to_dict(), "err_bias": -1, "err_rand": -1}


@pytest.mark.parametrize("suffix", ["tif", "png"])
@pytest.mark.parametrize(
    "picture_of",
    [
        lambda grey: Image.fromarray(np.dstack([grey] * 2)),
        lambda grey: Image.fromarray(np.dstack([grey, 255 - grey, grey // 2, grey])),
    ],
    ids=["grey_alpha", "alpha"],
)
def test_windows_see_the_colors_of_a_picture(tmp_path, picture_of, suffix):
    path = tmp_path / f"a.{suffix}"
    picture_of(np.random.default_rng(0).integers(0, 256, (9, 13)).astype(np.uint8)).save(path)
    assert np.array_equal(shown_by_windows(path), read_image(path))


@pytest.mark.parametrize("suffix", ["tif", "png"])
@pytest.mark.parametrize("mode", ["P", "1"])
def test_windows_of_few_colors_are_refused(tmp_path, mode, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.full((9, 13), 255, np.uint8)).convert(mode).save(path)
    with pytest.raises(ValueError, match=r"has a palette"):
        shown_by_windows(path)


def shown_by_windows(path):
    with open_raster(path, FilePart()) as source:
        height, width = source.size
        return image_of_bands(source.read(slice(0, height), slice(0, width)), source.part)


def test_a_turned_tiff_file_is_not_predicted_lying_on_its_side(tmp_path):
    Image.new("RGB", (13, 9)).save(tmp_path / "a.tif", tiffinfo={274: 6})
    with (
        pytest.raises(ValueError, match=r"a\.tif: is stored turned"),
        open_raster(tmp_path / "a.tif", FilePart()),
    ):
        pass


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 5}}
    model = small_model(heads=heads, in_channels=2)
    model.preprocessing = BANDS
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


def test_command_writes_rasters_and_pictures(checkpoint, tmp_path, capsys):
    images = tmp_path / "in"
    images.mkdir()
    bands = np.random.default_rng(0).normal(0, 1, (50, 70, 2)).astype(np.float32)
    write(images / "map.tif", bands)
    write(images / "plain.tif", bands, georeferenced=False)
    call("predict", str(checkpoint), str(images), "--out", str(tmp_path / "out"))
    written = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    assert {"labels_tif/map.tif", "depth_tif/map.tif", "labels/plain.png"} <= written
    assert not {"labels/map.png", "labels_tif/plain.tif"} & written
    capsys.readouterr()
    call("predict", str(checkpoint), str(images), "--out", str(tmp_path / "out"))
    assert "2 were done before" in capsys.readouterr().out
    options = ("--format", "tif", "--fov", "60")  # which cameras from above do not have
    call("predict", str(checkpoint), str(images), "--out", str(tmp_path / "b"), *options)
    assert '"camera"' not in (tmp_path / "b/predictions.jsonl").read_text()
    assert (tmp_path / "b/labels_tif/plain.tif").is_file()
    call("predict", str(checkpoint), str(images), "--out", str(tmp_path / "c"), "--format", "png")
    assert (tmp_path / "c/labels/map.png").is_file()


@pytest.fixture
def small_limit(monkeypatch):
    """Images of more than 2,000 pixels are too large for a picture."""
    monkeypatch.setattr("dpt.files.MAX_PIXELS", 2000)


@pytest.fixture(scope="module")
def rgb_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rgb")
    small_model(heads={"segmentation": {"num_classes": 5}}).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("bands", [1, 3, 4])
def test_a_large_png_is_predicted_as_a_tiff_file_of_its_pixels(
    rgb_checkpoint, small_limit, tmp_path, bands
):
    pixels = np.random.default_rng(0).integers(0, 256, (80, 100, bands)).astype(np.uint8)
    if bands == 4:
        pixels[..., 3] = 255
    (tmp_path / "in").mkdir()
    Image.fromarray(pixels.squeeze()).save(tmp_path / "in/a.png")
    write(tmp_path / "in/b.tif", pixels, nodata=None)
    call("predict", rgb_checkpoint, tmp_path / "in", "--out", tmp_path / "out")
    labels = [rasterio.open(tmp_path / f"out/labels_tif/{name}.tif").read(1) for name in "ab"]
    assert labels[0].shape == (80, 100)
    assert np.array_equal(*labels)


@pytest.mark.parametrize("unit", ["relative inverse depth", "relative depth"])
def test_relative_depth_has_no_common_scale(tmp_path, unit):
    path = write(tmp_path / "a.tif", np.zeros((50, 70, 2), np.int16))
    runtime = PixelRuntime()
    runtime.outputs = {"depth": OutputSpec("depth", "depth", unit=unit)}
    with (
        open_raster(path, FilePart(bands="all")) as source,
        pytest.raises(ValueError, match=r"a\.tif: relative depth.*dpt calibrate"),
    ):
        RasterPrediction(dpt.Predictor(runtime), source)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    """8,000 x 8,000 x 12 int16 is 1.5 GB."""
    heads = {"segmentation": {"num_classes": 3}}
    model = small_model(heads=heads, in_channels=12, embed_dim=16, num_blocks=4)
    model.preprocessing = Preprocessing(
        mean=(0.0,) * 12, std=(500.0,) * 12, pixels="bands", image_size=(384, 384)
    )
    model.save_pretrained(tmp_path / "model")
    peaks = []
    for side in (2000, 8000):
        path, out = tmp_path / f"{side}.tif", tmp_path / f"out{side}"
        profile = {"driver": "GTiff", "height": side, "width": side, "count": 12, "tiled": True}
        place = {"crs": CRS, "transform": TRANSFORM, "nodata": NODATA}
        random = np.random.default_rng(0)
        with rasterio.open(path, "w", **profile, **place, dtype="int16", compress="lzw") as file:
            for top in range(0, side, 256):
                rows = (top, min(top + 256, side))
                block = random.integers(0, 9, (12, rows[1] - top, 1)).repeat(side, axis=2)
                file.write(block.astype(np.int16), window=(rows, (0, side)))
        code = (
            "import re; from dpt.cli import main; main();"  # ru_maxrss would count this process
            "print('peak', re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
        )
        arguments = ["predict", str(tmp_path / "model"), str(path), "--out", str(out)]
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout.rsplit("peak", 1)[1]) / 1024)
        with rasterio.open(path) as source, rasterio.open(out / f"labels_tif/{side}.tif") as labels:
            assert (labels.crs, labels.transform) == (source.crs, source.transform)
            assert labels.shape == (side, side)
    assert peaks[1] < peaks[0] + 150, peaks


class SkyRuntime(PixelRuntime):
    """Canonical depth and sky, which depend on each pixel alone."""

    def __init__(self):
        super().__init__()
        depth = OutputSpec("depth", "depth", unit="m", canonical_focal=100.0)
        self.outputs = {"depth": depth, "depth_sky": OutputSpec("depth_sky", "map", threshold=0.5)}

    def __call__(self, inputs):
        images = inputs.images
        return {"depth": images[:, 0], "depth_sky": images[:, 1]}


def predicted_depth(path, predictor, camera=None):
    with open_raster(path, part_of(predictor.preprocessing)) as source:
        prediction = RasterPrediction(predictor, source, camera)
        list(prediction.write({"depth": path.with_name("depth.tif")}))
    with rasterio.open(path.with_name("depth.tif")) as written:
        return written.read(1)


def test_windows_cut_the_sky_and_take_the_focal_length(tmp_path):
    bands = np.random.default_rng(0).random((75, 101, 2), np.float32)
    bands[..., 0] += 1
    path = write(tmp_path / "a.tif", bands)
    metres, is_sky = 2.5 * bands[..., 0], bands[..., 1] >= 0.5
    camera = Camera.from_focal(250.0, (75, 101))
    found = predicted_depth(path, dpt.Predictor(SkyRuntime()), camera)
    assert np.array_equal(np.isnan(found), is_sky)
    np.testing.assert_allclose(found[~is_sky], metres[~is_sky], rtol=1e-5)
    found = predicted_depth(path, dpt.Predictor(SkyRuntime(), sky="keep"), camera)
    np.testing.assert_allclose(found, metres, rtol=1e-5)
    # tiles of 64 x 64 become inputs of 48 x 48
    found = predicted_depth(path, dpt.Predictor(SkyRuntime(), sky="keep", tile=64), camera)
    assert np.median(found / metres) == pytest.approx(48 / 64, rel=0.01)
    with pytest.raises(ValueError, match=r"a\.tif: sky=far"):
        predicted_depth(path, dpt.Predictor(SkyRuntime(), sky="far"), camera)
    with pytest.raises(ValueError, match=r"a\.tif: relative depth.*--focal"):
        predicted_depth(path, dpt.Predictor(SkyRuntime()))


@pytest.fixture
def canonical(tmp_path):
    """A model of two bands, whose depth needs a focal length."""
    heads = {"depth": {"kind": "metric", "activation": "exp", "canonical_focal": 300.0}}
    model = small_model(heads=heads, in_channels=2).eval()
    model.preprocessing = BANDS
    model.save_pretrained(tmp_path / "model")
    return model
