"""Packed samples equal the originals; damage is reported."""

import io
import json
import shutil
import tarfile
from collections import Counter

import numpy as np
import pytest
from photos import save_picture
from test_samplers import shards_in_use

from dpt.data import (
    DataError,
    Dataset,
    FolderDataset,
    ImageFolderDataset,
    ImageTableDataset,
    MixDataset,
    PackedDataset,
)
from dpt.data.shards.packed import pack_split
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.data_check.checks import damaged_files
from dpt.data_check.scan import Scan, record_of

RNG = np.random.default_rng(0)
COUNT = 23


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """JPEG and PNG photos of several sizes; some lack masks, some depth; millimetres and floats."""
    root = tmp_path_factory.mktemp("tree")
    for i in range(COUNT):
        size = (24 + i, 32)
        suffix = ("jpg", "png", "jpeg", "webp")[i % 4]
        save_picture(
            root / f"images/val/{i:02}.{suffix}", RNG.integers(0, 256, (*size, 3), np.uint8)
        )
        if i % 5 != 1:
            labels = RNG.integers(0, 4, size, np.uint8)
            labels[0] = 9
            save_picture(root / f"masks/val/{i:02}.png", labels)
        if i % 5 != 2:
            depth = RNG.integers(0, 12000, size).astype(np.uint16)
            save_picture(root / f"depth/val/{i:02}.png", depth)
            floats = np.where(depth, RNG.uniform(0.1, 12, size), np.nan).astype(np.float32)
            (root / "metres/val").mkdir(parents=True, exist_ok=True)
            np.save(root / f"metres/val/{i:02}.npy", floats)
    return root


def folder_set(tree, **options):
    settings = {"depth": "depth", "invalid_depth": [0, 65535]} | options
    return FolderDataset(
        root=tree,
        split="val",
        labels="masks",
        num_classes=4,
        ignore_index=9,
        max_depth=10,
        class_names=["a", "b", "c", "ü"],
        label_colors=[[i, 2, 3] for i in range(4)],
        **settings,
    )


def pack(dataset, folder, **options):
    settings = {"split": "val", "shard_size": 20_000} | options
    return pack_split(dataset, folder, **settings)


def packed(folder, **options):
    return PackedDataset(root=str(folder), split="val", **options)


def assert_equal(sample, expected):
    assert sample.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(sample[key], value, strict=True)
        else:
            assert sample[key] == value


# --------------------------------------------------------------------------- equal samples


@pytest.mark.parametrize(
    ("units", "num_workers"), [({}, 2), ({"depth": "metres", "depth_scale": 1.0}, 0)]
)
def test_packed_samples_equal_the_originals(tree, tmp_path, units, num_workers):
    original = folder_set(tree, **units)
    index = pack(original, tmp_path, num_workers=num_workers)
    copy = packed(tmp_path)
    assert len(index.shards) > 2
    assert copy.info == original.info
    assert len(copy) == len(original) == COUNT
    for i in range(COUNT):
        assert_equal(copy[i], original[i])
    assert copy.validate() == []
    for outside in (-1, COUNT):
        with pytest.raises(IndexError):
            copy[outside]


def test_pack_split_keeps_the_bytes_of_their_files(tree, tmp_path):
    pack(folder_set(tree), tmp_path)
    stored = {}
    for path in tmp_path.glob("*.tar"):
        with tarfile.open(path) as tar:
            stored |= {member.name: tar.extractfile(member).read() for member in tar}
    for i, path in enumerate(sorted((tree / "images/val").iterdir())):
        suffix = path.suffix.replace("jpeg", "jpg")
        assert stored[f"{i:09}{suffix}"] == path.read_bytes()


def test_packed_image_level_labels(tmp_path):
    for name in ("train/ant/1.png", "train/bee/2.png", "val/ant/3.jpg", "val/bee/4.jpg"):
        save_picture(tmp_path / "images" / name, RNG.integers(0, 256, (30, 40, 3), np.uint8))
    table = "image,value,text\nval/ant/3.jpg,0.1,a „black“ ant\n"
    (tmp_path / "images/labels_val.csv").write_text(table, encoding="utf-8")
    classes = ImageFolderDataset(root=tmp_path / "images", split="val")
    numbers = ImageTableDataset(root=tmp_path / "images", split="val")
    captions = ImageTableDataset(root=tmp_path / "images", split="val", caption_column="text")
    for original in (classes, numbers, captions):
        name = original.info.targets[0]
        pack(original, tmp_path / name)
        copy = packed(tmp_path / name)
        assert copy.info == original.info
        assert copy.class_id_names == original.class_id_names
        for i in range(len(original)):
            assert_equal(copy[i], original[i])


def test_encode_sample_pixels_that_are_not_those_of_the_file(tree):
    sample = folder_set(tree)[0]
    sample = {"image": sample["image"][3:20, 5:], "name": sample["name"]}
    assert_equal(decode_sample(encode_sample(sample), source="x"), sample)


# --------------------------------------------------------------------------- epochs


