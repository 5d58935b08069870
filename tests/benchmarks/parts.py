"""Parts of the work beside the usual ways to write them: loading, and metrics.

Both run on one core. Seconds of loading are processor time, so that other programs do not count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.data import FolderDataset, TrainTransform
from dpt.metrics import DepthMetrics, SegmentationMetrics

ZOOM = (1.0, 1.5)
SAMPLES = 12
"""Samples of a turn, each with its own crop."""
Maps = Literal["labels", "depth"]
Load = Callable[[int], Any]

MADE: tuple[tuple[Maps, tuple[int, int]], ...] = (
    ("depth", (480, 640)),
    ("labels", (1024, 2048)),
    ("depth", (1024, 2048)),
)
"""What is timed without a folder: the maps that come with photos of (H, W)."""


@contextmanager
def on_one_core() -> Iterator[None]:
    """Neither torch nor OpenCV divides its work."""
    threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        yield
    finally:
        torch.set_num_threads(threads[0])
        cv2.setNumThreads(threads[1])


def take_turns(
    runs: Mapping[str, Callable[[int], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each run, the runs in turn; the first turn warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run in runs.items():
            start = clock()
            run(max(turn, 0))
            if turn >= 0:
                seconds[name].append(clock() - start)
    return seconds


def as_markdown(seconds: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """Medians, and the ratio to the first row turn by turn."""
    ours = next(iter(seconds.values()))
    lines = [f"| | {unit} | time / ours |", "|---|---|---|"]
    for name, values in seconds.items():
        ratio = statistics.median(t / o for t, o in zip(values, ours, strict=True))
        middle = statistics.median(values)
        shown = 1 / middle if unit == "samples/s" else 1e3 * middle
        lines.append(f"| {name} | {shown:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


@on_one_core()
def bench_data(*, root: str | None, size: tuple[int, int], rounds: int) -> str:
    """Samples a second on one core, decoding included.

    Args:
        root: a folder with ``images`` and 16-bit ``depth``; None makes photos, see ``MADE``.
    """
    if root is not None:
        return _bench_folder(root, "depth", size, rounds)
    tables = []
    for maps, shape in MADE:
        with tempfile.TemporaryDirectory() as folder:
            make_photos(Path(folder), shape, maps)
            table = _bench_folder(folder, maps, size, rounds)
            tables.append(f"{shape[1]} × {shape[0]} with {maps}\n\n{table}")
    return "\n\n".join(tables)


def make_photos(folder: Path, shape: tuple[int, int], maps: Maps, count: int = SAMPLES) -> None:
    """JPEG photos, with class ids as 8-bit PNG or depth in millimetres as 16-bit PNG."""
    random = np.random.default_rng(0)
    height, width = shape
    for name in ("images", maps):
        (folder / name).mkdir(parents=True)
    for i in range(count):
        noise = random.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
        photo = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
        photo = photo // 2 + random.integers(0, 24, photo.shape, dtype=np.uint8)
        cv2.imwrite(str(folder / f"images/{i:03d}.jpg"), photo)
        if maps == "labels":
            target = cv2.resize(
                noise[..., 0] % 19, (width, height), interpolation=cv2.INTER_NEAREST
            )
        else:  # surfaces, a sensor's noise and its holes
            depth = cv2.resize(noise[..., 1] * np.float32(30) + 500, (width, height))
            depth = depth + random.normal(0, 6, depth.shape)
            depth[random.random(depth.shape) < 0.02] = 0
            target = np.maximum(depth, 0).astype(np.uint16)
        cv2.imwrite(str(folder / f"{maps}/{i:03d}.png"), target)


def _bench_folder(root: str, maps: Maps, size: tuple[int, int], rounds: int) -> str:
    target: dict[str, Any] = {"labels": maps, "num_classes": 19}
    if maps == "depth":
        target = {"depth": maps, "max_depth": 10.0, "invalid_depth": (0, 65535)}

    def dataset(**options: Any) -> FolderDataset:
        return FolderDataset(
            root=root, split="train", fractions={"train": 1.0}, **target, **options
        )

    made = dataset()
    files = [made.files(i) for i in range(len(made))]
    pairs = [(f.image, f.labels or f.depth) for f in files]
    cached = dataset(cache=True, cache_size=(round(size[0] * ZOOM[1]), round(size[1] * ZOOM[1])))
    cached.preload()
    runs = {
        "dpt": ours(made, size),
        "cv2 + albumentations": straightforward(pairs, size),
        "PIL + torchvision v2": with_torchvision(pairs, size),
        "dpt, data.cache=true": ours(cached, size),
    }

    def turn_of(load: Load) -> Load:
        return lambda turn: [load(turn * SAMPLES + i) for i in range(SAMPLES)]

    turns = {name: turn_of(load) for name, load in runs.items()}
    seconds = take_turns(turns, rounds, clock=time.process_time)
    each = {name: [s / SAMPLES for s in values] for name, values in seconds.items()}
    return as_markdown(each, unit="samples/s")


def ours(dataset: FolderDataset, size: tuple[int, int]) -> Load:
    transform = TrainTransform(image_size=size, zoom=ZOOM, hflip=0.5, color=0.5)

    def run(turn: int) -> dict[str, Tensor]:
        sample: Any = transform(dataset[turn % len(dataset)], seed=turn)
        return {k: torch.from_numpy(v) for k, v in sample.items() if isinstance(v, np.ndarray)}

    return run


def straightforward(pairs: Sequence[tuple[Any, Any]], size: tuple[int, int]) -> Load:
    """Scale the whole photo, crop, flip, colour, normalise: albumentations' documented order."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    shown = cv2.imread(str(pairs[0][0]))
    assert shown is not None
    fit = max(size[0] / shown.shape[0], size[1] / shown.shape[1])
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

    def run(turn: int) -> Any:
        photo, mask = pairs[turn % len(pairs)]
        image = cv2.imread(str(photo))
        assert image is not None
        labels = cv2.imread(str(mask), cv2.IMREAD_UNCHANGED)
        if labels is not None and labels.dtype == np.uint16:
            labels = labels.astype(np.float32) * 0.001
        return compose(image=cv2.cvtColor(image, cv2.COLOR_BGR2RGB), mask=labels)

    return run


