"""Which images train and which validate: folds, groups, and images without labels."""

import coco_files
import depth_trees
import numpy as np
import pytest
from photos import save_picture
from PIL import Image

from dpt.config.build import make_dataset
from dpt.data import DataError, FolderDataset, ImageFolderDataset
from dpt.data_check import examine

DRIVES = {"a": 3, "b": 5, "c": 4}


@pytest.fixture(scope="module")
def drives(tmp_path_factory):
    """Photos and masks named DRIVE_FRAME; val has two more frames of c."""
    root = tmp_path_factory.mktemp("drives")
    names = [f"train/{drive}_{i:02}" for drive, count in DRIVES.items() for i in range(count)]
    for name in (*names, "val/c_04", "val/c_05"):
        for kind in ("images", "masks"):
            path = root / kind / f"{name}.png"
            shape = (16, 16, 3) if kind == "images" else (16, 16)
            save_picture(path, np.full(shape, int(path.stem[-1]) % 2, np.uint8))
    return root


BY_DRIVE = r"([^/_]+)_[^/]*$"


def names(root, split, **options):
    data = FolderDataset(root=root, split=split, labels="masks", num_classes=2, **options)
    return [data.files(i).image.stem for i in range(len(data))]


@pytest.mark.parametrize("fold", range(3))
def test_folds_are_groups(drives, fold):
    options = {"folds": 3, "fold": fold, "group_by": BY_DRIVE}
    train, val = (names(drives, split, **options) for split in ("train", "val"))
    assert {name[0] for name in val} == {"abc"[fold]}
    assert len(val) == DRIVES["abc"[fold]]
    assert sorted(train + val) == names(drives, "train")


def test_folds_without_groups_are_stretches_with_a_gap(drives):
    every = names(drives, "train")
    for fold in range(4):
        assert names(drives, "val", folds=4, fold=fold) == every[3 * fold : 3 * fold + 3]
    assert names(drives, "train", folds=4, fold=1, gap=2) == every[:1] + every[8:]
    assert names(drives, "train", folds=4, fold=3, gap=2) == every[:7]


def test_shares_keep_groups_together(drives):
    options = {"images": "images/train", "labels": "masks/train", "fractions": None}
    data = {
        split: FolderDataset(
            root=drives, split=split, num_classes=2, group_by=BY_DRIVE,
            **{**options, "fractions": {"train": 0.7, "val": 0.3}},
        )
        for split in ("train", "val")
    }  # fmt: skip
    assert not set(data["train"].groups) & set(data["val"].groups)
    assert len(data["train"]) + len(data["val"]) == sum(DRIVES.values())


def test_the_gap_of_class_folders_counts_all_classes_together(tmp_path):
    for name in ("ant", "bee", "cat"):
        for i in range(9):
            path = tmp_path / "train" / name / f"{name}.{i}.png"
            save_picture(path, np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "val").symlink_to(tmp_path / "train")
    folds = {"root": tmp_path, "folds": 3, "fold": 1}
    kept = []
    for gap in (2, 6):
        data = ImageFolderDataset(split="train", **folds, gap=gap)
        kept.append(sorted(data.files(i).image.stem for i in range(len(data))))
    assert kept[1] == [f"{name}.{i}" for name in ("ant", "bee", "cat") for i in (0, 8)]
    assert len(kept[0]) == 27 - 9 - 4  # one class keeps its neighbours of val


def test_folds_of_class_folders_have_every_class(tmp_path):
    for name, count in (("cat", 6), ("dog", 3)):
        for i in range(count):
            path = tmp_path / "images/train" / name / f"{name}.{i}.png"
            save_picture(path, np.zeros((8, 8, 3), np.uint8))
    on_disk = {"train": "images/train", "val": "images/train"}
    for fold in range(3):
        data = ImageFolderDataset(
            root=tmp_path, split="val", folds=3, fold=fold, split_names=on_disk
        )
        assert [data.files(i).class_id for i in range(len(data))] == [0, 0, 1]


def test_the_data_check_warns_of_shared_groups(drives):
    data = {"_target_": "dpt.data.FolderDataset", "root": str(drives), "labels": "masks",
            "num_classes": 2, "group_by": BY_DRIVE, "image_size": [16, 16], "batch_size": 2,
            "num_workers": 0}  # fmt: skip
    found, _ = examine(data, splits=("train", "val"))
    (finding,) = [f for f in found if f.code == "groups_across_splits"]
    assert "1 group of photos also in train" in finding.message
    mixed, _ = examine({**data, "labelled": 4, "unlabelled": True}, splits=("train", "val"))
    assert finding in mixed
    found, _ = examine({**data, "folds": 3}, splits=("train", "val"))
    assert "groups_across_splits" not in {f.code for f in found}


