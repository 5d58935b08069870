"""The base class of data sets on disk: a list of records, and the rules by which they are read."""

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, cast

import numpy as np
from pydantic import Field

from dpt.data import splits
from dpt.data.base import Dataset, Files
from dpt.data.formats import io, pictures
from dpt.data.formats.bands import Bands, FilePart, read_bands
from dpt.data.formats.cameras import CameraSource
from dpt.data.formats.rules import DepthRule, LabelCode, LabelRule
from dpt.data.view import MAP_FILLS, resize_image, resize_map
from dpt.files import DataError, data_root, few, files_below, path_below, printable, read_bytes
from dpt.geometry import Camera, normals_of_depth
from dpt.plugins import register
from dpt.types.samples import DatasetInfo, ObjectMask, Sample

PICTURES = (*io.IMAGE_SUFFIXES, *io.UNREAD_SUFFIXES)
MAX_OBJECTS = 65535
"""Largest number of objects in an image."""
SCORED_RATIO = 100.0
"""Of depth to the smallest one of an image, where inverse depth is known up to scale and shift:
farther pixels are trained on and not scored."""


Side = Annotated[int, Field(ge=1)]
_Band = Annotated[int, Field(ge=0)]


class PickledFiles:
    """Records of many samples, pickled into one block of bytes, which worker processes share.

    A list of objects would be copied into every process, because reading changes reference counts.
    """

    def __init__(self, records: Iterable[Files]) -> None:
        pickled = [pickle.dumps(record) for record in records]
        self._content = b"".join(pickled)
        self._ends = np.cumsum([0, *map(len, pickled)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> Files:
        index = range(len(self))[index]
        return pickle.loads(self._content[self._ends[index] : self._ends[index + 1]])


class RawMaps(NamedTuple):
    """What the label files of a sample hold, as stored; None for what it lacks."""

    labels: np.ndarray | None = None  # ids, integers (H, W)
    objects: np.ndarray | None = None  # ids, integers (H, W), 0 and below where there is none
    masks: list[ObjectMask] | None = None  # the objects one by one, where they can overlap
    empty: Sequence[str] = ()  # names of objects without a pixel


@dataclass(kw_only=True, eq=False)
class FileDataset(Dataset):
    """Reads images with their depth files, label files and image-level labels.

    A subclass is a dataclass whose fields are its options. It writes :meth:`list_files`, sets
    ``depth_format`` if it has depth, and writes :meth:`make_label_rule` if it has labels. Where
    several samples share a file, it overrides :meth:`read_image`, :meth:`read_raw_maps` or
    :meth:`read_raw_depth`. Where cameras are known, it overrides :meth:`camera_source`.

    Args:
        min_depth, max_depth: limits of valid depth, in metres.
        normals_from_depth: radius in pixels of the windows of depth by which samples get normals,
            see :func:`dpt.geometry.normals_of_depth`; None: they get none. They are computed at the
            size of the depth files, before anything is resized.
        cache: keep decoded samples in memory.
        cache_size: [H, W]; with ``cache``, the train split keeps images scaled down to the
            smallest size that covers this. Other splits are kept at their own size.
        fractions: the fraction of the images in each split, if nothing on disk defines the splits.
        folds: number of parts into which the images of train are divided, in the order of their
            names; each class folder is divided in the same way. Then val is one of these
            parts, and train the others. Other splits are unchanged.
        fold: the part that is val, from 0.
        group_by: regular expression, searched in an image's path below ``root``. Images with the
            same match (of its first group, if it has one) are in the same part; a part consists of
            whole groups. None: each image is a group, with its copies by Roboflow.
        gap: number of groups on either side of val that are in neither part. With class folders the
            groups of all classes count together, mixed in proportion to their numbers: 6 leaves
            out 2 of each of 3 equally large classes.
        labelled: number of training images that are used with their labels, evenly spaced in the
            natural order of names among those with the same kinds of labels; ``all`` are those that
            have any. None: no image is left out.
        unlabelled: give the other training images instead, without labels.
        array_key: the name of the array in label and depth files that hold several.
        label_code: how the values of label files tell objects, too, see
            :func:`dpt.data.formats.rules.classes_of_code`.
        bands, image_max, nodata: see :class:`dpt.data.formats.bands.FilePart`. Pixels without data
            in every band are unlabelled and have no depth.
        exif: whether the labels fit images turned upright by their EXIF orientation (``apply``), as
            viewers show them, or the stored pixels (``ignore``). None: as the sizes tell; an image
            with such a tag whose labels fit both is refused. Images without labels in their pixels
            are turned, except with ``ignore``.
        resize_labels: accept labels, objects and depth that are smaller or larger than their image,
            if the aspect ratios agree within a pixel. They keep their size in samples and scores;
            for training they are resized to that of the image, by nearest neighbour.
    """

    root: str | Path = field()  # without a default: the base class has None
    split: str
    min_depth: float = 1e-3
    max_depth: float | None = None
    normals_from_depth: Annotated[int, Field(ge=1, le=100)] | None = None
    cache: bool = False
    cache_size: tuple[Side, Side] | None = None
    fractions: Mapping[str, float] | None = None
    folds: Annotated[int, Field(ge=2)] | None = None
    fold: Annotated[int, Field(ge=0)] = 0
    group_by: str | None = None
    gap: Annotated[int, Field(ge=0)] = 0
    labelled: Annotated[int, Field(ge=1)] | Literal["all"] | None = None
    unlabelled: bool = False
    array_key: str | None = None
    label_code: LabelCode | None = None
    bands: Literal["all"] | Annotated[tuple[_Band, ...], Field(min_length=1)] | None = None
    image_max: Annotated[float, Field(gt=0)] | None = None
    nodata: float | None = None
    exif: pictures.ExifRule = None
    resize_labels: bool = False

    depth_format: ClassVar[DepthRule | None] = None
    """Scale and invalid values of the depth files."""

    def __post_init__(self) -> None:
        self.part = FilePart(
            key=self.array_key,
            bands=self.bands,
            image_max=self.image_max,
            nodata=self.nodata,
            code=self.label_code,
        )
        self.depth_key = self.depth_key or self.array_key
        self.root = self.folder = data_root(self.root)
        self.depth_rule = self.make_depth_rule()
        self.label_rule = self.make_label_rule()
        self.is_train = self.split == "train"
        self._files = PickledFiles(self._select(self.list_files()))
        self.info = self.make_info()
        if self.unlabelled and self.is_train:
            self.depth_rule = self.label_rule = None
        self._cache: dict[int, Sample] = {}
        self._form: str | None = None  # of the bands of every image

    # ------------------------------------------------------------------- records and splits

    def list_files(self) -> list[Files]:
        """Returns the records of ``listed_split`` in order; called last, when the rules are
        known."""
        raise NotImplementedError

    @property
    def listed_split(self) -> str:
        """The split whose files are listed: train, too, for a val that is one of its ``folds``."""
        return "train" if self.folds is not None and self.split == "val" else self.split

    @property
    def split_on_disk(self) -> str:
        """The name of ``listed_split`` in folders and tables, see ``split_names``."""
        return (self.split_names or {}).get(self.listed_split, self.listed_split)

    def path_of(self, template: str) -> Path:
        """Returns a path below ``root``; ``%split`` stands for the split's name on disk."""
        return self.folder / template.replace("%split", self.split_on_disk)

    def file_below(self, folder: Path, name: str, source: Path) -> Path:
        """Returns the file that ``source``, a list or table, names by its path from ``folder``.

        Links that lie below ``root`` may lead elsewhere.

        Raises:
            DataError: the file is neither below ``root`` nor below a ``folder`` that the user has
                set elsewhere.
        """
        is_inside = Path(os.path.abspath(folder)).is_relative_to(os.path.abspath(self.folder))
        root = self.folder if is_inside else folder
        return path_below(root, os.path.join(os.path.relpath(folder, root), name), source)

    def without_unread(self, files: Iterable[Files]) -> list[Files]:
        """Returns the records whose images have a format that is read, and notes the others."""
        files = [*files]
        unread = {f.image for f in files if f.image.suffix.lower() not in io.IMAGE_SUFFIXES}
        if unread:
            names = few([os.path.relpath(path, self.folder) for path in sorted(unread)])
            fault = f"{len(unread)} of {len(files)} images left out, in formats that are not read"
            self.notes = [f"{fault} ({names}): convert them to JPEG or PNG"]
        return [record for record in files if record.image not in unread]

    def divide(
        self,
        names: Sequence[str],
        paths: Sequence[Path],
        labelled: Sequence[bool] | None = None,
    ) -> list[int]:
        """Returns the indices of this split's images, where nothing on disk defines the splits.

        Args:
            names: of the images; their groups if ``group_by`` is not set.
            paths: of the images, in which ``group_by`` is searched.
            labelled: see :func:`dpt.data.splits.by_fraction`.
        """
        if self.folds is not None and self.listed_split == "train":
            return [*range(len(names))]
        fractions = self.fractions or splits.DEFAULT_FRACTIONS
        if self.split not in fractions or self.folds is not None:
            present = ", ".join(["train", "val"] if self.folds else fractions)
            fault = "no folder, no list and no part of data.fractions or data.folds"
            raise DataError(f"split {self.split} has {fault}: it is not among {present}")
        groups = splits.group_names(names, None) if self.group_by is None else self._groups(paths)
        return splits.by_fraction(groups, fractions, labelled)[self.split]

    def _groups(self, paths: Iterable[Path]) -> list[str]:
        names = [Path(os.path.relpath(path, self.folder)).as_posix() for path in paths]
        return splits.group_names(names, self.group_by)

    @property
    def groups(self) -> Sequence[str]:
        if self.group_by is None:
            return ()
        try:
            groups = self._groups(self._files[i].image for i in range(len(self)))
        except DataError:  # names that do not match are refused where groups divide the images
            return ()
        return [f"{self.folder}: {group}" for group in groups]

    def _select(self, files: list[Files]) -> list[Files]:
        """Returns the records that ``folds``, ``labelled`` and ``unlabelled`` choose."""
        if self.folds is not None and self.listed_split == "train":
            groups = self._groups(record.image for record in files)
            class_ids = [record.class_id for record in files]
            train, val = splits.folds(groups, self.folds, self.fold, self.gap, class_ids)
            files = [files[i] for i in (train if self.is_train else val)]
        if self.is_train and (self.labelled is not None or self.unlabelled):
            files = self._of_labels(files)
        if not files:
            fault = f"data.gap={self.gap}, data.labelled={self.labelled} or data.unlabelled="
            raise DataError(f"{fault}{str(self.unlabelled).lower()} leaves no image: change it")
        return files

    def _of_labels(self, files: Sequence[Files]) -> list[Files]:
        """Returns the records that ``labelled`` chooses, or the others without labels."""
        count = self.labelled if isinstance(self.labelled, int) else None
        kinds = [record.kinds for record in files]
        chosen = splits.evenly([str(record.image) for record in files], kinds, count)
        if not self.unlabelled:
            return [files[i] for i in chosen]
        rest = [files[i] for i in sorted({*range(len(files))}.difference(chosen))]
        return [Files(f.image, extra=f.extra) for f in rest]

    # ---------------------------------------------------------------------- what samples hold

    def make_depth_rule(self) -> DepthRule | None:
        """Returns how depth files become metres; None if there are none."""
        if self.depth_format is None:
            return None
        return replace(self.depth_format, min_depth=self.min_depth, max_depth=self.max_depth)

    def make_label_rule(self) -> LabelRule | None:
        """Returns how label files become classes; None if there are none."""
        return None

    def make_info(self) -> DatasetInfo:
        info = DatasetInfo(targets=())
        if depth := self.depth_rule:
            limit = depth.max_depth if depth.has_metres else SCORED_RATIO
            info = DatasetInfo(("depth",), min_depth=depth.min_depth, max_depth=limit)
            info = replace(info, has_metres=depth.has_metres)
        if self.normals_from_depth is not None and self.depth_rule is not None:
            info = replace(info, targets=(*info.targets, "normals"))
        if labels := self.label_rule:
            targets, names = (*info.targets, "labels"), labels.class_names
            info = replace(info, targets=targets, class_names=names, palette=labels.palette)
        if any(self.camera_source(index) is not None for index in self.some_indices(16)):
            info = replace(info, targets=(*info.targets, "K"))
        return info

    def __len__(self) -> int:
        return len(self._files)

    def files(self, index: int) -> Files | None:
        return self._files[index]

    def name(self, index: int) -> str:
        return str(self._files[index].image)

    # ------------------------------------------------------------------------------- reading

    def __getitem__(self, index: int) -> Sample:
        """Returns the sample as it is on disk. A cached sample's arrays are read-only."""
        if not self.cache:
            return self._read_with_normals(index)
        if index not in self._cache:
            sample = self._read_with_normals(index)
            if self.cache_size is not None and self.is_train:
                self.check(sample)
                _shrink(sample, self.cache_size)
            for value in sample.values():
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)
            self._cache[index] = sample
        return self._cache[index].copy()

    def _read_with_normals(self, index: int) -> Sample:
        sample = self.read_sample(index)
        if self.normals_from_depth is None or "depth" not in sample:
            return sample
        if "K" not in sample:
            raise DataError(f"{sample['name']}: no camera: leave data.normals_from_depth out")
        depth, valid = sample["depth"], sample["valid"]
        height, width = sample["image"].shape[:2]
        K = Camera(sample["K"], (height, width)).resized(depth.shape).K
        sample["normals"] = normals_of_depth(depth, K, valid, radius=self.normals_from_depth)
        return sample

    def preload(self) -> None:
        if self.cache:
            for index in range(len(self)):
                with suppress(DataError):  # raised again when the sample is read
                    self[index]

    def read_sample(self, index: int) -> Sample:
        """Returns the decoded sample, never from the cache."""
        files = self._files[index]
        maps = RawMaps() if self.label_rule is None else self.read_raw_maps(index)
        depth = None if self.depth_rule is None else self.read_raw_depth(index)
        sizes = [values.shape for values in (maps.labels, depth) if values is not None]
        image = self.read_image(index, sizes[0] if sizes else None)
        sample = Sample(image=image, index=index, name=printable(self.name(index)))
        self._add_maps(sample, maps, files)
        if self.depth_rule is not None and depth is not None:
            sample["depth"], sample["valid"] = self.depth_rule(depth)
        if image.dtype != np.uint8:
            _invalidate(sample, np.isnan(image).all(axis=2))
        camera_source = self.camera_source(index)
        if camera_source is not None:
            sample["K"] = camera_source.camera(files.image, image.shape[:2]).K
        labels = {"class_id": files.class_id, "value": files.value, "caption": files.caption}
        sample.update(cast(Sample, {k: v for k, v in labels.items() if v is not None}))
        return sample

    def _add_maps(self, sample: Sample, maps: RawMaps, files: Files) -> None:
        """Adds labels, a map of objects, and their masks where these can overlap."""
        if self.label_rule is not None and maps.labels is not None:
            source = files.labels or sample["name"]
            sample["labels"] = self.label_rule(maps.labels, source=source)
        if maps.objects is not None:
            sample["objects"] = numbered(maps.objects, files.objects or sample["name"])
        if maps.masks is not None:
            sample["masks"] = maps.masks
        if maps.empty:
            sample["empty_objects"] = [*maps.empty]

    def read_image(self, index: int, map_size: tuple[int, ...] | None = None) -> np.ndarray:
        """Returns the image, uint8 RGB (H, W, 3) or float32 (H, W, C), turned as ``exif`` says.

        Args:
            map_size: (H, W) of the labels or the depth of the sample; None if it has neither.
        """
        path = self._files[index].image
        data = read_bytes(path)
        if self.part.bands is None:
            image = io.read_image(path, data=data, part=self.part)
        else:
            bands = read_bands(path, self.part, data=data)
            self._check_form(bands)
            image = io.image_of_bands(bands, self.part)
        orientation = pictures.orientation_of(data)
        upright = pictures.turned_upright(image, orientation)
        are_upright = pictures.labels_are_upright(
            path,
            orientation,
            self.exif,
            fits_stored=map_size is not None and self.fits(map_size, image.shape),
            fits_upright=map_size is None or self.fits(map_size, upright.shape),
        )
        return upright if are_upright else image

    def _check_form(self, bands: Bands) -> None:
        """Raises DataError if an image has other bands than the first one that can be read."""
        if self._form is None:
            self._form = bands.form
            with suppress(DataError):  # raised where this sample is read
                self._form = read_bands(self._files[0].image, self.part).form
        if bands.form != self._form:
            fault = f"holds {bands.form}, but {self.name(0)} {self._form}"
            raise DataError(f"{bands.path}: {fault}: save all images alike, or set data.bands")

    def read_raw_maps(self, index: int) -> RawMaps:
        """Returns what the label files hold; called if there is a rule of labels."""
        files = self._files[index]
        if files.labels is None or self.label_rule is None:
            return RawMaps()
        labels = io.read_ids(files.labels, self.label_rule, self.part)
        if files.objects is None or not self.info.things:
            return RawMaps(labels)
        return RawMaps(labels, io.read_objects(files.objects, part=self.part))

    def camera_source(self, index: int) -> CameraSource | None:
        """Returns what states the camera of a sample; None if nothing does."""
        return None

    def read_raw_depth(self, index: int) -> np.ndarray | None:
        """Returns depth values as stored, (H, W); None if the sample has no depth."""
        path = self._files[index].depth
        if path is None:
            return None
        return io.read_raw_depth(path, key=self.depth_key)


@register("unlabelled")
class UnlabelledDataset(FileDataset):
    """Reads all images below a folder, which have no labels."""

    def list_files(self) -> list[Files]:
        files = self.without_unread([Files(path) for path in files_below(self.folder, PICTURES)])
        return require_files(files, source=self.folder, remedy="check the folder")


def require_files(files: list[Files], *, source: Path, remedy: str) -> list[Files]:
    """Returns ``files``; DataError if there are none or one does not exist.

    Args:
        source: the list, table or folder that names the files.
    """
    paths = [p for f in files for p in (f.image, f.labels, f.depth, f.objects) if p]
    absent = [str(path) for path in paths if not os.path.isfile(path)]
    if absent:
        fault = f"{len(absent)} files of its {len(files)} images do not exist ({few(absent)})"
        raise DataError(f"{source}: {fault}: {remedy}")
    if not files:
        raise DataError(f"{source}: no image found: {remedy}")
    return files


def official_split(split: str) -> str:
    """Returns ``train`` or ``test`` of a set that has these two; ``val`` is the test split."""
    names = {"train": "train", "val": "test", "test": "test"}
    if split not in names:
        raise DataError(f"split {split}: the set has train and test (also called val)")
    return names[split]


def numbered(ids: np.ndarray, source: Path | str) -> np.ndarray:
    """Returns object ids (H, W) as 1, 2, ... in their order, uint16; ids of 0 and below are 0."""
    ids = np.maximum(ids, 0)
    if ids.max() > MAX_OBJECTS:
        present, positions = np.unique(ids, return_inverse=True)
        ids = positions.reshape(ids.shape) + (present[0] != 0)
        if ids.max() > MAX_OBJECTS:
            raise DataError(
                f"{source}: {len(present)} objects, over {MAX_OBJECTS}: cut it into parts"
            )
    is_present = np.bincount(ids.ravel().astype(np.int64)) > 0  # faster than to sort all pixels
    is_present[0] = False
    return is_present.cumsum().astype(np.uint16)[ids]


def _invalidate(sample: Sample, missing: np.ndarray) -> None:
    """Takes labels and depth from pixels whose image holds no data, bool (H, W)."""
    if not missing.any():
        return
    for key, fill in MAP_FILLS.items():
        if key in sample:
            values = sample[key]
            is_missing = resize_map(missing, values.shape)
            sample[key] = np.where(is_missing, fill, values)


def _shrink(sample: Sample, cover: Sequence[int]) -> None:
    """Scales a sample down to the smallest size that covers ``cover``, [H, W]."""
    height, width = sample["image"].shape[:2]
    scale = min(1.0, max(cover[0] / height, cover[1] / width))
    size = (round(height * scale), round(width * scale))
    sample["image"] = resize_image(sample["image"], size)
    if "K" in sample:
        sample["K"] = Camera(sample["K"], (height, width)).resized(size).K
    for key in MAP_FILLS:
        if key in sample:
            sample[key] = resize_map(sample[key], size)
    sample.pop("masks", None)
