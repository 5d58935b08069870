"""data.resize_labels: maps that are smaller or larger than their image."""

import csv
import json

import numpy as np
import pytest
from photos import photo_of, save_picture
from PIL import Image

from dpt.data import DataError, FolderDataset
from dpt.data.transforms import EvalTransform, TrainTransform
from dpt.geometry import aspects_agree
from dpt.types.preprocessing import Preprocessing

H, W = 12, 16  # of the maps
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, (H, W), np.uint8)
OBJECTS = RNG.integers(0, 5, (H, W), np.uint8)
DEPTH = RNG.integers(0, 3, (H, W)).astype(np.uint16) * 1000  # 0: not measured
MAPS = {"masks": LABELS, "ids": OBJECTS, "depth": DEPTH}


def write(root, size, split="train", stem="a", **maps):
    """A photo of ``size`` (H, W) with its maps."""
    photo = photo_of(*size, seed=[*f"{split}{stem}".encode()])
    save_picture(root / f"images/{split}/{stem}.png", photo)
    for folder, values in {**MAPS, **maps}.items():
        save_picture(root / f"{folder}/{split}/{stem}.png", values)


def folder(root, **options):
    settings = {"split": "train", "labels": "masks", "num_classes": 3, "objects": "ids"}
    settings |= {"depth": "depth", "max_depth": 10, "resize_labels": True}
    return FolderDataset(root=root, **settings | options)


@pytest.mark.parametrize(
    ("size", "other", "agree"),
    [
        ((192, 256), (1440, 1920), True),  # ARKit
        ((612, 408), (1155, 770), True),
        ((33, 50), (100, 150), True),  # a third, rounded down
        ((34, 50), (100, 150), True),  # and up
        ((35, 50), (100, 150), False),
        ((1440, 1920), (192, 256), True),
        ((256, 192), (1440, 1920), False),  # turned
        ((480, 640), (480, 641), True),
        ((968, 1296), (480, 640), True),  # ScanNet
        ((480, 640), (480, 642), True),
        ((480, 640), (480, 645), False),
    ],
)
def test_aspects_agree_within_a_pixel_of_the_smaller_size_or_half_a_percent(size, other, agree):
    assert aspects_agree(size, other) == aspects_agree(other, size) == agree


def test_sample_keeps_the_size_of_its_maps(tmp_path):
    write(tmp_path, (3 * H, 3 * W))
    dataset = folder(tmp_path)
    dataset.validate()
    sample = EvalTransform(Preprocessing(image_size=(32, 32)))(dataset[0])
    np.testing.assert_array_equal(sample["labels"], LABELS)
    np.testing.assert_array_equal(sample["objects"], OBJECTS)
    np.testing.assert_array_equal(sample["depth"], (DEPTH / 1000).astype(np.float32))
    np.testing.assert_array_equal(sample["valid"], DEPTH > 0)


def test_training_resizes_maps_to_the_image(tmp_path):
    write(tmp_path, (3 * H, 3 * W), masks=LABELS.repeat(6, 0).repeat(6, 1))  # twice the image
    dataset = folder(tmp_path, objects=None)
    transform = TrainTransform(image_size=(3 * H, 3 * W), hflip=0)
    sample = transform(dataset[0], seed=0)
    np.testing.assert_array_equal(sample["labels"], LABELS.repeat(3, 0).repeat(3, 1))
    np.testing.assert_array_equal(sample["valid"], (DEPTH > 0).repeat(3, 0).repeat(3, 1))
    metres = (DEPTH / 1000).astype(np.float32).repeat(3, 0).repeat(3, 1)
    np.testing.assert_array_equal(sample["depth"], metres)
    crop = TrainTransform(image_size=(H, W), zoom=(3, 3), hflip=0)(dataset[0], seed=5)
    windows = np.lib.stride_tricks.sliding_window_view(sample["image"], (H, W, 3))[:, :, 0]
    ((top, left),) = np.argwhere((windows == crop["image"]).all((2, 3, 4)))
    np.testing.assert_array_equal(crop["labels"], sample["labels"][top:, left:][:H, :W])


