"""KITTI's lists, ground truth and crop."""

import shutil

import numpy as np
import pytest
from photos import save_picture
from PIL import Image

from dpt.data import DataError
from dpt.data.datasets.filelist import KittiDataset
from dpt.data.datasets.files import FileDataset

DATE, DRIVE = "2011_09_26", "2011_09_26_drive_0002_sync"
LAYOUT = {
    "split_files": {"train": "train.txt", "val": "val.txt"},
    "images": "raw",
    "depth": "data_depth_annotated",
    "depth_scale": 1 / 256,
    "max_depth": 80.0,
}


def frame(number):
    return f"{DATE}/{DRIVE}/image_02/data/{number:010d}.png"


def depth_name(number):
    return f"{DRIVE}/proj_depth/groundtruth/image_02/{number:010d}.png"


@pytest.fixture
def root(tmp_path):
    """Ten frames of a drive, of which the first and the last two have no ground truth."""
    for i in range(10):
        save_picture(tmp_path / "raw" / frame(i), np.full((6, 8, 3), i, np.uint8))
        if 1 <= i < 8:
            depth = np.zeros((6, 8), np.uint16)
            depth[0] = round((i + 0.5) * 256)
            save_picture(tmp_path / "data_depth_annotated/val" / depth_name(i), depth)
    lines = [f"{frame(i)} {depth_name(i) if 1 <= i < 8 else 'None'} 721.5377" for i in range(10)]
    (tmp_path / "val.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def numbers(dataset):
    return [int(dataset.files(i).image.stem) for i in range(len(dataset))]


def test_lines_without_ground_truth_are_dropped(root):
    dataset = KittiDataset(root=root, split="val", **LAYOUT)
    assert numbers(dataset) == list(range(1, 8))
    sample = dataset[2]
    assert sample["image"][0, 0, 0] == 3
    assert sample["depth"][0, 0] == 3.5
    assert sample["valid"][0].all()
    assert not sample["valid"][1:].any()
    assert dataset.info.targets == ("depth",)
    assert dataset.info.max_depth == 80


@pytest.mark.parametrize("folder", ["", "train"])
def test_where_files_may_lie(root, folder):
    """Depth maps in one folder or as published; images also as JPEG."""
    annotated = root / "data_depth_annotated"
    shutil.move(annotated / "val" / DRIVE, annotated / folder / DRIVE)
    for path in (root / "raw").rglob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"))
        path.unlink()
    dataset = KittiDataset(root=root, split="val", **LAYOUT)
    assert numbers(dataset) == list(range(1, 8))
    assert dataset.files(0).image.suffix == ".jpg"


@pytest.mark.parametrize(("height", "width"), [(376, 1241), (352, 1216)])
def test_crop_is_that_of_the_benchmark(height, width, root, monkeypatch):
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows % 256, columns % 256, columns // 256], -1).astype(np.uint8)
    depth = (rows * 2000 + columns).astype(np.float32)
    whole = {"image": image, "depth": depth, "valid": depth > 0}
    monkeypatch.setattr(FileDataset, "read_sample", lambda dataset, index: whole)
    out = KittiDataset(root=root, split="val", crop="kb", **LAYOUT)[0]
    top, left = height - 352, int((width - 1216) / 2)
    assert out["image"].shape == (352, 1216, 3)
    assert out["depth"].shape == out["valid"].shape == (352, 1216)
    assert out["depth"][0, 0] == top * 2000 + left
    assert out["depth"][-1, -1] == (height - 1) * 2000 + left + 1215
    assert out["image"][0, 0].tolist() == [top % 256, left % 256, 0]


def test_frames_without_their_depth_are_cropped(root):
    for i in (1, 2):
        save_picture(root / "raw" / frame(i), np.zeros((376, 1241, 3), np.uint8))
    (root / "train.txt").write_text("\n".join(f"{frame(i)} {depth_name(i)} 721.5" for i in (1, 2)))
    options = {**LAYOUT, "labelled": 1, "unlabelled": True}
    (sample,) = KittiDataset(root=root, split="train", crop="kb", **options)
    assert sample["image"].shape == (352, 1216, 3)
    assert "depth" not in sample
    with pytest.raises(DataError, match=r"0000000003\.png: 8x6 .*data\.crop"):
        KittiDataset(root=root, split="val", crop="kb", **LAYOUT)[2]
