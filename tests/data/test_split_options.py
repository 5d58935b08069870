"""Which images train and which validate: folds, groups, and images without labels."""

import coco_files
import depth_trees
import numpy as np
import pytest
from photos import save_picture

from dpt.config.schema import DataConfig
from dpt.data import DataError, FolderDataset, ImageFolderDataset
from dpt.data_check import examine

DRIVES = {"a": 3, "b": 5, "c": 4}
BY_DRIVE = r"([^/_]+)_[^/]*$"
LOADER = {"image_size": [16, 16], "batch_size": 2, "num_workers": 0}


def save_pictures(root, *kinds, names):
    for kind in kinds:
        shape = (16, 16, 3) if kind.startswith("images") else (16, 16)
        picture = np.ones(shape, np.uint8)
        picture[:8] = 0
        for name in names:
            save_picture(root / kind / f"{name}.png", picture)


@pytest.fixture(scope="module")
def drives(tmp_path_factory):
    """Images and masks named DRIVE_FRAME; val has two more frames of c."""
    root = tmp_path_factory.mktemp("drives")
    frames = [f"{drive}_{i:02}" for drive, count in DRIVES.items() for i in range(count)]
    save_pictures(root, "images/train", "masks/train", names=frames)
    save_pictures(root, "images/val", "masks/val", names=["c_04", "c_05"])
    return root


def settings(root, **options):
    """``data`` of a configuration."""
    folder = {"kind": "folder", "root": str(root), "labels": "masks"}
    return folder | {"num_classes": 2} | options


def names(root, split, **options):
    data = FolderDataset(root=root, split=split, labels="masks", num_classes=2, **options)
    return [data.files(i).image.stem for i in range(len(data))]


# -------------------------------------------------------------------------- folds and groups


@pytest.mark.parametrize("fold", range(3))
def test_folds_of_class_folders_have_every_class(tmp_path, fold):
    for name, count in (("cat", 6), ("dog", 3)):
        save_pictures(tmp_path, f"images/train/{name}", names=[f"{name}.{i}" for i in range(count)])
    split_names = {"train": "images/train", "val": "images/train"}
    data = ImageFolderDataset(
        root=tmp_path, split="val", folds=3, fold=fold, split_names=split_names
    )
    assert [data.files(i).class_id for i in range(len(data))] == [0, 0, 1]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"folds": 3, "fold": 3}, "fold=3"),
        ({"folds": 3, "group_by": "/(x)?a_"}, "group_by=.* images/train/a_00.png"),
        ({"folds": 4, "group_by": BY_DRIVE}, "folds=4: .* 3 groups.* a, b, c"),
        ({"folds": 3, "group_by": "("}, r"group_by=\("),
        ({"folds": 2, "gap": 20}, "gap=20"),
        ({"labelled": 13}, "labelled=13: 12"),
        ({"unlabelled": True}, "unlabelled=true"),
    ],
)
def test_settings_of_the_splits_that_are_refused(drives, options, key):
    with pytest.raises(DataError, match=rf"data\.{key}"):
        names(drives, "train", **options)


# --------------------------------------------------------------------- labelled and unlabelled


def test_labelled_images_are_evenly_spaced(drives):
    every = names(drives, "train")
    assert names(drives, "train", labelled=4) == every[::3]
    assert names(drives, "val", labelled=1) == ["c_04", "c_05"]
    rest = names(drives, "train", labelled=4, unlabelled=True)
    assert sorted(rest + every[::3]) == every


@pytest.mark.parametrize(("is_folder", "count"), [(False, 12), (True, 34)])
def test_mix_with_unlabelled_images(drives, is_folder, count, tmp_path):
    save_pictures(tmp_path, "images", names=range(30))
    unlabelled = str(tmp_path) if is_folder else True
    data = settings(drives, labelled=4, unlabelled=unlabelled)
    train = DataConfig.read(data).make("train")
    assert len(train) == count
    assert sum("labels" in train[i] for i in range(count)) == count // 2
    assert train.info.targets == ("labels",)
    assert len(DataConfig.read(data).make("val")) == 2


