"""``dpt fit``: what a folder holds, for folders of many layouts; questions; refusals."""

import http.server
import itertools
import json
import os
import subprocess
import sys
import unicodedata
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import timm
from coco_files import write_objects
from photos import photo_of
from PIL import Image
from safetensors.torch import load_file, save_file
from servers import running
from tiny import ON_CPU, TINY_DATA, TINY_VIT, call, checkpoint_of

from dpt.commands.fit import (
    ENCODER,
    length_of,
    seconds_of,
    settings_of,
    table_text,
)
from dpt.config.data import make_dataset
from dpt.config.overrides import as_text
from dpt.data import DataError
from dpt.data_check import quick_findings
from dpt.data_check.layouts import detect

SIZE = (24, 32)
PALETTE = np.array([[0, 0, 0], [200, 10, 10], [10, 200, 10], [10, 10, 200]], np.uint8)
NAMES = [f"{split}/{i:03d}" for split, n in (("train", 8), ("val", 3)) for i in range(n)]
CLASSES = {"folder": "dpt.data.FolderDataset", "coco": "dpt.data.CocoDataset"}


def mask(seed, ids=(0, 1, 2)):
    """Blocks of ids, all of which occur."""
    rows = np.random.default_rng(seed).permutation(np.resize(ids, 12)).reshape(3, 4)
    return np.kron(rows, np.ones((8, 8), int)).astype(np.uint8)


def metres(seed):
    slope = np.linspace(0.8, 4.2, SIZE[0] * SIZE[1]).reshape(SIZE)
    return slope + 0.01 * np.random.default_rng(seed).random(SIZE)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        assert cv2.imwrite(str(path), array[..., ::-1] if array.ndim == 3 else array)


def save_palette(path, ids, palette=PALETTE):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(ids).convert("P")
    picture.putdata(ids.ravel().tolist())
    picture.putpalette(palette.ravel().tolist())
    picture.save(path)


def photos(root, names):
    for seed, name in enumerate(names):
        save(root / f"{name}.jpg", photo_of(*SIZE, seed=seed))


def folder(root, write=save, kind="masks", make=mask, suffix=".png"):
    photos(root / "images", NAMES)
    for seed, name in enumerate(NAMES):
        write(root / f"{kind}/{name}{suffix}", make(seed))
    return root


def samples(root, **given):
    """The samples of train and val as training reads them, by the photo's path."""
    found = detect(root, given)
    node = {"_target_": CLASSES[found.data], "root": str(root)}
    for key, value in {**found.settings, **given}.items():
        head, _, tail = key.partition(".")
        node |= {head: {**node.get(head, {}), tail: value}} if tail else {head: value}
    if found.rows:
        table = root.parent / f"{root.name}.csv"
        table.write_text(table_text(found.rows))
        node["split_files"] = {"train": str(table), "val": str(table)}
    read = {}
    for split in ("train", "val"):
        data = make_dataset(node, split)
        places = (data.files(i).image.relative_to(root).as_posix() for i in range(len(data)))
        read[split] = {path: data[i] for i, path in enumerate(places)}
    return read, found


def test_masks_with_a_palette(tmp_path):
    read, found = samples(folder(tmp_path / "set", save_palette))
    assert found.task == "segmentation"
    assert [len(read["train"]), len(read["val"])] == [8, 3]
    assert found.settings["num_classes"] == 3
    np.testing.assert_array_equal(read["train"]["images/train/002.jpg"]["labels"], mask(2))


def test_masks_of_colours_and_a_table_of_them(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: PALETTE[mask(seed)])
    (root / "classes.txt").write_text("black\nred\ngreen\n")
    read, found = samples(root)
    assert any("as classes.txt has no colours" in line for line in found.notes)
    (root / "classes.txt").unlink()
    order = [found.settings["label_colors"].index(c) for c in PALETTE[:3].tolist()]
    sample = read["val"]["images/val/001.jpg"]
    np.testing.assert_array_equal(sample["labels"], np.array(order)[mask(9)])
    (root / "classes.csv").write_text("name,r,g,b\nred,200,10,10\ngreen,10,200,10\n")
    read, found = samples(root)
    assert found.settings["class_names"] == ["red", "green"]
    expected = np.array([255, 0, 1])[mask(9)]  # black has no name
    np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], expected)
    (root / "classes.csv").write_text("name,r,g,b\nred,200,10,10\nVoid,0,0,0\ngreen,10,200,10\n")
    assert any("Void: trained as a class" in line for line in samples(root)[1].notes)
    read, found = samples(root, label_map=[0, 2])
    assert (found.settings["class_names"], len(found.class_weights)) == (["red", "green"], 2)
    np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], expected)


@pytest.mark.parametrize("ids", [(1, 2, 3), (0, 255)])
def test_ids_from_one_and_one_class(tmp_path, ids):
    root = folder(tmp_path / "set", kind="annotations", make=lambda seed: mask(seed, ids))
    read, _ = samples(root)
    expected = np.searchsorted(ids, mask(1, ids))
    np.testing.assert_array_equal(read["train"]["images/train/001.jpg"]["labels"], expected)


@pytest.mark.parametrize(
    ("suffix", "factor", "kind"),
    [(".png", 1000, np.uint16), (".npy", 1, np.float32), (".tiff", 1, np.float32)],
)
def test_depth_units(tmp_path, suffix, factor, kind):
    def make(seed):
        depth = (metres(seed) * factor).astype(kind)
        depth[0, 0] = 65535 if kind is np.uint16 else np.nan
        return depth

    read, found = samples(folder(tmp_path / "set", kind="depth", make=make, suffix=suffix))
    assert (found.task, found.settings["max_depth"]) == ("depth", 5.0)
    sample = read["train"]["images/train/004.jpg"]
    assert not sample["valid"][0, 0]
    np.testing.assert_allclose(sample["depth"].ravel()[1:], metres(4).ravel()[1:], atol=1e-3)


def test_nested_folders_are_held_out_by_drive(tmp_path):
    root = tmp_path / "set"
    for drive in ("d1", "d2", "d3"):
        photos(root / drive / "rgb", range(4))
        for seed in range(4):
            save(root / f"{drive}/mask/{seed}.png", mask(seed))
    read, found = samples(root)
    groups = [{Path(path).parts[0] for path in read[split]} for split in ("train", "val")]
    assert not groups[0] & groups[1]
    assert [len(each) for each in groups] == [2, 1]
    assert any("3 groups" in line for line in found.notes)


def test_a_table_with_its_own_columns(tmp_path):
    root = tmp_path / "set"
    photos(root / "a", [f"x{i}" for i in range(6)])
    lines = ["file,mask,subset"]
    for seed in range(6):
        save(root / f"b/y{5 - seed}.png", mask(seed))
        lines.append(f"a/x{seed}.jpg,b/y{5 - seed}.png,{'valid' if seed > 3 else 'train'}")
    (root / "list.csv").write_text("\n".join(lines))
    read, _ = samples(root)
    assert [*read["val"]] == ["a/x4.jpg", "a/x5.jpg"]
    np.testing.assert_array_equal(read["train"]["a/x1.jpg"]["labels"], mask(1))


def test_rows_of_a_table_may_lack_labels(tmp_path):
    root = tmp_path / "set"
    photos(root, [f"{seed}" for seed in range(5)])
    lines = ["image,mask,depth", "0.jpg,,", "1.jpg,m1.png,"]
    for seed in range(1, 5):
        save(root / f"m{seed}.png", mask(seed))
        save(root / f"d{seed}.png", (1000 * metres(seed)).astype(np.uint16))
    lines += [f"{seed}.jpg,m{seed}.png,d{seed}.png" for seed in range(2, 5)]
    (root / "list.csv").write_text("\n".join([*lines, ",,", ""]))
    found = detect(root, {})
    assert found.task == "joint"
    assert [row.image for row in found.rows] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
    assert not found.rows[0].depth
    assert found.notes[0].startswith("not used: 1 photo without labels")


def test_no_split_and_names_in_one_folder(tmp_path):
    root = tmp_path / "set"
    photos(root, [f"s{i:02d}" for i in range(20)])
    for seed in range(20):
        save(root / f"s{seed:02d}_mask.png", mask(seed))
    read, _ = samples(root)
    assert [*read["val"]] == ["s18.jpg", "s19.jpg"]
    np.testing.assert_array_equal(read["val"]["s18.jpg"]["labels"], mask(18))


