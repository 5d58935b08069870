"""A folder of images beside folders of label files and depth files, paired by name."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import AnnotatedImage, Annotations
from dpt.data.base import Files
from dpt.data.datasets import annotated
from dpt.data.datasets.files import FileDataset, RawMaps, Side, require_files
from dpt.data.formats import pictures
from dpt.data.formats.cameras import CameraFile, CameraSource, FieldOfView, StatedCamera
from dpt.data.formats.io import BAND_SUFFIXES, DEPTH_SUFFIXES, IMAGE_SUFFIXES, LABEL_SUFFIXES
from dpt.data.formats.rules import DepthRule, Disparity, LabelMap, LabelRule
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, few, files_below, missing_path, plain_name, read_list, read_table
from dpt.geometry import aspects_agree
from dpt.plugins import register
from dpt.types.samples import IGNORE_INDEX, DatasetInfo

_OF_MASKS = "labels depth objects num_classes label_map class_names label_colors color_distance"
_Kind = Literal["labels", "depth", "objects"]
_OF_METRES = ("max_depth", "disparity", "normals_from_depth")
_TABLE_COLUMNS: dict[_Kind, str] = {"labels": "mask", "depth": "depth", "objects": "objects"}
_Intrinsics = tuple[float, float, float, float, Side, Side]
"""fx, fy, cx and cy, and H and W of the image to which they belong."""


class _Maps(NamedTuple):
    """The label or depth files of one kind."""

    kind: _Kind
    is_of_split: bool  # whether the folder holds only files of the split
    paths: Mapping[str, Path]  # by key, see :func:`scan`


@register("folder")
@dataclass(kw_only=True, eq=False)
class FolderDataset(FileDataset):
    """Pairs files of two or three folders by their names, or reads the files of a label tool.

    ``data/README.md`` shows layouts and explains the options, which are the settings of
    ``data=folder``. Without ``fractions`` a folder of all splits is divided 9:1.
    """

    images: str = "images"
    labels: str | None = None
    depth: str | None = None
    objects: str | None = None
    annotations: str | None = None
    annotation_files: str | None = None
    background: bool | None = None
    things: Sequence[str | int] | None = None
    first_object: Annotated[int, Field(ge=1)] = 1
    num_classes: int | None = None
    ignore_index: int | Sequence[int] | None = IGNORE_INDEX
    label_map: LabelMap | None = None
    class_names: Sequence[str] = ()
    label_colors: Sequence[Sequence[int]] = ()
    color_distance: Annotated[int, Field(ge=0, le=255)] | None = None
    depth_scale: float | None = None
    depth_kind: Literal["depth", "inverse"] = "depth"
    disparity: Disparity | None = None
    depth_key: str | None = None
    invalid_depth: Sequence[float] = (0,)
    images_name: str = "%stem"
    labels_name: str = "%stem"
    depth_name: str = "%stem"
    intrinsics: str | _Intrinsics | None = None
    fov: Annotated[float, Field(gt=0, lt=180)] | None = None
    objects_name: str = "%stem"
    split_names: Mapping[str, str] | None = None
    split_files: Mapping[str, str | None] | None = None
    missing: Literal["raise", "skip", "keep"] = "raise"

    def __post_init__(self) -> None:
        keys = [f"data.{name}" for name in _OF_MASKS.split() if vars(self)[name]]
        if self.annotations is not None and keys:
            raise DataError(f"{few(keys, 8)}: leave it out, as data.annotations names the classes")
        if self.intrinsics is not None and self.fov is not None:
            raise DataError("data.fov cannot be combined with data.intrinsics: leave one out")
        self.object_labels: annotated.ObjectLabels | None = None  # of a label tool
        super().__post_init__()

    def make_depth_rule(self) -> DepthRule | None:
        if self.depth is None:
            return None
        if self.depth_kind == "inverse":
            settings = vars(self)
            metric = [k for k in _OF_METRES if settings[k] is not None]
            if metric:
                names = few([f"data.{key}" for key in metric])
                raise DataError(f"{names}: data.depth_kind=inverse has no metres: leave it out")
            return DepthRule(invalid=self.invalid_depth, has_metres=False)
        if self.max_depth is None:
            raise DataError("data.max_depth is needed with data.depth: largest valid metres")
        rule = DepthRule(
            scale=0.001 if self.depth_scale is None else self.depth_scale,
            invalid=self.invalid_depth,
            min_depth=self.min_depth,
            max_depth=self.max_depth,
        )
        if self.disparity is None:
            return rule
        pixel = 1.0 if self.depth_scale is None else rule.scale
        return replace(rule, scale=1.0, decode=partial(self.disparity.metres, scale=pixel))

    def make_label_rule(self) -> LabelRule | None:
        if self.labels is None:
            return None
        return LabelRule(
            num_classes=self.num_classes,
            class_names=self.class_names,
            ignore_index=self.ignore_index,
            label_map=self.label_map,
            colors=self.label_colors,
            color_distance=self.color_distance,
        )

    def camera_source(self, index: int) -> CameraSource | None:
        if self.fov is not None:
            return FieldOfView(self.fov)
        if self.intrinsics is None:
            return None
        if not isinstance(self.intrinsics, str):
            height, width = map(int, self.intrinsics[4:])
            return StatedCamera.parse(self.intrinsics[:4], "data.intrinsics", (height, width))
        stem = self._stem(self._files[index].image) if "%stem" in self.intrinsics else ""
        return CameraFile(self.path_of(self.intrinsics.replace("%stem", stem)))

    def _stem(self, image: Path) -> str:
        """Returns what ``%stem`` of ``images_name`` stands for in the path of an image below its
        folder."""
        images = self.path_of(self.images)
        folders = (images / self.split_on_disk, images, self.folder)
        folder = next(path for path in folders if image.is_relative_to(path))
        before, after = self.images_name.split("%stem")
        name = image.stem.removeprefix(before).removesuffix(after)
        return (image.parent.relative_to(folder) / name).as_posix()

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        if self.object_labels is not None:
            flags = self.object_labels.things
        elif self.objects is None:
            return info
        else:
            flags = self._things_of_maps(info.class_names)
        return replace(info, targets=(*info.targets, "objects"), things=flags)

    def _things_of_maps(self, names: Sequence[str]) -> tuple[bool, ...]:
        if not names:
            raise DataError("data.objects needs data.labels, the classes of the objects")
        things = self.things
        if things is None:
            things = [name for name in names if not annotated.is_background(name)]
        return annotated.thing_flags(things, names)

    def read_raw_maps(self, index: int) -> RawMaps:
        if self.object_labels is not None:
            image = self._annotated_image(index)
            return RawMaps() if image is None else self.object_labels.maps(image, self._size(image))
        maps = super().read_raw_maps(index)
        if maps.labels is None or maps.objects is None or self.label_rule is None:
            return maps
        is_object = maps.objects >= self.first_object
        if maps.labels.shape == maps.objects.shape:  # otherwise the sample is refused
            is_unlabelled = np.isin(maps.labels, self.label_rule.ignore_index)
            # Pascal VOC has one value in both maps where nothing is labelled
            is_object &= ~(is_unlabelled & (maps.objects == maps.labels))
        return maps._replace(objects=np.where(is_object, maps.objects, 0))

    @property
    def _map_options(self) -> dict[_Kind, tuple[str, str]]:
        """Returns the folder, and the template of file names, of each kind of maps."""
        settings = vars(self)
        kinds = [kind for kind in _TABLE_COLUMNS if settings[kind]]
        return {kind: (settings[kind], settings[f"{kind}_name"]) for kind in kinds}

    def list_files(self) -> list[Files]:
        if self.annotations is not None:
            return self._list_annotated(self.annotations)
        if self._has_table:
            path = self.list_file()
            files = self._without_unlabelled(self._read_table(path))
            return require_files(files, source=path, remedy="check data.root and the table")
        return self._list_folders()

    def _list_folders(self) -> list[Files]:
        """Returns the records of the images that a text file lists, or of those in the split's
        folder or in a folder of all splits, with the maps of their names."""
        folder, is_of_split = self._find(self.images, option="data.images")
        images = self._scan_images(folder)
        keys = self._listed_keys(images, folder) if self._lists else [*images]
        every_map = self._scan_maps(keys)
        stray: list[Path] = []
        for maps in every_map:
            if is_of_split and not maps.is_of_split:  # they may belong to another split's images
                self._refuse_shared(images, maps.paths)
            else:
                stray += [path for key, path in maps.paths.items() if key not in images]
        if not (self._lists or is_of_split):
            keys = self._keys_of_split(images, every_map)
        files = [
            _record(images[key], {maps.kind: maps.paths.get(key) for maps in every_map})
            for key in keys
        ]
        return self._without_unlabelled(files, stray)

    def _scan_images(self, folder: Path) -> dict[str, Path]:
        """Returns the images below a folder by key."""
        suffixes = IMAGE_SUFFIXES if self.bands is None else BAND_SUFFIXES
        return scan(folder, self.images_name, suffixes, option="data.images_name")

    def _scan_maps(self, keys: Sequence[str]) -> list[_Maps]:
        """Returns the label and depth files; DataError if those of a kind pair with no image."""
        every_map: list[_Maps] = []
        for kind, (template, name) in self._map_options.items():
            option = f"data.{kind}_name"
            suffixes = DEPTH_SUFFIXES if kind == "depth" else LABEL_SUFFIXES
            folder, is_of_split = self._find(template, option=f"data.{kind}")
            paths = scan(folder, name, suffixes, option=option)
            if paths.keys().isdisjoint(keys):
                names = f"such as {keys[0]}, with a file of {folder}, such as {next(iter(paths))}"
                raise DataError(f"no image pairs, {names}: set %stem in data.images_name, {option}")
            every_map.append(_Maps(kind, is_of_split, paths))
        return every_map

    def _keys_of_split(self, images: Mapping[str, Path], every_map: Sequence[_Maps]) -> list[str]:
        """Returns the keys of the split's images in a folder of all splits."""
        of_split = {key for maps in every_map if maps.is_of_split for key in maps.paths}
        if of_split:  # folders of labels define the splits
            return [key for key in images if key in of_split]
        labelled = {key for maps in every_map if maps.kind != "objects" for key in maps.paths}
        keys = [*images]
        flags = [key in labelled for key in keys] if labelled else None
        return [keys[i] for i in self.divide(keys, [*images.values()], labelled=flags)]

    def _refuse_shared(self, images: Mapping[str, Path], maps: Mapping[str, Path]) -> None:
        """Raises DataError if one map pairs with images of two splits."""
        template = self.images if "%split" in self.images else f"{self.images}/%split"
        for name in {*SPLITS, *(self.split_names or {}).values()} - {self.split_on_disk}:
            folder = self.folder / template.replace("%split", name)
            other_images = self._scan_images(folder) if folder.is_dir() else {}
            shared = [key for key in images if key in maps and key in other_images]
            if shared:
                pair = f"{images[shared[0]]} and {other_images[shared[0]]}"
                raise DataError(f"{maps[shared[0]]} pairs with {pair}: give each split its labels")

    def _without_unlabelled(self, files: list[Files], stray: Sequence[Path] = ()) -> list[Files]:
        """Returns ``files``; ``missing=skip`` leaves out those with neither labels nor depth."""
        kinds: list[str] = [kind for kind in self._map_options if kind != "objects"]
        if self.annotations is not None:
            kinds = [f"labels in {FORMATS[self.annotations].title}"]
        unlabelled = [f.image for f in files if kinds and not (f.labels or f.depth or f.extra)]
        if unlabelled and self.missing == "raise":
            names = few([os.path.relpath(path, self.folder) for path in unlabelled])
            count = f"{len(unlabelled)} of {len(files)} images in {self.folder}"
            remedy = "add them, or set data.missing=skip (or keep, with a task/teacher)"
            raise DataError(f"{count} have no {' and no '.join(kinds)} ({names}): {remedy}")
        self.unpaired = unlabelled, stray
        skipped = set(unlabelled) if self.missing == "skip" else set()
        return [record for record in files if record.image not in skipped]

    # ------------------------------------------------------------------ files of label tools

    def _annotated_image(self, index: int) -> AnnotatedImage | None:
        """Returns a sample's objects; None if no label file names its image."""
        image: AnnotatedImage | None = self._files[index].extra
        return image

    def annotation_id(self, index: int) -> int | str | None:
        image = self._annotated_image(index)
        return None if image is None else image.id

    def adopt_classes(self, names: Sequence[str]) -> None:
        if self.object_labels is not None and self.label_rule is not None:
            self.object_labels.adopt(names)
            self.label_rule = self.object_labels.rule
            self.info = self.make_info()

    def unknown_class(self, names: Sequence[str]) -> str:
        return "" if self.object_labels is None else self.object_labels.unknown_class(names)

    def _size(self, image: AnnotatedImage) -> tuple[int, int]:
        """Returns the (H, W) in which the objects are drawn, that of the stored pixels or upright.

        It is known before memory for the masks is allocated.
        """
        path, stated, stored = image.image, image.size, pictures.read_size(image.image)
        if stated is None:
            orientation = pictures.exif_orientation(path)
            is_upright = pictures.labels_are_upright(path, orientation, self.exif)
            return pictures.upright_size(path) if is_upright else stored
        if self.fits(stated, stored) or self.fits(stated[::-1], stored):
            return stated
        sizes = f"{stored[1]}x{stored[0]} pixels, but {stated[1]}x{stated[0]} in its labels"
        remedy = "correct it, or use the original image"
        if aspects_agree(stated, stored):
            remedy = "use the original image, or set data.resize_labels=true if it is only scaled"
        raise DataError(f"{path}: {sizes}: {remedy}")

    def _list_annotated(self, name: str) -> list[Files]:
        """Returns the records of images whose labels are in the files of a label tool."""
        template = self.annotation_files or ""
        annotations, unlabelled = annotated.read_annotations(
            self.folder,
            name,
            chosen=[self.path_of(template)] if template else [],
            images=self.folder if self.images == "images" else self.path_of(self.images),
        )
        paths, absent = self._present(self._paths_of_split(annotations, unlabelled))
        if name == "coco" and annotations.source.is_file():
            self.annotation_file = annotations.source
        image_of_path = {image.image: image for image in annotations.images}
        images = [image_of_path[path] for path in paths if path in image_of_path]
        labels = annotated.ObjectLabels(
            annotations,
            images,
            front=FORMATS[name].front,
            background=self.background,
            things=self.things,
        )
        self.object_labels, self.label_rule = labels, labels.rule
        self.objects_fault, self.notes = labels.fault, annotations.notes
        self.object_counts = [len(image.objects) for image in images]
        map_of_path = {image.image: image.map_file for image in images}
        files = [
            Files(path, objects=map_of_path.get(path), extra=image_of_path.get(path))
            for path in paths
        ]
        files = self._without_unlabelled(files, absent)
        remedy = "add the images, or set data.missing=skip"
        return require_files(files, source=annotations.source, remedy=remedy)

    def _present(self, paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Returns the images that count, and those that ``missing=skip`` leaves out."""
        if self.missing != "skip":
            return [*paths], []
        present = [path for path in paths if path.is_file()]
        return present, sorted({*paths}.difference(present))

    def _paths_of_split(self, annotations: Annotations, unlabelled: Sequence[Path]) -> list[Path]:
        """Returns the images of the split by lists, as the label tool says, or by fractions."""
        if "%split" in (self.annotation_files or "") and not self._lists:
            return [image.image for image in annotations.images]
        if self._has_table:
            return [record.image for record in self._read_table(self.list_file())]
        split_of_path = {image.image: image.split for image in annotations.images}
        has_splits = len({*split_of_path.values()} - {""}) > 1
        for path in unlabelled:
            split_of_path[path] = split_word(str(path.relative_to(self.folder)))[0] or "train"
        if has_splits and not self._lists:
            return self._paths_of_stated_split(annotations, split_of_path)
        return self._paths_by_names([*split_of_path], {*unlabelled})

    def _paths_by_names(self, paths: Sequence[Path], unlabelled: Collection[Path]) -> list[Path]:
        """Returns the images of the split by its list, or by fractions."""
        folder = Path(os.path.commonpath([path.parent for path in paths]))
        names = {path.relative_to(folder).as_posix(): path for path in paths}
        if self._lists:
            return [names[name] for name in self._listed_keys(names, folder)]
        flags = [path not in unlabelled for path in paths]
        return [paths[k] for k in self.divide([*names], paths, labelled=flags)]

    def _paths_of_stated_split(
        self, annotations: Annotations, split_of_path: Mapping[Path, str]
    ) -> list[Path]:
        """Returns the images of the split, of which a label tool names several."""
        chosen = [path for path, split in split_of_path.items() if split == self.split_on_disk]
        if not chosen:
            names = ", ".join(sorted({*split_of_path.values()} - {""}))
            key = f"data.split_names.{self.listed_split}"
            raise DataError(f"{annotations.source}: its splits are {names}: set {key} to one")
        left_out = [path.name for path, split in split_of_path.items() if not split]
        if left_out:
            count = f"{len(left_out)} of {len(split_of_path)} images"
            annotations.notes.append(f"{count} in no split ({few(left_out)}) left out")
        return chosen

    # --------------------------------------------------------------------- lists and tables

    @property
    def _lists(self) -> dict[str, str]:
        return {split: name for split, name in (self.split_files or {}).items() if name}

    @property
    def _has_table(self) -> bool:
        """Whether the list of the split is a CSV table."""
        return self._lists.get(self.listed_split, "").endswith(".csv")

    def list_file(self) -> Path:
        name = self._lists.get(self.listed_split)
        if name is None:
            raise DataError(f"data.split_files names no list for split {self.listed_split}: add it")
        return self.folder / name

    def _listed_keys(self, images: Mapping[str, Path], folder: Path) -> list[str]:
        """Returns the keys that the split's list names, in its order.

        A line begins with a key, or with a path from ``folder`` or from the root, with or without
        suffix; after it there may be others, as in VOC's ``name 1``.
        """
        key_of_name: dict[str, str] = {}
        from_root = Path(os.path.relpath(folder, self.folder)).as_posix() + "/"
        for key, path in images.items():
            stem = path.relative_to(folder).with_suffix("").as_posix()
            key_of_name |= {plain_name(stem): key, plain_name(from_root + stem): key}
        key_of_name |= {key: key for key in images}
        path = self.list_file()
        lines = [line.replace("\\", "/") for line in read_list(path)]
        names = [self._listed_name(line, key_of_name.keys()) for line in lines]
        unknown = [name for name in names if name not in key_of_name]
        if unknown or not names:
            fault = f"{len(unknown)} of {len(names)} lines are no file in {folder} ({few(unknown)})"
            raise DataError(f"{path}: {fault}: write one relative path or stem per line")
        return [*dict.fromkeys(key_of_name[name] for name in names)]

    def _listed_name(self, line: str, names: Collection[str]) -> str:
        """Returns the one of ``names`` with which a line begins; the line if there is none."""
        for text in (line, re.split(r"[\s,;]", line)[0]):
            name = os.path.normpath(plain_name(text))
            if os.path.isabs(name):
                name = os.path.relpath(name, os.path.abspath(self.folder))
            stem, suffix = os.path.splitext(name)
            if name in names:
                return name
            if suffix.lower() in BAND_SUFFIXES and stem in names:
                return stem
        return line

    def _read_table(self, path: Path) -> list[Files]:
        """Returns the split's rows of a CSV table of paths below the root."""
        columns = ["split", "image", *(_TABLE_COLUMNS[kind] for kind in self._map_options)]
        rows = [row for _, row in read_table(path, columns, remedy="name the columns so")]
        splits = dict.fromkeys(row[0] for row in rows)
        names = (self.listed_split, self.split_on_disk)
        if not splits.keys() & names:
            fault = f"the column split holds {few([*splits], 6) or 'nothing'}, not {names[0]}"
            raise DataError(f"{path}: {fault}: set data.split_names.{self.listed_split}")
        files: list[Files] = []
        for split, image, *texts in rows:
            if split in names:
                pairs = zip(self._map_options, texts, strict=True)
                maps = {k: self.file_below(self.folder, text, path) for k, text in pairs if text}
                files.append(_record(self.file_below(self.folder, image, path), maps))
        return files

    def _find(self, template: str, *, option: str) -> tuple[Path, bool]:
        """Returns the folder of a template, and whether it holds only files of this split."""
        folder = self.path_of(template)
        if not folder.is_dir():
            raise missing_path(folder, what="folder", remedy=f"check data.root and {option}")
        if "%split" in template or self._lists:
            return folder, "%split" in template
        of_split = folder / self.split_on_disk
        if of_split.is_dir():
            return of_split, True
        siblings = [name for name in SPLITS if (folder / name).is_dir()]
        if siblings:  # using the folder for all splits would mix their files
            fault = f"folder {of_split} does not exist, unlike {', '.join(siblings)}"
            key = f"data.split_names.{self.listed_split}"
            raise DataError(f"{fault}: make it, or set {key} or {option}")
        return folder, False


@register("coco")
@dataclass(kw_only=True, eq=False)
class CocoDataset(FolderDataset):
    """A folder of images and a JSON file of their segments, of which COCO has two kinds.

    Classes are the categories in the order of their ids, without Roboflow's placeholder; the ids
    are added to names that occur twice. Where objects overlap, which they may in the instances
    format, the smaller one is in front in the maps; ``masks`` of a sample holds each one whole.
    Pixels of a crowd have a class and no object. The PNG files of the panoptic format lie in a
    folder with the name of the JSON file.

    Args:
        images, annotations: folder and JSON file, where ``%split`` is the split's name on disk.
        background: whether pixels without a segment are of a class ``background``.
        split_names: the splits' names on disk, where they differ.
        missing: ``skip`` leaves images out that do not exist.
    """

    images: str = "%split"
    annotations: str | None = "annotations/panoptic_%split.json"
    background: bool | None = False

    def __post_init__(self) -> None:
        self.annotation_files, self.annotations = self.annotations, "coco"
        super().__post_init__()

    def _paths_of_split(self, annotations: Annotations, unlabelled: Sequence[Path]) -> list[Path]:
        return [image.image for image in annotations.images]


def _record(image: Path, maps: Mapping[_Kind, Path | None]) -> Files:
    return Files(image, maps.get("labels"), maps.get("depth"), objects=maps.get("objects"))


def scan(folder: Path, name: str, suffixes: Sequence[str], *, option: str) -> dict[str, Path]:
    """Returns the files below a folder by key: their relative path, its last part as the stem.

    Args:
        name: a template with ``%stem``, matched against the file's name without suffix, or with
            it if the template has one: ``%stem_leftImg8bit``, ``sync_depth_%stem``, ``%stem.png``.
        suffixes: which files are searched for.
        option: the setting of ``name``, for messages.
    """
    if name.count("%stem") != 1:
        raise DataError(f"{option}={name} must hold %stem once, as in %stem_leftImg8bit")
    before, after = plain_name(name).split("%stem")
    has_suffix = PurePosixPath("x" + after).suffix.lower() in suffixes
    pattern = re.compile(re.escape(before) + "(.*)" + re.escape(after), re.DOTALL)
    paths: dict[str, Path] = {}
    unfit: Path | None = None
    for path in files_below(folder):
        match = pattern.fullmatch(plain_name(path.name if has_suffix else path.stem))
        if match is None or path.suffix.lower() not in suffixes:
            unfit = unfit or path
            continue
        key = plain_name((path.parent.relative_to(folder) / match[1]).as_posix())
        if key in paths:
            raise DataError(f"{paths[key]} and {path} have one name: remove one, or set {option}")
        paths[key] = path
    if not paths:
        fault = f"fits {option}={name} and {' '.join(suffixes)}"
        raise DataError(f"no file in {folder} {fault}; {f'found {unfit}' if unfit else 'empty'}")
    return dict(sorted(paths.items()))
