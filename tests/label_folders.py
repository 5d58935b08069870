"""Small folders of photos with masks or depth maps, as ``dpt fit`` finds them."""

from pathlib import Path

import cv2
import numpy as np
from photos import photo_of
from PIL import Image

from dpt.data import FolderDataset
from dpt.data.layouts import detect

SIZE = (24, 32)
PALETTE = np.array([[0, 0, 0], [200, 10, 10], [10, 200, 10], [10, 10, 200]], np.uint8)
NAMES = [f"{split}/{i:03d}" for split, n in (("train", 8), ("val", 3)) for i in range(n)]


def mask(seed, ids=(0, 1, 2)):
    """Returns blocks of ids, all of which occur."""
    rows = np.random.default_rng(seed).permutation(np.resize(ids, 12)).reshape(3, 4)
    return np.kron(rows, np.ones((8, 8), int)).astype(np.uint8)


def metres(seed):
    slope = np.linspace(0.8, 4.2, SIZE[0] * SIZE[1]).reshape(SIZE)
    return slope + 0.01 * np.random.default_rng(seed).random(SIZE)


def scaled(factor, kind):
    """Returns a function that makes depth maps in units of 1/factor metres."""
    return lambda seed: (factor * metres(seed)).astype(kind)


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


def save_photos(root, names):
    for seed, name in enumerate(names):
        save(root / f"{name}.jpg", photo_of(*SIZE, seed=seed))


def save_pairs(root, names, image="images/{}", label="masks/{}.png", make=mask):
    """Saves images and masks, whose names are made of ``names``."""
    save_photos(root, [image.format(name) for name in names])
    for seed, name in enumerate(names):
        save(root / label.format(name), make(seed))


def folder(root, write=save, kind="masks", make=mask, suffix=".png"):
    """Makes a folder with the splits train and val."""
    save_photos(root / "images", NAMES)
    for seed, name in enumerate(NAMES):
        write(root / f"{kind}/{name}{suffix}", make(seed))
    return root


def samples(root, **given):
    """Returns the samples of train and val as training reads them, by the image's path."""
    read, detected = {}, detect(root, given)
    for split, data in datasets(root, detected, **given).items():
        paths: list[Path] = [data.files(i).image for i in range(len(data))]
        read[split] = {p.relative_to(root).as_posix(): data[i] for i, p in enumerate(paths)}
    return read, detected


def datasets(root, detected, **given):
    """Returns the data sets of train and val of what was detected."""
    options = {"root": str(root)}
    for key, value in {**detected.settings, **given}.items():
        head, _, tail = key.partition(".")
        options |= {head: {**options.get(head, {}), tail: value}} if tail else {head: value}
    table = root.with_suffix(".csv")
    table.write_text(detected.table())
    options["split_files"] = {"train": str(table), "val": str(table)}
    return {split: FolderDataset(split=split, **options) for split in ("train", "val")}


def settings(root, **given):
    return detect(root, given).settings


def sizes(read):
    return [len(read["train"]), len(read["val"])]


def labels_of(read, name="val/001"):
    return read[name.split("/")[0]][f"images/{name}.jpg"]["labels"]
