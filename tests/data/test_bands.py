"""Images of any number of bands: what is read of files, and what transforms and models get."""

import cv2
import numpy as np
import pytest
import tifffile
import torch
from band_files import NODATA, SIZE, write_grey, write_multispectral, write_tiff

from dpt.data import DataError, FolderDataset, TrainTransform
from dpt.data.formats import io
from dpt.data.formats.bands import FilePart
from dpt.data.layouts import detect
from dpt.data.statistics import measure_bands
from dpt.data.view import resize_image, view_image
from dpt.geometry import View, Window
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX

RNG = np.random.default_rng(0)
ALL = FilePart(bands="all")


@pytest.fixture(scope="module")
def multispectral(tmp_path_factory):
    return write_multispectral(tmp_path_factory.mktemp("multispectral"))


def folder(root, **options):
    return FolderDataset(root=root, split="train", labels="masks", num_classes=2, **options)


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
@pytest.mark.parametrize("form", ["contig", "separate", "npy", "npy of (C, H, W)"])
def test_bands_keep_the_values_of_their_file(tmp_path, dtype, form):
    bands = RNG.integers(0, 30_000, (10, 12, 5)).astype(dtype)
    path = tmp_path / ("a.npy" if "npy" in form else "a.tif")
    planes = np.moveaxis(bands, 2, 0)
    if "npy" in form:
        np.save(path, planes if "C" in form else bands)
    else:
        stored = bands if form == "contig" else planes
        tifffile.imwrite(path, stored, planarconfig=form, photometric="minisblack")
    image = io.read_image(path, part=ALL)
    assert image.dtype == np.float32
    assert np.array_equal(image, bands)
    chosen = io.read_image(path, part=FilePart(bands=[4, 0]))
    assert np.array_equal(chosen, bands[..., [4, 0]])


@pytest.mark.parametrize(
    ("stated", "stored"),
    [("-3.40282346600000016e+38", -3.4028235e38), ("-3.4028235e+38", -3.4028235e38), ("0.1", 0.1)],
)
def test_no_data_is_rounded_as_the_values_are(tmp_path, stated, stored):
    bands = np.full((10, 12, 2), 5, np.float32)
    bands[:3] = stored
    tags = [(42113, "s", 0, stated, True)]
    contiguous = {"planarconfig": "contig", "photometric": "minisblack"}
    tifffile.imwrite(tmp_path / "a.tif", bands, **contiguous, extratags=tags)
    np.save(tmp_path / "a.npy", bands)
    for name, nodata in (("a.tif", None), ("a.npy", float(stated))):
        image = io.read_image(tmp_path / name, part=FilePart(bands="all", nodata=nodata))
        assert np.isnan(image[:3]).all()
        assert (image[3:] == 5).all()


@pytest.mark.parametrize("stated", ["by the file", "by the setting"])
def test_pixels_without_data_are_invalid(multispectral, tmp_path, stated):
    options = {"bands": "all"}
    root = multispectral
    if stated == "by the setting":
        root = tmp_path
        (root / "images").mkdir()
        (root / "masks").symlink_to(multispectral / "masks")
        for path in (multispectral / "images").iterdir():
            np.save(root / "images" / f"{path.stem}.npy", tifffile.imread(path))
        options["nodata"] = NODATA
    sample = folder(root, **options)[0]
    assert np.isnan(sample["image"][:6]).all()
    assert not np.isnan(sample["image"][6:]).any()
    assert (sample["labels"][:6] == IGNORE_INDEX).all()
    assert (sample["labels"][6:] != IGNORE_INDEX).all()
    normalized = Preprocessing(mean=(500.0,) * 12, std=(100.0,) * 12, pixels="bands").normalize(
        torch.from_numpy(sample["image"]).permute(2, 0, 1)[None]
    )
    assert (normalized[..., :6, :] == 0).all()
    assert torch.allclose(
        normalized[0, 2, 10, 5], torch.tensor((sample["image"][10, 5, 2] - 500) / 100)
    )


@pytest.mark.parametrize(
    ("bands", "named"),
    [(np.zeros((*SIZE, 5), np.int16), "5 bands of int16"), (None, "12 bands of float32")],
)
def test_other_bands_or_types_are_refused_by_file(tmp_path, bands, named):
    root = write_multispectral(tmp_path, count=4)
    if bands is None:
        bands = tifffile.imread(root / "images/2.tif").astype(np.float32)
    write_tiff(root / "images/2.tif", bands)
    dataset = folder(root, bands="all", fractions={"train": 1.0})
    with pytest.raises(DataError, match=rf"2\.tif: holds {named}, but .*0\.tif 12 bands of int16"):
        [dataset[i] for i in range(4)]