def test_lists_of_names_divide_the_photos(tmp_path):
    names = [f"{i:03d}" for i in range(12)]
    photos(tmp_path / "images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"masks/{name}.png", mask(seed))
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/train.txt").write_text("".join(f"{name}\n" for name in names[3:10]))
    (tmp_path / "lists/val.txt").write_text("./images/000.jpg masks/000.png\n001.jpg\n\n")
    read, found = samples(tmp_path)
    assert list(read["val"]) == ["images/000.jpg", "images/001.jpg"]
    assert list(read["train"]) == [f"images/{name}.jpg" for name in names[3:10]]
    assert "splits: val 2, train 7, by lists/train.txt, lists/val.txt" in found.notes
    assert any(n.startswith("not used: 3 photos that lists/train.txt") for n in found.notes)
    (tmp_path / "train.txt").write_text("".join(f"{name}\n" for name in names[:6]))
    (tmp_path / "val.txt").write_text("".join(f"{name}\n" for name in names[6:]))
    with pytest.raises(DataError, match=r"train\.txt, val\.txt and lists/train\.txt.* divide"):
        detect(tmp_path, {})


def write_coco(path, count):
    write_objects(path, [f"{i}.jpg" for i in range(count)], {7: "cup"}, size=(24, 32))


def test_coco(tmp_path):
    for split, count in (("train2017", 4), ("val2017", 2)):
        path = tmp_path / f"set/annotations/instances_{split}.json"
        write_coco(path, count)
        photos(tmp_path / "set" / split, range(count))
    read, found = samples(tmp_path / "set")
    assert (found.data, found.task) == ("coco", "instance")
    assert [len(read["train"]), len(read["val"])] == [4, 2]
    path.unlink()
    read, _ = samples(tmp_path / "set")
    assert [len(read["train"]), len(read["val"])] == [3, 1]


@pytest.mark.parametrize(
    "name", ["{}.jpg", "http://host/x/{}.jpg?a=1", "images\\{}.jpg", "C:\\x\\{}.jpg"]
)
def test_coco_as_tools_write_it(tmp_path, name):
    """The first photo is missing, the names are URLs or Windows paths, the file has a BOM."""
    root = tmp_path / "set"
    write_objects(root / "a.json", [name.format(i) for i in range(5)], {0: "x", 7: "cup"},
                  size=(24, 32))  # fmt: skip
    (root / "a.JSON").write_bytes(b"\xef\xbb\xbf" + (root / "a.json").read_bytes())
    (root / "a.json").unlink()
    photos(root / "images", range(1, 5))
    with pytest.raises(DataError, match=r"a\.JSON: 1 of 5 images are missing .*data\.missing=skip"):
        samples(root)
    photos(root / "images", range(5))
    read, found = samples(root)
    assert (found.data, found.task) == ("coco", "instance")
    assert len(read["train"]) + len(read["val"]) == 5


def test_objects_beside_masks_and_several_lists_of_objects(tmp_path):
    root = tmp_path / "set"
    write_coco(root / "a1.json", 4)
    photos(root / "images", range(4))
    for seed in range(4):
        save(root / f"masks/{seed}.png", mask(seed))
    with pytest.raises(DataError, match=r"set data.labels .* or data.annotations=a1.json"):
        detect(root, {})
    assert detect(root, {"labels": "masks"}).task == "segmentation"
    assert detect(root, {"annotations": "a1.json"}).task == "instance"
    write_coco(root / "a2.json", 4)
    with pytest.raises(DataError, match=r"a1.json and a2.json both list objects"):
        detect(root, {})


def test_coco_in_a_folder_for_each_split(tmp_path):
    root = tmp_path / "set"
    for split, count in (("test", 5), ("train", 4), ("valid", 2)):
        write_coco(root / split / "_annotations.coco.json", count)
        photos(root / split, range(count))
    read, found = samples(root)
    assert [*read["train"]] == [f"train/{i}.jpg" for i in range(4)]
    assert [*read["val"]] == [f"valid/{i}.jpg" for i in range(2)]
    assert found.settings["split_names.val"] == "valid"
    (root / "train/_annotations.coco.json").unlink()
    with pytest.raises(DataError, match="no masks"):  # not on the test images
        detect(root, {})


def test_names_of_classes(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (0, 1, 2, 3)))
    _, found = samples(root)
    assert any("if a value means unlabelled" in line for line in found.notes)
    (root / "classes.txt").write_text("sky\nroad\ntree\n")
    with pytest.raises(DataError, match=r"data.label_map=1-3 .* or data.ignore_index=3"):
        detect(root, {})
    for given in ({"label_map": "1-3"}, {"ignore_index": 3}, {"num_classes": 3, "ignore_index": 3}):
        read, found = samples(root, **given)
        assert found.settings["class_names"] == ["sky", "road", "tree"]
        assert len(found.class_weights) == 3
        assert set(np.unique(read["val"]["images/val/000.jpg"]["labels"])) == {0, 1, 2, 255}
    rows = [{"id": i, "name": f"c{i}", "color": PALETTE[i].tolist()} for i in range(3)]
    (root / "classes.txt").unlink()
    (root / "classes.json").write_text(json.dumps({"classes": rows, "ignore_index": 3}))
    read, found = samples(root)
    assert found.settings["class_names"] == ["c0", "c1", "c2"]
    assert set(np.unique(read["val"]["images/val/000.jpg"]["labels"])) == {0, 1, 2, 255}


def test_a_name_that_the_file_leaves_out_of_training(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (0, 1, 2)))
    rows = [{"id": i, "name": f"c{i}", "color": PALETTE[i].tolist()} for i in range(3)]
    (root / "classes.json").write_text(json.dumps({"classes": rows, "ignore_index": 1}))
    for make in (mask, lambda seed: PALETTE[mask(seed)]):
        read, found = samples(folder(root, make=make))
        assert found.settings["class_names"] == ["c0", "c2"]
        expected = np.array([0, 255, 1])[mask(9)]
        np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], expected)


def test_names_that_lack_one_of_the_ends(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (0, 1, 3)))
    (root / "classes.txt").write_text("sky\nroad\ntree\n")
    with pytest.raises(DataError, match=r"classes\.txt: .*label_map=1-3 .* or data.ignore_index=3"):
        detect(root, {})


def test_names_of_ids_from_0_or_from_1(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (1, 2)))
    (root / "classes.txt").write_text("void\nsky\nroad\n")
    with pytest.raises(
        DataError, match=r"classes\.txt: .*data\.num_classes=3.*data\.label_map=1-3"
    ):
        detect(root, {})
    names = samples(root, num_classes=3)[1].settings["class_names"]
    assert names == ["void", "sky", "road"]
    (root / "classes.txt").write_text("sky\nroad\n")
    assert samples(root)[1].settings["label_map"] == [1, 2]


def test_ids_below_0_are_unlabelled(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed).astype(int) - 1, suffix=".npy")
    for names in ("", "sky\nroad\n"):
        (root / "classes.txt").write_text(names)
        read, found = samples(root)
        assert "unlabelled: -1 (33.33%) of the pixels" in found.notes
        assert set(np.unique(read["val"]["images/val/000.jpg"]["labels"])) == {0, 1, 255}


def test_ambiguous_folders_are_refused(tmp_path):
    root = folder(tmp_path / "trimap", make=lambda seed: mask(seed, (0, 128, 255)))
    with pytest.raises(DataError, match=r"label_map=\[0,128,255\] or data.label_map=\[0,128\]"):
        detect(root, {})
    root = folder(folder(tmp_path / "twice"), kind="labels")
    with pytest.raises(DataError, match=r"data\.labels"):
        detect(root, {})
    assert samples(root, labels="masks")[1].task == "segmentation"
    root = folder(tmp_path / "far", kind="depth",
                  make=lambda seed: (metres(seed) * 5000).astype(np.uint16))  # fmt: skip
    with pytest.raises(DataError, match=r"data\.depth_scale=0\.001.*data\.depth_scale=0\.0002"):
        detect(root, {})
    read, _ = samples(root, depth_scale=0.0002)
    np.testing.assert_allclose(read["val"]["images/val/000.jpg"]["depth"], metres(8), atol=1e-3)


