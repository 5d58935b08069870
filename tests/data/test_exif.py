"""One rule for EXIF orientations: labels fit the stored pixels or the upright image."""

import numpy as np
import pytest
from coco_files import write_objects
from PIL import Image, ImageOps

from dpt.data import CocoDataset, DataError, FolderDataset, ImageFolderDataset, UnlabelledDataset
from dpt.data.formats import io, pictures
from dpt.data.shards.samples import decode_sample, encode_sample

RNG = np.random.default_rng(0)
TURNS = range(2, 9)


def photo(path, orientation, *, shape=(20, 30)):
    """A photo with a tag, as stored and as viewers show it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    options = {"tiffinfo": {0x0112: orientation}} if path.suffix == ".tif" else {"exif": exif}
    Image.fromarray(stored).save(path, **options)
    if path.suffix == ".jpg":
        stored = np.asarray(Image.open(path))
    return stored, np.asarray(ImageOps.exif_transpose(Image.open(path)))


def folder(root, labels=None, depth=None, **options):
    for key, kind, values in (("labels", "masks", labels), ("depth", "depth", depth)):
        if values is not None:
            (root / kind).mkdir(exist_ok=True)
            np.save(root / kind / "a.npy", values)
            options[key] = kind
    options |= {"num_classes": 4, "max_depth": 10.0, "depth_scale": 1.0, "missing": "keep"}
    return FolderDataset(root=root, split="train", fractions={"train": 1.0}, **options)


@pytest.mark.parametrize("kind", ["labels", "depth"])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("turn", TURNS)
def test_maps_that_fit_both_need_a_decision(tmp_path, turn, suffix, kind):
    stored, upright = photo(tmp_path / f"images/a{suffix}", turn, shape=(24, 24))
    maps = {kind: np.ones((24, 24), np.uint8)}
    for read in (lambda d: d[0], lambda d: d.validate()):
        with pytest.raises(DataError, match=rf"a\{suffix}: .*orientation {turn}.*data\.exif=apply"):
            read(folder(tmp_path, **maps))
    assert np.array_equal(folder(tmp_path, **maps, exif="ignore")[0]["image"], stored)
    assert np.array_equal(folder(tmp_path, **maps, exif="apply")[0]["image"], upright)


@pytest.mark.parametrize("turn", TURNS)
def test_size_of_maps_decides_where_it_can(tmp_path, turn):
    stored, upright = photo(tmp_path / "images/a.jpg", turn)
    for pixels in (stored, upright) if turn >= 5 else ():
        labels = np.zeros(pixels.shape[:2], np.uint8)
        assert np.array_equal(folder(tmp_path, labels=labels)[0]["image"], pixels)
    with pytest.raises(DataError, match=r"a\.jpg: "):
        folder(tmp_path, labels=np.zeros((7, 9), np.uint8))[0]
    if turn >= 5:
        with pytest.raises(DataError, match=r"a\.jpg: image is 20x30 but its labels"):
            folder(tmp_path, labels=np.zeros((20, 30), np.uint8), exif="apply").validate()


def test_photos_without_maps_are_turned(tmp_path):
    stored, upright = photo(tmp_path / "images/a.jpg", 3)
    assert np.array_equal(folder(tmp_path)[0]["image"], upright)
    assert np.array_equal(UnlabelledDataset(root=tmp_path, split="train")[0]["image"], upright)
    assert np.array_equal(folder(tmp_path, exif="ignore")[0]["image"], stored)
    _, upright = photo(tmp_path / "classes/train/one/a.jpg", 6)
    dataset = ImageFolderDataset(root=tmp_path / "classes", split="train")
    assert np.array_equal(dataset[0]["image"], upright)


@pytest.mark.parametrize("size", [(20, 30), (30, 20)])
def test_objects_of_coco(tmp_path, size):
    stored, upright = photo(tmp_path / "train/a.jpg", 6)
    write_objects(tmp_path / "a.json", ["a.jpg"], {1: "thing"}, size=size)
    dataset = CocoDataset(root=tmp_path, split="train", annotations="a.json")
    assert np.array_equal(dataset[0]["image"], stored if size == (20, 30) else upright)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_shards_hold_what_was_read(tmp_path, exif):
    photo(tmp_path / "images/a.jpg", 8)
    sample = folder(tmp_path, exif=exif)[0]
    parts = encode_sample(sample)
    assert np.array_equal(decode_sample(parts, source="s")["image"], sample["image"])
    assert ("jpg" in parts) == (exif == "ignore")


def test_tag_in_xmp_counts_too(tmp_path):
    path = tmp_path / "a.jpg"
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    Image.fromarray(RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path, xmp=xmp)
    assert pictures.exif_orientation(path) == 6
    assert io.read_image(path, exif=True).shape == (30, 20, 3)