def test_the_data_check_reads_each_file_once(drives):
    data = {"_target_": "dpt.data.FolderDataset", "root": str(drives), "labels": "masks",
            "num_classes": None, "label_map": None, "class_names": (), "labelled": 2,
            "unlabelled": True, "image_size": [16, 16], "batch_size": 2,
            "num_workers": 0}  # fmt: skip
    found, (scan,) = examine(data, splits=("train",))
    assert "proposal" in {finding.code for finding in found}
    assert len({record.name for record in scan.records}) == len(scan.records) == 12
    assert len(scan.masks) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"folds": 3, "fold": 3}, r"data.fold=3: with data.folds=3 it is 0 to 2"),
        ({"fold": 1}, r"data.fold has no effect without data.folds"),
        ({"gap": 2}, r"data.gap has no effect without data.folds"),
        ({"folds": 3, "group_by": "/(x)?a_"}, r"does not match images/train/a_00.png"),
        (
            {"folds": 4, "group_by": BY_DRIVE},
            r"data.folds=4: .* 3 groups of images, such as a, b, c",
        ),
        ({"folds": 3, "group_by": "("}, r"data.group_by=\(: is not a regular expression"),
        ({"folds": 3, "group_by": "x_"}, r"data.group_by=x_: does not match images/train/a_00.png"),
        ({"folds": 2, "gap": 20}, r"data.gap=20 leaves no image for training"),
        ({"labelled": 13}, r"data.labelled=13: only 12 training images have labels"),
        ({"unlabelled": True}, r"data.unlabelled=true: every training image has labels"),
    ],
)
def test_mistakes(drives, options, says):
    with pytest.raises(DataError, match=says):
        names(drives, "train", **options)


def test_no_other_split_has_photos_of_the_folds(drives):
    flat = {"images": "images/train", "labels": "masks/train", "num_classes": 2, "folds": 3}
    for options in ({}, {"fractions": {"train": 0.8, "val": 0.1, "test": 0.1}}):
        with pytest.raises(DataError, match=r"split test has no .*data.folds divides all"):
            FolderDataset(root=drives, split="test", **flat, **options)


def test_labelled_images_are_evenly_spaced(drives):
    every = names(drives, "train")
    assert names(drives, "train", labelled=4) == every[::3]
    assert names(drives, "val", labelled=1) == ["c_04", "c_05"]
    others = names(drives, "train", labelled=4, unlabelled=True)
    assert sorted(others + every[::3]) == every


@pytest.mark.parametrize("others", [True, "photos"])
def test_a_mix_with_unlabelled_images(drives, others, tmp_path):
    for i in range(30):
        Image.new("RGB", (16, 16)).save(tmp_path / f"{i}.png")
    others = others if others is True else str(tmp_path)
    data = {"_target_": "dpt.data.FolderDataset", "root": str(drives), "labels": "masks",
            "num_classes": 2, "labelled": 4, "unlabelled": others}  # fmt: skip
    train = make_dataset(data, "train")
    assert len(train) == (12 if others is True else 34)
    has_labels = ["labels" in train[i] for i in range(len(train))]
    assert sum(has_labels) == len(train) // 2
    assert train.info.targets == ("labels",)
    assert len(make_dataset(data, "val")) == 2


def test_val_does_not_need_the_photos_without_labels(drives, tmp_path):
    """A run can be evaluated where only the images of val are."""
    data = {"_target_": "dpt.data.FolderDataset", "root": str(drives), "labels": "masks",
            "num_classes": 2, "unlabelled": str(tmp_path / "photos")}  # fmt: skip
    assert len(make_dataset(data, "val")) == 2
    with pytest.raises(DataError, match=r"does not exist.*check data\.unlabelled"):
        make_dataset(data, "train")


def test_few_labels_in_one_folder(drives, tmp_path):
    """Every split gets its share of them, and half of the drawn images have labels."""
    for i in range(40):
        save_pictures(tmp_path, "images", *(["masks"] if i < 10 else []), names=[i])
    data = {"_target_": "dpt.data.FolderDataset", "root": str(tmp_path), "labels": "masks",
            "num_classes": 2}  # fmt: skip
    for missing, train, val in (("skip", 9, 1), ("keep", 9 + 27, 1 + 3)):
        for split, count in (("train", train), ("val", val)):
            found = make_dataset({**data, "missing": missing}, split)
            assert len(found) == count
            assert sum("labels" in found[i] for i in range(count)) == {"train": 9, "val": 1}[split]
    for others in (True, str(drives / "images/train")):
        mixed = make_dataset({**data, "missing": "keep", "unlabelled": others}, "train")
        assert abs(sum("labels" in mixed[i] for i in range(len(mixed))) - len(mixed) / 2) < 1


def save_pictures(root, *kinds, names):
    for kind in kinds:
        shape = (16, 16, 3) if kind == "images" else (16, 16)
        for name in names:
            save_picture(root / kind / f"{name}.png", np.ones(shape, np.uint8))


