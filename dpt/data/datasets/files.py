"""The base class of data sets on disk: a list of samples with their files."""

import hashlib
import os
import pickle
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dpt.data.base import Dataset, Files, check_sample
from dpt.data.formats import io, pictures
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.io import Parts
from dpt.data.formats.labels import LabelRule
from dpt.data.resize import resize_image, resize_map
from dpt.files import (
    DataError,
    data_root,
    few,
    files_below,
    path_below,
    printable,
    read_bytes,
    read_text,
)
from dpt.types import DatasetInfo, Sample


class PickledRows:
    """Plain data of many samples, pickled into one block of bytes, which worker processes share.

    A list of objects would be copied into every process, because reading changes reference counts.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        pickled = [pickle.dumps(row) for row in rows]
        self._rows = b"".join(pickled)
        self._ends = np.cumsum([0, *map(len, pickled)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Any:
        index = range(len(self))[index]
        return pickle.loads(self._rows[self._ends[index] : self._ends[index + 1]])


FRACTIONS = {"train": 0.9, "val": 0.1}
"""Default shares of the splits, used if neither folders nor lists define them."""


@dataclass(kw_only=True, eq=False)
class FileDataset(Dataset):
    """Reads images with their depth files, label files and image-level labels.

    A subclass is a dataclass whose fields are its options. It writes :meth:`list_files`, sets
    ``depth_format`` if it has depth, and writes :meth:`make_label_rule` if it has labels. Where
    several samples share a file, it overrides :meth:`read_image`, :meth:`read_raw_depth` or
    :meth:`read_raw_labels`; where classes and objects do, :meth:`read_raw_maps`.

    Args:
        min_depth, max_depth: limits of valid depth, in metres.
        cache: keep decoded samples in memory.
        cache_size: [H, W]; with ``cache``, the train split keeps images scaled down to the
            smallest size that covers this. Other splits are kept at their own size.
        folds: number of parts into which the photos of train are divided, in the order of their
            names; each class folder is divided in the same way. Then val is one of these
            parts, and train the others. Other splits are unchanged.
        fold: the part that is val, from 0.
        group_by: regular expression, searched in a photo's path below ``root``. Photos with the
            same match (of its first group, if it has one) are in the same part; a part consists of
            whole groups. None: each photo is a group, with its copies by Roboflow.
        gap: number of groups on either side of val that are in neither part. With class folders the
            groups of all classes count together, mixed in proportion to their numbers: 6 leaves
            out 2 of each of 3 equally large classes.
        labelled: number of training images that are used with their labels, evenly spaced in the
            natural order of names among those with the same kinds of labels; ``all`` are those that
            have any. None: no image is left out.
        unlabelled: give the other training images instead, without labels.
        page: the page or frame, from 0, of files that hold several.
        array_key: the name of the array in label and depth files that hold several.
        bands, image_max: see :func:`dpt.data.formats.io.read_image`.
        exif: whether the labels fit images turned upright by their EXIF orientation (``apply``), as
            viewers show them, or the stored pixels (``ignore``). None: as the sizes tell; an image
            with such a tag whose labels fit both is refused. Images without labels in their pixels
            are turned, except with ``ignore``.
    """

    root: str | Path = field()  # without a default: the base class has None
    split: str
    min_depth: float = 1e-3
    max_depth: float | None = None
    cache: bool = False
    cache_size: Sequence[int] | None = None
    folds: Annotated[int, Field(ge=2)] | None = None
    fold: Annotated[int, Field(ge=0)] = 0
    group_by: str | None = None
    gap: Annotated[int, Field(ge=0)] = 0
    labelled: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    unlabelled: bool = False
    page: Annotated[int, Field(ge=0)] | None = None
    array_key: str | None = None
    bands: Sequence[Annotated[int, Field(ge=0)]] | None = None
    image_max: Annotated[float, Field(gt=0)] | None = None
    exif: Literal["apply", "ignore"] | None = None

    depth_format: ClassVar[DepthRule | None] = None
    """Scale and invalid values of the depth files."""
    is_divided = False  # whether shares define the splits

    def __post_init__(self) -> None:
        if self.cache_size is not None and (len(self.cache_size) != 2 or min(self.cache_size) < 1):
            raise DataError(f"data.cache_size={self.cache_size}: must be [height, width]")
        if self.bands is not None and len(self.bands) not in (1, 3):
            raise DataError(f"data.bands={[*self.bands]}: must be one or three bands, as [0,1,2]")
        bands, image_max = self.bands, self.image_max
        self.parts = Parts(page=self.page, key=self.array_key, bands=bands, image_max=image_max)
        self.depth_key = self.depth_key or self.array_key
        self.root = self.folder = data_root(self.root)
        self.depth_rule = self.make_depth_rule()
        self.label_rule = self.make_label_rule()
        self.part = self.split
        for key in ("fold", "gap") if self.folds is None else ():
            if value := getattr(self, key):
                fault = f"data.{key}={value} has no effect without data.folds"
                raise DataError(f"{fault}: set data.folds, or leave data.{key} out")
        if self.folds is not None and self.split == "val":
            self.split = "train"  # whose files are divided
        self._files = PickledRows(self._select_labelled(self._of_fold(self.list_files())))
        self.info = self.make_info()
        if self.unlabelled and self.part == "train":
            self.depth_rule = self.label_rule = None
        self._cache: dict[int, Sample] = {}

    def list_files(self) -> list[Files]:
        """The samples of the split in order; called last, when the rules are known."""
        raise NotImplementedError

    @property
    def split_on_disk(self) -> str:
        """What the split is called in folders and tables, see ``split_names``."""
        return (self.split_names or {}).get(self.split, self.split)

    def path_of(self, template: str) -> Path:
        """A path below ``root``; ``%split`` stands for the split's name on disk."""
        return self.folder / template.replace("%split", self.split_on_disk)

    def file_below(self, folder: Path, name: str, source: Path) -> Path:
        """The file that ``source``, a list or table, names by its path from ``folder``.

        DataError unless it lies below ``root``, or below a ``folder`` that the user has set
        elsewhere. Links that lie there may lead elsewhere.
        """
        inside = Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(self.folder))
        root = self.folder if inside else folder
        return path_below(root, os.path.join(os.path.relpath(folder, root), name), source)

    def _of_fold(self, files: list[Files]) -> list[Files]:
        if self.folds is None or self.split != "train":
            return files
        if self.fold >= self.folds:
            count = f"data.folds={self.folds}"
            raise DataError(f"data.fold={self.fold}: with {count} it is 0 to {self.folds - 1}")
        by_class: dict[int | None, set[str]] = {}
        for each in files:
            by_class.setdefault(each.class_id, set()).add(self.group(each.image))
        places: dict[str, float] = {}  # among the groups of the class, from 0 to 1
        for names in by_class.values():
            ordered = sorted(names, key=natural_key)
            places |= {name: k / len(names) for k, name in enumerate(ordered)}
        groups = sorted(places, key=lambda name: (places[name], name))
        if self.folds > len(groups):
            raise DataError(
                f"data.folds={self.folds}: {self.folder} has {len(groups)} groups of photos, such "
                f"as {few(groups)}: set data.group_by to an expression that separates them"
            )
        start, stop = (len(groups) * k // self.folds for k in (self.fold, self.fold + 1))
        if self.part == "val":
            kept = set(groups[start:stop])
        else:
            kept = {*groups[: max(0, start - self.gap)], *groups[stop + self.gap :]}
        if not kept:
            raise DataError(f"data.gap={self.gap} leaves no photo for training: make it smaller")
        return [each for each in files if self.group(each.image) in kept]

    def _select_labelled(self, files: list[Files]) -> list[Files]:
        """The files that ``labelled`` and ``unlabelled`` choose."""
        if self.part != "train" or (self.labelled is None and not self.unlabelled):
            return files
        kinds = [[v is not None for v in labels] for image, *labels in files]
        known = [i for i, kind in enumerate(kinds) if any(kind)]
        known.sort(key=lambda i: (kinds[i], natural_key(str(files[i].image))))
        count = self.labelled if isinstance(self.labelled, int) else len(known)
        if count > len(known):
            raise DataError(f"data.labelled={count}: only {len(known)} training images have labels")
        if not (known or self.unlabelled):  # labelled is "all", maybe by data.missing=keep
            fault = f"none of the {len(files)} training images has labels"
            raise DataError(f"{fault}: add some, or leave data.labelled and data.unlabelled out")
        chosen = {known[k * len(known) // count] for k in range(count)}
        if not self.unlabelled:
            return [files[i] for i in sorted(chosen)]
        others = [
            Files(each.image, own=each.own) for i, each in enumerate(files) if i not in chosen
        ]
        if not others:
            raise DataError(
                "data.unlabelled=true: every training image has labels: set data.labelled to the "
                "number whose labels are used, data.missing=keep if some have none, or "
                "data.unlabelled to a folder of photos"
            )
        return others

    def group(self, path: Path) -> str:
        """The group of a photo, see ``group_by``; without it, the photo's path below ``root``."""
        name = Path(os.path.relpath(path, self.folder)).as_posix()
        if self.group_by is None:
            return original(name)
        try:
            match = re.search(self.group_by, name)
        except re.error as error:
            fault = f"data.group_by={self.group_by}: is not a regular expression ({error})"
            raise DataError(f"{fault}: correct it") from None
        found = match and match[min(1, match.re.groups)]
        if found is None:
            raise DataError(f"data.group_by={self.group_by}: does not match {name}: correct it")
        return found

    @property
    def groups(self) -> Sequence[str]:
        if self.group_by is None:
            return ()
        try:
            images = (self._files[i].image for i in range(len(self)))
            return [f"{self.folder}: {self.group(image)}" for image in images]
        except DataError:  # names that do not match are refused where groups divide the images
            return ()

    def divide(
        self, keys: Mapping[str, Path], fractions: Mapping[str, float] | None,
        labelled: Container[str] | None = None,
    ) -> list[str]:  # fmt: skip
        """The keys of this split, if only ``fractions`` define the splits.

        Keys (with their paths), or their groups, are sorted by a hash of their name and divided in
        the order of ``fractions``. The result is the same on every machine, and new files change
        few assignments. Groups without ``labelled`` keys are divided separately, so every split
        gets its share of the labels.
        """
        if self.folds is not None and self.split == "train":
            return list(keys)
        self.is_divided = True
        groups: dict[str, list[str]] = {}
        for key, path in keys.items():
            group = original(key) if self.group_by is None else self.group(path)
            groups.setdefault(group, []).append(key)
        shares, split = dict(fractions or FRACTIONS), self.split
        if split not in shares or self.folds is not None:
            rest = "data.folds divides all photos into train and val"
            rest = rest if self.folds else f"it has {', '.join(shares)}"
            raise DataError(
                f"split {split} has no folder, list or share in data.fractions ({rest})"
            )
        if min(shares.values()) <= 0 or sum(shares.values()) > 1 + 1e-6:
            raise DataError(f"data.fractions={shares} must be above 0 and sum to at most 1")
        names, chosen = list(shares), list[str]()
        known = keys if labelled is None else labelled
        bare = {name for name, own in groups.items() if not any(key in known for key in own)}
        for part, least in ((groups.keys() - bare, 1), (bare, 0)):
            ranked = sorted(part, key=lambda name: hashlib.sha256(os.fsencode(name)).hexdigest())
            counts = {name: max(least, int(len(ranked) * f + 1e-6)) for name, f in shares.items()}
            left = len(ranked) - sum(counts.values())
            if left < 0 or sum(shares.values()) > 1 - 1e-6:
                counts[max(counts, key=lambda name: counts[name])] += left
            if min(counts.values()) < least:
                fault = f"{len(ranked)} images or groups are too few for data.fractions={shares}"
                raise DataError(f"{fault}: add some")
            start = sum(counts[name] for name in names[: names.index(split)])
            chosen += [k for name in ranked[start : start + counts[split]] for k in groups[name]]
        return sorted(chosen)

    def refuse_unused(self, fractions: Mapping[str, float] | None) -> None:
        """Raises DataError for shares of splits that are defined otherwise."""
        if fractions not in (None, FRACTIONS) and not self.is_divided:
            raise DataError(
                f"data.fractions has no effect: folders, lists, a table or data.folds define the "
                f"splits of {self.folder}: leave it out, or name folders without splits"
            )

    def make_depth_rule(self) -> DepthRule | None:
        """How depth files become metres; None if there are none."""
        if self.depth_format is None:
            return None
        return replace(self.depth_format, min_depth=self.min_depth, max_depth=self.max_depth)

    def make_label_rule(self) -> LabelRule | None:
        """How label files become classes; None if there are none."""
        return None

    def make_info(self) -> DatasetInfo:
        info = DatasetInfo(targets=())
        if depth := self.depth_rule:
            info = DatasetInfo(("depth",), min_depth=depth.min_depth, max_depth=depth.max_depth)
        if labels := self.label_rule:
            targets, names = (*info.targets, "labels"), labels.class_names
            info = replace(info, targets=targets, class_names=names, palette=labels.palette)
        return info

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        """The sample as it is on disk. A cached sample's arrays are read-only."""
        if not self.cache:
            return self.read_sample(index)
        if index not in self._cache:
            sample = self.read_sample(index)
            if self.cache_size is not None and self.part == "train":
                height, width = sample["image"].shape[:2]
                scale = min(1.0, max(self.cache_size[0] / height, self.cache_size[1] / width))
                size = (round(height * scale), round(width * scale))
                sample["image"] = resize_image(sample["image"], size)
                for key in ("labels", "objects", "depth", "valid"):
                    if key in sample:
                        sample[key] = resize_map(sample[key], size)
                sample.pop("masks", None)
            for value in sample.values():
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)
            self._cache[index] = sample
        return self._cache[index].copy()

    def preload(self) -> None:
        if self.cache:
            for index in range(len(self)):
                with suppress(DataError):  # raised again when the sample is read
                    self[index]

    def files(self, index: int) -> Files | None:
        return self._files[index]

    def read_sample(self, index: int) -> Sample:
        """The decoded sample, never from the cache."""
        files = self._files[index]
        name = printable(self.name(index))
        sample = Sample(image=self.read_image(index), index=index, name=name)
        if self.label_rule is not None:
            labels, objects = self.read_raw_maps(index)
            if labels is not None:
                sample["labels"] = self.label_rule(labels, source=files.labels or self.name(index))
            if objects is not None:
                sample["objects"] = numbered(objects, files.objects or self.name(index))
        if self.depth_rule is not None:
            raw = self.read_raw_depth(index)
            if raw is not None:
                sample["depth"], sample["valid"] = self.depth_rule(raw)
        for key in ("class_id", "value", "caption"):
            if (value := getattr(files, key)) is not None:
                sample[key] = value
        check_sample(sample, files=files)
        return sample

    def name(self, index: int) -> str:
        return str(self._files[index].image)

    def read_image(self, index: int) -> np.ndarray:
        """uint8 (H, W, 3), RGB, turned as ``exif`` says."""
        path = self._files[index].image
        data = read_bytes(path)
        image = io.read_image(path, data=data, parts=self.parts)
        turn = 1 if self.exif == "ignore" else pictures.orientation_of(data)
        if turn == 1:
            return image
        upright = pictures.turned_upright(image, turn)
        size = None if self.exif == "apply" else self._size_of_maps(index)
        if size in (None, upright.shape[:2]) and size != image.shape[:2]:
            return upright
        if size == image.shape[:2] != upright.shape[:2]:
            return image
        raise DataError(
            f"{path}: has the EXIF orientation {turn}, and its labels may fit the stored pixels or "
            "the upright image: view both; set data.exif=apply if they fit what viewers show, "
            "data.exif=ignore if they fit the stored pixels, or save the image upright"
        )

    def _size_of_maps(self, index: int) -> tuple[int, ...] | None:
        """(H, W) of the labels or the depth of a sample; None if it has neither."""
        labels, _ = (None, None) if self.label_rule is None else self.read_raw_maps(index)
        depth = None if self.depth_rule is None else self.read_raw_depth(index)
        maps = [values.shape for values in (labels, depth) if values is not None]
        return maps[0] if maps else None

    def read_raw_maps(self, index: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """:meth:`read_raw_labels` and, for a sample that has labels, :meth:`read_raw_objects`."""
        labels = self.read_raw_labels(index)
        has_objects = labels is not None and self.info.things
        return labels, self.read_raw_objects(index) if has_objects else None

    def read_raw_labels(self, index: int) -> np.ndarray | None:
        """Ids as stored, integers (H, W); None if the sample has no labels."""
        path = self._files[index].labels
        if path is None or self.label_rule is None:
            return None
        return self.label_rule.read(path, self.parts)

    def read_raw_objects(self, index: int) -> np.ndarray | None:
        """Object ids, integers (H, W), 0 where there is none; None if the sample has none."""
        path = self._files[index].objects
        return None if path is None else io.read_objects(path, parts=self.parts)

    def read_raw_depth(self, index: int) -> np.ndarray | None:
        """Depth values as stored, (H, W); None if the sample has no depth."""
        path = self._files[index].depth
        if path is None:
            return None
        return io.read_raw_depth(path, key=self.depth_key, page=self.page)

    def explain_invalid_depth(self, index: int) -> str:
        raw = self.read_raw_depth(index)
        assert raw is not None
        assert self.depth_rule is not None
        source = self._files[index].depth or self.name(index)
        return f"every pixel of {source} is invalid: {self.depth_rule.explain(raw)}"


class PhotoDataset(FileDataset):
    """All photos below a folder, without labels."""

    def list_files(self) -> list[Files]:
        found = [Files(path) for path in files_below(self.folder, io.IMAGE_SUFFIXES)]
        return existing(found, source=self.folder, remedy="check the folder")


MAX_OBJECTS = 65535


def numbered(ids: np.ndarray, source: Path | str) -> np.ndarray:
    """Object ids (H, W) as 1, 2, ... in their order, uint16; ids of 0 and below are 0."""
    present, places = np.unique(np.maximum(ids, 0), return_inverse=True)
    numbers = np.arange(len(present)) + (present[0] != 0)
    if numbers[-1] > MAX_OBJECTS:
        fault = f"{len(present)} objects, at most {MAX_OBJECTS} in an image"
        raise DataError(f"{source}: {fault}: cut it into parts")
    return numbers[places].reshape(ids.shape).astype(np.uint16)


def existing(files: Sequence[Files], *, source: Path, remedy: str) -> list[Files]:
    """``files``; DataError if there are none or one does not exist. ``source`` names them."""
    paths = [p for f in files for p in (f.image, f.labels, f.depth, f.objects) if p]
    absent = [str(path) for path in paths if not os.path.isfile(path)]
    if absent:
        raise DataError(
            f"{source}: {len(absent)} files of its {len(files)} images do not exist "
            f"({few(absent)}): {remedy}"
        )
    if not files:
        raise DataError(f"{source}: no image found: {remedy}")
    return list(files)


def original(name: str) -> str:
    """The name that Roboflow's copies of a photo share: ``a_jpg`` of ``a_jpg.rf.HASH.jpg``."""
    return re.sub(r"\.rf\.[0-9A-Za-z]{8,}.*", "", name)


def natural_key(name: str) -> list[Any]:
    """A key for sorting in natural order: ``frame_9`` before ``frame_10``."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if k % 2 else part for k, part in enumerate(parts)]


def read_list(path: Path) -> list[str]:
    """The lines of a text file that are neither blank nor comments (``#``)."""
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]