@pytest.mark.parametrize(("missing", "counts"), [("skip", (9, 1)), ("keep", (36, 4))])
def test_few_labels_in_one_folder(tmp_path, missing, counts):
    """Every split gets its fraction of them, and half of the drawn images have labels."""
    save_pictures(tmp_path, "images", names=range(40))
    save_pictures(tmp_path, "masks", names=range(10))
    data = settings(tmp_path, missing=missing)
    for split, count, labelled in zip(("train", "val"), counts, (9, 1), strict=True):
        dataset = DataConfig.read(data).make(split)
        assert len(dataset) == count
        assert sum("labels" in dataset[i] for i in range(count)) == labelled
    if missing == "keep":
        mixed = DataConfig.read({**data, "unlabelled": True}).make("train")
        assert abs(sum("labels" in mixed[i] for i in range(len(mixed))) - len(mixed) / 2) < 1


def test_no_image_with_labels(drives):
    data = settings(drives, labels=None, num_classes=None, missing="keep", unlabelled=True)
    with pytest.raises(DataError, match=r"data\.labelled=all"):
        DataConfig.read(data).make("train")


# ------------------------------------------------------------------------------ the data check


def test_data_check_warns_of_shared_groups(drives):
    data = settings(drives, group_by=BY_DRIVE, **LOADER)
    findings, _ = examine(DataConfig.read(data), splits=("train", "val"))
    (finding,) = [finding for finding in findings if finding.code == "groups_across_splits"]
    assert finding.message.startswith("1 group ")
    findings, _ = examine(
        DataConfig.read({**data, "labelled": 4, "unlabelled": True}), splits=("train", "val")
    )
    assert finding in findings
    findings, _ = examine(DataConfig.read({**data, "folds": 3}), splits=("train", "val"))
    assert "groups_across_splits" not in {finding.code for finding in findings}


def test_data_check_reads_what_training_reads(tmp_path):
    """And it tells of a mask without an image in every split, a mix or not."""
    save_pictures(tmp_path, "images", names=range(20))
    save_pictures(tmp_path, "masks", names=range(0, 22, 2))
    data = settings(tmp_path, missing="keep", unlabelled=True, **LOADER)
    findings, scans = examine(DataConfig.read(data), splits=("train", "val"))
    assert "no_split" not in {finding.code for finding in findings}
    assert [len(scan.records) for scan in scans] == [18, 2]
    stray = [finding for finding in findings if finding.code == "label_without_photo"]
    assert [(f.split, len(f.examples)) for f in stray] == [("train", 1), ("val", 1)]


# ------------------------------------------------------------------------- labels of the images


def sunrgbd(root):
    depth_trees.sunrgbd(root)
    depth_trees.sunrgbd_masks(root)
    return {"kind": "sunrgbd"}


def nyuv2(root):
    depth_trees.nyuv2(root)
    depth_trees.nyu40_mapping(root)
    class_names = [str(k) for k in range(40)]
    return {"kind": "nyuv2", "class_names": class_names}


def coco(root, kind):
    coco_files.write(root, panoptic=kind == "panoptic", lengths=[("train", 3)], size=(48, 64))
    annotations = f"annotations/{kind}_%split.json"
    return {"kind": "coco", "annotations": annotations}


@pytest.mark.parametrize(
    "layout", [sunrgbd, nyuv2, lambda r: coco(r, "panoptic"), lambda r: coco(r, "instances")]
)
def test_each_image_keeps_its_own_labels(layout, tmp_path):
    """Whichever images a split has, also where one file holds the labels of all."""
    data = {**layout(tmp_path), "root": str(tmp_path)}

    def read(split="train", **options):
        dataset = DataConfig.read({**data, **options}).make(split)
        return {sample["name"]: sample for sample in (dataset[i] for i in range(len(dataset)))}

    expected = read()
    train, val = (read(split, folds=3, fold=1) for split in ("train", "val"))
    mixed = read(labelled=2, unlabelled=True)
    assert (len(train), len(val), len(mixed)) == (2, 1, 3)
    assert all("labels" in sample for sample in (train | val).values())
    kinds = [{"labels", "objects", "depth"} & sample.keys() for sample in mixed.values()]
    assert sum(map(bool, kinds)) == 2
    for name, sample in (*train.items(), *val.items(), *mixed.items()):
        assert np.array_equal(sample["image"], expected[name]["image"])
        if "labels" in sample:
            assert np.array_equal(sample["labels"], expected[name]["labels"])
