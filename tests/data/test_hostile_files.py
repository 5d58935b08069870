"""Files that would block a reader, fill the memory, or lead to other files."""

import io as bytes_io
import os
import struct
import tracemalloc
import zipfile
import zlib

import cv2
import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from made_png import chunk, png
from PIL import Image
from test_file_formats import depth_file

from dpt import files
from dpt.data import DataError, FolderDataset
from dpt.data.formats import arrays, io, pictures
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.data.shards.samples import decode_sample, encode_sample

MAP = np.arange(1, 601, dtype=np.uint16).reshape(20, 30)


def bomb(side, *, color_type):
    """A PNG that claims to have that many rows and columns."""
    return png(side, side, np.zeros((1, side), np.uint8), color_type=color_type)


@pytest.mark.parametrize("suffix", [".png", ".npy", ".npz", ".exr", ".h5", ".mat", ".pfm", ".tif"])
@pytest.mark.parametrize("kind", ["FIFO", "device"])
def test_what_is_no_regular_file_is_not_opened(tmp_path, suffix, kind):
    path = tmp_path / f"a{suffix}"
    os.mkfifo(path) if kind == "FIFO" else path.symlink_to("/dev/zero")
    for read in (io.read_image, io.read_labels, io.read_raw_depth, pictures.read_size, VideoReader):
        with pytest.raises(DataError, match=rf"a\{suffix}: is a FIFO, a socket or a device"):
            read(path)
    assert pictures.exif_orientation(path) == 1


@pytest.mark.parametrize("color_type", [0, 2, 3])
@pytest.mark.parametrize("side", [30_000, 13_300])  # Pillow refuses one itself
def test_pixels_are_counted_before_they_are_decoded(tmp_path, color_type, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(side, color_type=color_type))
    for read in (io.read_image, io.read_labels, io.read_raw_depth, pictures.read_size):
        with pytest.raises(DataError, match=r"bomb\.png: .*pixels"):
            read(path)


@pytest.mark.parametrize(
    "suffix",
    [".png", ".jpg", ".tif", ".bmp", ".webp", ".pgm", ".exr", ".h5", ".mat", ".npy", ".npz"],
)
def test_one_limit_holds_for_every_format(tmp_path, monkeypatch, suffix):
    depth = MAP if suffix in (".exr", ".h5", ".mat", ".npy", ".npz") else MAP.astype(np.uint8)
    path = depth_file(tmp_path / f"a{suffix}", depth, compressed=True)
    if suffix != ".webp":  # which has colours always
        io.read_raw_depth(path)
    monkeypatch.setattr(files, "MAX_PIXELS", 599)
    monkeypatch.setattr(files, "MAX_BYTES", 1199)
    with pytest.raises(DataError, match=rf"a\{suffix}: .* more than"):
        io.read_raw_depth(path)


def test_limit_holds_for_videos(tmp_path, monkeypatch):
    writer = VideoWriter(tmp_path / "a.mp4", fps=8.0)
    writer.write(np.zeros((20, 30, 3), np.uint8))
    writer.close()
    monkeypatch.setattr(files, "MAX_PIXELS", 599)
    with pytest.raises(DataError, match=r"a\.mp4: has more than 0\.000599 million pixels"):
        VideoReader(tmp_path / "a.mp4")


def test_arrays_that_declare_more_than_they_hold(tmp_path):
    header = np.lib.format.header_data_from_array_1_0(MAP) | {"shape": (10**6, 10**6)}
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.write(tmp_path / "a.npy", "depth.npy")
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match=rf"{name}: .* takes more than 1400 MB"):
            io.read_raw_depth(tmp_path / name)


def test_a_header_of_numpy_that_unpacks_to_much_is_not_read(tmp_path):
    length = 1 << 25
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("depth.npy", b"\x93NUMPY\2\0" + struct.pack("<I", length) + b" " * length)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"a\.npz: "):
        io.read_raw_depth(tmp_path / "a.npz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < length // 4


def test_pickled_arrays_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    np.savez(tmp_path / "a.npz", depth=np.array([[{}, {}], [{}, {}]]))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataError, match=rf"{name}: "):
            io.read_raw_depth(tmp_path / name)