@pytest.mark.parametrize("fold", range(3))
def test_few_labels_in_folds(tmp_path, fold):
    """No photo of val is trained on, and every other one is used."""
    save_pictures(tmp_path, "images", names=range(30))
    save_pictures(tmp_path, "masks", names=[i for i in range(30) if i % 7 < 4])
    data = {"_target_": "dpt.data.FolderDataset", "root": str(tmp_path), "labels": "masks",
            "num_classes": 2, "missing": "keep", "folds": 3, "fold": fold,
            "unlabelled": True}  # fmt: skip
    train, val = make_dataset(data, "train"), make_dataset(data, "val")
    parts = [{part.files(i).image for i in range(len(part))} for part in (*train.sets, val)]
    assert len(set.union(*parts)) == sum(map(len, parts)) == 30
    assert all("labels" in train.sets[0][i] for i in range(len(train.sets[0])))


def test_no_image_with_labels(drives):
    data = {"_target_": "dpt.data.FolderDataset", "root": str(drives), "missing": "keep",
            "unlabelled": True}  # fmt: skip
    with pytest.raises(DataError, match=r"^none of the 12 training images has labels: add some"):
        make_dataset(data, "train")


def test_the_data_check_reads_what_training_reads(tmp_path):
    """And it tells of a mask without a photo in every split, a mix or not."""
    save_pictures(tmp_path, "images", names=range(20))
    save_pictures(tmp_path, "masks", names=range(0, 22, 2))
    data = {"_target_": "dpt.data.FolderDataset", "root": str(tmp_path), "labels": "masks",
            "num_classes": 2, "missing": "keep", "unlabelled": True, "image_size": [16, 16],
            "batch_size": 2, "num_workers": 0}  # fmt: skip
    found, scans = examine(data, splits=("train", "val"))
    assert "no_split" not in {finding.code for finding in found}
    assert [len(scan.records) for scan in scans] == [18, 2]
    stray = [f for f in found if f.code == "label_without_photo"]
    assert [(f.split, len(f.examples)) for f in stray] == [("train", 1), ("val", 1)]


def test_every_kind_of_labels_has_its_share(tmp_path):
    save_pictures(tmp_path, "images", names=range(12))
    save_pictures(tmp_path, "masks", names=range(0, 12, 2))
    save_pictures(tmp_path, "depth", names=range(1, 12, 2))
    data = FolderDataset(root=tmp_path, split="train", labels="masks", num_classes=2,
                         depth="depth", max_depth=10.0, folds=2, labelled=2)  # fmt: skip
    assert [sorted({"labels", "depth"} & data[i].keys()) for i in range(2)] in (
        [["labels"], ["depth"]],
        [["depth"], ["labels"]],
    )


def test_numbers_in_names_are_in_order(tmp_path):
    save_pictures(tmp_path, "images", "masks", names=range(20))
    options = {"root": tmp_path, "labels": "masks", "num_classes": 2, "folds": 5, "fold": 2}
    val, train = (FolderDataset(split=s, gap=3, **options) for s in ("val", "train"))
    found = [sorted(int(d.files(i).image.stem) for i in range(len(d))) for d in (val, train)]
    assert found == [[8, 9, 10, 11], [*range(5), *range(15, 20)]]


def sunrgbd(root):
    depth_trees.sunrgbd(root)
    depth_trees.sunrgbd_masks(root)
    return {"_target_": "dpt.data.datasets.sunrgbd.SunRgbdDataset"}


def nyuv2(root):
    depth_trees.nyuv2(root)
    depth_trees.nyu40_mapping(root)
    names = [str(k) for k in range(40)]
    return {"_target_": "dpt.data.datasets.nyuv2.NYUv2Dataset", "class_names": names}


def coco(root, kind):
    coco_files.write(root, panoptic=kind == "panoptic", lengths=[("train", 3)], size=(48, 64))
    annotations = f"annotations/{kind}_%split.json"
    return {"_target_": "dpt.data.CocoDataset", "annotations": annotations}


@pytest.mark.parametrize(
    "layout", [sunrgbd, nyuv2, lambda r: coco(r, "panoptic"), lambda r: coco(r, "instances")]
)
def test_each_image_keeps_its_own_labels(layout, tmp_path):
    """Whichever images a part has, also where one file holds the labels of all."""
    data = {**layout(tmp_path), "root": str(tmp_path)}

    def read(split="train", **options):
        found = make_dataset({**data, **options}, split)
        return {sample["name"]: sample for sample in (found[i] for i in range(len(found)))}

    every = read()
    for fold in range(3):
        train, val = (read(split, folds=3, fold=fold) for split in ("train", "val"))
        assert (len(train), len(val)) == (2, 1)
        for name, sample in (train | val).items():
            assert sample["labels"].tolist() == every[name]["labels"].tolist()
            assert sample["image"].tolist() == every[name]["image"].tolist()
    mixed = read(labelled=2, unlabelled=True)
    with_labels = [name for name, sample in mixed.items() if "labels" in sample]
    assert len(with_labels) == 2 == len(mixed) - 1
    for name, sample in mixed.items():
        assert sample["image"].tolist() == every[name]["image"].tolist()
        if name in with_labels:
            assert sample["labels"].tolist() == every[name]["labels"].tolist()
        else:
            assert not {"labels", "objects", "depth"} & sample.keys()