def test_splits_in_the_names_of_photos(tmp_path):
    counts = {"train": 8, "val": 3, "test": 2}
    names = [f"{split}_{i:02d}" for split, n in counts.items() for i in range(n)]
    photos(tmp_path / "set/images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"set/masks/{name}.png", mask(seed))
    read, found = samples(tmp_path / "set")
    assert [*read["val"]] == [f"images/val_{i:02d}.jpg" for i in range(3)]
    assert len(read["train"]) == 8
    assert "splits: test 2, train 8, val 3" in found.notes
    assert found.notes[-1].startswith("not used: 2 photos of the split test (images/test_00.jpg")


def test_a_class_is_not_held_out(tmp_path):
    names = [f"{'cat' if seed < 12 else 'dog'}_{seed:02d}" for seed in range(24)]
    photos(tmp_path / "set/images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"set/masks/{name}.png", mask(seed))
    read, _ = samples(tmp_path / "set")
    assert [len(read["train"]), len(read["val"])] == [21, 3]


@pytest.mark.parametrize(
    ("photo", "label", "given"),
    [
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png", {}),
        ("images/{}.jpg", "annotations/trimaps/{}.png", {}),
        ("images/man_{}_with_mask.jpg", "masks/man_{}_with_mask.png", {}),
        ("test/images/{}.jpg", "test/masks/{}.png", {}),
        ("img_dir/{}.jpg", "ann_dir/{}.png", {}),
        ("scene_rgb_{}.jpg", "scene_mask_{}.png", {}),
        ("input/{}.jpg", "target/{}.png", {}),
        ("a/{}.jpg", "b/{}.png", {"images": "a", "labels": "b"}),
        ("images/{}.jpg", "x/mask/{}.png", {"labels": "x/mask"}),
    ],
)
def test_names_of_folders_and_files(tmp_path, photo, label, given):
    root = tmp_path / "set"
    photos(root, [photo.format(seed).removesuffix(".jpg") for seed in range(10)])
    photos(root, ["old/panels/1"])
    for seed in range(10):
        save(root / label.format(seed), mask(seed))
    (root / "linked").symlink_to(root)  # not read a second time
    (root / "notes.csv").write_bytes("Größe".encode("latin-1"))
    (root / "settings.json").write_text("{} // a comment")
    (root / "old/checkpoints").mkdir()
    (root / "old/config.yaml").write_text("")
    (root / "runs/fit/x/data_check").mkdir(parents=True)  # a run that its data check ended
    (root / "runs/fit/x/data_check/config.yaml").write_text("")
    (root / "runs/fit/x/pairs.csv").write_text("split,image\ntrain,1.jpg\n")
    found = detect(root, given)
    expected = [(photo.format(seed), label.format(seed)) for seed in range(10)]
    assert [(row.image, row.labels) for row in found.rows] == expected
    assert len(samples(root, **given)[0]["val"]) == 1
    assert any("notes.csv" in note for note in found.notes)


@pytest.mark.parametrize(
    ("photo", "label", "words", "given"),
    [
        ("train/0001TP_{}.jpg", "train_labels/0001TP_{}_L.png", "L", {}),  # CamVid
        ("train/{}_sat.jpg", "train/{}_mask.png", "sat", {}),  # DeepGlobe
        ("imagesTr/case_{}_0000.jpg", "labelsTr/case_{}.png", "0000", {}),  # nnU-Net
        ("a/original_images/{}.jpg", "b/label_images/{}.png", "a, b, images and 1 more", {}),
        ("rgb/frame_{}.jpg", "label_color/frame_{}.png", "color, frame", {}),
        ("raw/x_{}.jpg", "full/x_{}_L.png", "L", {"images": "raw", "labels": "full"}),
        ("2_Ortho_RGB/top_2_{}_RGB.jpg", "5_Labels_all/top_2_{}_label.png", None, {}),  # Potsdam
        ("top/top_2_{}.jpg", "gts_for_participants/top_2_{}.png", None, {}),  # Vaihingen
    ],
)
def test_words_that_only_the_names_of_one_kind_have(tmp_path, photo, label, words, given):
    root = tmp_path / "set"
    photos(root, [photo.format(seed).removesuffix(".jpg") for seed in range(6)])
    for seed in range(6):
        save(root / label.format(seed), mask(seed))
    found = detect(root, given)
    expected = [(photo.format(seed), label.format(seed)) for seed in range(6)]
    assert [(row.image, row.labels) for row in found.rows] == expected
    how = f"names without {words}" if words else "file names alone"
    assert found.notes[0] == f"pairs: by {how}"


@pytest.mark.parametrize("task", ["segmentation", "depth"])
def test_labels_beside_a_jpeg_of_the_same_name(tmp_path, task):
    root = tmp_path / "set"
    photos(root, [f"room/{seed}" for seed in range(6)])
    for seed in range(6):
        made = mask(seed) if task == "segmentation" else (1000 * metres(seed)).astype(np.uint16)
        save(root / f"room/{seed}.png", made)
    read, found = samples(root)
    assert found.task == task
    sample = read["train"]["room/1.jpg"]
    if task == "segmentation":
        np.testing.assert_array_equal(sample["labels"], mask(1))
    else:
        np.testing.assert_allclose(sample["depth"], metres(1), atol=1e-3)


def test_words_for_kinds_in_the_names_of_some_photos(tmp_path):
    names = ["IMG_1", "DSC_2", "man_3_with_mask", "x_4"]
    photos(tmp_path / "images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"masks/{name}{'_mask' if name == 'x_4' else ''}.png", mask(seed))
    assert all(row.labels for row in detect(tmp_path, {}).rows)


def test_other_names_are_not_paired(tmp_path):
    photos(tmp_path / "images", ["cat"])
    save(tmp_path / "masks/dog.png", mask(0))
    with pytest.raises(DataError, match=r"no photo pairs with masks/dog\.png"):
        detect(tmp_path, {})


def test_masks_of_valid_depth(tmp_path):
    photos(tmp_path, [f"{seed}" for seed in range(4)])
    for seed in range(4):
        save(tmp_path / f"{seed}_depth.npy", metres(seed).astype(np.float32))
        save(tmp_path / f"{seed}_depth_mask.npy", np.ones(SIZE, np.float32))
    found = detect(tmp_path, {})
    assert found.task == "depth"
    assert found.notes[0].startswith("not used: 4 label files without a photo (0_depth_mask.npy")
    for seed in range(4):
        (tmp_path / f"{seed}_depth_mask.npy").rename(tmp_path / f"{seed}_mask.npy")
    with pytest.raises(DataError, match=r"0_mask\.npy: .*; data\.labels=null leaves"):
        detect(tmp_path, {})
    assert detect(tmp_path, {"labels": None}).task == "depth"


def test_several_masks_of_each_photo_are_a_question(tmp_path):
    photos(tmp_path / "rgb", [f"{seed}" for seed in range(4)])
    for seed in range(4):
        save(tmp_path / f"label_id/{seed}.png", mask(seed))
        save(tmp_path / f"label_color/{seed}.png", PALETTE[mask(seed)])
    fault = r"no photo pairs with label_color/0\.png, label_id/0\.png: .* set data.images"
    with pytest.raises(DataError, match=fault):
        detect(tmp_path, {})
    with pytest.raises(DataError, match=r"label_ids does not exist.*check data\.labels"):
        detect(tmp_path, {"labels": "label_ids"})
    read, _ = samples(tmp_path, labels="label_id")
    np.testing.assert_array_equal(read["train"]["rgb/1.jpg"]["labels"], mask(1))


def test_folders_of_splits_beside_one_folder(tmp_path):
    for kind, other in (("images", "masks"), ("masks", "images")):
        root = tmp_path / kind
        own = {name: f"{name[:-3]}{name[0]}{name[-3:]}" for name in NAMES}  # train/t000
        names = {kind: [*own.values()], other: [name.split("/")[1] for name in own.values()]}
        photos(root / "images", names["images"])
        for seed, name in enumerate(names["masks"]):
            save(root / f"masks/{name}.png", mask(seed))
        read, _ = samples(root)
        assert [len(read["train"]), len(read["val"])] == [8, 3]


@pytest.mark.parametrize(
    ("separator", "header", "row"),
    [
        (";", "image;mask;split", "images/{0}.jpg;masks/{0}.png;{1}"),
        (",", "image, mask, split", "images\\{0}.jpg, masks\\{0}.png, {1}"),
        ("\t", "split\tmask\tfile", "{1}\tmasks/{0}.png\timages/{0}.jpg"),
        (",", "IMAGE,MASK,SPLIT", "images/{0}.JPG,./masks/{0}.PNG,{1}"),
    ],
)
def test_forms_of_tables(tmp_path, separator, header, row):
    root = folder(tmp_path / "set")
    rows = [row.format(name, "dev" if k > 6 else "train") for k, name in enumerate(NAMES)]
    (root / "list.csv").write_text("\n".join([header, *rows]))
    read, _ = samples(root)
    assert [len(read["train"]), len(read["val"])] == [7, 4]
    (root / "long.csv").write_text(f"image,caption\n1,{'a' * 300}\n")  # not of files
    assert len(samples(root)[0]["train"]) == 7
    (root / "list.csv").write_text("\n".join([header, "images/none.jpg", *rows]))  # a short row
    with pytest.raises(DataError, match=r"list.csv: 1 of its files do not exist|split is images"):
        detect(root, {})
    (root / "list.csv").write_text("\n".join([header, row.format("gone", "train"), *rows]))
    with pytest.raises(
        DataError, match=r"list.csv: 2 of its files do not exist \((images|masks)/gone"
    ):
        detect(root, {})
    (root / "list.csv").write_text("\n".join([header, *rows, row.format(NAMES[0], "holdout")]))
    with pytest.raises(DataError, match=r"(?i)split is holdout: write train, "):
        detect(root, {})
    (root / "list.csv").write_text("name,split\n000,train\n001,val\n")
    with pytest.raises(DataError, match=r"list.csv: names splits, but no photos and labels"):
        detect(root, {})


def test_tables_with_absolute_paths(tmp_path):
    root = folder(tmp_path / "set")
    rows = [f"{root}/images/{n}.jpg,{root}/masks/{n}.png,{n.partition('/')[0]}" for n in NAMES]
    (root / "list.csv").write_text("\n".join(["image,mask,split", *rows]))
    assert detect(root, {}).rows[0].image == "images/train/000.jpg"
    (root / "list.csv").write_text("\n".join(["image,mask,split", *rows]).replace("set", "old"))
    folder(tmp_path / "old")
    with pytest.raises(DataError, match=r"list\.csv: .*old/images/train/000\.jpg is not below"):
        detect(root, {})


def test_several_tables(tmp_path):
    root = folder(tmp_path / "set")
    for split in ("train", "val"):
        rows = [f"images/{n}.jpg,masks/{n}.png" for n in NAMES if n.startswith(split)]
        (root / f"{split}.csv").write_text("\n".join(["image,mask", *rows]))
    read, _ = samples(root)
    assert [len(read["train"]), len(read["val"])] == [8, 3]
    (root / "val.csv").rename(root / "more.csv")
    with pytest.raises(DataError, match=r"more.csv, train.csv list photos and labels: keep one"):
        detect(root, {})


def test_what_is_not_used_is_named(tmp_path):
    root = folder(tmp_path / "set")
    (root / "images/train/a.HEIC").write_bytes(b"")
    (root / "notes.csv").write_text("a,b\n1,2\n")
    (root / "long.csv").write_text(f"a,b\n{'x' * 200_000},2\n")
    save(root / "masks/train/alone.png", mask(0))
    photos(root / "images/extra", ["x"])
    save(root / "masks/extra/x.png", mask(0))
    notes = "\n".join(detect(root, {}).notes)
    for part in (".heic", "notes.csv", "long.csv", "masks/train/alone.png", "images/extra/x.jpg"):
        assert part in notes


def test_lists_with_other_folders(tmp_path):
    names = [f"{i:03d}" for i in range(12)]
    photos(tmp_path / "images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"masks/{name}.png", mask(seed))
    lines = [f"/SegNet/photos/{name}.png /SegNet/annot/{name}.png\n" for name in names]
    (tmp_path / "train.txt").write_text("".join(lines[:9]))
    assert any("not used: train.txt, which do" in line for line in detect(tmp_path, {}).notes)
    (tmp_path / "val.txt").write_text("".join([*lines[9:], "gone\n"]))
    read, found = samples(tmp_path)
    assert [len(read["train"]), len(read["val"])] == [9, 3]
    assert any("not used: 1 line of train.txt, val.txt" in line for line in found.notes)


def test_parts_that_the_user_chooses(tmp_path):
    root = tmp_path / "set"
    photos(root / "images", [f"s{i:02d}" for i in range(20)])
    for seed in range(20):
        save(root / f"masks/s{seed:02d}.png", mask(seed))
    read, found = samples(root, folds=4, fold=1)
    assert [path[8:10] for path in read["val"]] == ["05", "06", "07", "08", "09"]
    assert "splits: no val on disk; part 1 of 4" in found.notes[-1]
    read, _ = samples(root, group_by="s([0-9])")
    assert [len(read["train"]), len(read["val"])] == [10, 10]
    read, _ = samples(root, images=f"{root}/images", labels=f"{root}/masks")
    assert len(read["train"]) == 18
    with pytest.raises(DataError, match=f"data.labels={tmp_path} is not below"):
        detect(root, {"labels": str(tmp_path)})


def test_colours_that_the_user_gives(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: PALETTE[mask(seed)])
    (root / "classes.csv").write_text("name,r,g,b\nred,200,10,10\ngreen,10,200,10\n")
    colors = PALETTE[[2, 0, 1]].tolist()
    found = detect(root, {"label_colors": colors, "class_names": ["a", "b", "c"]})
    assert (found.settings["num_classes"], found.settings["label_colors"]) == (3, colors)
    assert "class_names" not in found.settings
    found = detect(root, {"label_colors": colors, "ignore_index": [2]})
    assert found.settings["num_classes"] == len(found.class_weights) == 2
    with pytest.raises(DataError, match=r"which data.label_colors lacks"):
        detect(root, {"label_colors": colors[:2]})
    given = {"label_colors": PALETTE[[2, 1, 0]].tolist()}
    for classes, names in (({"label_map": [0, 1]}, ["green", "red"]),
                           ({"ignore_index": 2}, ["green", "red"]),
                           ({"ignore_index": [0, 2]}, ["red"])):  # fmt: skip
        read, found = samples(root, **given, **classes)
        assert found.settings["class_names"] == names
        table = [names.index(name) if name in names else 255 for name in ("black", "red", "green")]
        sample = read["val"]["images/val/001.jpg"]
        np.testing.assert_array_equal(sample["labels"], np.array(table)[mask(9)])
    (root / "classes.csv").write_text("name,r,g,b\nred,200,10,10\nred,10,200,10\n")
    with pytest.raises(DataError, match=r"classes\.csv: two classes have one name"):
        detect(root, {})
    (root / "classes.csv").unlink()
    with pytest.raises(DataError, match=r"data.class_names needs data.label_colors"):
        detect(root, {"class_names": ["a", "b", "c"]})


def test_two_classes_of_0_and_255(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (0, 255)))
    with pytest.raises(DataError, match=r"data\.label_map=\[0,255\]"):
        detect(root, {"num_classes": 2})


def test_linked_folders_are_read(tmp_path):
    photos(tmp_path / "p", range(4))
    for seed in range(4):
        save(tmp_path / f"m/{seed}.png", mask(seed))
    (tmp_path / "set").mkdir()
    (tmp_path / "set/images").symlink_to(tmp_path / "p")
    (tmp_path / "set/masks").symlink_to(tmp_path / "m")
    assert len(detect(tmp_path / "set", {}).rows) == 4


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("classes.txt", "sky\nstage 2\nstage 1\n", "sky, stage 2, stage 1"),
        ("classes.txt", "0: sky\n1: lane 4\n2: car\n", "sky, lane 4, car"),
        ("_classes.csv", "Value, Class\n0, sky\n1, lane 4\n2, car\n", "sky, lane 4, car"),
        ("classes.csv", "name,id\nsky,0\nlane,1\ncar,2\n", "sky, lane, car"),
        ("classes.csv", "id,name,other\n0,a b,7\n1,c,8\n2,d,9\n", "a b, c, d"),
        ("labelmap.txt", "# label:color::\nsky:0,0,0::\na 4:1,1,1::\nb:2,2,2::\n", "sky, a 4, b"),
        ("classes.json", '{"0": "sky", "1": "lane", "2": "car"}', "sky, lane, car"),
        ("classes.json", '{"classes": {"0": "a", "1": "b", "2": "c"}}', "a, b, c"),
        ("classes.json", '{"a": 0, "b": 1, "c": 2}', "a, b, c"),
        ("classes.json", '{"names": ["a", "b", "c"]}', "a, b, c"),
        ("classes.csv", "name\na\nb\nc\n", "a, b, c"),
        ("classes.csv", "train\nbus\ncar\n", "train, bus, car"),
        ("classes.csv", '"name","id"\n"a, b",0\n"c",1\n"d",2\n', "a, b, c, d"),
    ],
)
def test_files_of_class_names(tmp_path, file, text, names):
    root = folder(tmp_path / "set")
    (root / file).write_text(text)
    assert ", ".join(samples(root)[1].settings["class_names"]) == names
    (root / file).unlink()
    (root / "classes.txt").write_text("sky\ncar\ncar\n")
    with pytest.raises(DataError, match="two classes have one name"):
        detect(root, {})
    (root / "classes.txt").unlink()
    (root / "classes.json").write_text('{"classes": 5}')
    with pytest.raises(DataError, match=r"classes.json: no names of classes"):
        detect(root, {})


@pytest.mark.parametrize(
    ("suffix", "factor", "kind", "message"),
    [
        (".npy", 1000, np.float32, "data.depth_scale=0.01.*data.depth_scale=0.001"),
        (".png", 50, np.uint16, "data.depth_scale=0.01.*data.depth_scale=0.001"),
        (".png", 50, np.uint8, "maps of 8 bits have no usual unit"),
    ],
)
def test_units_of_depth_that_are_asked_for(tmp_path, suffix, factor, kind, message):
    def make(seed):
        return (factor * metres(seed)).astype(kind)

    root = folder(tmp_path / "set", kind="depth", make=make, suffix=suffix)
    with pytest.raises(DataError, match=message):
        detect(root, {})
    assert detect(root, {"depth_scale": 0.001}).settings["depth_scale"] == 0.001


@pytest.mark.parametrize(
    ("factor", "kind", "named"),
    [
        (100, np.uint16, "data.depth_scale=0.01"),
        (256, np.uint16, "data.depth_scale=0.00390625"),
        (512, np.uint16, "data.depth_scale=0.001953125"),
        (100, np.int32, "data.depth_scale=0.01"),
    ],
)
def test_units_between_which_values_do_not_decide(tmp_path, factor, kind, named):
    suffix = ".png" if kind is np.uint16 else ".npy"
    root = folder(tmp_path / "set", kind="depth", suffix=suffix,
                  make=lambda seed: (factor * metres(seed)).astype(kind))  # fmt: skip
    with pytest.raises(DataError, match=rf"depth/train: .*{named}\b"):
        detect(root, {})
    read, _ = samples(root, depth_scale=1 / factor)
    np.testing.assert_allclose(read["val"]["images/val/000.jpg"]["depth"], metres(8), atol=0.011)


@pytest.mark.parametrize(
    ("top", "kind", "suffix"),
    [(65535, np.uint16, ".png"), (255, np.uint8, ".png"), (1, np.float32, ".npy"),
     (1000, np.uint16, ".png"), (1, np.float32, ".tiff"), (10, np.float64, ".npy")],
)  # fmt: skip
def test_maps_scaled_to_their_own_range(tmp_path, top, kind, suffix):
    def make(seed):
        depth = metres(seed) * (1 + 0.1 * seed)
        return ((depth - depth.min()) / np.ptp(depth) * top).astype(kind)

    root = folder(tmp_path / "set", kind="depth", make=make, suffix=suffix)
    with pytest.raises(DataError, match=rf"depth/train: .*end at {top}, .*data\.depth_scale"):
        detect(root, {})
    assert detect(root, {"depth_scale": 0.1}).task == "depth"


def test_maps_that_end_at_a_far_plane(tmp_path):
    def make(seed):
        return (1000 * metres(seed)).clip(0, 4000).astype(np.uint16)

    root = folder(tmp_path / "set", kind="depth", make=make)
    assert detect(root, {}).settings["depth_scale"] == 0.001


@pytest.mark.parametrize("missing", [65.535, 65535.0, 65504.0, 1e10])
def test_65535_in_floats_is_not_measured(tmp_path, missing):
    def make(seed):
        depth = metres(seed).astype(np.float32)
        depth[:3] = missing
        return depth

    read, found = samples(folder(tmp_path / "set", kind="depth", make=make, suffix=".npy"))
    assert found.settings["max_depth"] == 5.0
    assert not read["val"]["images/val/000.jpg"]["valid"][:3].any()


def test_heights_below_0_are_counted(tmp_path):
    root = folder(tmp_path / "set", kind="depth", suffix=".tiff",
                  make=lambda seed: (metres(seed) - 1.65).astype(np.float32))  # fmt: skip
    assert any("depth: 24.8" in note and "below 0" in note for note in detect(root, {}).notes)


@pytest.mark.parametrize("kind", ["disparity", "disp", "Disparities"])
def test_disparity_is_no_depth(tmp_path, kind):
    root = folder(tmp_path / "set", kind=kind,
                  make=lambda seed: (8000 / metres(seed)).astype(np.uint16))  # fmt: skip
    with pytest.raises(DataError, match=f"{kind}/train: disparity, not depth"):
        detect(root, {})


def test_few_copies_of_a_photo_are_left_out(tmp_path):
    photos(tmp_path / "images", [f"{i:02d}" for i in range(20)])
    for seed in range(20):
        save(tmp_path / f"masks/{seed:02d}.png", mask(seed))
    copy = tmp_path / "images/19.jpg"
    copy.write_bytes((tmp_path / "images/03.jpg").read_bytes())
    found = detect(tmp_path, {})
    assert len(found.rows) == 19
    assert any("images/19.jpg = images/03.jpg" in note for note in found.notes)


def test_copies_by_roboflow_are_held_out_together(tmp_path):
    names = [f"{i}_jpg.rf.{k}{i:07x}" for i in range(10) for k in "abc"]
    photos(tmp_path / "set/images", names)
    for seed, name in enumerate(names):
        save(tmp_path / f"set/masks/{name}.png", mask(seed))
    read, _ = samples(tmp_path / "set")
    assert [len(read["train"]), len(read["val"])] == [27, 3]
    sides = [{path.partition("_jpg")[0] for path in part} for part in read.values()]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("extra", ["train/aug", "predictions", "results", "train/augmented"])
def test_pictures_made_of_others_are_left_out(tmp_path, extra):
    photos(tmp_path / "train/image", range(10))
    for seed in range(10):
        save(tmp_path / f"train/label/{seed}.png", mask(seed))
        save(tmp_path / f"{extra}/image_0_{seed}.png", photo_of(*SIZE, seed=100 + seed))
        save(tmp_path / f"{extra}/mask_0_{seed}.png", mask(seed))
    found = detect(tmp_path, {})
    assert [row.image for row in found.rows] == [f"train/image/{i}.jpg" for i in range(10)]
    assert any(f"20 files made of others, such as {extra}/" in note for note in found.notes)


def test_earlier_predictions_and_objects_are_no_photos(tmp_path):
    for seed in range(6):
        save(tmp_path / f"SegmentationClass/{seed}.png", mask(seed))
        save(tmp_path / f"SegmentationObject/{seed}.png", mask(seed + 9))
        save(tmp_path / f"x/{seed}_predict.png", mask(seed))
        save(tmp_path / f"JPEGImages/@eaDir/{seed}/thumb.jpg", photo_of(*SIZE, seed=seed))
    with pytest.raises(DataError):
        detect(tmp_path, {})
    photos(tmp_path / "JPEGImages", range(6))
    found = detect(tmp_path, {})
    assert {Path(row.image).parent.name for row in found.rows} == {"JPEGImages"}


def test_only_results_of_others(tmp_path):
    root = folder(tmp_path / "aug")
    (tmp_path / "results").mkdir()
    (tmp_path / "aug").rename(tmp_path / "results/aug")
    assert len(detect(tmp_path / "results", {}).rows) == 11
    assert not root.exists()


def test_names_by_cameras(tmp_path):
    for seed in range(6):
        photos(tmp_path, [f"IMG_{seed:04d}", f"{seed:04d}", f"swiss_IMG_{seed:04d}_x"])
        for k, name in enumerate(
            (f"IMG_{seed:04d}", f"{seed:04d}", f"swiss_IMG_{seed:04d}_x_mask")
        ):
            save(tmp_path / f"{name}.png", mask(seed + k))
    found = detect(tmp_path, {})
    assert len(found.rows) == 18
    assert all(Path(row.image).stem in row.labels for row in found.rows)


@pytest.mark.parametrize("rows", [[[]], [None], {"a": 1}, [["segmentation"]], "text"], ids=str)
def test_annotations_that_are_no_objects_are_named(tmp_path, rows):
    photos(tmp_path, ["0"])
    write_coco(tmp_path / "a.json", 1)
    content = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(json.dumps(content | {"annotations": rows}))
    with pytest.raises(DataError, match=r"a\.json: no images or annotations"):
        detect(tmp_path, {})


def test_large_files_of_json_are_not_parsed(tmp_path, monkeypatch):
    root = folder(tmp_path / "set")
    monkeypatch.setattr("dpt.data_check.layouts.coco._MAX_PARTS", 5000)
    (root / "other.json").write_text("[" + '{"a":[]},' * 1000 + "{}]")
    write_coco(root / "hostile.JSON", 4)
    text = (root / "hostile.JSON").read_text()
    (root / "hostile.JSON").write_text(text[:-1] + ', "x": [' + "[]," * 6000 + "[]]}")
    parsed = []
    monkeypatch.setattr(
        "dpt.data_check.layouts.coco.parse_json", lambda text, path: parsed.append(path)
    )
    notes = "\n".join(detect(root, {}).notes)
    assert "hostile.JSON: more than 5000 lists" in notes
    assert not parsed
    (root / "hostile.JSON").write_text("\ufeff" + text)
    detect(root, {})
    assert parsed == [root / "hostile.JSON"]


def test_masks_with_interpolated_values_are_refused(tmp_path):
    def make(seed):
        found = mask(seed, (0, 255))
        found[0, :12] = range(20, 250, 20)
        return found

    with pytest.raises(DataError, match=r"masks/train: .*data\.label_map"):
        detect(folder(tmp_path / "set", make=make), {})


def test_folders_and_arguments_that_train_nothing(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    run = tmp_path / "run"
    save(tmp_path / "labels/masks/a.png", mask(0))
    photos(tmp_path / "alone", range(3))
    folder(tmp_path / "good")
    (tmp_path / "loop").symlink_to("loop")
    damaged = folder(tmp_path / "damaged") / "masks/train/000.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    for arguments, message in (
        (("empty",), "holds no photo"),
        (("file",), "is a file, not a folder"),
        (("none",), "does not exist"),
        (("loop",), "does not exist"),
        (("labels",), "but no photo"),
        (("alone",), "no masks and no depth"),
        (("damaged",), "000.png"),
        (("good", "data.invalid_depth=0"), "data.invalid_depth=0"),
        (("good", "data.depth_scale=abc"), "data.depth_scale='abc'"),
        (("good", "--time", "soon"), "--time soon: must be a number and its unit"),
        (("good", "--time", "0m"), "--time 0m: must be"),
        (("good", "data=camvid"), "leave out data="),
        (("good", "data.split_files.train=train.txt"), "data.split_files.train needs python train"),
        (("good", "data.fractions.train=0.5"), "data.fractions.train needs python train.py"),
        (("good", "data.labels_name=%stem_L"), "data.labels_name needs python train.py"),
        (("good", "data.num_classes"), "KEY=VALUE"),
        (("good", "optim.rate=1", "model=dpt_tiny", f"run_dir={run}"), "optim.rate"),
    ):
        assert message in refused(call, "fit", *arguments)
    assert not (tmp_path / "runs").exists()
    assert not (run / "data_check").exists()


def test_a_run_is_not_overwritten(tmp_path, refused):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/last.ckpt").write_text("")
    (run / "pairs.csv").write_text("the pairs of the run")
    root = folder(tmp_path / "set")
    for key, message in ((f"run_dir={run}", "holds files already"), (f"resume={run}", "resume=")):
        assert message in refused(call, "fit", root, key)
    assert (run / "pairs.csv").read_text() == "the pairs of the run"
    assert not (run / "data_check").exists()
    (tmp_path / "mine/evaluation").mkdir(parents=True)
    assert "holds files already" in refused(call, "fit", root, f"run_dir={tmp_path / 'mine'}")


def test_sizes_follow_a_given_image_size(tmp_path):
    root = folder(tmp_path / "set")
    values = settings_of(detect(root, {}), root, tmp_path / "pairs.csv", [384, 512])
    assert values["data.cache_size"] == [576, 768]  # training crops are not upsampled
    assert values["data.eval_size"] == [480, 640]


def antialiased(seed):
    big = cv2.resize(PALETTE[mask(seed)], (SIZE[1] * 2, SIZE[0] * 2), interpolation=cv2.INTER_CUBIC)
    return big[1::2, 1::2] if seed % 2 else cv2.GaussianBlur(PALETTE[mask(seed)], (3, 3), 0)


def off_by_one(seed):
    return PALETTE[mask(seed)] + np.uint8(1) * (seed == 3)


@pytest.mark.parametrize("make", [antialiased, off_by_one])
def test_mixed_colours_are_no_classes(tmp_path, make):
    root = folder(tmp_path / "set", make=make)
    read, found = samples(root)
    assert found.settings["class_names"] == ["#000000", "#0ac80a", "#c80a0a"]
    assert any("data.color_distance=32" in line for line in found.notes)
    labels = read["train"]["images/train/003.jpg"]["labels"]
    order = np.array([0, 2, 1])[mask(3)]
    assert ((labels == order) | (labels == 255)).all()
    labels = samples(root, color_distance=120)[0]["train"]["images/train/003.jpg"]["labels"]
    assert (labels == order).mean() > 0.9
    assert 255 not in labels
    (root / "classes.json").write_text(
        '[{"title": "sky", "color": "#000000"}, {"title": "red", "color": "#C80a0A"}]'
    )
    read, found = samples(root)
    assert found.settings["class_names"] == ["sky", "red"]
    expected = np.array([0, 1, 255])[mask(3)]
    labels = read["train"]["images/train/003.jpg"]["labels"]
    assert ((labels == expected) | (labels == 255)).all()


def test_colours_between_others_may_be_classes(tmp_path):
    colours = np.array([[0, 0, 0], [128, 0, 0], [192, 0, 0], [64, 0, 0]], np.uint8)  # as VOC's
    root = folder(tmp_path / "set", make=lambda seed: colours[mask(seed, (0, 1, 2, 3))])
    assert samples(root)[1].settings["num_classes"] == 4


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: np.dstack([ids] * 3),
        lambda ids: np.dstack([ids, 0 * ids, 0 * ids]),
        lambda ids: np.dstack([ids == 0, ids == 1, ids == 2]).astype(np.uint8),
    ],
    ids=["grey", "red", "one-hot"],
)
@pytest.mark.parametrize("suffix", [".png", ".npy"])
def test_ids_in_three_channels(tmp_path, request, make, suffix):
    def ids(seed):  # 2 is more frequent than 1
        return mask(seed, (0, 1, 2, 2))

    root = folder(tmp_path / "set", make=lambda seed: make(ids(seed)), suffix=suffix)
    read, _ = samples(root)
    np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], ids(9))
    if "one-hot" not in request.node.callspec.id:
        (root / "classes.txt").write_text("sky\nroad\ntree\n")
        assert samples(root)[1].settings["class_names"] == ["sky", "road", "tree"]
        save(root / f"masks/val/001{suffix}", ids(9))  # one channel beside three
        read, _ = samples(root)
        np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], ids(9))


