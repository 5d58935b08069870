"""From samples to batches: collation and the data loader."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dpt.data.base import Augmented, DataError, Dataset, Transform
from dpt.data.samplers import EpochSampler
from dpt.types import IGNORE_INDEX, NO_CLASS, Batch, Sample, Target


def collate_train(samples: Sequence[Sample], targets: Sequence[Target]) -> Batch:
    """Samples of one size, stacked; a label that a sample lacks is filled in as ignored.

    Args:
        samples: transformed samples.
        targets: what the batch shall carry; ``depth`` brings ``valid`` with it.
    """
    sizes = {s["image"].shape[:2] for s in samples}
    if len(sizes) > 1:
        raise DataError(f"images of one batch differ in size {sorted(sizes)}: set data.image_size")
    size = sizes.pop()
    batch = _scalars(samples, targets)
    batch["image"] = _channels_last(np.stack([s["image"] for s in samples]))
    if "labels" in targets:
        batch["labels"] = _stack([s.get("labels", _no_labels(size)) for s in samples])
    if "depth" in targets:
        batch["depth"] = _stack([s.get("depth", _no_depth(size)) for s in samples])
        batch["valid"] = _stack([s.get("valid", _not_valid(size)) for s in samples])
    return batch


def collate_eval(samples: Sequence[Sample], targets: Sequence[Target] = ()) -> Batch:
    """Images stacked if they have one size, else a list; maps as lists at their own resolution.

    Args:
        samples: transformed samples.
        targets: what the batch carries even if no sample of it does; what some sample has is
            carried anyway. A map that an image lacks is wholly ignored, of the image's size.
    """
    present = [t for t in ("labels", "depth", "class_id", "value") if any(t in s for s in samples)]
    carried = {*targets, *present}
    batch: dict[str, Any] = dict(_scalars(samples, carried))
    images = [s["image"] for s in samples]
    if len({i.shape for i in images}) == 1:
        batch["image"] = _channels_last(np.stack(images))
    else:
        batch["image"] = [as_tensor(i).permute(2, 0, 1) for i in images]
    sizes = [i.shape[:2] for i in images]
    paired = list(zip(samples, sizes, strict=True))
    if "labels" in carried:
        batch["labels"] = [as_tensor(s.get("labels", _no_labels(size))) for s, size in paired]
    if "depth" in carried:
        batch["depth"] = [as_tensor(s.get("depth", _no_depth(size))) for s, size in paired]
        batch["valid"] = [as_tensor(s.get("valid", _not_valid(size))) for s, size in paired]
    return cast(Batch, batch)


def make_loader(
    dataset: Dataset,
    transform: Transform,
    *,
    training: bool,
    batch_size: int,
    num_workers: int,
    seed: int,
    targets: Sequence[Target],
    drop_last: bool | None = None,
    prefetch_factor: int | None = None,
    skip_broken: bool = False,
) -> DataLoader:
    """A loader whose batches do not depend on ``num_workers``.

    Args:
        dataset: raw samples; its ``preload()``, if it has one, is called before workers start, so
            that they share one cache; its ``order()``, if it has one, draws the shuffled orders.
        transform: ``TrainTransform`` or ``EvalTransform``.
        training: shuffle, give all ranks the same number of samples, and stack maps at one size;
            else keep the order, pad nothing, and keep maps at their own resolution.
        batch_size: samples of one batch on this rank.
        num_workers: processes that read; 0 reads in this one. They live as long as the loader.
        seed: of order and augmentation.
        targets: the labels that every batch carries.
        drop_last: leave out a last, smaller batch. None: in training, unless the data set has
            fewer samples than a batch.
        prefetch_factor: batches that each worker prepares ahead.
        skip_broken: go on where a file cannot be read: with the next sample in training, with an
            image that no metric counts in evaluation; the batch says so in ``failed``.
    """
    order = getattr(dataset, "order", None)
    sampler = EpochSampler(len(dataset), seed=seed, shuffle=training, order=order)
    if drop_last is None:
        drop_last = training and len(sampler) >= batch_size
    preload = getattr(dataset, "preload", None)
    if preload is not None and num_workers > 0:
        preload()
    collate = collate_train if training else collate_eval
    on_error: Literal["raise", "next", "blank"] = "next" if training else "blank"
    return DataLoader(
        Augmented(dataset, transform, seed=seed, on_error=on_error if skip_broken else "raise"),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=partial(collate, targets=tuple(targets)),
        pin_memory=torch.cuda.is_available(),
        drop_last=drop_last,
        worker_init_fn=init_worker,
        persistent_workers=num_workers > 0,
        prefetch_factor=prefetch_factor if num_workers > 0 else None,
        generator=torch.Generator().manual_seed(seed),  # leaves the global random state alone
    )


def init_worker(worker_id: int) -> None:
    """One thread a worker; a wish to stop is left to the main process, which may still validate.

    Ctrl-C, ``timeout`` and SLURM tell every process of a job. A second SIGTERM ends the worker: so
    does torch with one that hangs.
    """
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL))
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def _scalars(samples: Sequence[Sample], targets: Any) -> Batch:
    batch: Batch = {
        "index": torch.tensor([s.get("index", -1) for s in samples]),
        "name": [s.get("name", "") for s in samples],
    }
    if failed := [message for s in samples for message in s.get("failed", ())]:
        batch["failed"] = failed
    if "class_id" in targets:
        batch["class_id"] = torch.tensor([s.get("class_id", NO_CLASS) for s in samples])
    if "value" in targets:
        values = [s.get("value", float("nan")) for s in samples]
        batch["value"] = torch.tensor(values, dtype=torch.float32)
    return batch


def _channels_last(images_BHWC: np.ndarray) -> Tensor:
    return torch.from_numpy(images_BHWC).permute(0, 3, 1, 2)


def _stack(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))


def as_tensor(array: np.ndarray) -> Tensor:
    """Shares memory where it may; arrays of a cache are read-only and are copied."""
    writable = array.flags.writeable and array.flags.c_contiguous
    return torch.from_numpy(array if writable else array.copy())


def _no_labels(size: tuple[int, ...]) -> np.ndarray:
    return np.full(size, IGNORE_INDEX, np.uint8)


def _no_depth(size: tuple[int, ...]) -> np.ndarray:
    return np.zeros(size, np.float32)


def _not_valid(size: tuple[int, ...]) -> np.ndarray:
    return np.zeros(size, bool)
