"""From samples to batches: collation and the data loader."""

import atexit
import multiprocessing
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, cast

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dpt.data.base import Augmented, Dataset, Transform
from dpt.data.samplers import EpochSampler
from dpt.files import DataError
from dpt.process import end_with_parent
from dpt.types import IGNORE_INDEX, NO_CLASS, Batch, Sample, Target

T = TypeVar("T")

TIMEOUT = 1800.0  # seconds for a batch: longer than a network disk takes to come back
_FILES = 512  # that a process opens beside those of its loaders
_waiting_since: list[float] = []

_MAPS: dict[str, dict[str, tuple[float, type]]] = {
    "labels": {"labels": (IGNORE_INDEX, np.uint8)},
    "objects": {"labels": (IGNORE_INDEX, np.uint8), "objects": (-1, np.int32)},
    "depth": {"depth": (0, np.float32), "valid": (False, bool)},
}
"""The maps of each dense target: fill value for samples without the map, and dtype."""
_SCALARS: dict[str, tuple[float, torch.dtype]] = {
    "class_id": (NO_CLASS, torch.int64),
    "value": (float("nan"), torch.float32),
}


def collate_train(samples: Sequence[Sample], targets: Sequence[Target]) -> Batch:
    """Stacks samples of one size; ``targets`` that a sample lacks are marked as ignored."""
    sizes = {s["image"].shape[:2] for s in samples}
    if len(sizes) > 1:
        raise DataError(f"images of one batch differ in size {sorted(sizes)}: set data.image_size")
    batch = _collate(samples, targets)
    values = cast(Sequence[dict[str, Any]], samples)
    for kind in {"views", "crops"} & values[0].keys():
        batch[kind] = torch.from_numpy(np.stack([s[kind] for s in values])).movedim(-1, -3)
    for key in ("labels", "objects", "depth", "valid"):
        if key in batch:
            batch[key] = torch.stack(batch[key])
    unlabelled = torch.tensor(["weak" in s for s in samples])
    if unlabelled.any():
        weak = np.stack([s.get("weak", s["image"]) for s in samples])
        batch |= {"weak": torch.from_numpy(weak).permute(0, 3, 1, 2), "unlabelled": unlabelled}
        _paste(batch, samples)
    return cast(Batch, batch)


def _paste(batch: dict[str, Any], samples: Sequence[Sample]) -> None:
    """Pastes a part of a labelled image, and of its maps, on each unlabelled image; labelled
    images are used in turn."""
    maps = [batch[key] for key in ("image", "labels", "depth", "valid") if key in batch]
    parts = torch.from_numpy(np.stack([s["part"] for s in samples]))
    sources = (~batch["unlabelled"]).nonzero()[:, 0].tolist()
    for n, k in enumerate(batch["unlabelled"].nonzero()[:, 0].tolist()):
        source = sources[n % len(sources)] if sources else k
        for values in maps:
            values[k] = torch.where(parts[source], values[source], values[k])
        parts[k] |= parts[source]
    batch["kept"] = parts & batch["unlabelled"][:, None, None]


def collate_eval(samples: Sequence[Sample], targets: Sequence[Target] = ()) -> Batch:
    """Stacks images if they have one size, else lists them; maps are lists at their own size.

    The batch has ``targets`` and those that any sample has; where a sample lacks one, it is marked
    as ignored, a map with the image's size.
    """
    present = [t for t in (*_MAPS, *_SCALARS, "caption") if any(t in s for s in samples)]
    batch = cast(Batch, _collate(samples, {*targets, *present}))
    if any("masks" in s for s in samples):
        batch["masks"] = [s.get("masks") for s in samples]
    return batch


def _collate(samples: Sequence[Sample], targets: Any) -> dict[str, Any]:
    values = cast(Sequence[dict[str, Any]], samples)
    batch: dict[str, Any] = {
        "index": torch.tensor([s.get("index", -1) for s in values]),
        "name": [s.get("name", "") for s in values],
    }
    if failed := [message for s in values for message in s.get("failed", ())]:
        batch |= {"failed": failed, "blank": [i for i, s in enumerate(values) if "is_blank" in s]}
    images = [s["image"] for s in values]
    if len({i.shape for i in images}) == 1:
        batch["image"] = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)  # channels-last
    else:
        batch["image"] = [as_tensor(i).permute(2, 0, 1) for i in images]
    for target in targets:
        for key, (fill, kind) in _MAPS.get(target, {}).items():
            maps = [s[key] if key in s else np.full(s["image"].shape[:2], fill) for s in values]
            batch[key] = [as_tensor(m.astype(kind, copy=False)) for m in maps]
        if target in _SCALARS:
            missing, dtype = _SCALARS[target]
            batch[target] = torch.tensor([s.get(target, missing) for s in values], dtype=dtype)
    if "caption" in targets:
        batch["caption"] = [s.get("caption", "") for s in values]
    return batch


def as_tensor(array: np.ndarray) -> Tensor:
    """Shares the memory of ``array``, unless it is read-only (from a cache) or not contiguous."""
    writable = array.flags.writeable and array.flags.c_contiguous
    return torch.from_numpy(array if writable else array.copy())


