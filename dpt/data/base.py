"""The base class of data sets, and the wrapper that applies a transform to their samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch.utils.data

from dpt.data.formats.bands import FilePart
from dpt.data.formats.pictures import ExifRule
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.data.view import MAP_FILLS
from dpt.files import DataError, few
from dpt.geometry import Camera, aspects_agree
from dpt.types.samples import IGNORE_INDEX, NO_CLASS, DatasetInfo, Sample


class Files(NamedTuple):
    """The files and image-level labels of one sample; None for those that it lacks.

    ``extra`` is other data that its data set needs to read the sample, such as COCO's segments.
    """

    image: Path
    labels: Path | None = None
    depth: Path | None = None
    class_id: int | None = None
    value: float | None = None
    objects: Path | None = None
    caption: str | None = None
    extra: Any = None

    @property
    def kinds(self) -> list[bool]:
        """Which kinds of labels the sample has."""
        return [value is not None for value in self[1:]]


class Dataset(torch.utils.data.Dataset[Sample], ABC):
    """Raw samples of one split, at the size of their files and without augmentation.

    To add a data set, write ``conf/data/NAME.yaml``. Its ``kind`` names a class; its other keys
    are the class's arguments, checked against their types. ``split`` is always passed.

    1. Files that can be paired by folders and names need no class: ``defaults: [folder, _self_]``
       (``conf/data/cityscapes.yaml`` is an example).
    2. If only the search for files is special, derive from
       :class:`dpt.data.datasets.files.FileDataset` and write ``list_files``
       (as in ``indoor.py``).
    3. Otherwise derive from this class and write ``info``, ``__len__`` and ``__getitem__``.

    The same index must always give the same sample (but see :meth:`draw`), with the keys of
    ``Sample``; a missing label is a missing key. Raise :class:`DataError` with the
    file's name where a file cannot be read, so that ``data.on_error=skip`` works.
    """

    info: DatasetInfo  # targets, class names, palette, depth range; known before any file is read
    class_id_names: tuple[str, ...] = ()  # of the image-level classes, if there are any
    root: str | Path | None = None  # folder; reports omit it from file names
    objects_fault: str = ""  # why labels of objects, if there are any, train and score nothing
    object_counts: Sequence[int] = ()  # the objects of each image, where label files tell
    notes: Sequence[str] = ()  # what label files hold that is left out, a sentence each
    annotation_file: Path | None = None  # COCO's JSON file, whose ids predictions name
    labels_remedy: str = ""  # how to obtain labels that are absent, for messages
    depth_rule: DepthRule | None = None  # from the values of depth files to metres
    label_rule: LabelRule | None = None  # from the values of label files to classes
    part: FilePart = FilePart()  # what is read of files that hold more than one picture or map
    depth_key: str | None = None  # name of the array in depth files that hold several
    exif: ExifRule = None  # which pixels labels fit, see FileDataset
    resize_labels: bool = False  # whether maps may be smaller or larger than their image
    split_names: Mapping[str, str] | None = None  # the splits' names on disk, where they differ
    # images with neither labels nor depth; label and depth files without an image
    unpaired: tuple[Sequence[Path], Sequence[Path]] = ((), ())
    reads_files: bool = True  # False if samples are computed: there are no files to check
    changes_every_epoch: bool = False  # whether the sample of an index depends on the epoch
    is_sharded: bool = False  # whether neighbouring indices share a file

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Sample: ...

    def draw(self, epoch: int, index: int) -> Sample:
        """Returns the raw sample of ``index`` in ``epoch``; ``self[index]`` is that of epoch 0."""
        return self[index]

    def epoch_order(self, random: np.random.Generator) -> np.ndarray:
        """Draws a permutation of all indices, int (len(self),), for one training epoch."""
        return random.permutation(len(self))

    def without_repeats(self) -> Dataset:
        """Returns this data set with each sample once, the same in all epochs, for evaluation."""
        return self

    @property
    def distinct_indices(self) -> Sequence[int]:
        """Indices that give each sample once: all, unless a mix repeats some in an epoch."""
        return range(len(self))

    def preload(self) -> None:
        """Fills the caches, if there are any, before worker processes are forked."""

    def name(self, index: int) -> str:
        """Returns what messages call a sample, usually its image's path.

        By default the whole sample is read for it; evaluation asks for the names of all samples.
        """
        return self[index].get("name", f"sample {index}")

    def annotation_id(self, index: int) -> int | str | None:
        """Returns the id of a sample's image in ``annotation_file``; None if it has none."""
        return None

    def files(self, index: int) -> Files | None:
        """Returns the files of a sample; None if unknown or if one file holds several samples."""
        return None

    @property
    def groups(self) -> Sequence[str]:
        """The group of each sample (``data.group_by``), empty if there are none.

        It contains the folder of the data set, so that the groups of a mix stay apart.
        """
        return ()

    def adopt_classes(self, names: Sequence[str]) -> None:
        """Numbers the classes as another split or a model does, if the files name them."""

    def unknown_class(self, names: Sequence[str]) -> str:
        """Returns which label is of a class that is not among ``names``; empty if none is, or if
        the files hold no names."""
        return ""

    def damaged_files(self) -> Sequence[str]:
        """Returns a line for each file that differs from its checksum, if there are checksums."""
        return ()

    def some_indices(self, limit: int) -> list[int]:
        """Returns ``limit`` evenly spaced distinct indices, or all if there are fewer."""
        indices = self.distinct_indices
        positions = np.linspace(0, len(indices) - 1, min(limit, len(indices)))
        return [indices[position] for position in positions.astype(int)]

    def fits(self, map_size: tuple[int, ...], image_size: tuple[int, ...]) -> bool:
        """Whether a map of size ``map_size`` (H, W) can belong to an image of ``image_size``."""
        if map_size[:2] == image_size[:2]:
            return True
        return self.resize_labels and aspects_agree(map_size, image_size)

    def check(self, sample: Sample) -> None:
        """Raises DataError if a sample is not as ``info`` and ``Sample`` say.

        Whoever reads a sample calls it once, before the sample is changed.
        """
        name, count = sample.get("name", "a sample"), self.info.num_classes
        if "image" not in sample or ("depth" in sample) != ("valid" in sample):
            raise DataError(f"{name}: must have an image, and depth and valid or neither")
        _check_arrays(sample, self)
        if "K" in sample:
            height, width = sample["image"].shape[:2]
            Camera(sample["K"], (height, width)).require_plausible(name)
        class_id, ids = sample.get("class_id", NO_CLASS), len(self.class_id_names)
        if ids and class_id >= ids:
            raise DataError(f"{name}: class_id {class_id} is outside 0..{ids - 1}: name the class")
        if not count:
            return
        outside = {mask.class_id for mask in sample.get("masks", ())} - {*range(count)}
        if "labels" in self.info.targets and "labels" in sample:
            labels = sample["labels"]
            is_outside = (labels >= count) & (labels != IGNORE_INDEX)
            outside |= set(np.unique(labels[is_outside]).tolist())
        if outside:
            fault = f"class ids {few([*map(str, sorted(outside))], 8)} are outside 0..{count - 1}"
            raise DataError(f"{name}: {fault}: use {IGNORE_INDEX} for unlabelled pixels")

    def validate(self, *, limit: int = 16) -> list[str]:
        """Reads and checks ``limit`` samples (:meth:`some_indices`) before training starts.

        Returns:
            A warning for each map without a usable pixel.

        Raises:
            DataError: a file cannot be read, sizes differ, class ids are out of range, or more
                than half of the maps have no usable pixel.
        """
        if len(self) == 0:
            raise DataError("the data set is empty")
        counts = {"depth": 0, "normals": 0, "labels": 0}
        warnings: dict[str, list[str]] = {key: [] for key in counts}
        for index in self.some_indices(limit) if self.reads_files else ():
            sample = self[index]
            self.check(sample)
            for key in counts:
                counts[key] += key in sample
            for key, line in self._unusable_maps(index, sample):
                warnings[key].append(line)
        for key, lines in warnings.items():
            count = counts[key]
            if 2 * len(lines) > count:
                more = f" (so are {len(lines)} of {count} {key} files read)" if count > 1 else ""
                raise DataError(lines[0] + more)
        return [line for lines in warnings.values() for line in lines]

    def _unusable_maps(self, index: int, sample: Sample) -> Iterator[tuple[str, str]]:
        """Yields the name of each map of a sample without a usable pixel, and a line about it."""
        if "depth" in sample and not sample["valid"].any():
            remedy = "check data.depth_scale, data.invalid_depth and data.max_depth"
            yield "depth", f"every depth pixel of {self.name(index)} is invalid: {remedy}"
        if "normals" in sample and not sample["normals"].any():
            remedy = "its depth is too sparse, or too noisy: set a larger data.normals_from_depth"
            yield "normals", f"no pixel of {self.name(index)} has a normal: {remedy}"
        is_ignored = "labels" in sample and (sample["labels"] == IGNORE_INDEX).all()
        if is_ignored and not self.info.has_only_things:
            remedy = "check the labels, data.ignore_index and data.label_map"
            yield "labels", f"every label pixel of {self.name(index)} is ignored: {remedy}"


