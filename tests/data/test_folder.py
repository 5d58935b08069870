"""data=folder: layouts, pairing by names, labels, depth, objects, the cache, and real data."""

from pathlib import Path

import numpy as np
import pytest
from photos import save_picture

from dpt.data import DataError, FolderDataset
from dpt.data.datasets.files import numbered
from dpt.data.formats.rules import LabelRule
from dpt.types.samples import IGNORE_INDEX

SIZE = (6, 8)
PIXELS = {
    "images": np.zeros((*SIZE, 3), np.uint8),
    "masks": np.zeros(SIZE, np.uint8),
    "depth": np.full(SIZE, 1500, np.uint16),
}


def write(root: Path, folder: str, *stems: object, suffix: str = ".png") -> None:
    """Saves small images, masks or depth maps, as the first part of ``folder`` says."""
    for stem in stems:
        save_picture(root / folder / f"{stem}{suffix}", PIXELS[folder.partition("/")[0]])


def segmentation(root: Path, **options) -> FolderDataset:
    settings = {"split": "train", "labels": "masks", "num_classes": 3} | options
    return FolderDataset(root=root, **settings)


def depth_set(root: Path, **options) -> FolderDataset:
    settings = {"split": "train", "depth": "depth", "max_depth": 10} | options
    return FolderDataset(root=root, **settings)


def stems(dataset: FolderDataset) -> list[str]:
    return [dataset.files(i).image.stem for i in range(len(dataset))]


def one(root: Path, mask: np.ndarray, **options) -> FolderDataset:
    write(root, "images/train", "a")
    save_picture(root / "masks/train/a.png", mask)
    return segmentation(root, **options)


# ----------------------------------------------------------------------------------- layouts


def test_folder_of_each_split(tmp_path):
    for split, count in (("train", 3), ("validation", 2)):
        for kind in ("images", "masks"):
            write(tmp_path, f"{kind}/{split}", *range(count))
    save_picture(tmp_path / "masks/train/2.png", np.full(SIZE, 2, np.uint8))
    dataset = segmentation(tmp_path)
    assert len(dataset) == 3
    sample = dataset[2]
    assert sample["labels"].dtype == np.uint8
    assert (sample["labels"] == 2).all()
    assert sample["index"] == 2
    assert sample["name"].endswith("images/train/2.png")
    assert dataset.info.targets == ("labels",)
    assert dataset.info.class_names == ("class_0", "class_1", "class_2")
    of_ids = segmentation(tmp_path, num_classes=2, label_map=[1, 2]).info.class_names
    assert of_ids == ("class_1", "class_2")
    assert len(segmentation(tmp_path, split="val", split_names={"val": "validation"})) == 2
    with pytest.raises(DataError, match=r"images/val .*data\.split_names\.val"):
        segmentation(tmp_path, split="val")


def test_split_in_a_template(tmp_path):
    for town, value in (("bonn", 2), ("ulm", 1)):
        save_picture(tmp_path / f"train/rgb/{town}/a.jpg", PIXELS["images"])
        save_picture(tmp_path / f"train/ids/{town}/a.png", np.full(SIZE, value, np.uint8))
    options = {"images": "%split/rgb", "labels": "%split/ids"}
    dataset = segmentation(tmp_path, **options)
    assert [int(dataset[i]["labels"][0, 0]) for i in range(2)] == [2, 1]
    with pytest.raises(DataError, match=r"val/rgb .*data\.images"):
        segmentation(tmp_path, split="val", **options)


def test_masks_of_all_splits_in_one_folder(tmp_path):
    write(tmp_path, "images/train", "a")
    write(tmp_path, "images/val", "b")
    write(tmp_path, "masks", "a", "b")
    splits = [stems(segmentation(tmp_path, split=split)) for split in ("train", "val")]
    assert splits == [["a"], ["b"]]
    write(tmp_path, "images/val", "a")
    for template in ("images", "images/%split"):
        with pytest.raises(DataError, match=r"masks/a\.png .*train/a.* and .*val/a"):
            segmentation(tmp_path, images=template)


