"""Parts of the work taking turns; the metrics beside the usual ways to write them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import torch
from torch import Tensor

from dpt.metrics import DepthMetrics, SegmentationMetrics


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