def mat(*, compressed=False):
    content = bytes_io.BytesIO()
    values = {
        "depth": MAP.astype(float),
        "info": {"name": "text", "list": np.arange(3)},
        "cells": np.array([MAP, "text"], object),
    }
    scipy.io.savemat(content, values, do_compression=compressed)
    return bytearray(content.getvalue())


def sparse_mat():
    """A sparse matrix as a logical one, without its values."""
    content = bytes_io.BytesIO()
    scipy.io.savemat(content, {"depth": scipy.sparse.csc_matrix(MAP)})
    data = bytearray(content.getvalue())
    data[145] |= 2
    return bytes(data[:-8])


def changed_mat(place, value):
    data = mat()
    data[place : place + len(value)] = value
    return bytes(data)


MATS = {
    "type of the numbers": changed_mat(184, b"\xc8"),
    "size of the numbers": changed_mat(188, b"\xff\xff\xff\x7f"),
    "shape": changed_mat(160, b"\xff\xff\xff\x7f\xff\xff\xff\x7f"),
    "no matrix": changed_mat(128, b"\x09"),
    "sparse": sparse_mat(),
    "byte order": changed_mat(126, b"XX"),
    "version 4": struct.pack("<5i", 0, 2, 2, 0, 2) + b"a\0" + bytes(32),
}


@pytest.mark.parametrize("fault", MATS)
def test_tags_of_a_mat_file_are_checked_first(tmp_path, fault):
    (tmp_path / "a.mat").write_bytes(MATS[fault])
    with pytest.raises(DataError, match=r"a\.mat: "):
        io.read_raw_depth(tmp_path / "a.mat", key="depth")


def test_mat_file_in_itself(tmp_path, monkeypatch):
    """Elements nested in one another, in a compressed one, and more than fits."""
    deep = b""
    for _ in range(60):
        flags = struct.pack("<IIIIIIIIII", 6, 8, 1, 0, 5, 8, 1, 1, 1, 0)
        deep = flags + struct.pack("<II", 14, len(deep)) + deep
    packed = zlib.compress(struct.pack("<II", 14, len(deep)) + deep)
    for kind, content in ((14, deep), (15, packed)):
        data = mat()[:128] + struct.pack("<II", kind, len(content)) + content
        (tmp_path / "a.mat").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.mat: .*nested too deep"):
            io.read_raw_depth(tmp_path / "a.mat")
    monkeypatch.setattr(arrays, "_MAX_UNPACKED", 1000)
    (tmp_path / "a.mat").write_bytes(mat(compressed=True))
    with pytest.raises(DataError, match=r"a\.mat: "):
        io.read_raw_depth(tmp_path / "a.mat")