class Loader(DataLoader):
    """A data loader whose lost workers and batches are errors of one line."""

    def __iter__(self) -> Any:
        _share_by_name_if_few_files(self.num_workers * (self.batch_size or 1))
        batches = None
        while True:
            _waiting_since.append(time.monotonic())
            try:
                if batches is None:  # the same workers are told to begin again, and answer
                    batches = super().__iter__()
                    if self.num_workers and threading.current_thread() is threading.main_thread():
                        _name_lost_workers()
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                _raise_if_lost(error)
                raise
            finally:
                _waiting_since.pop()
            yield batch


def seconds_without_batch() -> float:
    """How long this process has waited for a batch; 0 if it does not wait for one."""
    return time.monotonic() - _waiting_since[-1] if _waiting_since else 0.0


def _share_by_name_if_few_files(samples: int) -> None:
    """Sends tensors of workers without an open file for each, if they may be too many.

    Args:
        samples: that workers prepare at a time.
    """
    if samples and sys.platform == "linux":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        # each worker prepares two batches while a third is in use; a sample is some eight tensors
        if limit != resource.RLIM_INFINITY and limit < _FILES + 3 * 8 * samples:
            torch.multiprocessing.set_sharing_strategy("file_system")


def _name_lost_workers() -> None:
    """Makes a :class:`DataError` of what torch raises, anywhere in the process, at SIGCHLD."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if isinstance(handler, _NamingHandler) or not callable(handler):
        return
    signal.signal(signal.SIGCHLD, _NamingHandler(handler))


class _NamingHandler:
    def __init__(self, handler: Callable[..., Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: Any) -> None:
        try:
            self.handler(number, frame)
        except RuntimeError as error:
            _raise_if_lost(error)
            raise


def _raise_if_lost(error: RuntimeError) -> None:
    """Raises DataError if it is torch's error for a worker that hangs or has ended."""
    if isinstance(error.__cause__, DataError):  # of the signal handler
        raise error.__cause__
    if str(error).startswith("DataLoader timed out"):
        raise DataError(
            f"no batch in {TIMEOUT:g} s: a file of the data set cannot be read any more: check its "
            "disk, then resume the run"
        ) from error
    if found := re.match(r"DataLoader worker \(pid(?:\(s\))? [^)]*\) ([^.]*)", str(error)):
        raise DataError(
            f"a loader worker {found[1]}: if memory is short, lower data.num_workers or "
            "data.batch_size; data.num_workers=0 shows other errors"
        ) from error


def make_loader(
    dataset: Dataset,
    transform: Transform,
    *,
    training: bool,
    batch_size: int,
    num_workers: int,
    seed: int,
    targets: Sequence[Target],
    skip_broken: bool = False,
) -> DataLoader:
    """A loader whose batches do not depend on ``num_workers``.

    Args:
        dataset: raw samples; its caches are filled before workers are forked.
        training: shuffle, give all ranks the same number of samples, stack maps, and drop a last,
            smaller batch unless it is the only one; else keep the order, pad nothing, list maps.
        batch_size: samples of one batch on this rank.
        seed: of order and augmentation.
        targets: keys of every batch.
        skip_broken: if a file cannot be read, take the next sample (training) or a blank image
            without labels (evaluation); the batch lists the errors in ``failed``.
    """
    sampler = EpochSampler(len(dataset), seed=seed, shuffle=training, order=dataset.epoch_order)
    if num_workers > 0:
        dataset.preload()
    collate = collate_train if training else collate_eval
    on_error: Literal["next", "blank"] = "next" if training else "blank"
    return Loader(
        Augmented(dataset, transform, seed=seed, on_error=on_error if skip_broken else "raise"),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        collate_fn=partial(collate, targets=tuple(targets)),
        pin_memory=torch.cuda.is_available(),
        drop_last=training and len(sampler) >= batch_size,
        worker_init_fn=init_worker,
        persistent_workers=num_workers > 0,
        generator=torch.Generator().manual_seed(seed),  # leaves the global random state alone
        timeout=TIMEOUT if num_workers > 0 else 0,
    )


def read_in_order(
    read: Callable[[int], T], indices: Sequence[int], *, num_workers: int
) -> Iterable[T]:
    """Yields ``read(index)`` for each index, in order, computed by ``num_workers`` processes."""
    data, collate = cast(Any, indices), cast(Any, read)  # it gets each index, with batch_size=None
    return Loader(
        data,
        batch_size=None,
        collate_fn=collate,
        num_workers=num_workers,
        worker_init_fn=init_worker,
        timeout=TIMEOUT if num_workers > 0 else 0,
    )


def init_worker(worker_id: int) -> None:
    """Limits a worker to one thread, and makes it ignore the signals that stop a job.

    The parent process ends its workers, at the latest when it ends itself.
    """
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    end_with_parent()


@atexit.register
def _kill_workers() -> None:
    """At exit ``multiprocessing`` sends SIGTERM, which workers ignore, and waits for them."""
    if sys.platform != "win32":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
