"""What a folder holds: pairs by names and tables, splits, COCO's objects, and questions."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from coco_files import write, write_objects
from label_folders import (
    NAMES,
    PALETTE,
    SIZE,
    folder,
    mask,
    metres,
    samples,
    save,
    save_pairs,
    save_photos,
    settings,
    sizes,
)
from photos import photo_of, save_picture

from dpt.config.schema import DataConfig
from dpt.data import CocoDataset, DataError
from dpt.data.layouts import detect
from dpt.data.layouts.splits import number_of_parts
from dpt.data.splits import folds


def write_coco(path, count):
    write_objects(path, [f"{i}.jpg" for i in range(count)], {7: "cup"}, size=SIZE)


def notes(root, **given):
    return "\n".join(detect(root, given).notes)


# ------------------------------------------------------------------------------ pairs by names


@pytest.mark.parametrize(
    ("photo", "label", "given"),
    [
        ("JPEGImages/{}", "SegmentationClass/{}.png", {}),
        ("images/man_{}_with_mask", "masks/man_{}_with_mask.png", {}),
        ("scene_rgb_{}", "scene_mask_{}.png", {}),
        ("images/{}", "x/mask/{}.png", {"labels": "x/mask"}),
    ],
)
def test_names_of_kinds_pair(tmp_path, photo, label, given):
    root = tmp_path / "set"
    save_pairs(root, range(10), photo, label)
    save_photos(root, ["old/panels/1"])
    (root / "linked").symlink_to(root)  # not read a second time
    (root / "notes.csv").write_bytes("Größe".encode("latin-1"))
    (root / "settings.json").write_text("{} // a comment")
    (root / "old/checkpoints").mkdir()
    (root / "old/config.yaml").write_text("")
    (root / "runs/fit/x/data_check").mkdir(parents=True)  # a run that its data check ended
    (root / "runs/fit/x/data_check/config.yaml").write_text("")
    (root / "runs/fit/x/pairs.csv").write_text("split,image\ntrain,1.jpg\n")
    read, detected = samples(root, **given)
    expected = [(f"{photo.format(seed)}.jpg", label.format(seed)) for seed in range(10)]
    assert [(row.image, row.labels) for row in detected.rows] == expected
    assert sizes(read) == [6, 4]
    assert any("notes.csv" in note for note in detected.notes)


def test_names_in_both_forms_of_unicode(tmp_path):
    names = [f"\u00fc{k}" for k in range(4)]
    split = [unicodedata.normalize("NFD", name) for name in names]
    save_photos(tmp_path / "a/images", names)
    for seed, name in enumerate(split):
        save(tmp_path / f"a/masks/{name}.png", mask(seed))
    assert sum(sizes(samples(tmp_path / "a")[0])) == 4
    (tmp_path / "a/list.txt").write_text("\n".join(split))
    node = {"kind": "folder", "root": str(tmp_path / "a"), "labels": "masks"}
    node |= {"num_classes": 3, "split_files": {"train": "list.txt"}}
    assert len(DataConfig.read(node).make("train")) == 4
    save_photos(tmp_path / "b/images", split)
    write_objects(tmp_path / "b/a.json", [f"{n}.jpg" for n in names], {7: "cup"}, size=SIZE)
    assert sum(sizes(samples(tmp_path / "b")[0])) == 4


@pytest.mark.parametrize("extra", ["train/aug", "predictions"])
def test_pictures_made_of_others_are_left_out(tmp_path, extra):
    save_pairs(tmp_path, range(10), "train/image/{}", "train/label/{}.png")
    for seed in range(10):
        save(tmp_path / f"{extra}/image_0_{seed}.png", photo_of(*SIZE, seed=100 + seed))
        save(tmp_path / f"{extra}/mask_0_{seed}.png", mask(seed))
    detected = detect(tmp_path, {})
    assert [row.image for row in detected.rows] == [f"train/image/{i}.jpg" for i in range(10)]
    assert any(f"{extra}/" in note for note in detected.notes)


def test_predictions_and_objects_are_no_photos(tmp_path):
    for seed in range(6):
        save(tmp_path / f"SegmentationClass/{seed}.png", mask(seed))
        save(tmp_path / f"SegmentationObject/{seed}.png", mask(seed + 9))
        save(tmp_path / f"x/{seed}_predict.png", mask(seed))
        save(tmp_path / f"JPEGImages/@eaDir/{seed}/thumb.jpg", photo_of(*SIZE, seed=seed))
    with pytest.raises(DataError, match=r"x/0_predict"):
        detect(tmp_path, {})
    save_photos(tmp_path / "JPEGImages", range(6))
    assert {Path(row.image).parent.name for row in detect(tmp_path, {}).rows} == {"JPEGImages"}


def test_unused_files_are_named(tmp_path):
    root = folder(tmp_path / "set")
    (root / "images/train/a.HEIC").write_bytes(b"")
    (root / "notes.csv").write_text("a,b\n1,2\n")
    (root / "long.csv").write_text(f"a,b\n{'x' * 200_000},2\n")
    save(root / "masks/train/alone.png", mask(0))
    save_pairs(root, ["extra/x"])
    for name in (".HEIC", "notes.csv", "long.csv", "masks/train/alone.png", "images/extra/x.jpg"):
        assert name in notes(root)


# ------------------------------------------------------------------------------------- splits


def test_split_by_drive(tmp_path):
    for seed in range(12):
        save(tmp_path / f"set/d{seed % 3}/rgb/{seed}.jpg", photo_of(*SIZE, seed=seed))
        save(tmp_path / f"set/d{seed % 3}/mask/{seed}.png", mask(seed))
    read, _ = samples(tmp_path / "set")
    groups = [{Path(path).parts[0] for path in read[split]} for split in ("train", "val")]
    assert not groups[0] & groups[1]
    assert [len(group) for group in groups] == [2, 1]


def test_split_by_the_scene_of_tiles(tmp_path):
    names = [f"area{k}_{y}_{x}" for k in range(4) for y in (0, 64) for x in (0, 64, 128)]
    save_pairs(tmp_path / "set", names)
    read, _ = samples(tmp_path / "set")
    scenes = [{Path(path).name[:5] for path in read[split]} for split in ("train", "val")]
    assert [len(scene) for scene in scenes] == [3, 1]
    assert not scenes[0] & scenes[1]


def test_splits_on_disk_that_share_near_copies_say_so(tmp_path):
    folder(tmp_path)
    assert "look like" not in notes(tmp_path)
    for k in range(2):
        brighter = np.clip(1.02 * photo_of(*SIZE, seed=k), 0, 255).astype(np.uint8)
        save(tmp_path / f"images/val/00{k}.jpg", brighter)
    assert "2 of 3 images of val look like images of train" in notes(tmp_path)
    tiles = {"train": ["0_0", "1_1"], "val": ["0_1", "1_0"]}
    save_pairs(tmp_path / "tiles", [f"{s}/a_{place}" for s in tiles for place in tiles[s]])
    assert "2 of 2 images of val are tiles of scenes of train" in notes(tmp_path / "tiles")


@pytest.mark.parametrize("place", ["discards", "rejected/2", "bad"])
def test_rejected_files_are_not_used(tmp_path, place):
    save_pairs(tmp_path, range(12))
    save_pairs(tmp_path / place, [f"x{k}" for k in range(4)])
    assert {row.image for row in detect(tmp_path, {}).rows} == {
        f"images/{k}.jpg" for k in range(12)
    }


def test_the_end_of_a_hash_is_no_word(tmp_path):
    save_pairs(tmp_path, ["a_jpg.rf.0a11bad", "b_jpg.rf.1c22fed", "c_jpg.rf.03bad"])
    assert len(detect(tmp_path, {}).rows) == 3


def test_split_in_the_names_of_photos(tmp_path):
    counts = {"train": 8, "val": 3, "test": 2}
    save_pairs(tmp_path / "set", [f"{s}_{i:02d}" for s, n in counts.items() for i in range(n)])
    read, detected = samples(tmp_path / "set")
    assert [*read["val"]] == [f"images/val_{i:02d}.jpg" for i in range(3)]
    assert len(read["train"]) == 8
    assert "images/test_00.jpg" in detected.notes[-1]


def test_split_does_not_hold_out_a_class(tmp_path):
    names = [f"{'cat' if seed < 12 else 'dog'}_{seed:02d}" for seed in range(24)]
    save_pairs(tmp_path / "set", names)
    assert sizes(samples(tmp_path / "set")[0]) == [18, 6]


@pytest.mark.parametrize(("images", "val"), [(3, 1), (16, 6), (49, 10), (200, 20)])
def test_split_of_few_images_holds_out_more_of_them(images, val):
    parts = number_of_parts(images)
    assert len(folds([str(i) for i in range(images)], parts, parts - 1)[1]) == val


def test_split_holds_out_the_copy_of_a_photo(tmp_path):
    save_pairs(tmp_path, [f"{i:02d}" for i in range(20)])
    copy = tmp_path / "images/19.jpg"
    copy.write_bytes((tmp_path / "images/03.jpg").read_bytes())
    split_of = {row.image: row.split for row in detect(tmp_path, {}).rows}
    assert split_of["images/19.jpg"] == split_of["images/03.jpg"] == "val"


def test_folders_that_the_user_chooses(tmp_path):
    root = tmp_path / "set"
    save_pairs(root, [f"s{i:02d}" for i in range(20)])
    assert [*samples(root)[0]["val"]] == [f"images/s{i}.jpg" for i in range(15, 20)]
    assert sizes(samples(root, images=f"{root}/images", labels=f"{root}/masks")[0]) == [15, 5]
    with pytest.raises(DataError, match=f"data.labels={tmp_path}"):
        detect(root, {"labels": str(tmp_path)})


def test_split_by_lists(tmp_path):
    names = [f"{i:03d}" for i in range(12)]
    save_pairs(tmp_path, names)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.txt").write_text("".join(f"{name}\n" for name in names[3:10]))
    (tmp_path / "lists/val.txt").write_text("./images/000.jpg masks/000.png\n001.jpg\n\n")
    read, detected = samples(tmp_path)
    assert list(read["val"]) == ["images/000.jpg", "images/001.jpg"]
    assert list(read["train"]) == [f"images/{name}.jpg" for name in names[3:10]]
    assert any("3 images that lists/train.txt" in note for note in detected.notes)
    (tmp_path / "train.txt").write_text("".join(f"{name}\n" for name in names[:6]))
    (tmp_path / "val.txt").write_text("".join(f"{name}\n" for name in names[6:]))
    with pytest.raises(DataError, match=r"train\.txt, val\.txt and lists/train\.txt"):
        detect(tmp_path, {})


@pytest.mark.parametrize(
    ("train", "line"), [("train", "/images/{}.jpg /masks/{}.png"), ("trainval", "{} 1 1")]
)
def test_split_by_a_list_of_test_images(tmp_path, train, line):
    names = [f"{i:03d}" for i in range(12)]
    save_pairs(tmp_path, names)
    for split, members in ((train, names[:9]), ("test", names[9:])):
        (tmp_path / f"{split}.txt").write_text("".join(f"{line}\n".format(n, n) for n in members))
    splits = {row.image[7:10]: row.split for row in detect(tmp_path, {}).rows}
    assert [name for name, split in splits.items() if split == "test"] == names[9:]
    assert {*splits.values()} == {"train", "val", "test"}


def test_split_by_lists_with_other_folders(tmp_path):
    names = [f"{i:03d}" for i in range(12)]
    save_pairs(tmp_path, names)
    lines = [f"/SegNet/photos/{name}.png /SegNet/annot/{name}.png\n" for name in names]
    (tmp_path / "train.txt").write_text("".join(lines[:9]))
    assert any("not used" in note and "train.txt" in note for note in detect(tmp_path, {}).notes)
    (tmp_path / "val.txt").write_text("".join([*lines[9:], "gone\n"]))
    assert sizes(samples(tmp_path)[0]) == [9, 3]
    assert "not used: 1 line of train.txt, val.txt" in notes(tmp_path)


# -------------------------------------------------------------------------------------- tables


def test_table_pairs_and_splits(tmp_path):
    root = tmp_path / "set"
    save_photos(root / "a", [f"x{i}" for i in range(6)])
    lines = ["file,mask,subset"]
    for seed in range(6):
        save(root / f"b/y{5 - seed}.png", mask(seed))
        lines.append(f"a/x{seed}.jpg,b/y{5 - seed}.png,{'valid' if seed > 3 else 'train'}")
    (root / "list.csv").write_text("\n".join(lines))
    read, _ = samples(root)
    assert [*read["val"]] == ["a/x4.jpg", "a/x5.jpg"]
    np.testing.assert_array_equal(read["train"]["a/x1.jpg"]["labels"], mask(1))


def test_table_rows_may_lack_labels(tmp_path):
    save_pairs(tmp_path, range(5), "{}", "m{}.png")
    for seed in range(5):
        save(tmp_path / f"d{seed}.png", (1000 * metres(seed)).astype(np.uint16))
    lines = ["image,mask,depth", "0.jpg,,", "1.jpg,m1.png,"]
    lines += [f"{seed}.jpg,m{seed}.png,d{seed}.png" for seed in range(2, 5)]
    (tmp_path / "list.csv").write_text("\n".join([*lines, ",,", ""]))
    detected = detect(tmp_path, {})
    assert detected.task == "joint"
    assert [row.image for row in detected.rows] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert not detected.rows[0].depth
    assert any("without labels" in note and "0.jpg" in note for note in detected.notes)


FORMS = [
    (",", "image,mask,split", "{root}/images/{0}.jpg,{root}/masks/{0}.png,{1}"),
    (";", "image;mask;split", "images/{0}.jpg;masks/{0}.png;{1}"),
    ("\t", "SPLIT\tMASK\tFILE", "{1}\t./masks/{0}.PNG\timages\\{0}.JPG"),
]


def test_table_without_a_header(tmp_path):
    root = folder(tmp_path)
    for split in ("train", "val"):
        names = [name for name in NAMES if name.startswith(split)]
        rows = [f"images/{name}.jpg,masks/{name}.png\n" for name in names]
        (root / f"{split}.csv").write_text("".join(rows))
    rows = detect(root, {}).rows
    assert [(row.image[7:-4], row.split) for row in rows] == [(n, n.split("/")[0]) for n in NAMES]


@pytest.mark.parametrize(("separator", "header", "row"), FORMS)
def test_table_forms(tmp_path, separator, header, row):
    root = folder(tmp_path / "set")
    splits = ["dev" if k > 6 else "train" for k in range(len(NAMES))]
    rows = [row.format(*pair, root=root) for pair in zip(NAMES, splits, strict=True)]
    (root / "list.csv").write_text("\n".join([header, *rows]))
    (root / "long.csv").write_text(f"image,caption\n1,{'a' * 300}\n")  # not of files
    assert sizes(samples(root)[0]) == [7, 4]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("images/train/000.jpg,masks/gone.png,train", "masks/gone"),
        ("images/train/000.jpg,masks/train/000.png,holdout", "holdout"),
        ("{other}/images/train/000.jpg,masks/train/000.png,train", "old/images"),
        ("", "no images and labels"),
    ],
)
def test_table_with_a_faulty_row_is_refused(tmp_path, row, named):
    root = folder(tmp_path / "set")
    rows = [f"images/{n}.jpg,masks/{n}.png,{n.partition('/')[0]}" for n in NAMES]
    rows = [*rows, row.format(other=folder(tmp_path / "old"))] if row else ["000,,train", "1,,val"]
    (root / "list.csv").write_text("\n".join(["image,mask,split", *rows]))
    with pytest.raises(DataError, match=named) as error:
        detect(root, {})
    assert "list.csv" in str(error.value)


@pytest.mark.parametrize(
    ("columns", "key", "choices"),
    [
        ("image,first_mask,second_mask", "labels", "first_mask second_mask"),
        ("image,tumour", "labels", "tumour"),
        ("left,right,mask", "images", "left right"),
    ],
)
def test_table_of_several_columns_is_a_question(tmp_path, columns, key, choices):
    lines = [columns]
    for seed in range(6):
        cells = [f"{name}/{seed}.png" for name in columns.split(",")]
        for number, (name, cell) in enumerate(zip(columns.split(","), cells, strict=True)):
            is_photo = name in ("image", "left", "right")
            save(tmp_path / cell, photo_of(*SIZE, seed=seed) if is_photo else mask(seed + number))
        lines.append(",".join(cells))
    (tmp_path / "list.csv").write_text("\n".join(lines))
    for choice in choices.split():
        with pytest.raises(DataError, match=rf"list\.csv: .*data\.{key}={choice}\b"):
            detect(tmp_path, {})
        read, detected = samples(tmp_path, **{key: choice})
        assert sum(sizes(read)) == 6
        assert all(choice in (row.image + row.labels) for row in detected.rows)


def test_task_decides_which_columns_of_a_table_are_read(tmp_path):
    save_pairs(tmp_path, range(6), "{}", "m{}.png")
    for seed in range(6):
        save(tmp_path / f"d{seed}.png", (1000 * metres(seed)).astype(np.uint16))
    rows = [f"{seed}.jpg,m{seed}.png,d{seed}.png" for seed in range(6)]
    (tmp_path / "list.csv").write_text("\n".join(["image,mask,depth", *rows]))
    assert detect(tmp_path, {}).task == "joint"
    assert detect(tmp_path, {"depth": None}).task == "segmentation"
    assert detect(tmp_path, {"labels": None, "objects": None}).task == "depth"


# ---------------------------------------------------------------------------------------- COCO


def test_coco_files_of_other_objects_in_the_same_images(tmp_path):
    root = tmp_path / "set"
    for split, count in (("train", 4), ("val", 2)):
        for kind in ("person_keypoints", "instances"):
            write_coco(root / f"annotations/{kind}_{split}.json", count)
        save_photos(root / split, range(count))
    read, detected = samples(root)
    assert detected.settings["annotation_files"] == "annotations/instances_%split.json"
    assert any("person_keypoints_train.json" in note for note in detected.notes)
    chosen = "annotations/person_keypoints_%split.json"
    again, detected = samples(root, annotation_files=chosen)
    assert sizes(again) == sizes(read) == [4, 2]
    assert any("instances_train.json" in note for note in detected.notes)


def test_coco_with_pictures_of_segments(tmp_path):
    """They are not taken for masks, and pixels without a segment are not taken for a class."""
    write(tmp_path / "set", lengths=[("train", 3), ("val", 1)])
    read, detected = samples(tmp_path / "set")
    assert (detected.task, detected.other_tasks) == ("panoptic", ("segmentation",))
    assert sizes(read) == [3, 1]
    assert not any("png" in note for note in detected.notes)
    expected = CocoDataset(root=tmp_path / "set", split="train")
    for sample, other in zip(read["train"].values(), expected, strict=True):
        for key in ("labels", "objects"):
            np.testing.assert_array_equal(sample[key], other[key])
    write(tmp_path / "set", panoptic=False, lengths=[("train", 3), ("val", 1)])
    assert detect(tmp_path / "set", {}).task == "instance"
    files = {"annotation_files": "annotations/panoptic_%split.json"}
    assert detect(tmp_path / "set", files).task == "panoptic"


def test_table_without_labels_of_train_is_a_question(tmp_path):
    save_pairs(tmp_path, range(6))
    lines = [f"images/{k}.jpg,{f'masks/{k}.png,val' if k > 2 else ',train'}" for k in range(6)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,mask,split", *lines]))
    with pytest.raises(DataError, match=r"train has no labels.*images/0\.jpg, .*2\.jpg\)"):
        detect(tmp_path, {})


def test_coco_beside_masks_is_a_question(tmp_path):
    root = tmp_path / "set"
    write_coco(root / "a1.json", 4)
    save_pairs(root, range(4))
    with pytest.raises(DataError, match=r"a1.json.*data.annotations=coco or data.labels=masks"):
        detect(root, {})
    assert detect(root, {"labels": "masks"}).task == "segmentation"
    assert detect(root, {"annotations": "coco"}).task == "instance"
    write_coco(root / "a2.json", 4)
    with pytest.raises(DataError, match=r"a1.json and a2.json"):
        detect(root, {})


# ----------------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["images/cat.jpg", "masks/dog.png"], r"masks/dog\.png"),
        (["a.bmp", "a.png"], r"a\.bmp.*a\.png"),  # beside a JPEG, the PNG would be its map
    ],
)
def test_files_that_do_not_pair_are_refused(tmp_path, names, named):
    for name in names:
        save_picture(tmp_path / name, np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=named):
        detect(tmp_path, {})


def test_masks_and_their_colours_are_a_question(tmp_path):
    save_photos(tmp_path / "rgb", range(4))
    for seed in range(4):
        save(tmp_path / f"label_id/{seed}.png", mask(seed))
        save(tmp_path / f"label_color/{seed}.png", PALETTE[mask(seed)])
    with pytest.raises(DataError, match=r"label_color/0\.png, label_id/0\.png: .*data\.labels"):
        detect(tmp_path, {})
    with pytest.raises(DataError, match=r"data\.labels=label_ids"):
        detect(tmp_path, {"labels": "label_ids"})
    read, _ = samples(tmp_path, labels="label_id")
    np.testing.assert_array_equal(read["train"]["rgb/1.jpg"]["labels"], mask(1))


@pytest.mark.parametrize("kind", [np.float32, bool])
def test_masks_of_valid_depth(tmp_path, kind):
    """As DIODE's: where the mask is 0, the depth is noise."""
    save_photos(tmp_path / "set", range(4))
    valid = np.arange(SIZE[1]) < 20 + np.zeros((SIZE[0], 1))
    for seed in range(4):
        noise = np.random.default_rng(seed).uniform(0, 300, SIZE)
        depth = np.where(valid, metres(seed), noise).astype(np.float32)
        save(tmp_path / f"set/{seed}_depth.npy", depth[..., None])
        save(tmp_path / f"set/{seed}_depth_mask.npy", valid.astype(kind))
    read, detected = samples(tmp_path / "set")
    assert detected.settings["max_depth"] == 5.0
    assert "depth_mask" in "".join(detected.notes)
    for sample in [*read["train"].values(), *read["val"].values()]:
        np.testing.assert_array_equal(sample["valid"], valid)


