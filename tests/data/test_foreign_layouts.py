"""Folders as they lie in public repositories: what is paired, left out, and asked."""

import re

import numpy as np
import pytest
import scipy.io
import tifffile
from label_folders import PALETTE, SIZE, mask, metres, save, save_palette
from photos import photo_of

from dpt.data import DataError
from dpt.data.layouts import detect


def photo(path, seed, size=SIZE):
    save(path, photo_of(*size, seed=seed))


def binary(seed, size=SIZE):
    return np.kron(mask(seed, (0, 255)), np.ones((size[0] // SIZE[0], size[1] // SIZE[1]), "u1"))


def cracks(root):
    for seed in range(1, 9):
        photo(root / f"image/{seed:03d}.jpg", seed)
        truth = {"Segmentation": mask(seed, (1, 2)).astype(np.uint16), "Boundaries": mask(seed) > 1}
        (root / "groundTruth").mkdir(exist_ok=True)
        scipy.io.savemat(root / f"groundTruth/{seed:03d}.mat", {"groundTruth": truth})
        (root / "seg").mkdir(exist_ok=True)
        (root / f"seg/{seed:03d}.seg").write_text("format ascii cr\n")
    return {f"image/{i:03d}.jpg": f"groundTruth/{i:03d}.mat" for i in range(1, 9)}


def eyes(root):
    names = [f"Image_{k:02d}{side}" for k in range(1, 5) for side in "LR"]
    for seed, name in enumerate(names):
        photo(root / f"{name}.jpg", seed)
        save(root / f"{name}_1stHO.png", binary(seed))
        save(root / f"{name}_2ndHO.png", binary(90 + seed))
    return {f"{name}.jpg": f"{name}_1stHO.png" for name in names}


def tiles(root):
    for tile in range(1, 5):
        for k in range(1, 4):
            seed = 10 * tile + k
            photo(root / f"Tile {tile}/images/image_part_{k:03d}.jpg", seed)
            path = root / f"Tile {tile}/masks/image_part_{k:03d}.png"
            ids = mask(seed, (1, 2, 3))
            ids[0, 0] = 0  # padding
            if tile == 2:
                order = np.array([2, 0, 3, 1])
                save_palette(path, np.argsort(order)[ids].astype("u1"), PALETTE[order])
            else:
                save(path, PALETTE[ids])
    return {
        f"Tile {t}/images/image_part_{k:03d}.jpg": f"Tile {t}/masks/image_part_{k:03d}.png"
        for t in range(1, 5)
        for k in range(1, 4)
    }


def bridges(root):
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    (root / "ImageSets/Main").mkdir(parents=True)
    for seed in range(8):
        photo(root / f"JPEGImages/b {seed}.jpg", seed)
        save_palette(root / f"SegmentationClass/defect/b {seed}.png", mask(seed))
        save_palette(root / f"SegmentationClass/element/b {seed}.png", mask(90 + seed))
    for part, (name, numbers) in {
        ("Segmentation", ("train", range(6))),
        ("Segmentation", ("val", range(6, 8))),
        ("Main", ("train", range(1))),
        ("Main", ("val", range(1, 2))),
    }:
        text = "".join(f"b {k}\n" for k in numbers)
        (root / f"ImageSets/{part}/{name}.txt").write_text(text)
    return {f"JPEGImages/b {i}.jpg": f"SegmentationClass/defect/b {i}.png" for i in range(8)}


def floods(root):
    for seed in range(8):
        bands = np.random.default_rng(seed).integers(0, 3000, (12, *SIZE)).astype(np.int16)
        (root / "images").mkdir(exist_ok=True)
        tifffile.imwrite(root / f"images/{seed}.tif", bands, planarconfig="separate")
        save(root / f"labels/{seed}.png", mask(seed, (0, 1)))
        save(root / f"labels/{seed}_184.png", mask(50 + seed, (0, 1)))
    return {f"images/{i}.tif": f"labels/{i}.png" for i in range(8)}


def reefs(root):
    for split, first in (("train_val", 0), ("TEST", 6)):
        for seed in range(first, first + 6):
            photo(root / f"{split}/images/d_r_{seed}_.jpg", seed)
            save(root / f"{split}/masks/d_r_{seed}_.bmp", PALETTE[mask(seed)])
            if split == "TEST":
                save(root / f"TEST/masks/RO/d_r_{seed}_.bmp", binary(seed))
    names = [f"{'TEST' if i > 5 else 'train_val'}/{{}}/d_r_{i}_" for i in range(12)]
    return {f"{name.format('images')}.jpg": f"{name.format('masks')}.bmp" for name in names}


def streets(root):
    for split, first in (("training", 0), ("validation", 6), ("testing", 9)):
        for seed in range(first, first + 3 + 3 * (not first)):
            photo(root / f"{split}/images/{seed}.jpg", seed)
            if split != "testing":
                save(root / f"{split}/v1.2/labels/{seed}.png", mask(seed))
                save(root / f"{split}/v1.2/instances/{seed}.png", 256 * mask(seed).astype("u2"))
    starts = [f"{'validation' if i > 5 else 'training'}/{{}}/{i}" for i in range(9)]
    return {f"{x.format('images')}.jpg": f"{x.format('v1.2/labels')}.png" for x in starts}


FOLDERS = {  # how it is made, the setting that answers the question, and what the notes name
    "cracks": (cracks, "", ["seg/001.seg (8 such files)"]),
    "eyes": (eyes, "labels_name=%stem_1stHO", []),
    "tiles": (tiles, "", ["color_c80a0a #c80a0a (33.29%)", "#000000 (0.13%)"]),
    "bridges": (bridges, "labels=SegmentationClass/defect", ["ImageSets/Segmentation/train.txt"]),
    "floods": (floods, "", ["labels/0_184.png (8 such files)"]),
    "streets": (streets, "", ["12 images without labels", "testing/images/10.jpg"]),
    "reefs": (reefs, "labels=%split/masks", ["TEST/masks/RO/d_r_10_.bmp (6 such files)"]),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_public_folders_are_paired(tmp_path, name):
    make, answer, named = FOLDERS[name]
    root = tmp_path / "set"
    root.mkdir()
    pairs = make(root)
    given = {}
    if answer:
        with pytest.raises(DataError, match=f"data.{answer}") as question:
            detect(root, given)
        assert len(re.findall("data[.]", str(question.value))) >= 2
        given = dict([answer.split("=")])
    detected = detect(root, given)
    assert {row.image: row.labels or row.depth for row in detected.rows} == pairs
    for text in named:
        assert any(text in note for note in detected.notes), (text, detected.notes)


def test_words_in_names_of_folders_divide_images(tmp_path):
    for part, first in (("a. Training Set", 0), ("b. Testing Set", 6)):
        for seed in range(first, first + 6):
            photo(tmp_path / f"images/{part}/{seed:02d}.jpg", seed)
            save(tmp_path / f"groundtruth/{part}/1. MA/{seed:02d}_MA.png", binary(seed))
    detected = detect(tmp_path, {})
    splits = {row.image.partition("/")[2]: row.split for row in detected.rows}
    assert {name[0] for name, split in splits.items() if split == "test"} == {"b"}
    assert len(splits) == 12
    assert {*splits.values()} == {"train", "val", "test"}


def test_copies_are_on_one_side(tmp_path):
    """The last tenth is held out, with a brighter copy of one of its images."""
    for seed in range(60):
        photo(tmp_path / f"images/{seed:02d}.png", seed)
        save(tmp_path / f"masks/{seed:02d}.png", mask(seed))
    save(tmp_path / "images/03.png", np.minimum(photo_of(*SIZE, seed=59), 253) + np.uint8(2))
    detected = detect(tmp_path, {})
    assert {row.image for row in detected.rows if row.split == "val"} == {
        f"images/{name}.png" for name in ("03", "54", "55", "56", "57", "58", "59")
    }
    assert [row.image for row in detected.rows if not row.split] == ["images/53.png"]  # the gap
    assert "folds" not in detected.settings
    assert any(
        "validation on 7 of 60 images" in note and "03.png" in note for note in detected.notes
    )


def test_a_folder_of_copies_is_not_held_out(tmp_path):
    for seed in range(20):
        photo(tmp_path / f"first/images/{seed:02d}.png", seed)
        save(tmp_path / f"first/masks/{seed:02d}.png", mask(seed))
        if seed % 2:
            save(
                tmp_path / f"more/images/{seed:02d}.png",
                np.maximum(photo_of(*SIZE, seed=seed), 2) - np.uint8(2),
            )
            save(tmp_path / f"more/masks/{seed:02d}.png", mask(seed))
    detected = detect(tmp_path, {})
    assert any("not held out" in note for note in detected.notes)


def test_times_pair_images_and_depth(tmp_path):
    """As TUM's: lists of times beside the folders, whose files no name pairs."""
    for kind, delay in (("rgb", 0.0), ("depth", 0.01)):
        names = [f"{kind}/{1305031102 + 0.1 * k + delay:.6f}.png" for k in range(8)]
        lines = [f"{name[len(kind) + 1 : -4]} {name}\n" for name in names]
        (tmp_path / kind).mkdir()
        (tmp_path / f"{kind}.txt").write_text("# timestamp filename\n" + "".join(lines))
        for seed, name in enumerate(names):
            array = (1000 * metres(seed)).astype("u2") if delay else photo_of(*SIZE, seed=seed)
            save(tmp_path / name, array)
    rows = detect(tmp_path, {}).rows
    assert len(rows) == 8
    pair = "rgb/1305031102.100000.png", "depth/1305031102.110000.png"
    assert pair in [(row.image, row.depth) for row in rows]