def test_fractions(tmp_path):
    for kind in ("images", "masks"):
        write(tmp_path, kind, *range(20))
    assert len(stems(segmentation(tmp_path, split="val"))) == 2
    fractions = {"train": 0.5, "val": 0.25, "test": 0.25}
    splits = [stems(segmentation(tmp_path, split=s, fractions=fractions)) for s in fractions]
    assert sorted(stem for names in splits for stem in names) == sorted(map(str, range(20)))
    with pytest.raises(DataError, match=r"split test .*data\.fractions.*train, val"):
        segmentation(tmp_path, split="test")


def test_copies_by_roboflow_are_in_one_split(tmp_path):
    for kind in ("images", "masks"):
        write(tmp_path, kind, *(f"{i}_jpg.rf.{k}{i:07x}" for i in range(10) for k in "abc"))
    for options in ({}, {"folds": 10, "fold": 9}):
        train, val = (stems(segmentation(tmp_path, split=s, **options)) for s in ("train", "val"))
        assert (len(train), len(val)) == (27, 3)
        assert not {name.split(".")[0] for name in train} & {name.split(".")[0] for name in val}


# --------------------------------------------------------------------------- lists and tables


def test_lists_of_the_splits(tmp_path):
    for stem in ("x/a", "x/b", "y/b", "c"):
        write(tmp_path, "images", stem, suffix=".jpg")
        write(tmp_path, "masks", stem)
    (tmp_path / "train.txt").write_text("# a comment\n\nx/b.jpg\nimages/y/b.jpg\nc\n./x/a\n")
    lists = {"split_files": {"train": "train.txt", "val": "val.txt"}}
    dataset = segmentation(tmp_path, **lists)
    names = [dataset.files(i).image.relative_to(tmp_path).as_posix() for i in range(4)]
    assert names == ["images/x/b.jpg", "images/y/b.jpg", "images/c.jpg", "images/x/a.jpg"]
    with pytest.raises(DataError, match=r"val\.txt"):
        segmentation(tmp_path, split="val", **lists)
    (tmp_path / "val.txt").write_text("b\nzzz\nc\n")  # two files are called b
    with pytest.raises(DataError, match=r"val\.txt: .*\(b, zzz\)"):
        segmentation(tmp_path, split="val", **lists)
    with pytest.raises(DataError, match=r"data\.split_files .*split test"):
        segmentation(tmp_path, split="test", **lists)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffa 1\r\nb -1\r\n",
        "images\\a.JPG;masks\\a.png\nb.jpg;x\n",
        "{root}/images/a.JPG\n{root}/images/b.jpg\n",
    ],
)
def test_forms_of_lists(tmp_path, text):
    write(tmp_path, "images", "a", suffix=".JPG")
    write(tmp_path, "images", "b", "c d", suffix=".jpg")
    write(tmp_path, "masks", "a", "b", "c d")
    (tmp_path / "train.txt").write_text(text.format(root=tmp_path), newline="")
    (tmp_path / "val.txt").write_text("c d\n")
    lists = {"split_files": {"train": "train.txt", "val": "val.txt"}}
    assert stems(segmentation(tmp_path, **lists)) == ["a", "b"]
    assert stems(segmentation(tmp_path, split="val", **lists)) == ["c d"]