def test_hdf5_that_declares_more_than_it_holds(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("depth", (50_000, 50_000), np.float64, chunks=(100, 100))
        large = {"maxshape": (None,) * 3, "chunks": (2, 40_000, 40_000)}
        file.create_dataset("frames", (2, 5, 5), np.uint8, **large)
    for key, index in {"depth": None, "frames": 0}.items():
        with pytest.raises(DataError, match=r"a\.h5: .* takes more than 1400 MB"):
            arrays.read_hdf5(tmp_path / "a.h5", key, index=index)


def test_hdf5_reads_no_other_file(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["depth"] = MAP
    (tmp_path / "raw").write_bytes(MAP.tobytes())
    os.mkfifo(tmp_path / "fifo")
    layout = h5py.VirtualLayout(MAP.shape, MAP.dtype)
    layout[...] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "depth", MAP.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["outside"] = h5py.ExternalLink("secret.h5", "/depth")
        file["group/outside"] = h5py.ExternalLink("secret.h5", "/")
        file["blocks"] = h5py.ExternalLink("fifo", "/depth")
        file["soft"] = h5py.SoftLink("/outside")
        external = [(str(tmp_path / "raw"), 0, MAP.nbytes)]
        file.create_dataset("stored", MAP.shape, MAP.dtype, external=external)
        file.create_virtual_dataset("virtual", layout)
        file["own"] = MAP
    keys = ("outside", "group/outside/depth", "blocks", "soft", "stored", "virtual")
    for key in keys:
        with pytest.raises(
            DataError, match=r"a\.h5: (cannot be read|holds no|.* is stored in other files)"
        ):
            io.read_raw_depth(tmp_path / "a.h5", key=key)
    assert np.array_equal(io.read_raw_depth(tmp_path / "a.h5", key="own"), MAP)


def test_large_comment_is_no_fault_of_a_picture(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 5, 3), np.uint8))
    data = (tmp_path / "a.png").read_bytes()
    comment = chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(2_000_000)))
    comment += chunk(b"eXIf", b"II*\0\x08\0")  # a damaged tag
    (tmp_path / "a.png").write_bytes(data[:33] + comment + data[33:])
    assert pictures.exif_orientation(tmp_path / "a.png") == 1
    assert io.read_image(tmp_path / "a.png").shape == (4, 5, 3)
    assert pictures.read_size(tmp_path / "a.png") == (4, 5)
    Image.fromarray(MAP.astype(np.uint8) % 2).convert("P").save(tmp_path / "p.png")
    data = (tmp_path / "p.png").read_bytes()
    ids = io.read_labels(tmp_path / "p.png")
    (tmp_path / "p.png").write_bytes(data[:33] + comment + data[33:])
    assert np.array_equal(io.read_labels(tmp_path / "p.png"), ids)


NAMES = [b"caf\xe9", b"line\nbreak", "ü".encode()]


def test_names_that_are_not_plain_text(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        for name in NAMES:
            path = tmp_path / folder / os.fsdecode(name + b".png")
            Image.fromarray(MAP.astype(np.uint8) % 3).save(path)
    options = {"labels": "masks", "num_classes": 3, "fractions": {"train": 1.0}}
    dataset = FolderDataset(root=tmp_path, split="train", **options)
    samples = [dataset[i] for i in range(len(dataset))]
    names = {sample["name"].encode().rpartition(b"/")[2] for sample in samples}
    assert names == {b"caf\\udce9.png", b"line\nbreak.png", "ü.png".encode()}
    for sample in samples:
        copy = decode_sample(encode_sample(sample), source="s")
        assert copy["name"] == sample["name"]
        assert np.array_equal(copy["image"], sample["image"])
    (tmp_path / "images" / os.fsdecode(NAMES[0] + b".png")).write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        list(map(dataset.__getitem__, range(3)))
    assert "caf\\udce9.png" in str(caught.value).encode().decode()


@pytest.mark.parametrize(
    ("name", "content"),
    [("labels.png", None), ("json", b"[" * 100_000), ("json", b'{"a":' * 100_000)],
)
def test_shard_of_huge_labels_or_deep_json(name, content):
    sample = {"image": np.zeros((4, 5, 3), np.uint8), "labels": np.zeros((4, 5), np.uint8)}
    files_of_sample = encode_sample(sample) | {name: content or bomb(30_000, color_type=0)}
    with pytest.raises(DataError, match=rf"^s\.{name}: "):
        decode_sample(files_of_sample, source="s")


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("color_type", [0, 3])
def test_png_without_its_last_rows_is_refused(tmp_path, bits, color_type):
    """The stream of its pixels is whole, and so are all checksums."""
    rows = np.zeros((8, bits), np.uint8)
    for count, name in ((8, "whole"), (5, "cut")):
        data = png(8, 8, rows[:count], bits=bits, color_type=color_type)
        (tmp_path / f"{name}.png").write_bytes(data)
    assert not io.read_labels(tmp_path / "whole.png").any()
    with pytest.raises(DataError, match=r"cut\.png"):
        io.read_labels(tmp_path / "cut.png")
