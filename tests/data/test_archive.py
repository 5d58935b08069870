"""Archives, honest and otherwise."""

import io
import stat
import tarfile
import zipfile
from contextlib import suppress

import numpy as np
import pytest

from dpt.data import DataError
from dpt.data.datasets import archive
from dpt.data.datasets.archive import extract, is_unpacked

FILES = {
    "VOCdevkit/VOC2012/JPEGImages/a.jpg": b"photo",
    "VOCdevkit/VOC2012/lists/train.txt": b"a\n",
    "VOCdevkit/readme.txt": b"hello",
}
ALL = {".": "."}
KINDS = ("zip", "tar", "tgz", "tar.bz2", "tar.xz")


def make(folder, kind, files=FILES):
    path = folder / f"set.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.mkdir("VOCdevkit") if files is FILES else None
            for name, content in files.items():
                file.writestr(name, content)
        return path
    mode = {"tar": "w", "tgz": "w:gz", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}[kind]
    with tarfile.open(path, mode) as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def leftovers(folder):
    return sorted(p.name for p in folder.rglob("*") if "unpack" in p.name)


@pytest.mark.parametrize("kind", KINDS)
def test_unpacks_everything(tmp_path, kind):
    path = make(tmp_path, kind)
    assert extract(path, tmp_path / "out", ALL) == 3
    assert tree(tmp_path / "out") == FILES
    assert leftovers(tmp_path) == [f".set.{kind}.unpacked"]


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_folders_of_the_archive_can_go_elsewhere(tmp_path, kind):
    path = make(tmp_path, kind)
    unpack = {"VOCdevkit/VOC2012/JPEGImages": "images", "VOCdevkit/VOC2012/lists": "."}
    assert extract(path, tmp_path / "out", unpack) == 2
    assert tree(tmp_path / "out") == {"images/a.jpg": b"photo", "train.txt": b"a\n"}
    with pytest.raises(DataError, match="no file of ADE: check"):
        extract(path, tmp_path / "other", {"ADE": "."})
    assert tree(tmp_path / "other") == {}


def test_unpacked_archive_is_recorded(tmp_path):
    path, out = make(tmp_path, "zip"), tmp_path / "out"
    (out / "VOCdevkit").mkdir(parents=True)
    (out / "VOCdevkit/readme.txt").write_bytes(b"old")
    (out / "mine.txt").write_bytes(b"mine")
    assert not is_unpacked(path, out)
    extract(path, out, ALL)
    assert tree(out) == FILES | {"mine.txt": b"mine"}
    assert is_unpacked(path, out)
    path.unlink()
    assert is_unpacked(path, out)
    make(tmp_path, "zip", {"other.txt": b"of another length"})
    assert not is_unpacked(path, out)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    "name", ["../evil.txt", "/etc/evil.txt", "a/../../evil.txt", "a\\..\\evil.txt", "C:/evil.txt"]
)
@pytest.mark.parametrize("unpack", [ALL, {".": "sub"}])
def test_no_member_is_written_outside_the_folder(tmp_path, kind, name, unpack):
    path = make(tmp_path, kind, {name: b"evil"})
    out = tmp_path / "deep" / "out"
    with suppress(DataError):  # refused, or put inside the folder
        extract(path, out, unpack)
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p != path]
    assert all(p.is_relative_to(out) for p in files)


@pytest.mark.parametrize(
    "kind", ["zip", *(getattr(tarfile, f"{k}TYPE") for k in ("SYM", "LNK", "CHR", "BLK", "FIFO"))]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    path = tmp_path / "set.archive"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            info = zipfile.ZipInfo("way_out")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(info, str(tmp_path))
    else:
        with tarfile.open(path, "w") as file:
            info = tarfile.TarInfo("way_out")
            info.type, info.linkname = kind, str(tmp_path)
            file.addfile(info)
            info = tarfile.TarInfo("way_out/evil.txt")
            info.size = 4
            file.addfile(info, io.BytesIO(b"evil"))
    with pytest.raises(DataError, match=r"set\.archive: member 'way_out'"):
        extract(path, tmp_path / "out", ALL)
    assert list((tmp_path / "out").iterdir()) == []
    assert not (tmp_path / "evil.txt").exists()


@pytest.mark.parametrize("kind", ["zip", "tgz"])
def test_unpacked_size_is_limited(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(archive, "_ALWAYS_ALLOWED", 0)
    path = make(tmp_path, kind, {"a": b"a", "bomb": bytes(5_000_000)})
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match=r"\(at bomb\): free some space"):
        extract(path, tmp_path / "out", ALL)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_truncated_archive_leaves_nothing(tmp_path, kind, keep):
    random = np.random.default_rng(0)
    path = make(tmp_path, kind, {f"{i}.bin": random.bytes(10_000) for i in range(8)})
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DataError, match=r"set\."):
        extract(path, tmp_path / "out", ALL)
    assert list((tmp_path / "out").iterdir()) == []
