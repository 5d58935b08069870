"""Genuine files of each format, read by ``data=folder`` and held to the figures measured on them.

The figures stand in ``shared/data/formats/README.md``; tolerances are half of their last digit.
"""

import warnings
from pathlib import Path

import cv2
import h5py
import numpy as np
import OpenEXR
import pytest
import scipy.io

from dpt.data import DataError, FolderDataset
from dpt.data.datasets.indoor import SunRgbdDataset
from dpt.data.formats import arrays, io

RNG = np.random.default_rng(0)


def voc_colors(count: int) -> list[list[int]]:
    """Pascal VOC's colour table: the id's bits, dealt to red, green and blue from the top."""
    return [
        [sum((i >> (3 * k + c) & 1) << (7 - k) for k in range(3)) for c in range(3)]
        for i in range(count)
    ]


@pytest.fixture(scope="session")
def formats(shared_data) -> Path:
    return shared_data / "formats"


def read(root: Path, **options) -> list[dict]:
    """Every sample of a flat folder."""
    dataset = FolderDataset(root=root, split="train", fractions={"train": 1.0}, **options)
    return [dataset[i] for i in range(len(dataset))]


def near(value: float) -> object:
    """Rounded as the README prints it, to two digits."""
    return pytest.approx(value, abs=0.0051)


# ------------------------------------------------------------------------------------- depth

# folder: settings, then for each file: percent invalid, smallest, largest, median (metres)
DEPTH = {
    "kitti": ({"depth_scale": 1 / 256}, [(80.5, 5.33, 84.89, 13.84), (81.7, 5.13, 80.81, 13.24)]),
    "nyu_png": (
        {"images_name": "rgb_%stem", "depth_name": "sync_depth_%stem"},
        [(26.7, 1.39, 6.63, 3.26), (24.9, 0.89, 8.27, 3.21)],
    ),
    "tum": (
        {
            "images": ".",
            "depth": ".",
            "images_name": "%stem_color",
            "depth_name": "%stem_depth",
            "depth_scale": 1 / 5000,
        },
        [(19.2, 1.46, 9.33, 2.42)],
    ),
    "redwood": ({}, [(13.0, 0.96, 2.70, 1.86)]),
    "exr": (
        {
            "images_name": "%stem-opaque-rgb-img",
            "depth_name": "%stem-opaque-depth-img",
            "depth_scale": 1,
        },
        [(8.8, 0.43, 0.95, 0.60), (19.7, 0.35, 1.05, 0.60)],
    ),
}


@pytest.mark.parametrize("name", DEPTH)
def test_depth(formats, name):
    options, figures = DEPTH[name]
    samples = read(formats / name, max_depth=1000, **{"depth": "depth"} | options)
    assert len(samples) == len(figures)
    for sample, (invalid, smallest, largest, median) in zip(samples, figures, strict=True):
        depth = sample["depth"][sample["valid"]]
        assert 100 * (~sample["valid"]).mean() == pytest.approx(invalid, abs=0.051)
        assert depth.min() == near(smallest)
        assert depth.max() == near(largest)
        assert np.median(depth) == near(median)
        assert (sample["depth"][~sample["valid"]] == 0).all()


def test_files_without_a_setting(formats):
    """Read as stored: the SUN RGB-D data set, a PFM of disparity, a raw PGM and an NPY."""
    (path,) = (formats / "sunrgbd").glob("*_depth.png")
    depth, valid = SunRgbdDataset.depth_format(io.read_raw_depth(path))
    assert (100 * (~valid).mean(), np.median(depth[valid])) == pytest.approx((18.2, 2.72), abs=0.05)
    (path,) = (formats / "pfm_disparity/disparity").iterdir()
    pixels = io.read_raw_depth(path)
    assert [pixels.min(), pixels.max()] == pytest.approx([1.15, 75.9], abs=0.051)
    (path,) = (formats / "nyu_raw_pgm").glob("*_depth.pgm")
    assert io.read_raw_depth(path).dtype == np.uint16
    (path,) = (formats / "npy").glob("depth*.npy")
    depth, _ = io.read_depth(path)
    assert [depth.min(), depth.max()] == [near(0.72), near(5.87)]


# ------------------------------------------------------------------------------------ labels


def ids(samples: list[dict]) -> list[list[int]]:
    return [np.unique(sample["labels"]).tolist() for sample in samples]


def test_palette_masks(formats):
    voc = read(formats / "voc", images="JPEGImages", labels="SegmentationClass", num_classes=21)
    assert ids(voc) == [[0, 12, 17, 255], [0, 5, 15, 255]]
    assert voc[1]["image"].shape == (500, 333, 3)
    same_folder = {"images": ".", "labels": ".", "images_name": "%stem.png", "missing": "skip"}
    (nyu,) = read(formats / "nyu40_mask", labels_name="%stem_mask", num_classes=40, **same_folder)
    assert ids([nyu]) == [[0, 1, 2, 7, 10, 11, 12, 23, 30, 33, 37, 39, 255]]
    assert nyu["labels"].shape == (468, 625)