def require_same_classes(first: Dataset, other: Dataset) -> None:
    """Raises DataError if two splits of one data set have different classes."""
    names, other_names = first.info.class_names, other.info.class_names
    if not names or not other_names:
        return
    if fault := other.unknown_class(names):
        remedy = f"rename it to one of {few(names, 8)}, or label some of it in both"
        raise DataError(f"{fault}, but the other split has no such class: {remedy}")
    if names != other_names:
        lists = f"{few(names, 8)} in one split and {few(other_names, 8)} in another"
        raise DataError(f"{other.root or 'data'}: the classes are {lists}: give all the same list")


class Transform(Protocol):
    """Changes a sample; all randomness comes from ``seed``."""

    def __call__(self, sample: Sample, *, seed: int) -> Sample: ...


MAX_REPLACEMENTS = 20  # broken samples in a row after which ``data.on_error=skip`` stops


@dataclass(eq=False)
class Augmented(torch.utils.data.Dataset[Sample]):
    """A data set and its transform, indexed by (epoch, index).

    The transform's randomness depends on (seed, epoch, index) only, so that batches are
    bit-identical for any number of workers and after resuming.

    Args:
        on_error: if a sample cannot be read or transformed, ``raise``, take the ``next`` sample, or
            give a ``blank`` image without labels. The last two list the errors under ``failed``.
    """

    dataset: Dataset
    transform: Transform
    seed: int
    on_error: Literal["raise", "next", "blank"] = "raise"

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: tuple[int, int] | int) -> Sample:
        """Returns the transformed sample of (epoch, index); a bare index means epoch 0."""
        epoch, index = key if isinstance(key, tuple) else (0, key)
        out = self._read(epoch, index)
        out["index"] = index
        out.setdefault("name", str(index))
        return out

    def _read(self, epoch: int, index: int) -> Sample:
        """Returns the transformed sample, or its replacement if it cannot be used."""
        state = np.random.SeedSequence((self.seed, epoch, index)).generate_state(1)
        transform = partial(self.transform, seed=int(state[0]))
        failed: list[str] = []
        for offset in range(min(MAX_REPLACEMENTS, len(self.dataset))):
            try:
                sample = self.dataset.draw(epoch, (index + offset) % len(self.dataset))
                self.dataset.check(sample)
                out = transform(sample)
            except DataError as error:
                if self.on_error == "raise":
                    raise
                failed.append(str(error))
                if self.on_error == "blank":
                    blank = Sample(image=np.zeros((64, 64, 3), np.uint8))
                    return {**transform(blank), "failed": failed, "is_blank": True}
            else:
                return {**out, "failed": failed} if failed else out
        raise DataError(f"{len(failed)} samples in a row cannot be read: {failed[0]}")