# ----------------------------------------------------------------------------------- transforms


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_views_of_bands_are_those_of_each_band(count):
    image = RNG.normal(0, 100, (40, 60, count)).astype(np.float32)
    window = View.of_window(Window(3, 5, 30, 40), (24, 32))
    for view in (window, window.flipped(), window.rotated(20.0)):
        seen = view_image(image, view)
        assert seen.shape == (24, 32, count)
        for k in range(count):
            single = view_image(image[..., k : k + 1], view)
            tolerance = 1e-3 if view.window else 10  # OpenCV rounds the weights of two bands
            assert np.allclose(seen[..., k], single[..., 0], atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    "rule", ["train", "area", "cubic", "cubic_float", "bilinear", "bilinear_antialias"]
)
@pytest.mark.parametrize("count", [1, 7])
def test_every_rule_resizes_any_number_of_bands(rule, count):
    image = RNG.normal(0, 100, (40, 60, count)).astype(np.float32)
    for size in ((20, 30), (17, 31), (80, 90)):
        resized = resize_image(image, size, rule=rule)
        assert (resized.shape, resized.dtype) == ((*size, count), np.float32)
        single = resize_image(image[..., -1:], size, rule=rule)
        assert np.allclose(resized[..., -1:], single, rtol=1e-4, atol=1e-3)


def test_changes_of_bands_are_the_same_in_every_unit(multispectral):
    sample = folder(multispectral, bands="all")[0]
    scaled = {**sample, "image": 1000 * sample["image"] + 7}
    transform = TrainTransform(
        image_size=(48, 64), zoom=(0.5, 2.0), rotate=10.0, color=0.5, blur=0.5
    )
    for seed in range(5):
        first, second = transform(sample, seed=seed), transform(scaled, seed=seed)
        expected = 1000 * first["image"] + 7
        assert np.allclose(expected, second["image"], rtol=1e-3, atol=100, equal_nan=True)
        assert np.array_equal(first["labels"], second["labels"])
    plain = TrainTransform(image_size=(48, 64), hflip=0.0)(sample, seed=0)
    assert not np.allclose(plain["image"], transform(sample, seed=0)["image"], equal_nan=True)


@pytest.mark.parametrize(
    ("write", "form"),
    [(write_multispectral, "12 bands of int16"), (write_grey, "1 band of uint16")],
)
def test_unknown_folder_of_bands_is_recognised(tmp_path, write, form):
    detected = detect(write(tmp_path), {})
    assert detected.settings["bands"] == "all"
    assert any(form in note for note in detected.notes)
    assert "bands" not in detect(tmp_path, {"image_max": 4095.0}).settings


# ----------------------------------------------------------------------------------- statistics


def test_statistics_are_those_of_the_pixels_with_data(multispectral):
    measured = measure_bands(folder(multispectral, bands="all"))
    values = np.concatenate(
        [tifffile.imread(path)[6:].reshape(-1, 12) for path in (multispectral / "images").iterdir()]
    ).astype(float)
    assert np.allclose(measured.mean, values.mean(axis=0), rtol=0.02)
    assert np.allclose(measured.std, values.std(axis=0), rtol=0.05)
    assert measured == measure_bands(folder(multispectral, bands="all"))


def test_few_outliers_do_not_change_the_statistics(tmp_path):
    root = write_grey(tmp_path)
    expected = measure_bands(folder(root, bands="all"))
    for path in (root / "images").iterdir():
        grey = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        grey[0, :30] = 65535  # 0.4 % of the pixels
        cv2.imwrite(str(path), grey)
    measured = measure_bands(folder(root, bands="all"))
    assert np.allclose(measured.mean, expected.mean, rtol=0.02)
    assert np.allclose(measured.std, expected.std, rtol=0.05)


def test_values_that_usually_mean_no_data_are_named(tmp_path, multispectral, caplog):
    measure_bands(folder(multispectral, bands="all"))
    assert "data.nodata" not in caplog.text
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for path in (multispectral / "images").iterdir():
        write_tiff(tmp_path / f"images/{path.name}", tifffile.imread(path))  # without the tag
        mask = multispectral / f"masks/{path.stem}.png"
        (tmp_path / f"masks/{path.stem}.png").write_bytes(mask.read_bytes())
    measure_bands(folder(tmp_path, bands="all"))
    assert "8.3 % of the values of bands are -9999: set data.nodata" in caplog.text