@pytest.mark.parametrize("kind", ["masks", "ids", "depth"])
def test_maps_are_refused_without_the_option(tmp_path, kind):
    write(tmp_path, (2 * H, 2 * W), **{k: v.repeat(2, 0).repeat(2, 1) for k, v in MAPS.items()})
    save_picture(tmp_path / f"{kind}/train/a.png", MAPS[kind])
    file = rf"16x12 \(.*{kind}/train/a\.png\)"
    with pytest.raises(DataError, match=rf"32x24.*{file}.*data\.resize_labels=true"):
        folder(tmp_path, resize_labels=False).validate()


def test_maps_of_another_aspect_are_refused(tmp_path):
    write(tmp_path, (2 * H, 2 * W), masks=LABELS[:, :-2], ids=OBJECTS[:, :-2])
    for is_set in (True, False):
        with pytest.raises(DataError, match=r"14x12 \(.*masks/train/a\.png\)") as error:
            folder(tmp_path, resize_labels=is_set).validate()
        assert "resize_labels" not in str(error.value)


def test_objects_need_the_size_of_the_mask(tmp_path):
    write(tmp_path, (2 * H, 2 * W), masks=LABELS.repeat(2, 0).repeat(2, 1))
    with pytest.raises(DataError, match=r"images/train/a\.png: .*map of objects"):
        folder(tmp_path).validate()


def test_small_maps_tell_how_an_image_is_turned(tmp_path):
    write(tmp_path, (2 * H, 2 * W))
    path = tmp_path / "images/train/a.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees for viewers
    stored = photo_of(2 * H, 2 * W)
    Image.fromarray(stored).save(path, exif=exif)
    np.testing.assert_array_equal(folder(tmp_path)[0]["image"], stored)
    save_picture(tmp_path / "masks/train/a.png", LABELS.T)
    image = folder(tmp_path, objects=None, depth=None)[0]["image"]
    np.testing.assert_array_equal(image, np.rot90(stored, -1))


@pytest.fixture(scope="module")
def small_maps(tmp_path_factory):
    """Overrides for two images in each split, whose maps are a third of their size."""
    root = tmp_path_factory.mktemp("small")
    for split in ("train", "val"):
        for stem in "ab":
            write(root, (3 * H, 3 * W), split, stem)
    settings = "labels=masks num_classes=3 depth=depth max_depth=10 resize_labels=true"
    return root, ["data=folder", f"data.root={root}", *(f"data.{s}" for s in settings.split())]


@pytest.mark.parametrize("factor", [1, 3])
def test_files_of_either_size_are_scored(score_files, tmp_path, small_maps, factor):
    _, options = small_maps
    for stem in "ab":
        labels = LABELS.repeat(factor, 0).repeat(factor, 1)
        save_picture(tmp_path / f"predicted/labels/{stem}.png", labels)
        (tmp_path / "predicted/depth").mkdir(exist_ok=True)
        metres = np.full(labels.shape, 2, np.float32)
        np.save(tmp_path / f"predicted/depth/{stem}.npy", metres)
    score_files(tmp_path / "run", tmp_path / "predicted", "protocol=whole", data=options)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["val/miou"] == 1
    errors = 2 - DEPTH[DEPTH > 0] / 1000
    assert metrics["val/rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-5)
    with (tmp_path / "run/confusion.csv").open() as file:
        rows = [row[1:] for row in csv.reader(file)][1:]
    assert sum(float(cell) for row in rows for cell in row[:3] if cell) == 2 * LABELS.size


def test_data_check_accepts_small_maps(data_check, tmp_path, small_maps):
    _, options = small_maps
    assert data_check(tmp_path / "check", *options, "data.num_workers=0") == 0
    refused = [option for option in options if "resize_labels" not in option]
    assert data_check(tmp_path / "again", *refused, "data.num_workers=0") == 1
    findings = json.loads((tmp_path / "again/report.json").read_text())
    codes = {finding["code"]: finding for finding in findings}
    assert "data.resize_labels=true" in codes["size_mismatch"]["examples"][0]