def test_colour_masks(formats):
    options = {"images": ".", "labels": ".", "label_colors": voc_colors(60)}
    options |= {"images_name": "%stem.jpg", "labels_name": "%stem.png"}
    assert ids(read(formats / "pascal_context_rgb", num_classes=60, **options)) == [
        [3, 36, 37, 57, 59]
    ]
    without_background = read(formats / "pascal_context_rgb", label_map="1-59", **options)
    assert ids(without_background) == [[2, 35, 36, 56, 58]]


# ---------------------------------------------------------------------------- made-up files

MAP = RNG.uniform(0.5, 9, (7, 9)).astype(np.float32)


def write_exr(path: Path, channels: dict[str, np.ndarray]) -> Path:
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    OpenEXR.File(header, channels).write(str(path))
    return path


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint32])
@pytest.mark.parametrize("name", ["Z", "Y", "V", "View Layer.Depth.Z"])
def test_exr_of_one_channel(tmp_path, name, dtype):
    raw = io.read_raw_depth(write_exr(tmp_path / "d.exr", {name: MAP.astype(dtype)}))
    assert raw.dtype == dtype
    assert np.array_equal(raw, MAP.astype(dtype))


def test_exr_of_several_channels(tmp_path):
    grey = MAP.copy()
    grey[0, 0] = np.nan
    path = write_exr(tmp_path / "grey.exr", dict.fromkeys("RGB", grey))
    assert np.array_equal(io.read_raw_depth(path), grey, equal_nan=True)
    path = write_exr(tmp_path / "layers.exr", {"R": MAP + 1, "G": MAP + 2, "Z": MAP})
    assert np.array_equal(io.read_raw_depth(path), MAP)
    assert np.array_equal(io.read_raw_depth(path, key="G"), MAP + 2)
    path = write_exr(tmp_path / "rgb.exr", {"R": MAP + 1, "G": MAP + 2, "B": MAP})
    with pytest.raises(DataError, match=r"rgb\.exr: .*\(B, G, R\).*data\.depth_key"):
        io.read_raw_depth(path)


@pytest.mark.parametrize("version", ["5", "5 compressed", "7.3"])
def test_mat_round_trip(tmp_path, version):
    """7.3 as MATLAB lays it out: HDF5 behind a text block of 512 bytes, axes in reverse."""
    path, stack = tmp_path / "d.mat", np.stack([MAP, MAP + 1, MAP + 2], axis=2)
    if version == "7.3":
        with h5py.File(path, "w", userblock_size=512) as file:
            file["depth"], file["stack"] = MAP.T, stack.T
        data = path.read_bytes()
        path.write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + data[512:])
    else:
        values = {"depth": MAP, "stack": stack}
        scipy.io.savemat(path, values, do_compression=version.endswith("compressed"))
    assert np.array_equal(io.read_raw_depth(path, key="depth"), MAP)
    assert np.array_equal(arrays.read_mat(path, "stack", index=1), MAP + 1)


LARGE = RNG.integers(1, 60000, (64, 80)).astype(np.uint16)


def depth_file(path: Path, depth: np.ndarray = LARGE, *, compressed: bool = False) -> Path:
    """``depth`` in the format that the suffix names."""
    if path.suffix == ".exr":
        return write_exr(path, {"Z": depth.astype(np.float32)})
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            file["dataset"] = depth
    elif path.suffix == ".mat":
        scipy.io.savemat(path, {"depth": depth}, do_compression=compressed)
    elif path.suffix == ".npy":
        np.save(path, depth)
    elif path.suffix == ".npz":
        (np.savez_compressed if compressed else np.savez)(path, depth)
    elif path.suffix == ".pfm":
        height, width = depth.shape
        path.write_bytes(f"Pf\n{width} {height}\n-1\n".encode() + depth.astype("<f4").tobytes())
    else:
        cv2.imwrite(str(path), depth)
    return path


@pytest.mark.parametrize("fraction", [0, 0.5, 0.999])
@pytest.mark.parametrize(
    "suffix", [".png", ".tif", ".pgm", ".exr", ".h5", ".mat", ".npy", ".npz", ".pfm"]
)
def test_truncated_files_are_named(tmp_path, suffix, fraction):
    path = depth_file(tmp_path / f"d{suffix}")
    assert io.read_raw_depth(path).shape == (64, 80)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's on half a header
        with pytest.raises(DataError, match=rf"d\{suffix}: "):
            io.read_raw_depth(path)