_TYPES: dict[str, np.dtype] = {key: fill.dtype for key, fill in MAP_FILLS.items()}
_TYPES["prompt"] = np.dtype(np.float32)


def _check_arrays(sample: Sample, dataset: Dataset) -> None:
    """Raises DataError if a size or dtype is wrong."""
    name, image = sample.get("name", "a sample"), sample["image"]
    is_rgb = image.dtype == np.uint8 and image.shape[2:] == (3,)
    is_bands = image.dtype == np.float32 and image.ndim == 3 and image.size > 0
    if not is_rgb and not is_bands:
        fault = f"image is {image.dtype} {image.shape}"
        raise DataError(f"{name}: {fault}, must be uint8 (H, W, 3) RGB or float32 (H, W, C)")
    maps = {key: np.asarray(array) for key, array in sample.items() if key in _TYPES}
    for key, array in maps.items():
        has_shape = array.shape[2:] == (3,) if key == "normals" else array.ndim == 2
        if array.dtype != _TYPES[key] or not has_shape:
            form = {"normals": "(H, W, 3)"}.get(key, "(H, W)")
            fault = f"{key} is {array.dtype} {array.shape}, must be {_TYPES[key]} {form}"
            raise DataError(f"{name}: {fault}")
        if not dataset.fits(array.shape, image.shape):
            raise _misfit(sample, key, array.shape, dataset)
    labels = maps.get("labels")
    if labels is not None and maps.get("objects", labels).shape != labels.shape:
        raise DataError(f"{name}: its mask and its map of objects differ in size: resize one")


def _misfit(sample: Sample, key: str, shape: tuple[int, ...], dataset: Dataset) -> DataError:
    """Returns the error for a map that belongs to an image of another size."""
    height, width = sample["image"].shape[:2]
    files = dataset.files(sample["index"]) if "index" in sample else None
    paths = {} if files is None else files._asdict()
    path = paths.get(key) or paths.get("objects") or "its file"
    remedy = "pair the right files, or resize them to one size (all but the image by nearest)"
    if shape[:2] == (width, height):
        remedy = "exchange width and height in the label file, or turn the labels by 90 degrees"
    elif aspects_agree(shape, (height, width)):
        remedy = "set data.resize_labels=true if it shows all of the image"
    fault = f"image is {width}x{height} but its {key} {shape[1]}x{shape[0]} ({path})"
    return DataError(f"{sample.get('name', 'a sample')}: {fault}: {remedy}")