@pytest.mark.parametrize("smooth", [False, True])
def test_palettes_beside_colours(tmp_path, smooth):
    order = np.array([3, 1, 0, 2])  # of the palette

    def make(seed):
        rgb = PALETTE[mask(seed)]
        return cv2.GaussianBlur(rgb, (3, 3), 0) if smooth and seed == 1 else rgb

    root = folder(tmp_path / "set", make=make)
    for seed in (0, 3, 9):
        save_palette(root / f"masks/{NAMES[seed]}.png", np.argsort(order)[mask(seed)].astype("u1"),
                     PALETTE[order])  # fmt: skip
    (root / "classes.csv").write_text("name,color\nsky,#000000\nred,#c80a0a\ngreen,#0AC80A\n")
    read, found = samples(root)
    assert found.settings["class_names"] == ["sky", "red", "green"]
    for seed in (0, 3, 4, 9):
        sample = read[NAMES[seed].split("/")[0]][f"images/{NAMES[seed]}.jpg"]
        np.testing.assert_array_equal(sample["labels"], mask(seed))


@pytest.mark.parametrize("suffix", [".png", ".gif"])
def test_palettes_of_other_orders(tmp_path, suffix):
    def write(path, ids):
        order = np.random.default_rng(ids[::8, ::8].ravel()).permutation(4)
        save_palette(path, np.argsort(order)[ids].astype("u1"), PALETTE[order])

    root = folder(tmp_path / "set", write, suffix=suffix)
    read, found = samples(root)
    classes = [PALETTE.tolist().index(color) for color in found.settings["label_colors"]]
    assert sorted(classes) == [0, 1, 2]
    for seed in (0, 3, 4, 9):
        sample = read[NAMES[seed].split("/")[0]][f"images/{NAMES[seed]}.jpg"]
        np.testing.assert_array_equal(np.array(classes)[sample["labels"]], mask(seed))
    node = {"_target_": CLASSES["folder"], "root": str(root), "labels": "masks", "num_classes": 3}
    assert any(
        "data.color_distance" in line for line in quick_findings(make_dataset(node, "train"), 8)
    )