def with_torchvision(pairs: Sequence[tuple[Any, Any]], size: tuple[int, int]) -> Load:
    """Pillow decodes, torchvision's v2 transforms do the rest on tensors."""
    from PIL import Image
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    compose = v2.Compose(
        [
            v2.RandomResizedCrop(
                size, scale=(1 / ZOOM[1] ** 2, 1.0), ratio=(size[1] / size[0],) * 2
            ),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomApply([v2.ColorJitter(0.2, 0.2, 0.2, 0.05)], p=0.8),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )

    def run(turn: int) -> Any:
        photo, mask = pairs[turn % len(pairs)]
        labels = np.array(Image.open(mask))
        if labels.dtype != np.uint8:
            labels = labels.astype(np.float32) * 0.001
        image = v2.functional.to_image(Image.open(photo).convert("RGB"))
        return compose(image, tv_tensors.Mask(labels))

    return run


@on_one_core()
def bench_metrics(*, rounds: int) -> str:
    """A batch of 4 × 512 × 512 with 150 classes, then depth at the same size; one core."""
    from torchmetrics.classification import MulticlassJaccardIndex

    random = torch.Generator().manual_seed(0)
    truth = torch.randint(150, (4, 512, 512), generator=random)
    found = torch.where(torch.rand(truth.shape, generator=random) < 0.3, 0, truth)
    truth[:, :20] = 255

    def jaccard(**options: Any) -> Callable[[int], Any]:
        metric = MulticlassJaccardIndex(150, ignore_index=255, **options)
        return lambda turn: metric.update(found, truth)

    confusion = SegmentationMetrics(150)
    small = truth.to(torch.uint8)  # as masks are read
    labels = take_turns(
        {
            "dpt, as it validates": lambda turn: confusion.update(found.to(torch.uint8), small),
            "dpt, int64 throughout": lambda turn: confusion.update(found, truth),
            "torchmetrics JaccardIndex": jaccard(),
            "torchmetrics, validate_args=False": jaccard(validate_args=False),
        },
        rounds,
    )
    target = torch.rand(4, 512, 512, generator=random) * 9 + 1
    prediction, valid = target * 1.1, torch.rand(target.shape, generator=random) < 0.8
    errors = DepthMetrics(max_depth=10.0)
    depth = take_turns(
        {
            "dpt, ten depth errors": lambda turn: errors.update(prediction, target, valid),
            "with boolean indexing": lambda turn: _by_indexing(prediction, target, valid),
        },
        rounds,
    )
    return f"{as_markdown(labels, unit='ms')}\n\n{as_markdown(depth, unit='ms')}"


def _by_indexing(prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """The same errors as they are usually written: one image at a time, x[mask]."""
    rows = []
    for p, t, v in zip(prediction, target, valid, strict=True):
        a, b = p[v], t[v]
        ratio, difference = torch.maximum(a / b, b / a), a - b
        log = torch.log(a) - torch.log(b)
        rows.append(
            torch.stack(
                [
                    (difference.abs() / b).mean(),
                    (difference**2 / b).mean(),
                    (difference**2).mean().sqrt(),
                    (log**2).mean().sqrt(),
                    (torch.log10(a) - torch.log10(b)).abs().mean(),
                    ((log**2).mean() - log.mean() ** 2).sqrt(),
                    (difference**2).sum(),
                    *[(ratio < 1.25**k).float().mean() for k in (1, 2, 3)],
                ]
            )
        )
    return torch.stack(rows).mean(0)
