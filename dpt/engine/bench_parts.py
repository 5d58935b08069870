"""Samples a second of the loader, and time of the metrics, beside the usual ways to write them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.data import FolderDataset, TrainTransform
from dpt.metrics import DepthMetrics, SegmentationMetrics

ZOOM = (1.0, 1.5)


def take_turns(runs: Mapping[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each run, the runs in turn; the first turn warms up and does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-1, rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run(max(turn, 0))
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
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


# ------------------------------------------------------------------------------ loader


def make_large(folder: Path, count: int = 12) -> None:
    """2048 × 1024 JPEG photos with PNG masks, as Cityscapes has them, in ``folder``."""
    rng = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for i in range(count):
        noise = rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)
        photo = cv2.resize(noise, (2048, 1024), interpolation=cv2.INTER_CUBIC)
        photo = photo // 2 + rng.integers(0, 24, photo.shape, dtype=np.uint8)
        mask = cv2.resize(noise[..., 0] % 19, (2048, 1024), interpolation=cv2.INTER_NEAREST)
        cv2.imwrite(str(folder / f"images/{i:03d}.jpg"), photo)
        cv2.imwrite(str(folder / f"masks/{i:03d}.png"), mask)


def bench_data(*, root: str | None, size: tuple[int, int], rounds: int) -> str:
    """Samples a second on one core, decoding included.

    Args:
        root: a folder with ``images`` and ``depth``; None makes 2048 × 1024 photos with masks.
    """
    threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    try:
        with tempfile.TemporaryDirectory() as folder:
            if root is None:
                make_large(Path(folder))
                data: dict[str, Any] = {"labels": "masks", "num_classes": 19}
            else:
                data = {"depth": "depth", "max_depth": 10.0, "invalid_depth": (0, 65535)}
            dataset = FolderDataset(
                root=root or folder, split="train", fractions={"train": 1.0}, **data
            )
            files = [dataset.files(i) for i in range(len(dataset))]
            pairs = [(f.image, f.labels if root is None else f.depth) for f in files]
            runs = {
                "dpt": ours(dataset, size),
                "cv2 + albumentations": straightforward(pairs, size),
                "PIL + torchvision v2": with_torchvision(pairs, size),
            }
            return as_markdown(take_turns(runs, rounds), unit="samples/s")
    finally:
        torch.set_num_threads(threads[0])
        cv2.setNumThreads(threads[1])


def ours(dataset: FolderDataset, size: tuple[int, int]) -> Callable[[int], Any]:
    transform = TrainTransform(image_size=size, zoom=ZOOM, hflip=0.5, color=0.5)

    def run(turn: int) -> dict[str, Tensor]:
        sample: Any = transform(dataset[turn % len(dataset)], seed=turn)
        return {k: torch.from_numpy(v) for k, v in sample.items() if isinstance(v, np.ndarray)}

    return run


def straightforward(
    pairs: Sequence[tuple[Any, Any]], size: tuple[int, int]
) -> Callable[[int], Any]:
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


def with_torchvision(
    pairs: Sequence[tuple[Any, Any]], size: tuple[int, int]
) -> Callable[[int], Any]:
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


# ------------------------------------------------------------------------------ metrics


def bench_metrics(*, rounds: int) -> str:
    """A batch of 4 × 512 × 512 with 150 classes, then depth at the same size."""
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