def test_a_table_of_other_order_than_palettes(tmp_path):
    node = {"_target_": CLASSES["folder"], "labels": "masks", "num_classes": 3,
            "root": str(folder(tmp_path / "set", save_palette))}  # fmt: skip
    for order, count in (([0, 1, 2], 0), ([1, 0, 2], 1)):
        data = make_dataset({**node, "label_colors": PALETTE[order].tolist()}, "train")
        assert len([x for x in quick_findings(data, 8) if "data.color_distance" in x]) == count


def test_one_colour_on_transparency_is_explained(tmp_path):
    def write(path, ids):
        path.parent.mkdir(parents=True, exist_ok=True)
        red = np.where(ids[..., None] > 0, np.uint8([255, 0, 0, 255]), np.uint8(0))
        Image.fromarray(red).save(path)

    with pytest.raises(DataError, match=r"masks/.*: .* transparent pixels mean unlabelled"):
        detect(folder(tmp_path / "set", write), {})


def test_palettes_of_one_order_hold_ids(tmp_path):
    def write(path, ids):  # one palette has the ids as grey
        grey = np.repeat(np.arange(4, dtype=np.uint8)[:, None], 3, axis=1)
        save_palette(path, ids, grey if path.stem == "001" else PALETTE)

    read, found = samples(folder(tmp_path / "set", write))
    assert "label_colors" not in found.settings
    np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], mask(9))