def test_table_of_files_of_any_name(tmp_path):
    write(tmp_path, "images", *range(4))
    write(tmp_path, "masks", "x", "y")
    save_picture(tmp_path / "masks/z.png", np.full(SIZE, 2, np.uint8))
    (tmp_path / "list.csv").write_text(
        "image, mask, split\nimages/0.png, masks/x.png, train\nimages/1.png,,train\n"
        "images/2.png,masks/z.png,train\nimages/3.png,masks/y.png,validation\n"
    )
    lists = {"split_files": {"train": "list.csv", "val": "list.csv", "test": "list.csv"}}
    with pytest.raises(DataError, match=r"1 of 3 .*images/1\.png.*data\.missing"):
        segmentation(tmp_path, **lists)
    assert stems(segmentation(tmp_path, **lists, missing="skip")) == ["0", "2"]
    dataset = segmentation(tmp_path, **lists, missing="keep")
    assert [sample["labels"].max() for sample in dataset if "labels" in sample] == [0, 2]
    names = {"split_names": {"val": "validation"}}
    assert stems(segmentation(tmp_path, **lists, **names, split="val")) == ["3"]
    with pytest.raises(DataError, match=r"list\.csv: .*data\.split_names\.test"):
        segmentation(tmp_path, **lists, split="test")
    with pytest.raises(DataError, match=r"list\.csv: no column depth"):
        segmentation(tmp_path, **lists, depth="d", max_depth=10)
    (tmp_path / "images/2.png").unlink()
    with pytest.raises(DataError, match=r"list\.csv: 1 files of its 2 .*2\.png"):
        segmentation(tmp_path, **lists, missing="skip")


# ----------------------------------------------------------------------------------- pairing


def test_name_templates(tmp_path):
    for stem in ("s1", "s2"):
        write(tmp_path, "images/train", f"{stem}_leftImg8bit")
        write(tmp_path, "masks/train", f"{stem}_gtFine_labelIds", f"{stem}_gtFine_color")
        np.save(tmp_path / f"masks/train/depth_{stem}.npy", np.full(SIZE, 2.0))
    templates = {
        "images": "%stem_leftImg8bit",
        "labels": "%stem_gtFine_labelIds",
        "depth": "depth_%stem",
    }
    names = {f"{kind}_name": template for kind, template in templates.items()}
    dataset = segmentation(tmp_path, depth="masks", depth_scale=1, max_depth=5, **names)
    assert len(dataset) == 2
    assert dataset.info.targets == ("depth", "labels")
    assert (dataset[1]["depth"] == 2).all()
    with pytest.raises(DataError, match=r"s1_leftImg8bit.*data\.labels_name"):
        segmentation(tmp_path)
    with pytest.raises(DataError, match=r"data\.labels_name=labels .*%stem"):
        segmentation(tmp_path, labels_name="labels")


