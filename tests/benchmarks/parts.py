"""Loading beside the usual ways to write it, on one core.

Seconds of loading are processor time, so that other programs do not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from benchmarks.timing import take_turns, timing_table
from torch import Tensor

from dpt.data import FolderDataset, TrainTransform, read_image

ZOOM = (1.0, 1.5)
SAMPLES = 12
"""Samples of a turn, each with its own crop."""
NUM_CLASSES = 19
Maps = Literal["labels", "depth"]
Load = Callable[[int], Any]

MADE: tuple[tuple[Maps, tuple[int, int]], ...] = (
    ("depth", (480, 640)),
    ("labels", (1024, 2048)),
    ("depth", (1024, 2048)),
)
"""What is timed without a folder: the maps that come with images of (H, W)."""


@contextmanager
def on_one_core() -> Iterator[None]:
    """Neither torch nor OpenCV divides its work."""
    torch_threads, cv2_threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        torch.set_num_threads(torch_threads)
        cv2.setNumThreads(cv2_threads)


@on_one_core()
def bench_data(*, root: str | None, size: tuple[int, int], rounds: int) -> str:
    """Returns samples a second on one core, decoding included.

    Args:
        root: a folder with ``images`` and 16-bit ``depth``; None makes images, see ``MADE``.
    """
    if root is not None:
        return _bench_folder(root, "depth", size, rounds)
    tables = []
    for maps, shape in MADE:
        with tempfile.TemporaryDirectory() as folder:
            make_images(Path(folder), shape, maps)
            table = _bench_folder(folder, maps, size, rounds)
            tables.append(f"{shape[1]} × {shape[0]} with {maps}\n\n{table}")
    return "\n\n".join(tables)


def make_images(folder: Path, shape: tuple[int, int], maps: Maps, count: int = SAMPLES) -> None:
    """Writes JPEG images, with class ids as 8-bit PNG or depth in millimetres as 16-bit PNG."""
    random = np.random.default_rng(0)
    height, width = shape
    for name in ("images", maps):
        (folder / name).mkdir(parents=True)
    for i in range(count):
        noise = random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        image = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        image = image // 2 + random.integers(0, 24, image.shape, dtype=np.uint8)
        cv2.imwrite(str(folder / f"images/{i:03d}.jpg"), image)
        if maps == "labels":
            ids = noise[..., 0] % NUM_CLASSES
            target = cv2.resize(ids, (width, height), interpolation=cv2.INTER_NEAREST)
        else:  # surfaces, a sensor's noise and its holes
            depth = cv2.resize(noise[..., 1] * np.float32(30) + 500, (width, height))
            depth = depth + random.normal(0, 6, depth.shape)
            depth[random.random(depth.shape) < 0.02] = 0
            target = np.maximum(depth, 0).astype(np.uint16)
        cv2.imwrite(str(folder / f"{maps}/{i:03d}.png"), target)


def _bench_folder(root: str, maps: Maps, size: tuple[int, int], rounds: int) -> str:
    target: dict[str, Any] = {"labels": maps, "num_classes": NUM_CLASSES}
    if maps == "depth":
        target = {"depth": maps, "max_depth": 10.0, "invalid_depth": (0, 65535)}
    fractions = None if Path(root, "images/train").is_dir() else {"train": 1.0}
    dataset = partial(FolderDataset, root=root, split="train", fractions=fractions, **target)
    plain = dataset()
    cached = dataset(cache=True, cache_size=(round(size[0] * ZOOM[1]), round(size[1] * ZOOM[1])))
    cached.preload()
    files = [plain.files(i) for i in range(len(plain))]
    pairs = [(str(f.image), str(f.labels or f.depth)) for f in files]
    runs = {
        "dpt": ours(plain, size),
        "cv2 + albumentations": straightforward(pairs, size),
        "PIL + torchvision v2": with_torchvision(pairs, size),
        "dpt, data.cache=true": ours(cached, size),
    }

    def turn_of(load: Load) -> Load:
        return lambda turn: [load(turn * SAMPLES + i) for i in range(SAMPLES)]

    turns = {name: turn_of(load) for name, load in runs.items()}
    seconds = take_turns(turns, rounds, clock=time.process_time)
    by_sample = {name: [s / SAMPLES for s in values] for name, values in seconds.items()}
    return timing_table(by_sample, unit="samples/s")


def ours(dataset: FolderDataset, size: tuple[int, int]) -> Load:
    transform = TrainTransform(image_size=size, zoom=ZOOM, hflip=0.5, color=0.5)

    def load(turn: int) -> dict[str, Tensor]:
        sample: Any = transform(dataset[turn % len(dataset)], seed=turn)
        return {k: torch.from_numpy(v) for k, v in sample.items() if isinstance(v, np.ndarray)}

    return load


def straightforward(pairs: Sequence[tuple[str, str]], size: tuple[int, int]) -> Load:
    """Scales the whole image, crops, flips, colours: albumentations' documented order."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    height, width = read_image(pairs[0][0]).shape[:2]
    fit = max(size[0] / height, size[1] / width)
    compose = A.Compose(
        [
            A.RandomScale(scale_limit=(fit * ZOOM[0] - 1, fit * ZOOM[1] - 1), p=1.0),
            A.PadIfNeeded(*size),
            A.RandomCrop(*size),
            A.HorizontalFlip(p=0.5),
            A.ColorJitter((0.8, 1.2), (0.8, 1.2), (0.8, 1.2), (-0.05, 0.05), p=0.8),
            A.Normalize(),
            ToTensorV2(),
        ]
    )

    def load(turn: int) -> Any:
        image_file, mask_file = pairs[turn % len(pairs)]
        image = cv2.cvtColor(cv2.imread(image_file), cv2.COLOR_BGR2RGB)
        return compose(image=image, mask=_scaled(cv2.imread(mask_file, cv2.IMREAD_UNCHANGED)))

    return load


def with_torchvision(pairs: Sequence[tuple[str, str]], size: tuple[int, int]) -> Load:
    """Decodes by Pillow; torchvision's v2 transforms do the rest on tensors."""
    from PIL import Image
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    ratio = size[1] / size[0]
    compose = v2.Compose(
        [
            v2.RandomResizedCrop(size, scale=(1 / ZOOM[1] ** 2, 1.0), ratio=(ratio, ratio)),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.2, 0.05)], p=0.8),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )

    def load(turn: int) -> Any:
        image_file, mask_file = pairs[turn % len(pairs)]
        mask = tv_tensors.Mask(_scaled(np.array(Image.open(mask_file))))
        return compose(v2.functional.to_image(Image.open(image_file).convert("RGB")), mask)

    return load


def _scaled(values: np.ndarray) -> np.ndarray:
    """Returns depth in metres, and labels as they are."""
    return values if values.dtype == np.uint8 else values.astype(np.float32) * 0.001