def test_names_in_both_forms_of_unicode(tmp_path):
    names = [f"\u00fc{k}" for k in range(4)]
    split = [unicodedata.normalize("NFD", name) for name in names]
    photos(tmp_path / "a/images", names)
    for seed, name in enumerate(split):
        save(tmp_path / f"a/masks/{name}.png", mask(seed))
    read, _ = samples(tmp_path / "a")
    assert sum(map(len, read.values())) == 4
    (tmp_path / "a/list.txt").write_text("\n".join(split))
    node = {"_target_": CLASSES["folder"], "root": str(tmp_path / "a"), "labels": "masks",
            "num_classes": 3, "split_files": {"train": "list.txt"}}  # fmt: skip
    assert len(make_dataset(node, "train")) == 4
    photos(tmp_path / "b/images", split)
    write_objects(tmp_path / "b/a.json", [f"{n}.jpg" for n in names], {7: "cup"}, size=SIZE)
    read, _ = samples(tmp_path / "b")
    assert sum(map(len, read.values())) == 4


def test_red_on_black_is_no_id(tmp_path):
    colours = np.array([[0, 0, 0], [255, 0, 0]], np.uint8)
    read, found = samples(folder(tmp_path / "set", make=lambda seed: colours[mask(seed, (0, 1))]))
    assert found.settings["class_names"] == ["#000000", "#ff0000"]
    np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], mask(9, (0, 1)))