def test_images_that_lack_labels(tmp_path):
    write(tmp_path, "images/train", *range(5))
    write(tmp_path, "masks/train", 0, 2)
    (tmp_path / "masks/train/.hidden.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"3 of 5 .*images/train/1\.png, .*data\.missing"):
        segmentation(tmp_path)
    assert stems(segmentation(tmp_path, missing="skip")) == ["0", "2"]
    kept = segmentation(tmp_path, missing="keep")
    assert ["labels" in sample for sample in kept] == [True, False, True, False, False]


def test_images_with_some_kinds_of_labels(tmp_path):
    write(tmp_path, "images/train", *range(4))
    write(tmp_path, "masks/train", 0, 1)
    write(tmp_path, "depth/train", 1, 2)
    with pytest.raises(DataError, match=r"1 of 4 images.*/3\.png"):
        segmentation(tmp_path, depth="depth", max_depth=10)
    write(tmp_path, "masks/train", 3)
    dataset = segmentation(tmp_path, depth="depth", max_depth=10)
    kinds = [sorted(sample.keys() & {"labels", "depth", "valid"}) for sample in dataset]
    assert kinds == [["labels"], ["depth", "labels", "valid"], ["depth", "valid"], ["labels"]]


def test_folders_that_are_absent_or_empty(tmp_path):
    with pytest.raises(DataError, match=r"nowhere .*data\.root"):
        segmentation(tmp_path / "nowhere")
    for name in ("labls", "imges"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=r"images .*imges, labls.*data\.images"):  # near names first
        segmentation(tmp_path)
    (tmp_path / "images/train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"images/train .*data\.images_name.*empty"):
        segmentation(tmp_path)
    (tmp_path / "images/train/a.heic").write_bytes(b"x")
    for name in ("b", "c"):  # endless, if they were followed
        (tmp_path / "images/train" / name).symlink_to("..")
    with pytest.raises(DataError, match=r"images/train .*a\.heic"):
        segmentation(tmp_path)


# ------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize(
    ("value", "ignore_index", "is_refused"),
    [
        (3, 3, False),
        (65535, [3, 65535], False),
        (255, 7, True),
        (256, 255, True),  # would wrap to 0
    ],
)
def test_ids_that_are_no_class(tmp_path, value, ignore_index, is_refused):
    mask = np.zeros(SIZE, np.uint8 if value < 256 else np.uint16)
    mask[2, 2] = value
    dataset = one(tmp_path, mask, ignore_index=ignore_index)
    if is_refused:
        with pytest.raises(DataError, match=rf"a\.png: class ids {value} .*data\.ignore_index"):
            dataset[0]
    else:
        assert np.array_equal(dataset[0]["labels"], np.where(mask, IGNORE_INDEX, 0))


def test_masks_in_colours(tmp_path):
    colors = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]  # the last means unlabelled
    mask = np.random.default_rng(0).integers(0, 4, SIZE)
    pixels = np.array(colors, np.uint8)[mask]
    dataset = one(tmp_path, pixels, label_colors=colors, ignore_index=3)
    assert np.array_equal(dataset[0]["labels"], np.where(mask == 3, IGNORE_INDEX, mask))
    assert dataset.info.palette == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    classes = {"label_map": [1, 2], "num_classes": None}
    dataset = one(tmp_path, pixels, label_colors=colors, **classes)
    assert np.array_equal(dataset[0]["labels"], np.array([IGNORE_INDEX, 0, 1, IGNORE_INDEX])[mask])
    assert dataset.info.palette == ((0, 255, 0), (0, 0, 255))
    dataset = one(
        tmp_path, np.where(mask[..., None] == 2, [0, 0, 255], [255, 0, 0]).astype(np.uint8)
    )
    with pytest.raises(DataError, match=r"a\.png: .*label_colors=\[\[0,0,255\],\[255,0,0\]\]"):
        dataset[0]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"num_classes": None}, "num_classes"),
        ({"class_names": ["a", "b", "a"]}, "class_names has 'a'"),
        ({"label_colors": [[1, 2, 3]]}, "label_colors"),
        ({"label_map": [1, 2]}, "label_map"),
        ({"label_map": [1, [2, 1]], "num_classes": None}, "label_map"),
        ({"label_map": "1-999999999", "num_classes": None}, "label_map"),
        ({"objects": "masks", "things": ["tram", 3]}, "things: tram, 3"),
    ],
)
def test_options_of_classes_that_are_refused(tmp_path, options, key):
    with pytest.raises(DataError, match=rf"data\.{key}"):
        one(tmp_path, PIXELS["masks"], **options)


def test_label_map(tmp_path):
    mask = np.arange(48, dtype=np.uint8).reshape(SIZE)
    dataset = one(tmp_path, mask, num_classes=None, label_map=[7, [11, 40], 8])
    expected = np.full(48, IGNORE_INDEX)
    expected[[7, 8, 11, 40]] = [0, 2, 1, 1]
    assert dataset.info.num_classes == 3
    assert np.array_equal(dataset[0]["labels"].ravel(), expected)
    labels = one(tmp_path, mask, num_classes=None, label_map="1-40")[0]["labels"]
    assert labels.ravel().tolist() == [IGNORE_INDEX, *range(40), *[IGNORE_INDEX] * 7]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_label_map_of_any_integer_type(dtype):
    rule = LabelRule(label_map=[7, [200, 65535]])
    limits = np.iinfo(dtype)
    raw = np.array([[-1, 7, 200, 255, 65535, 70000]]).clip(limits.min, limits.max).astype(dtype)
    expected = [{7: 0, 200: 1, 65535: 1}.get(int(value), IGNORE_INDEX) for value in raw[0]]
    assert rule(raw, source="m.png")[0].tolist() == expected


# ------------------------------------------------------------------------- depth and objects


