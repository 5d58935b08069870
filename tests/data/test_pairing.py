"""Names of published data sets: which images and labels belong together. No file is read."""

import pytest

from dpt.data import DataError
from dpt.data.layouts import Folder
from dpt.data.layouts.pictures import pair, rows_of

TIMES = range(12)
CITIES = [f"{s}/{c}/{c}" for s in ("train", "val") for c in ("aachen", "bochum")]
SETS = {  # templates of an image and its labels, and of images without labels
    "nnU-Net": (
        "imagesTr/B_{i:03d}_0000.png",
        "labelsTr/B_{i:03d}.png",
        "imagesTs/B_9{i}_0000.png",
    ),
    "ADE20K": ("images/training/A_{i:08d}.jpg", "annotations/training/A_{i:08d}.png", ""),
    "Carvana": (
        "train/{i:06x}_{i:02d}.jpg",
        "train_masks/{i:06x}_{i:02d}_mask.gif",
        "test/{i}a.jpg",
    ),
    "ISIC": (
        "Task1_Training_Input/I_{i:07d}.jpg",
        "Task1_GroundTruth/I_{i:07d}_segmentation.png",
        "",
    ),
    "roads": ("tiff/train/{i}_15.tiff", "tiff/train_labels/{i}_15.tif", "tiff/test/{i}9_15.tiff"),
    "LoveDA": ("Train/Urban/images_png/{i}.png", "Train/Urban/masks_png/{i}.png", ""),
    "Inria": ("train/images/austin{i}.tif", "train/gt/austin{i}.tif", "test/images/bell{i}.tif"),
    "DeepGlobe": ("train/{i}7_sat.jpg", "train/{i}7_mask.png", "valid/{i}91_sat.jpg"),
    "SUIM": ("train_val/images/d_r_{i}_.jpg", "train_val/masks/d_r_{i}_.bmp", ""),
    "Potsdam": ("2_Ortho_RGB/top_2_{i}_RGB.tif", "5_Labels_all/top_2_{i}_label.tif", ""),
    "NYU": ("nyu/kitchen/rgb_{i:05d}.jpg", "nyu/kitchen/sync_depth_{i:05d}.png", ""),
    "Hypersim": ("ai_1/cam/frame.{i:04d}.color.jpg", "ai_1/geo/frame.{i:04d}.depth.npy", ""),
    "DIODE": ("scan_1/{i:05d}_indoors.png", "scan_1/{i:05d}_indoors_depth.npy", ""),
    "BlendedMVS": (
        "s1/blended_images/{i:08d}.jpg",
        "s1/rendered_depth_maps/{i:08d}.pfm",
        "s1/blended_images/{i:08d}_masked.jpg",
    ),
    "Sintel": ("training/clean/a_1/frame_{i:04d}.png", "training/depth/a_1/frame_{i:04d}.npy", ""),
    "mattes": ("fg/{i}.jpg", "alpha/{i}.png", ""),
    "Roboflow": (
        "train/f_{i}_jpg.rf.3c5a4{i}03c7b4e9a0f5c1d2e1f4a8b.jpg",
        "train/f_{i}_jpg.rf.3c5a4{i}03c7b4e9a0f5c1d2e1f4a8b_mask.png",
        "",
    ),
    "capitals": ("TrainImages/x{i}.jpg", "TrainMasks/x{i}.png", ""),
    "pets": ("images/Abys_{i}.jpg", "annotations/trimaps/Abys_{i}.png", ""),
    "cabinet": ("{i:04d}_rgb_raw.jpg", "{i:04d}_depth_raw.png", ""),
    "one folder": ("cat/{i:03d}.jpg", "cat/{i:03d}.png", ""),
    "Freiburg": ("train/rgb/b1_{i}.jpg", "train/GT_color/b1_{i}.png", "train/nir_gray/b1_{i}.tif"),
}


