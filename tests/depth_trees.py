"""Small trees laid out as the depth data sets are: eight frames or so, of 24 x 32 pixels."""

from pathlib import Path

import h5py
import numpy as np
import scipy.io
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from photos import save_picture
from PIL import Image

from dpt.config.schema import DataConfig
from dpt.data import Dataset
from dpt.files import config_dir

SIZE = (24, 32)
RNG = np.random.default_rng(0)


def configured(name: str, root: Path, *overrides: str, split: str = "train") -> Dataset:
    """The data set that ``data=name`` means, with the user's further overrides."""
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("train", [f"data={name}", f"data.root={root}", *overrides])
    return DataConfig.read(OmegaConf.to_container(cfg.data, resolve=True)).make(split)


def photo(path: Path) -> np.ndarray:
    pixels = RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    save_picture(path, pixels)
    return pixels


def depth_png(path: Path, metres: float | np.ndarray, *, scale: float) -> None:
    """A 16-bit PNG; its first row is 0, which means not measured."""
    raw = np.full(SIZE, np.round(np.asarray(metres) * scale), np.uint16)
    raw[0] = 0
    save_picture(path, raw)


def nyuv2(root: Path) -> dict[str, np.ndarray]:
    """Five frames, three of them for training; returns the arrays as MATLAB would show them."""
    root.mkdir(parents=True, exist_ok=True)
    arrays = {
        "images": RNG.integers(0, 256, (*SIZE, 3, 5), dtype=np.uint8),
        "depths": RNG.uniform(0.7, 9.9, (*SIZE, 5)).astype(np.float32),
        "labels": RNG.integers(0, 895, (*SIZE, 5)).astype(np.uint16),
    }
    arrays["rawDepths"] = np.where(RNG.random((*SIZE, 5)) < 0.2, 0, arrays["depths"])
    with h5py.File(root / "nyu_depth_v2_labeled.mat", "w", userblock_size=512) as file:
        for name, values in arrays.items():
            file[name] = values.T
    numbers = {"trainNdxs": [[5], [1], [2]], "testNdxs": [[3], [4]]}
    splits = {name: np.array(values, np.uint16) for name, values in numbers.items()}
    scipy.io.savemat(root / "splits.mat", splits)
    return arrays


def nyu40_mapping(root: Path) -> np.ndarray:
    """What each of 894 raw ids is among the 40."""
    class_of_id = np.concatenate([np.arange(1, 41), RNG.integers(1, 41, 854)]).astype(np.uint8)
    scipy.io.savemat(root / "classMapping40.mat", {"mapClass": class_of_id[None]})
    return class_of_id


def nyuv2_bts(root: Path) -> None:
    """Frame N is N + 1 metres away."""
    scenes = {"train": ("sync", "kitchen_0028b"), "test": ("official_splits/test", "bathroom")}
    for split, (folder, scene) in scenes.items():
        lines = []
        for i in range(4):
            names = f"{scene}/rgb_{i:05}.jpg", f"{scene}/sync_depth_{i:05}.png"
            photo(root / folder / names[0])
            depth_png(root / folder / names[1], i + 1.0, scale=1000)
            lines.append(f"/{names[0]} /{names[1]} 518.8579")
        lines.append(f"/{scene}/rgb_00004.jpg None 518.8579")
        (root / f"nyudepthv2_{split}_files_with_gt.txt").write_text("\n".join(lines) + "\n")


SUNRGBD = (
    "kv1/NYUdata/NYU0001",
    "kv1/NYUdata/NYU0002",
    "kv2/kinect2data/000001_2014",
    "realsense/lg/2014_10-30",
    "xtion/sun3ddata/brown/brown_1",
)


def sunrgbd(root: Path) -> None:
    """Frame N is N + 1 metres away; the toolbox's test frames are the two of kv1."""
    for i, name in enumerate(SUNRGBD):
        photo(root / "SUNRGBD" / name / f"image/{i:07}.jpg")
        for kind, extra in (("depth", 0.0), ("depth_bfx", 0.5)):
            millimetres = np.full(SIZE, round(1000 * (i + 1 + extra)), np.uint16)
            millimetres[0] = 0
            rotated = (millimetres << 3) | (millimetres >> 13)
            depth_png(root / "SUNRGBD" / name / f"{kind}/{i:07}_abs.png", rotated, scale=1)
    folder = root / "SUNRGBDtoolbox/traintestSUNRGBD"
    folder.mkdir(parents=True)
    full = [f"/n/fs/sun3d/data//SUNRGBD/{name}/" for name in SUNRGBD]
    cells = {"alltrain": full[2:], "alltest": full[:2]}
    arrays = {key: np.array([values], dtype=object) for key, values in cells.items()}
    scipy.io.savemat(folder / "allsplit.mat", arrays)