def test_numbers_in_names_may_have_zeros_before_them(tmp_path):
    save_photos(tmp_path / "images", range(8, 14))
    for seed in range(8, 14):
        save(tmp_path / f"masks/{seed:05d}_skin.png", mask(seed))
    pairs = {(row.image, row.labels) for row in detect(tmp_path, {}).rows}
    assert pairs == {(f"images/{k}.jpg", f"masks/{k:05d}_skin.png") for k in range(8, 14)}
    for seed in range(8, 14):
        save(tmp_path / f"masks/{seed:05d}_hair.png", mask(seed))
    with pytest.raises(DataError, match=r"labels_name=%stem_hair \(6 files\)"):
        detect(tmp_path, {})


def test_channels_in_files_of_their_own_are_a_question(tmp_path):
    save_photos(tmp_path / "imagesTr", [f"BRATS_{k}_000{c}" for k in range(6) for c in range(3)])
    for seed in range(6):
        save(tmp_path / f"labelsTr/BRATS_{seed}.png", mask(seed))
    with pytest.raises(DataError, match=r"data\.images_name=%stem_0000"):
        detect(tmp_path, {})
    rows = detect(tmp_path, {"images_name": "%stem_0001"}).rows
    pairs = {(row.image, row.labels) for row in rows}
    assert pairs == {(f"imagesTr/BRATS_{k}_0001.jpg", f"labelsTr/BRATS_{k}.png") for k in range(6)}


def test_coco_below_a_folder_called_training_set(tmp_path):
    for split in ("train", "val"):
        save_photos(tmp_path / f"training_set/{split}", ["a"])
        path = tmp_path / f"training_set/instances_{split}.json"
        write_objects(path, ["a.jpg"], {1: "thing"}, size=SIZE)
    detected = settings(tmp_path)
    assert detected["annotation_files"] == "training_set/instances_%split.json"
    assert [*samples(tmp_path)[0]["val"]] == ["training_set/val/a.jpg"]


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_folders_of_splits_beside_one_folder(tmp_path, kind):
    root = tmp_path / "set"
    names = [f"{name[:-3]}{name[0]}{name[-3:]}" for name in NAMES]  # train/t000
    flat = [name.split("/")[1] for name in names]
    save_photos(root / "images", names if kind == "images" else flat)
    for seed, name in enumerate(names if kind == "masks" else flat):
        save(root / f"masks/{name}.png", mask(seed))
    assert sizes(samples(root)[0]) == [8, 3]