@pytest.mark.parametrize(
    ("last", "kind"), [(65535, np.uint16), (2**31 - 1, np.int32), (2**32 - 1, np.uint32)]
)
def test_the_largest_value_of_a_type_is_unlabelled(tmp_path, last, kind):
    values = np.array([0, 1, 2, last], kind)
    suffix = ".png" if kind is np.uint16 else ".npy"
    root = folder(tmp_path / "set", make=lambda s: values[mask(s, (0, 1, 2, 3))], suffix=suffix)
    for names in ("", "sky\nroad\ntree\n"):
        (root / "classes.txt").write_text(names)
        read, found = samples(root)
        assert f"unlabelled: {last} (25.00%) of the pixels" in found.notes
        expected = np.array([0, 1, 2, 255])[mask(9, (0, 1, 2, 3))]
        np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], expected)
    two = np.array([0, last], kind)
    if kind is np.uint16:  # a mask of two values has two classes
        root = folder(tmp_path / "two", make=lambda s: two[mask(s, (0, 1))])
        read, _ = samples(root)
        np.testing.assert_array_equal(read["val"]["images/val/001.jpg"]["labels"], mask(9, (0, 1)))


def test_a_label_map_that_leaves_values_out(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, (0, 1, 2, 7)))
    notes = samples(root, label_map=[0, [1, 2]])[1].notes
    assert "unlabelled: 7 (25.00%) of the pixels" in notes


@pytest.mark.parametrize(
    ("text", "ids", "names"),
    [
        ("__ignore__\n_background_\ncat\n", (0, 1, 255), ["_background_", "cat"]),
        ("_background_\ncat\n", (0, 1, 255), ["_background_", "cat"]),
        ("-1 __ignore__\n0 _background_\n1 cat\n", (0, 1, 255), ["_background_", "cat"]),
        ("255: void\n0: sky\n1: cat\n", (0, 1, 255), ["sky", "cat"]),
        ("void\nsky\ncat\n", (0, 1, 2), ["void", "sky", "cat"]),
        ("void\nsky\ncat\n", (0, 1, 255), None),
        ("Unlabeled\nsky\ncat\n", (0, 1, 255), None),
    ],
)
def test_names_that_mean_unlabelled(tmp_path, text, ids, names):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed, ids))
    (root / "classes.txt").write_text(text)
    if names is None:
        with pytest.raises(DataError, match=r"classes\.txt: .*data\.num_classes=3"):
            detect(root, {})
        return
    assert samples(root)[1].settings["class_names"] == names


WRONG = ["null", "[]", "{}", "[1]", "1.5", "NaN", "-Infinity", "1e400", "9" * 5000, '"x"', "true",
         '"\\ud800"', '"=1+1"', '"@SUM(A1)"', '""', '{"a": [[]]}', '"\\u001b\\n"']  # fmt: skip


@pytest.mark.parametrize("key", ["name", "id", "color", "ignore_index", "classes", "all"])
def test_wrong_types_in_a_file_of_classes(tmp_path, key):
    root = folder(tmp_path / "set")
    for value in WRONG:
        row = {"name": '"a"', "id": "0", "color": "[0, 0, 0]"} | {key: value}
        fields = ", ".join(f'"{k}": {v}' for k, v in row.items())
        text = {
            "ignore_index": f'{{"classes": [{{"name": "a", "id": 0}}], "ignore_index": {value}}}',
            "classes": f'{{"classes": {value}}}', "all": value,
        }.get(key, f'{{"classes": [{{{fields}}}]}}')  # fmt: skip
        (root / "classes.json").write_text(text)
        with pytest.raises(ValueError, match=r"\A[^\n\x1b]*classes\.json[^\n\x1b]*\Z"):
            detect(root, {})


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a\x1b[31m", "a [31m"), ("a\tb\u202e", "a b"), ("Straße, naïve", "Straße, naïve"),
     ("-1", "-1"), ("می\u200cرود", "می\u200cرود"), ("\ud800x", "x")],
)  # fmt: skip
def test_names_of_classes_are_cleaned(tmp_path, name, shown):
    root = folder(tmp_path / "set")
    (root / "classes.json").write_text(json.dumps([name, "b", "c"]))
    assert samples(root)[1].settings["class_names"] == [shown, "b", "c"]


def test_too_many_classes_are_refused_when_the_file_is_read(tmp_path):
    root = folder(tmp_path / "set")
    for file, text in (("classes.json", json.dumps([f"c{i}" for i in range(10_000)])),
                       ("classes.csv", "name,id\n" + "".join(f"c{i},{i}\n" for i in range(300))),
                       ("classes.txt", "x\n" * 20_000)):  # fmt: skip
        (root / file).write_text(text)
        with pytest.raises(DataError, match=rf"{file}: \d+ classes, at most 255"):
            detect(root, {})
        (root / file).unlink()