def test_depth_in_metres(tmp_path):
    write(tmp_path, "images/train", "a")
    raw = np.arange(48, dtype=np.uint16).reshape(SIZE) * 300
    raw[0, 1] = 65535
    save_picture(tmp_path / "depth/train/a.png", raw)
    sample = depth_set(tmp_path, invalid_depth=[0, 65535], min_depth=0.5)[0]
    valid = (raw >= 500) & (raw <= 10000)
    assert np.array_equal(sample["valid"], valid)
    assert np.array_equal(sample["depth"], np.where(valid, raw / 1000, 0).astype(np.float32))


@pytest.mark.parametrize(("key", "value"), [("max_depth", None), ("min_depth", 20)])
def test_options_of_depth_that_are_refused(tmp_path, key, value):
    with pytest.raises(DataError, match=rf"data\.{key}"):
        depth_set(tmp_path, **{key: value})


def test_objects_are_numbered(tmp_path):
    """Whole numbers, or R + 256 G + 65536 B; those below ``first_object`` are none."""
    stored = np.repeat([[0, 9, 26001, 26002]], 6, 0).repeat(2, 1).astype(np.uint16)
    save_picture(tmp_path / "ids/train/a.png", stored)
    options = {"objects": "ids", "class_names": ["road", "car", "person"]}
    data = one(tmp_path, PIXELS["masks"], first_object=1000, things=["car", 2], **options)
    assert data.info.things == (False, True, True)
    assert data[0]["objects"][0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    rgb = np.stack([stored % 256, stored // 256, stored // 26001], 2).astype(np.uint8)
    save_picture(tmp_path / "ids/train/a.png", rgb)
    options["class_names"][0] = "background"
    data = one(tmp_path, PIXELS["masks"], **options)
    assert data.info.things == (False, True, True)
    assert data[0]["objects"][0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_unlabelled_value_is_no_object(tmp_path):
    """Pascal VOC has 255 at borders, in both maps."""
    labels, ids = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
    labels[:, 2:5], ids[:, 2:5] = 255, 255
    labels[2:4, 3], ids[2:4, 3] = 1, 255  # an object with that number
    write(tmp_path, "images/train", "a")
    save_picture(tmp_path / "masks/train/a.png", labels)
    save_picture(tmp_path / "ids/train/a.png", ids)
    np.testing.assert_array_equal(segmentation(tmp_path, objects="ids")[0]["objects"], labels == 1)


def test_number_of_objects_is_bounded():
    with pytest.raises(DataError, match=r"a\.png: 90000 objects"):
        numbered(np.arange(90000).reshape(300, 300), "a.png")


@pytest.mark.parametrize("folder", ["masks", "ids"])
def test_maps_of_another_size(tmp_path, folder):
    write(tmp_path, "images/train", "a")
    for name in ("masks", "ids"):
        size = (3, 4) if name == folder else SIZE
        save_picture(tmp_path / f"{name}/train/a.png", np.ones(size, np.uint8))
    with pytest.raises(
        DataError, match=rf"a\.png: image is 8x6 .* 4x3 \(.*{folder}/train/a\.png\)"
    ):
        segmentation(tmp_path, objects="ids").validate()


# ---------------------------------------------------------------------------------- validate


def depth_files(root: Path, values: list[int], **options) -> FolderDataset:
    for i, value in enumerate(values):
        write(root, "images/train", f"{i:03}")
        save_picture(root / f"depth/train/{i:03}.png", np.full(SIZE, value, np.uint16))
    return depth_set(root, **options)


def test_validate_sees_unusable_files(tmp_path):
    with pytest.raises(DataError, match=r"000\.\w+ is invalid.*data\.depth_scale"):
        depth_files(tmp_path, [1500, 2500], depth_scale=1).validate()
    (remark,) = depth_files(tmp_path, [1500, 0, 2500]).validate()
    assert "001" in remark
    with pytest.raises(DataError, match=r"a\.png is ignored"):
        one(tmp_path / "ignored", PIXELS["masks"], ignore_index=0).validate()


def test_validate_reads_beyond_the_first_files(tmp_path):
    dataset = depth_files(tmp_path, [1500] * 12)
    for i in range(4, 12):
        (tmp_path / f"depth/train/{i:03}.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"0\d\d\.png"):
        dataset.validate(limit=8)
    assert dataset.validate(limit=0) == []


# ------------------------------------------------------------------------------------- cache


def test_cache_keeps_samples_safe(tmp_path):
    dataset = depth_files(tmp_path, [1500, 2500], cache=True)
    (tmp_path / "depth/train/001.png").write_bytes(b"broken")  # which does not stop the filling
    dataset.preload()
    (tmp_path / "depth/train/000.png").unlink()
    sample = dataset[0]
    with pytest.raises(ValueError, match="read-only"):
        sample["depth"][0, 0] = 1
    sample["name"] = "changed"
    assert dataset[0]["name"] != "changed"
    with pytest.raises(DataError, match=r"001\.png"):
        dataset[1]


def test_cache_size_is_for_training_only(tmp_path):
    ramp = np.arange(4800, dtype=np.uint16).reshape(60, 80) + 1000
    for split in ("train", "val"):
        save_picture(tmp_path / f"images/{split}/a.png", np.zeros((60, 80, 3), np.uint8))
        save_picture(tmp_path / f"depth/{split}/a.png", ramp)
    sample = depth_set(tmp_path, cache=True, cache_size=[20, 40])[0]
    assert sample["image"].shape == (30, 40, 3)  # covers 20 x 40
    assert np.isin(np.round(sample["depth"] * 1000), ramp).all()
    assert sample["valid"].shape == (30, 40)
    for split, size in (("val", [20, 40]), ("train", [100, 100])):
        data = depth_set(tmp_path, split=split, cache=True, cache_size=size)
        assert data[0]["depth"].shape == (60, 80)


# --------------------------------------------------------------------------------- real data


def test_camvid(shared_data):
    options = {"root": shared_data / "camvid", "labels": "masks", "num_classes": 11}
    train, val = (FolderDataset(split=s, ignore_index=11, **options) for s in ("train", "val"))
    assert (len(train), len(val)) == (367, 101)
    counts = np.zeros(256, np.int64)
    for sample in val:
        counts += np.bincount(sample["labels"].ravel(), minlength=256)
    percent = 100 * counts[:11] / counts[:11].sum()
    expected = [9.34, 26.41, 0.57, 29.46, 8.87, 16.62, 0.91, 3.13, 1.78, 0.66, 2.26]
    assert np.allclose(percent, expected, atol=0.006)
    assert 100 * counts[255] / counts.sum() == pytest.approx(1.70, abs=0.006)
    assert train.validate(limit=6) == []
    assert train[0]["image"].shape == (360, 480, 3)


def test_rgbd(shared_data):
    options = {"root": shared_data / "rgbd", "depth": "depth", "max_depth": 10}
    train, val = (
        FolderDataset(split=s, invalid_depth=[0, 65535], **options) for s in ("train", "val")
    )
    assert (len(train), len(val)) == (234, 25)
    samples = [val[i] for i in range(len(val))]
    invalid = np.mean([~sample["valid"] for sample in samples])
    depth = np.concatenate([sample["depth"][sample["valid"]] for sample in samples])
    assert 100 * invalid == pytest.approx(17.59, abs=0.006)
    assert depth.min() == pytest.approx(0.801)
    assert depth.max() == pytest.approx(3.231)
    assert depth.mean(dtype=np.float64) == pytest.approx(1.6366, abs=1e-4)
    assert np.median(depth) == pytest.approx(1.711, abs=1e-4)
    assert train.validate(limit=4) == []


def test_masks_of_each_split_divide_the_images(tmp_path):
    write(tmp_path, "images", *range(12))
    write(tmp_path, "masks/train", *range(7))
    write(tmp_path, "masks/val", *range(7, 10))
    splits = [stems(segmentation(tmp_path, split=split)) for split in ("train", "val")]
    assert splits == [[*"0123456"], [*"789"]]
