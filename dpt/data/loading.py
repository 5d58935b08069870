"""From samples to batches: which samples come next, collation, the data loader."""

import atexit
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

import cv2
import numpy as np
import torch
import torch.distributed as dist
import torch.utils.data
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader

from dpt.data.base import Augmented, Dataset, Transform
from dpt.data.transforms import paste_parts
from dpt.data.view import MAP_FILLS, MapName
from dpt.files import DataError
from dpt.geometry import Camera
from dpt.process import end_with_parent
from dpt.types.samples import NO_CLASS, Batch, RandomViews, Sample
from dpt.validation import Settings


@dataclass(eq=False)
class EpochSampler(torch.utils.data.Sampler[tuple[int, int]]):
    """Yields (epoch, index), so that workers have the epoch.

    Training (``shuffle``): a permutation drawn from (seed, epoch), the same on every rank, of which
    each rank takes every world-th entry; some are repeated so that all ranks get the same number.
    Evaluation: 0..length-1 shared out without padding, so that each image counts exactly once on
    any number of ranks; always as epoch 0.

    Rank and world size are read when iterating: the sampler may be built before the process group.
    ``order`` draws the permutations, int (length,); None draws plain ones.
    """

    length: int
    _: KW_ONLY
    seed: int
    shuffle: bool
    order: Callable[[np.random.Generator], np.ndarray] | None = None

    epoch = 0
    start = 0  # entries of this rank already used in this epoch, when resuming inside it

    def set_epoch(self, epoch: int) -> None:
        """Chooses the permutation; Lightning calls it before every epoch."""
        self.start = self.start if epoch == self.epoch else 0
        self.epoch = epoch

    def __len__(self) -> int:
        """Returns the number of this rank's indices in a whole epoch, whatever ``start`` is."""
        rank, world = _rank_and_world()
        return len(range(rank, self._total(world), world))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.arange(self.length)
        if self.shuffle:
            random = np.random.default_rng(np.random.SeedSequence((self.seed, self.epoch)))
            order = random.permutation(self.length) if self.order is None else self.order(random)
        rank, world = _rank_and_world()
        for index in np.resize(order, self._total(world))[rank::world][self.start :]:
            yield self.epoch if self.shuffle else 0, int(index)

    def _total(self, world: int) -> int:
        if self.shuffle:
            return -(-self.length // world) * world
        return self.length


def nearby_permutation(
    sizes: Sequence[int], *, window: int, random: np.random.Generator
) -> np.ndarray:
    """Draws an order of the samples of shards, int (sum(sizes),), with few shards in use at once.

    Shards are shuffled. Each sample of the shard at position p gets a random key in p ± window/2
    (cut at both ends); samples are sorted by key. At most ``window`` + 1 shards are then in use at
    a time (``window`` is at least 1). If it is twice their number, every order is equally likely.
    """
    count = len(sizes)
    position = np.empty(count)
    position[random.permutation(count)] = np.arange(count)
    begin = np.maximum(position - window / 2, -0.5)
    end = np.minimum(position + window / 2, count - 0.5)
    shard = np.repeat(np.arange(count), sizes)
    return np.argsort(random.uniform(begin[shard], end[shard]))


def _rank_and_world() -> tuple[int, int]:
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


Side = Annotated[int, Field(ge=1, le=13_000)]  # two of them: no more than dpt.files.MAX_PIXELS


@dataclass(frozen=True, kw_only=True)
class LoaderSettings(Settings):
    """How samples are batched: the keys of ``data`` that every data set shares.

    Attributes:
        batch_size: samples of one batch on this rank.
        on_error: ``skip``: if a file cannot be read, take the next sample (training) or a blank
            image without labels (evaluation); the batch lists the errors in ``failed``.
        prompt_points: pixels of an image whose depth a model that takes prompts gets in evaluation.
    """

    image_size: tuple[Side, Side] = (384, 384)
    eval_size: tuple[Side, Side] = (384, 384)
    batch_size: Annotated[int, Field(ge=1, le=10**6)] = 8
    num_workers: Annotated[int, Field(ge=0, le=1000)] = 2
    on_error: Literal["raise", "skip"] = "raise"
    prompt_points: Annotated[int, Field(ge=1, le=10**6)] = 200


T = TypeVar("T")

TIMEOUT = 1800.0  # seconds for a batch: longer than a network disk takes to come back
_OTHER_FILES = 512  # that a process opens beside those of its loaders
_END = object()
_waiting_since: list[float] = []


def collate_train(samples: Sequence[Sample], targets: Collection[str | None]) -> Batch:
    """Stacks samples of one size; ``targets`` that a sample lacks are marked as ignored, and on
    images without labels parts of others are pasted."""
    forms = {_form(sample): sample.get("name") for sample in samples}
    if len(forms) > 1:
        fault = "; ".join(f"{name} is {form}" for form, name in forms.items())
        raise DataError(f"{fault}: train on images of one kind, and set data.image_size")
    batch = _collate_values(samples, targets)
    for key in _map_keys(targets):
        batch[key] = torch.stack(_maps(samples, key))
    if any("inside" in s for s in samples):
        inside = [s.get("inside", np.ones(s["image"].shape[:2], bool)) for s in samples]
        batch["inside"] = torch.from_numpy(np.stack(inside))
    if "views" in samples[0]:
        large, small = zip(*(s["views"] for s in samples), strict=True)
        crops = None if small[0] is None else _stack_images(small)
        batch["views"] = RandomViews(_stack_images(large), crops)
    return paste_parts(batch, samples)


def collate_eval(samples: Sequence[Sample], targets: Collection[str | None] = ()) -> Batch:
    """Stacks images if they have one size, otherwise lists them; maps are lists at their own size.

    The batch has ``targets`` and those that any sample has; where a sample lacks one, it is marked
    as ignored, a map with the image's size.
    """
    present = {key for sample in samples for key in sample}
    batch = _collate_values(samples, present.union(targets))
    for key in _map_keys(present.union(targets)):
        batch[key] = _listed(_maps(samples, key))
    if "masks" in present:
        batch["masks"] = [s.get("masks") for s in samples]
    return batch


def _form(sample: Sample) -> str:
    """Returns what the images of a batch must have in common."""
    height, width, channels = sample["image"].shape
    bands = "8-bit RGB" if sample["image"].dtype == np.uint8 else f"{channels} bands"
    return f"{bands} of {width}x{height} pixels"


def _map_keys(targets: Collection[str | None]) -> list[MapName]:
    """Returns the maps of a batch with these targets: labels go with objects, valid with depth."""
    beside = {"labels": "objects", "valid": "depth"}
    return [key for key in MAP_FILLS if key in targets or beside.get(key) in targets]


def _maps(samples: Sequence[Sample], key: MapName | Literal["prompt"]) -> list[Tensor]:
    """Returns a map of each sample, (H, W) or (3, H, W)."""
    fill: np.generic = np.float32(0) if key == "prompt" else MAP_FILLS[key]
    if key == "objects":  # -1 in images that lack them
        fill = np.int32(-1)
    tensors = []
    for sample in samples:
        if key in sample:
            array: np.ndarray = sample[key].astype(fill.dtype, copy=False)
        else:
            shape = sample["image"].shape[:2]
            array = np.full((*shape, 3) if key == "normals" else shape, fill)
        tensors.append(as_tensor(array).permute(2, 0, 1) if key == "normals" else as_tensor(array))
    return tensors


def _collate_values(samples: Sequence[Sample], targets: Collection[str | None]) -> Batch:
    """Returns a batch of all but the maps: images, cameras, sparse depth and image-level labels."""
    images = [s["image"] for s in samples]
    has_one_form = len({(image.shape, image.dtype) for image in images}) == 1
    listed = [] if has_one_form else [as_tensor(image).permute(2, 0, 1) for image in images]
    batch = Batch(
        index=torch.tensor([s.get("index", -1) for s in samples]),
        name=[s.get("name", "") for s in samples],
        image=_stack_images(images) if has_one_form else _listed(listed),
    )
    if failed := [message for s in samples for message in s.get("failed", ())]:
        batch["failed"] = failed
        batch["blank"] = [i for i, s in enumerate(samples) if "is_blank" in s]
    batch.update(_image_labels(samples, targets))
    batch.update(_measured(samples, targets))
    return batch


def _image_labels(samples: Sequence[Sample], targets: Collection[str | None]) -> Batch:
    batch = Batch()
    if "class_id" in targets:
        batch["class_id"] = torch.tensor([s.get("class_id", NO_CLASS) for s in samples])
    if "value" in targets:
        values = [s.get("value", float("nan")) for s in samples]
        batch["value"] = torch.tensor(values, dtype=torch.float32)
    if "caption" in targets:
        batch["caption"] = [s.get("caption", "") for s in samples]
    return batch


def _measured(samples: Sequence[Sample], targets: Collection[str | None]) -> Batch:
    """Returns what is known of the images besides labels: cameras, and sparse depth."""
    batch = Batch()
    if "K" in targets or any("K" in s for s in samples):
        no_camera = np.full((3, 3), np.nan)
        cameras = [Camera(s.get("K", no_camera), s["image"].shape[:2]) for s in samples]
        batch["K"] = torch.from_numpy(np.stack([camera.K for camera in cameras])).float()
        batch["fov"] = torch.tensor([camera.fov for camera in cameras])
    if any("prompt" in s for s in samples):
        prompts = _maps(samples, "prompt")
        has_one_size = len({prompt.shape for prompt in prompts}) == 1
        batch["prompt"] = torch.stack(prompts) if has_one_size else _listed(prompts)
    return batch


def _stack_images(images: Sequence[np.ndarray]) -> Tensor:
    """Returns images (..., H, W, C) as one tensor (B, ..., C, H, W), channels-last in memory."""
    return torch.from_numpy(np.stack(images)).movedim(-1, -3)


def _listed(tensors: list[Tensor]) -> Tensor:
    """Returns the list itself: in evaluation maps have sizes of their own, see ``Batch``."""
    return cast(Tensor, tensors)


def as_tensor(array: np.ndarray) -> Tensor:
    """Returns a tensor that shares the memory of ``array``, if it is writable and contiguous.

    Arrays from a cache are read-only.
    """
    writable = array.flags.writeable and array.flags.c_contiguous
    return torch.from_numpy(array if writable else array.copy())


class Loader(DataLoader[T]):
    """A data loader that notes how long the process waits for a batch."""

    # torch declares a class for the result that is not public
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        _share_by_name_if_few_files(self.num_workers * (self.batch_size or 1))
        with _waiting_for_batch():  # the same workers are told to begin again, and answer
            batches = super().__iter__()
        while True:
            with _waiting_for_batch():
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch


@contextmanager
def _waiting_for_batch() -> Iterator[None]:
    """Notes since when this process waits."""
    _waiting_since.append(time.monotonic())
    try:
        yield
    finally:
        _waiting_since.pop()


def seconds_without_batch() -> float:
    """Returns how long this process has waited for a batch; 0 if it does not wait for one."""
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
        if limit != resource.RLIM_INFINITY and limit < _OTHER_FILES + 3 * 8 * samples:
            torch.multiprocessing.set_sharing_strategy("file_system")


def make_loader(
    dataset: Dataset,
    transform: Transform,
    settings: LoaderSettings,
    targets: Sequence[str | None],
    *,
    training: bool,
    seed: int = 0,
) -> DataLoader[Sample]:
    """Returns a loader whose batches do not depend on the number of workers.

    Args:
        dataset: raw samples; its caches are filled before workers are forked.
        targets: keys of every batch.
        training: shuffle, give all ranks the same number of samples, stack maps, and drop a last,
            smaller batch unless it is the only one. Otherwise keep the order, pad nothing, list
            maps.
        seed: of order and augmentation.
    """
    order, batch_size, workers = dataset.epoch_order, settings.batch_size, settings.num_workers
    sampler = EpochSampler(len(dataset), seed=seed, shuffle=training, order=order)
    if workers > 0:
        dataset.preload()
    on_error: Literal["next", "blank"] = "next" if training else "blank"
    skips = settings.on_error == "skip"
    return Loader(
        Augmented(dataset, transform, seed=seed, on_error=on_error if skips else "raise"),
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=partial(collate_train if training else collate_eval, targets=tuple(targets)),
        pin_memory=torch.cuda.is_available(),
        drop_last=training and len(sampler) >= batch_size,
        worker_init_fn=init_worker,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(seed),  # leaves the global random state alone
        timeout=TIMEOUT if workers > 0 else 0,
    )


def read_in_order(
    read: Callable[[int], T], indices: Sequence[int], *, num_workers: int
) -> Iterable[T]:
    """Yields ``read(index)`` for each index, in order, computed by ``num_workers`` processes."""
    return Loader(
        cast("torch.utils.data.Dataset[T]", indices),
        batch_size=None,
        collate_fn=cast(Callable[[list[T]], T], read),  # it gets each index, with batch_size=None
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
    sys.excepthook = partial(_print_unless_lost, sys.excepthook)
    end_with_parent()


def _print_unless_lost(
    hook: Callable[..., object], kind: type[BaseException], error: BaseException, *trace: object
) -> None:
    """Prints an exception, unless the parent process was stopped while it took a batch.

    The thread that gives it the memory of tensors prints that; the worker's own errors are raised
    in the parent.
    """
    if not issubclass(kind, ConnectionError | EOFError):
        hook(kind, error, *trace)


@atexit.register
def _kill_workers() -> None:
    """At exit ``multiprocessing`` sends SIGTERM, which workers ignore, and waits for them."""
    if sys.platform != "win32":
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises an error
    for process in multiprocessing.active_children():
        if process.daemon:
            process.kill()