def test_times_and_values():
    assert [seconds_of(text) for text in ("90s", "15m", "1.5h")] == [90, 900, 5400]
    assert length_of(900, step=0.5, validation=9) == (int((900 - 108 - 30) / 0.5), 10)
    assert length_of(180, step=0.5, validation=2)[1] == 3
    assert length_of(1, step=0.5, validation=10) == (10, 1)
    assert as_text(["it's", 1, True, "a/b"]) == """["it's",1,true,a/b]"""


@pytest.mark.slow
def test_a_run_from_the_folder_to_the_exported_model(tmp_path, capsys, monkeypatch):
    root, run = folder(tmp_path / "set"), tmp_path / "run"
    clock = itertools.count(0, 30)  # a slow machine: half a minute between two looks at the clock
    monkeypatch.setattr("dpt.commands.fit.time", SimpleNamespace(monotonic=lambda: next(clock)))
    call("fit", str(root), "--time", "40s", *TINY_VIT, *TINY_DATA, *ON_CPU,
         "data.eval_size=null", f"run_dir={run}")  # fmt: skip
    printed = capsys.readouterr().out
    assert "training: python train.py" in printed
    assert "steps: 10, as one takes 30.00 s\n--time 40s is too short here" in printed
    assert next(clock) == 30 * 6  # four steps were timed, not ten
    for name in ("data_check/report.html", "evaluation/report.html", "checkpoints/best.ckpt",
                 "metrics.json", "pairs.csv"):  # fmt: skip
        assert (run / name).is_file()
    (exported,) = run.glob("model.*")
    exported.write_bytes(b"of the first run")
    call("fit", str(root), *TINY_VIT, *TINY_DATA, *ON_CPU, "data.eval_size=null", f"run_dir={run}",
         "overwrite=true", "steps=2", "task/segmentation_loss=cross_entropy_dice")  # fmt: skip
    assert exported.read_bytes() != b"of the first run"
    assert "dpt.losses.DiceLoss" in (run / "config.yaml").read_text()


@pytest.mark.slow
def test_names_of_a_set_are_kept_and_reveal_nothing(tmp_path, monkeypatch, capfd):
    """Names of classes and of the folder are text, whatever Hydra or OmegaConf would read."""
    monkeypatch.setenv("DPT_SECRET", "s3cr3t-of-the-environment")
    monkeypatch.chdir(tmp_path)
    names = [
        "${oc.env:DPT_SECRET}",
        "\\\\${oc.decode:${oc.env:DPT_SECRET}}",
        "it's a\\b, [1] {c: d}",
    ]
    root = folder(tmp_path / "a '${oc.env:DPT_SECRET}', b=[1]\\")
    classes = [{"id": i, "name": name} for i, name in enumerate(names)]
    (root / "classes.json").write_text(json.dumps({"classes": classes}))
    call("fit", str(root), *TINY_VIT, *TINY_DATA, *ON_CPU, "data.eval_size=null", "steps=1")
    (run,) = (tmp_path / "runs/fit").iterdir()
    assert run.name.startswith(root.name)
    call("evaluate", run, "run_dir=scores")
    assert Path("scores/metrics.json").is_file()
    assert checkpoint_of(run)["dpt_config"]["heads"]["segmentation"]["class_names"] == names
    out = capfd.readouterr()
    for text in (out.out, out.err, *(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())):
        secret = "s3cr3t-of-the-environment"
        assert (secret if isinstance(text, str) else secret.encode()) not in text


HUB_RUN = """
import sys
import dpt.functional
dpt.functional.has_bf16 = lambda device: True
from dpt.cli import main
from dpt.weights.hub import has_hub_file
assert not has_hub_file("timm/other", "model.safetensors")
sys.argv = ["dpt", "fit", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_a_pretrained_encoder_where_a_hub_offers_it(tmp_path):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self):
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"1"')
            super().end_headers()

    file = tmp_path / f"hub/timm/{ENCODER}/resolve/main/model.safetensors"
    file.parent.mkdir(parents=True)
    save_file(timm.create_model(ENCODER, num_classes=0).state_dict(), file)
    root, run = folder(tmp_path / "set"), tmp_path / "run"
    handler = partial(Handler, directory=str(tmp_path / "hub"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with running(server):
        address = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [sys.executable, "-c", HUB_RUN, str(root), "steps=1", "data.batch_size=2", *ON_CPU,
             "optim=adamw", "trainer.precision=32-true",
             f"run_dir={run}"],
            env={**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"),
                 "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "model: from the encoder DINOv2" in done.stdout
    assert "174 encoder tensors loaded" in (run / "log.txt").read_text()
    weights = checkpoint_of(run)["state_dict"]
    theirs = load_file(file)["blocks.0.attn.qkv.weight"]
    ours = next(v for k, v in weights.items() if k.endswith("encoder.blocks.0.attn.qkv.weight"))
    assert (ours - theirs).abs().max() < 1e-3  # one step of fine-tuning


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", ["palette", "colours", "from_one", "nested", "one_class", "table"]
)
def test_layouts_of_camvid(shared_data, tmp_path, layout):
    root, expected, lines = tmp_path / "set", {}, ["subset,picture,classes"]
    palette = np.random.default_rng(3).integers(1, 255, (256, 3), np.uint8)
    for split in ("train", "val"):
        every = sorted((shared_data / f"camvid/images/{split}").iterdir())
        for path in every[:: len(every) // 8][:8]:
            ids = cv2.imread(str(shared_data / f"camvid/masks/{split}/{path.stem}.png"), -1)
            ids = np.where(ids == 11, 255, ids).astype(np.uint8)
            drive = path.stem.partition("_")[0]
            photo = {"nested": f"{drive}/rgb/{path.name}", "table": f"p/{path.name}"}.get(
                layout, f"images/{split}/{path.name}"
            )
            place = root / photo.replace("images/", "masks/").replace("rgb/", "mask/")
            place = place.with_suffix(".png")
            if layout == "table":
                place = root / f"q/{len(lines)}.png"
                lines.append(f"{split},{photo},q/{len(lines)}.png")
            (root / photo).parent.mkdir(parents=True, exist_ok=True)
            (root / photo).write_bytes(path.read_bytes())
            if layout == "palette":
                save_palette(place, ids, palette)
            elif layout == "one_class":
                ids = np.where(ids == 8, 255, 0).astype(np.uint8)
                save(place, ids)
            else:
                one = np.where(ids == 255, 255, ids + 1).astype(np.uint8)
                save(place, {"colours": palette[ids], "from_one": one}.get(layout, ids))
            expected[photo] = split, ids
    if layout == "table":
        (root / "pairs.csv").write_text("\n".join(lines))
    read, found = samples(root)
    assert found.task == "segmentation"
    seen = {**read["train"], **read["val"]}
    assert seen.keys() == expected.keys()
    for photo, sample in seen.items():
        split, ids = expected[photo]
        if layout == "one_class":
            ids = (ids == 255).astype(np.uint8)
        if layout == "colours":
            colors = found.settings["label_colors"]
            order = [colors.index(c) if c in colors else 0 for c in palette.tolist()]
            ids = np.array(order, np.uint8)[ids]
        np.testing.assert_array_equal(sample["labels"], ids)
        assert layout == "nested" or photo in read[split]
    if layout == "nested":
        drives = [{path.partition("/")[0] for path in read[split]} for split in read]
        assert not drives[0] & drives[1]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".npy", ".tiff"])
def test_layouts_of_the_kitchen(shared_data, tmp_path, suffix):
    root, expected = tmp_path / "set", {}
    every = sorted((shared_data / "rgbd/images/train").iterdir())
    for path in every[:: len(every) // 20][:20]:
        depth = cv2.imread(str(shared_data / f"rgbd/depth/train/{path.stem}.png"), -1)
        photo = f"rgb/{path.name}"
        expected[photo] = np.where(depth == 65535, 0, depth) / 1000
        (root / "rgb").mkdir(parents=True, exist_ok=True)
        (root / photo).write_bytes(path.read_bytes())
        stored = depth if suffix == ".png" else expected[photo].astype(np.float32)
        save(root / f"depth/{path.stem}{suffix}", stored)
    read, found = samples(root)
    assert found.task == "depth"
    assert [len(read["train"]), len(read["val"])] == [18, 2]
    for photo, sample in {**read["train"], **read["val"]}.items():
        valid = sample["valid"]
        np.testing.assert_array_equal(valid, expected[photo] > 0)
        np.testing.assert_allclose(sample["depth"][valid], expected[photo][valid], atol=1e-5)