def sunrgbd_masks(root: Path) -> dict[str, np.ndarray]:
    """The toolbox's masks of :func:`sunrgbd`'s frames in an order of their own, by frame.

    A struct of MATLAB's version 7.3 is a group whose fields hold references.
    """
    folder = root / "SUNRGBDtoolbox/Metadata"
    folder.mkdir(parents=True)
    names = [SUNRGBD[4], SUNRGBD[1], "elsewhere/unused", SUNRGBD[2], SUNRGBD[3], SUNRGBD[0]]
    masks = {name: RNG.integers(0, 38, SIZE).astype(np.uint8) for name in names}
    with h5py.File(folder / "SUNRGBD2Dseg.mat", "w", userblock_size=512) as file:
        for field in ("seglabel", "seglabelall"):
            stored = [
                file.create_dataset(f"#refs#/{field}{i}", data=masks[name].T)
                for i, name in enumerate(names)
            ]
            column = file.create_dataset(f"SUNRGBD2Dseg/{field}", (len(names), 1), h5py.ref_dtype)
            column[:, 0] = [part.ref for part in stored]
    entries = np.empty((1, len(names)), dtype=[("sequenceName", object), ("valid", object)])
    entries[0] = [(f"SUNRGBD/{name}", 1) for name in names]
    scipy.io.savemat(folder / "SUNRGBDMeta.mat", {"SUNRGBDMeta": entries})
    return masks


def tum(root: Path, sequences: tuple[str, ...] = ("freiburg1_desk", "freiburg2_xyz")) -> None:
    """Photos at 30 Hz; depth 5 ms later, but for the second, whose depth comes 25 ms too late."""
    for name in sequences:
        lines: dict[str, list[str]] = {"rgb": ["# color images"], "depth": ["# depth maps"]}
        for i in range(5):
            time = 1305031102.175304 + i / 30
            later = time + (0.025 if i == 1 else 0.005)
            photo(root / name / f"rgb/{time:.6f}.png")
            depth_png(root / name / f"depth/{later:.6f}.png", i + 1.0, scale=5000)
            lines["rgb"].append(f"{time:.6f} rgb/{time:.6f}.png")
            lines["depth"].append(f"{later:.6f} depth/{later:.6f}.png")
        for kind, text in lines.items():
            (root / name / f"{kind}.txt").write_text("\n".join(text) + "\n")


def vkitti2(root: Path) -> None:
    """Two scenes in two variations with both cameras; the upper half is sky."""
    for scene in ("Scene01", "Scene20"):
        for variation in ("clone", "fog"):
            for camera in ("Camera_0", "Camera_1"):
                frames = root / scene / variation / "frames"
                for i in range(2):
                    photo(frames / f"rgb/{camera}/rgb_{i:05}.jpg")
                    centimetres = np.full(SIZE, 1234.0 + i)
                    centimetres[: SIZE[0] // 2] = 65535
                    depth_png(frames / f"depth/{camera}/depth_{i:05}.png", centimetres, scale=1)


def vkitti2_masks(root: Path) -> np.ndarray:
    """The same mask for every frame of :func:`vkitti2`; returns its ids, the last undefined."""
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        table = compose("data_check", ["data=vkitti2"]).data.label_colors
    colors = np.array(table, np.uint8)
    ids = RNG.integers(0, len(colors), SIZE)
    for folder in list(root.glob("*/*/frames/rgb/*")):
        target = folder.parents[1] / "classSegmentation" / folder.name
        target.mkdir(parents=True)
        for photo in folder.iterdir():
            number = photo.stem.removeprefix("rgb_")
            Image.fromarray(colors[ids]).save(target / f"classgt_{number}.png")
    return ids


def hypersim(root: Path, *, scenes: tuple[str, ...] = ("ai_001_001", "ai_003_010")) -> np.ndarray:
    """Three frames a scene, one of them withheld; returns the distances in their files."""
    distance = RNG.uniform(1, 9, SIZE).astype(np.float16)
    distance[0, 0] = np.nan
    columns = "scene_name camera_name frame_id included_in_public_release exclude_reason"
    lines = [",".join([*columns.split(), "split_partition_name"])]
    for scene, split in (("ai_001_001", "train"), ("ai_003_010", "val"), ("ai_004_001", "train")):
        for frame in range(3):
            lines.append(f"{scene},cam_00,{frame},{frame != 1},,{split}")
            if scene not in scenes or frame == 1:
                continue
            images = root / scene / "images"
            photo(images / f"scene_cam_00_final_preview/frame.{frame:04}.tonemap.jpg")
            geometry = images / "scene_cam_00_geometry_hdf5"
            geometry.mkdir(exist_ok=True)
            with h5py.File(geometry / f"frame.{frame:04}.depth_meters.hdf5", "w") as file:
                file["dataset"] = distance
            with h5py.File(geometry / f"frame.{frame:04}.semantic.hdf5", "w") as file:
                ids = np.arange(SIZE[0] * SIZE[1]).reshape(SIZE) % 42
                file["dataset"] = np.where(ids == 0, -1, ids).astype(np.int16)
    (root / "metadata_images_split_scene_v1.csv").write_text("\n".join(lines) + "\n")
    return distance