@pytest.mark.parametrize("name", SETS)
def test_published_names_pair(tmp_path, name):
    image, labels, bare = SETS[name]
    expected = {image.format(i=i): labels.format(i=i) for i in TIMES}
    others = [bare.format(i=i) for i in TIMES if bare]
    rows = rows_of(Folder(tmp_path, [*expected, *expected.values(), *others], {}))
    assert {row.image: row.labels or row.depth for row in rows if any(row[1:3])} == expected
    assert {row.image for row in rows if not any(row[1:3])} == {*others}


@pytest.mark.parametrize("kinds", [["labelIds"], ["labelIds", "color", "instanceIds"]])
def test_names_of_cities_pair(tmp_path, kinds):
    images = [f"leftImg8bit/{city}_{i:06d}_19_leftImg8bit.png" for city in CITIES for i in TIMES]
    labels = [f"gtFine/{c}_{i:06d}_19_gtFine_{k}.png" for k in kinds for c in CITIES for i in TIMES]
    folder = Folder(tmp_path, [*images, *labels], {})
    if len(kinds) > 1:
        with pytest.raises(DataError, match=r"data\.labels_name=%stemgtFine_labelIds"):
            rows_of(folder)
        folder.given = {"labels_name": "%stemgtFine_labelIds"}
    expected = dict(zip(images, labels, strict=False))
    assert {row.image: row.labels for row in rows_of(folder) if row.labels} == expected


def test_names_of_two_folders_of_images_are_refused(tmp_path):
    names = [f"{folder}/{i}.jpg" for folder in ("first", "second") for i in TIMES]
    folder = Folder(tmp_path, [*names, *(f"masks/{i}_m.png" for i in TIMES)], {})
    with pytest.raises(DataError, match=r"first/0\.jpg and second/0\.jpg .*data\.images"):
        rows_of(folder)
    folder.given = {"images": "first"}
    (tmp_path / "first").mkdir()
    assert sum(bool(row.labels) for row in rows_of(folder)) == len(TIMES)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (["images/10{i}.jpg"], ["masks/20{i}.png"]),  # a number would be cut
        (["images/cat.jpg"], ["masks/dog.png"]),
    ],
)
def test_names_of_other_numbers_do_not_pair(tmp_path, images, labels):
    paths = [name.format(i=i) for name in (*images, *labels) for i in TIMES]
    rows = rows_of(Folder(tmp_path, sorted({*paths}), {}))
    assert not any(row.labels for row in rows)


LACKING = {  # templates of an image and its labels in groups of files with equal names
    "affixes": ("{g}/images/{i}.jpg", "{g}/masks/{i}_gt.png", "train test"),
    "folders": ("a/{g}/{i:04d}_x.png", "b/{g}/{i:04d}.png", "Urban Rural"),
    "beside": ("{g}/{g} ({i}).png", "{g}/{g} ({i})_mask.png", "benign malignant"),
    "word": ("{g}_img/{i}.jpg", "{g}_lab/{i}.png", "train test"),
    "tiles": ("{g}/images/t_{i}_256.jpg", "{g}/masks/t_{i}_256-mask.png", "x y"),
}


@pytest.mark.parametrize("name", LACKING)
def test_labels_without_an_image_are_not_those_of_another(name):
    image, label, groups = LACKING[name]
    first, second = groups.split()
    expected = {
        label.format(g=g, i=i): image.format(g=g, i=i) for g in (first, second) for i in TIMES
    }
    lacking = {image.format(g=first, i=i) for i in (1, 4, 7)}
    lacking |= {label.format(g=second, i=i) for i in (1, 4, 9)}
    lacking |= {image.format(g=second, i=i) for i in (5, 6)}
    images = [path for path in expected.values() if path not in lacking]
    labels = [path for path in expected if path not in lacking]
    labels.append(label.format(g=first, i=3).replace(".png", "_1.png"))
    found = pair(images, labels, "labels")
    assert found == {x: expected[x] for x in labels if x in expected and expected[x] in images}