@pytest.fixture(scope="module")
def shards(tree, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    pack(folder_set(tree), folder)
    return folder


def test_packed_sets_in_a_mix(shards, tree):
    sets = {
        "shards": lambda split: packed(shards, window=2),
        "files": lambda split: folder_set(tree),
    }
    mix = MixDataset(sets=sets, split="train")
    assert mix.info == folder_set(tree).info
    for epoch in (0, 1):
        names = Counter(mix.draw(epoch, i)["name"] for i in range(len(mix)))
        assert set(names.values()) == {2}
        order = mix.epoch_order(np.random.default_rng(epoch))
        assert sorted(order) == list(range(2 * COUNT))
        positions = [mix.locate(epoch, i) for i in order]
        from_shards = [index for number, _, index in positions if number == 0]
        assert sorted(from_shards) == list(range(COUNT))
        assert abs(sum(n == 0 for n, *_ in positions[:COUNT]) - COUNT / 2) < 8  # they take turns
        sizes = [shard.samples for shard in packed(shards).shards]
        assert shards_in_use(from_shards, sizes).max() <= 3
    assert not MixDataset(sets={"files": sets["files"]}, split="train").is_sharded


# --------------------------------------------------------------------------- mistakes


class Broken(Dataset):
    """A data set of which some samples cannot be read."""

    def __init__(self, original, *, broken):
        self.original, self.info, self.broken = original, original.info, broken

    def __len__(self):
        return len(self.original)

    def __getitem__(self, index):
        if index in self.broken:
            raise DataError(f"{index:02}.png: the file is truncated")
        return self.original[index]


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_pack_split_overwrites_nothing(tree, tmp_path):
    pack(folder_set(tree), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(DataError, match=r"val\.json "):
        pack(folder_set(tree), tmp_path)
    assert contents(tmp_path) == before
    (tmp_path / "val.json").unlink()
    with pytest.raises(DataError, match=r"val-000000\.tar "):
        pack(folder_set(tree), tmp_path)
    for path in tmp_path.glob("val-*.tar"):  # of a split val-other
        path.rename(tmp_path / path.name.replace("val", "val-other"))
    pack(folder_set(tree), tmp_path)


def test_pack_split_skips_broken_samples(tree, tmp_path, caplog):
    original = folder_set(tree)
    broken = (0, 10, COUNT - 1)
    index = pack(Broken(original, broken=broken), tmp_path / "skip", skip_broken=True)
    assert sum(shard.samples for shard in index.shards) == COUNT - 3
    assert "10.png" in caplog.text
    copy = packed(tmp_path / "skip")
    names = [copy[i]["name"] for i in range(len(copy))]
    assert names == [original[i]["name"] for i in range(COUNT) if i not in broken]
    with pytest.raises(DataError, match="split val: "):
        pack(Broken(original, broken=range(COUNT)), tmp_path / "none", skip_broken=True)


def test_pack_split_leaves_nothing_on_a_full_disk(tree, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match=r"No space left.*val-000000\.tar"):
        pack(folder_set(tree), tmp_path)
    assert contents(tmp_path) == {}


def changed(folder, shards, change):
    """A copy of packed data with another index."""
    shutil.copytree(shards, folder)
    values = json.loads((folder / "val.json").read_text())
    change(values)
    (folder / "val.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["shards"][0].update(name="../secret.tar"),
        lambda v: v["shards"][0].update(sha256="../../x"),
        lambda v: v["shards"][0].update(samples=10**9),
        lambda v: v.pop("info"),
    ],
)
def test_packed_invalid_index_is_refused(tmp_path, shards, change):
    folder = changed(tmp_path / "x", shards, change)
    with pytest.raises(DataError, match=r"val\.json: "):
        packed(folder)


def negative_size():
    member = tarfile.TarInfo("1.jpg")
    member.pax_headers = {"size": "-512"}
    return member


def link():
    member = tarfile.TarInfo("000000000.jpg")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1000],
        lambda whole: tar_of({"1.jpg": b"x"}, size=len(whole)),  # too few samples
        lambda whole: tar_of({}, negative_size(), size=len(whole)),
        lambda whole: tar_of({}, link(), size=len(whole)),
        None,
    ],
    ids=["cut", "few", "negative size", "link", "absent"],
)
def test_packed_damaged_shard_is_refused(tmp_path, shards, damage):
    folder = changed(tmp_path / "x", shards, lambda v: None)
    path = folder / "val-000000.tar"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"val-000000\.tar: "):
        packed(folder)[0]


def test_packed_changed_byte_is_found_by_the_data_check(tmp_path, shards):
    folder = changed(tmp_path / "x", shards, lambda v: None)
    sets = {"packed": lambda split: packed(folder)}
    datasets = packed(folder), MixDataset(sets=sets, split="val")
    for dataset in datasets:
        assert not [*damaged_files(Scan("val", dataset, records_of(dataset)))]
    shard = folder / "val-000001.tar"
    content = bytearray(shard.read_bytes())
    content[content.find(b"\xff\xda") + 20] ^= 1  # in the first image's compressed pixels
    shard.write_bytes(content)
    for dataset in datasets:
        (finding,) = damaged_files(Scan("val", dataset, records_of(dataset)))
        assert finding.severity == "error"
        assert "val-000001.tar" in finding.examples[0]
        assert not [*damaged_files(Scan("val", dataset, records_of(dataset)[:1]))]  # with a limit


def records_of(dataset):
    return [record_of(dataset, i, complete=False) for i in range(len(dataset))]


def npz(array):
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"json": b"{}"}, "s: "),
        ({"jpg": b"x", "json": b"{}"}, r"s\.jpg: "),
        ({"png": None}, r"s\.json: "),
        ({"png": None, "json": b'{"class_id": "x"}'}, r"s\.json: "),
        ({"png": None, "json": b"{}", "depth.npz": npz("text")}, r"s\.depth\.npz: "),
    ],
)
def test_decode_sample_names_the_damaged_file(parts, path):
    png = encode_sample({"image": np.zeros((4, 5, 3), np.uint8)})["png"]
    with pytest.raises(DataError, match=f"^{path}"):
        decode_sample({name: data or png for name, data in parts.items()}, source="s")


def tar_of(files, *members, size):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for member in members:
            tar.addfile(member)
    return data.getvalue().ljust(size, b"\0")[:size]
