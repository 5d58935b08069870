"""What every data set is, and the wrapper that turns its samples into training samples."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch.utils.data

from dpt.types import IGNORE_INDEX, DatasetInfo, Sample


class DataError(ValueError):
    """A mistake in the data or in how it was described: one line naming the file and the remedy.

    A DataLoader re-raises what happened in a worker process as ``type(error)("Caught ...
    Original Traceback ...")``. That text is cut back to the original message, so that a user
    reads the same line with and without workers.
    """

    def __init__(self, message: str) -> None:
        if message.startswith(f"Caught {type(self).__name__} in ") and "Traceback" in message:
            own_name = f"{type(self).__module__}.{type(self).__qualname__}: "
            message = message.rpartition(own_name)[2].strip()
        super().__init__(message)


@runtime_checkable
class Dataset(Protocol):
    """Raw samples at the files' own size, every time the same for the same index.

    One whose samples change from epoch to epoch (a mix) has ``draw(epoch, index)`` too; its
    ``self[index]`` is then that of epoch 0.
    """

    @property
    def info(self) -> DatasetInfo: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


def draw(dataset: Dataset, epoch: int, index: int) -> Sample:
    """The raw sample of an epoch, for data sets of either kind."""
    own = getattr(dataset, "draw", None)
    return dataset[index] if own is None else own(epoch, index)


class Transform(Protocol):
    """What is done to a sample; all randomness comes from ``seed``."""

    def __call__(self, sample: Sample, *, seed: int) -> Sample: ...


MAX_REPLACEMENTS = 20
"""Samples in a row that may be broken before a run gives up on ``data.on_error=skip``."""


class Augmented(torch.utils.data.Dataset):
    """A data set and its transform, indexed by (epoch, index).

    The transform's randomness depends on (seed, epoch, index) only: never on the worker that
    happens to draw the sample, nor on what was drawn before. Batches are therefore bit-identical
    for any number of workers, and a resumed run continues as an uninterrupted one would.

    Args:
        dataset: raw samples.
        transform: applied to each.
        seed: of the transform.
        on_error: what to do where a file cannot be read: ``raise``; ``next`` takes the next sample
            of the data set in its place; ``blank`` gives a black image without labels, which no
            metric counts. Both say in ``failed`` what was wrong.
    """

    def __init__(
        self,
        dataset: Dataset,
        transform: Transform,
        *,
        seed: int,
        on_error: Literal["raise", "next", "blank"] = "raise",
    ) -> None:
        self.dataset = dataset
        self.transform = transform
        self.seed = seed
        self.on_error = on_error

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int] | int) -> Sample:
        """The transformed sample of (epoch, index); a bare index means epoch 0."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        sample = self._read(epoch, index)
        state = np.random.SeedSequence((self.seed, epoch, index)).generate_state(1)
        out = self.transform(sample, seed=int(state[0]))
        out["index"] = index
        out.setdefault("name", str(index))
        if "failed" in sample:
            out["failed"] = sample["failed"]
        return out

    def _read(self, epoch: int, index: int) -> Sample:
        """The raw sample, or what stands for it where its files are broken."""
        failed: list[str] = []
        for offset in range(min(MAX_REPLACEMENTS, len(self.dataset))):
            try:
                sample = draw(self.dataset, epoch, (index + offset) % len(self.dataset))
                check_sample(sample)
            except DataError as error:
                if self.on_error == "raise":
                    raise
                failed.append(str(error))
                if self.on_error == "blank":
                    return {"image": np.zeros((64, 64, 3), np.uint8), "failed": failed}
            else:
                return {**sample, "failed": failed} if failed else sample
        raise DataError(f"{len(failed)} samples in a row cannot be read: {failed[0]}")


_DTYPES: dict[str, Any] = {
    "image": np.uint8,
    "labels": np.uint8,
    "depth": np.float32,
    "valid": bool,
}


def check_sample(sample: Sample, *, files: Mapping[str, Path] | None = None) -> None:
    """Raises DataError unless the maps have the image's size and all have their dtypes.

    Args:
        sample: a raw sample.
        files: the file behind ``labels`` or ``depth``, for the message.
    """
    values = cast(dict[str, np.ndarray], sample)
    arrays = {k: values[k] for k in _DTYPES if k in values}
    name = sample.get("name", "a sample")
    height, width = arrays["image"].shape[:2]
    for key, array in arrays.items():
        if array.dtype != _DTYPES[key] or array.ndim != (3 if key == "image" else 2):
            raise DataError(
                f"{name}: {key} is {array.dtype} {array.shape}, "
                f"must be {np.dtype(_DTYPES[key])} of (H, W{', 3' if key == 'image' else ''})"
            )
        if array.shape[:2] == (height, width):
            continue
        where = f" ({files[key]})" if files and key in files else ""
        turned = array.shape[:2] == (width, height)
        remedy = (
            "one of them was rotated; save both upright, without an EXIF orientation"
            if turned
            else "pair the right files, or resize them to one size (labels and depth by nearest)"
        )
        what = {"labels": "mask", "valid": "valid mask"}.get(key, key)
        raise DataError(
            f"{name}: image is {width}x{height} but its {what} is "
            f"{array.shape[1]}x{array.shape[0]}{where}: {remedy}"
        )


def validate_samples(
    dataset: Dataset,
    *,
    limit: int = 16,
    seed: int = 0,
    explain: Callable[[int], str] | None = None,
) -> list[str]:
    """Reads the first few samples and random others, before any training time is spent.

    Args:
        dataset: what to read from.
        limit: how many samples to read; half are the first, half are drawn at random.
        seed: of the draw.
        explain: says why the depth of a sample is wholly invalid.

    Returns:
        Remarks that need not stop a run: maps with no usable pixel, where most others have some.

    Raises:
        DataError: a file cannot be read, sizes differ, ids are out of range, or more than half of
            the maps read have no usable pixel.
    """
    if len(dataset) == 0:
        raise DataError("the data set is empty")
    empty: dict[str, list[str]] = {"depth": [], "labels": []}
    seen = {"depth": 0, "labels": 0}
    for index in a_few(dataset, limit=limit, seed=seed):
        sample = dataset[index]
        check_sample(sample)
        name = sample.get("name", f"sample {index}")
        if "valid" in sample:
            seen["depth"] += 1
            if not sample["valid"].any():
                text = explain(index) if explain else f"every depth pixel of {name} is invalid"
                empty["depth"].append(text)
        if "labels" in sample:
            seen["labels"] += 1
            if (sample["labels"] == IGNORE_INDEX).all():
                empty["labels"].append(
                    f"every label pixel of {name} is ignored: check data.ignore_index "
                    "and data.label_map"
                )
    for key, remarks in empty.items():
        if 2 * len(remarks) > seen[key]:
            others = f" (so are {len(remarks)} of {seen[key]} {key} files read)"
            raise DataError(remarks[0] + (others if seen[key] > 1 else ""))
    return empty["depth"] + empty["labels"]


def data_root(root: str | Path) -> Path:
    """The folder of a data set, once it is known to exist."""
    path = Path(root).expanduser()
    if not path.is_dir():
        raise missing_path(path, what="folder", remedy="check data.root")
    return path


def at_hand(dataset: Dataset) -> Sequence[int]:
    """The indices of samples that cost little to read: all, unless ``dataset.at_hand`` is others.

    Those of data sets whose shards are fetched as they are needed are few. Who wants some samples
    to look at, whichever they are, takes them from these.
    """
    return getattr(dataset, "at_hand", range(len(dataset)))


def a_few(dataset: Dataset, *, limit: int, seed: int = 0) -> list[int]:
    """``limit`` indices: half are the first, half are drawn at random, in order."""
    indices = at_hand(dataset)
    first = min(len(indices), (limit + 1) // 2)
    rest = np.random.default_rng(seed).permutation(np.arange(first, len(indices)))
    return [indices[i] for i in [*range(first), *sorted(rest[: limit - first].tolist())]]


def missing_path(path: Path, *, what: str, remedy: str) -> DataError:
    """The error for a path that does not exist, with the names that do, closest first."""
    if path.is_symlink():
        return DataError(f"{what} {path} is a link to {path.readlink()}, which is not there")
    parent = path
    while not parent.is_dir() and parent != parent.parent:
        wanted, parent = parent.name, parent.parent
    if parent == path:
        return DataError(f"{what} {path} is a folder: {remedy}")
    names = sorted(p.name for p in parent.iterdir() if not p.name.startswith("."))
    close = difflib.get_close_matches(wanted, names, n=5, cutoff=0.5) or names[:5]
    there = ", ".join(close) + (", ..." if len(names) > len(close) else "")
    return DataError(f"{what} {path} does not exist; {parent} holds {there or 'nothing'}: {remedy}")


def require(name: str, purpose: str, *, extra: str) -> Any:
    """The optional package ``name``; a DataError says what needs it and which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        install = f"pip install 'dense-prediction-transformers[{extra}]'"
        raise DataError(f"{purpose} needs {name}: {install}") from None


def few(names: Sequence[str], count: int = 3) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")
