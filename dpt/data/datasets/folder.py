"""A folder of photos beside folders of label files and depth files, paired by name."""

import difflib
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing, read_list
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelMap, LabelRule
from dpt.files import DataError, few, files_below, missing_path, path_below, plain_name
from dpt.types import IGNORE_INDEX, DatasetInfo

_SUFFIXES = {"labels": io.LABEL_SUFFIXES, "depth": io.DEPTH_SUFFIXES, "objects": io.LABEL_SUFFIXES}
_SPLIT_FOLDERS = ("train", "training", "val", "valid", "validation", "test", "testing", "dev")


@dataclass(kw_only=True, eq=False)
class FolderDataset(FileDataset):
    """Pairs files of two or three folders by their names.

    ``data/README.md`` shows layouts and explains the options, which are the settings of
    ``data=folder``. Without ``fractions`` a folder of all splits is divided 9:1.
    """

    images: str = "images"
    labels: str | None = None
    depth: str | None = None
    objects: str | None = None
    things: Sequence[str | int] | None = None
    first_object: Annotated[int, Field(ge=1)] = 1
    num_classes: int | None = None
    ignore_index: int | Sequence[int] | None = IGNORE_INDEX
    label_map: LabelMap | None = None
    class_names: Sequence[str] = ()
    label_colors: Sequence[Sequence[int]] = ()
    color_distance: Annotated[int, Field(ge=0, le=255)] | None = None
    depth_scale: float = 0.001
    depth_key: str | None = None
    invalid_depth: Sequence[float] = (0,)
    images_name: str = "%stem"
    labels_name: str = "%stem"
    depth_name: str = "%stem"
    objects_name: str = "%stem"
    split_names: Mapping[str, str] | None = None
    split_files: Mapping[str, str | None] | None = None
    fractions: Mapping[str, float] | None = None
    missing: Literal["raise", "skip", "keep"] = "raise"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_unused(self.fractions)

    def make_depth_rule(self) -> DepthRule | None:
        if self.depth is None:
            return None
        if self.max_depth is None:
            raise DataError("data.max_depth is needed with data.depth: largest valid metres")
        return DepthRule(
            scale=self.depth_scale,
            invalid=self.invalid_depth,
            min_depth=self.min_depth,
            max_depth=self.max_depth,
        )

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

    def make_info(self) -> DatasetInfo:
        info = super().make_info()
        if self.objects is None:
            return info
        names = info.class_names
        if not names:
            raise DataError("data.objects needs data.labels, the classes of the objects")
        things = range(len(names)) if self.things is None else self.things
        unknown = [str(t) for t in things if t not in names and t not in range(len(names))]
        if unknown:
            known = few(names)
            raise DataError(f"data.things: {few(unknown)} are not classes: choose from {known}")
        flags = tuple(k in things or name in things for k, name in enumerate(names))
        return replace(info, targets=(*info.targets, "objects"), things=flags)

    def read_raw_objects(self, index: int) -> np.ndarray | None:
        raw = super().read_raw_objects(index)
        return None if raw is None else np.where(raw < self.first_object, 0, raw)

    def list_files(self) -> list[Files]:
        if self._lists.get(self.split, "").endswith(".csv"):
            return self._read_table(self.list_file())
        folder, own = self._find(self.images, option="data.images")
        photos = scan(folder, self.images_name, io.IMAGE_SUFFIXES, option="data.images_name")
        divided = not self._lists and not own
        keys = self._select_listed(photos, folder) if self._lists else list(photos)
        maps: dict[str, dict[str, Any]] = {}
        stray: list[Path] = []
        labelled, of_split = set[str](), set[str]()
        for kind, suffixes in _SUFFIXES.items():
            if (template := getattr(self, kind)) is None:
                continue
            option = f"data.{kind}_name"
            folder, own_maps = self._find(template, option=f"data.{kind}")
            found = scan(folder, getattr(self, f"{kind}_name"), suffixes, option=option)
            if found.keys().isdisjoint(keys):
                closest = difflib.get_close_matches(keys[0], list(found)[:1000], n=1, cutoff=0)[0]
                raise DataError(
                    f"no image pairs with a file of {folder}: data.images_name and {option} reduce "
                    f"their names to {keys[0]} and {closest}: set both so that %stem is what they "
                    "have in common"
                )
            maps[kind] = found
            if own_maps:
                of_split |= found.keys()
            elif kind != "objects":
                labelled |= found.keys()
            if own and not own_maps:
                self._refuse_shared({key: photos[key] for key in keys}, found)
            else:  # otherwise they may belong to another split's photos
                stray += [path for key, path in found.items() if key not in photos]
        if divided and of_split:  # label folders define the splits of a single photo folder
            keys = [key for key in photos if key in of_split]
        elif divided:
            keys = self.divide(photos, self.fractions, labelled or None)
        files = [Files(photos[k], **{kind: m.get(k) for kind, m in maps.items()}) for k in keys]
        return self._keep(files, stray)

    def _refuse_shared(self, photos: Mapping[str, Path], maps: Mapping[str, Path]) -> None:
        """Raises DataError if one map pairs with photos of two splits."""
        template = self.images if "%split" in self.images else f"{self.images}/%split"
        own = self.path_of(template)
        for name in {*_SPLIT_FOLDERS, *(self.split_names or {}).values()}:
            folder = self.folder / template.replace("%split", name)
            if folder == own or not folder.is_dir():
                continue
            option = "data.images_name"
            others = scan(folder, self.images_name, io.IMAGE_SUFFIXES, option=option)
            if shared := [key for key in photos if key in maps and key in others]:
                key = shared[0]
                raise DataError(
                    f"{maps[key]} pairs with {photos[key]} and {others[key]}: give the labels of "
                    "each split a folder of their own"
                )

    def _keep(self, files: list[Files], stray: Sequence[Path] = ()) -> list[Files]:
        """``files`` without the images that have neither labels nor depth, if they are skipped."""
        kinds = [kind for kind in ("labels", "depth") if getattr(self, kind)]
        bare = [each.image for each in files if kinds and not (each.labels or each.depth)]
        if bare and self.missing == "raise":
            names = [os.path.relpath(path, self.folder) for path in bare]
            raise DataError(
                f"{len(bare)} of {len(files)} images in {self.folder} have no "
                f"{' and no '.join(kinds)} ({few(names)}): add the files, fix the name templates "
                "or the table, or set data.missing=skip (or keep, with a task/teacher)"
            )
        self.unpaired = bare, stray
        skipped = set(bare) if self.missing == "skip" else set()
        return [each for each in files if each.image not in skipped]

    def _select_listed(self, photos: Mapping[str, Path], folder: Path) -> list[str]:
        """The keys that the split's list names, in its order.

        A line begins with a key, or with a path from ``folder`` or from the root, with or without
        suffix; after it there may be others, as in VOC's ``name 1``.
        """
        known: dict[str, str] = {}
        from_root = Path(os.path.relpath(folder, self.folder)).as_posix() + "/"
        for key, path in photos.items():
            name = path.relative_to(folder).as_posix()
            for line in map(plain_name, (name, from_root + name)):
                known[line] = known[os.path.splitext(line)[0]] = key
        known |= {key: key for key in photos}
        path = self.list_file()
        wanted = [self._listed_name(line.replace("\\", "/"), known) for line in read_list(path)]
        unknown = [line for line in wanted if line not in known]
        if unknown or not wanted:
            raise DataError(
                f"{path}: {len(unknown)} of {len(wanted)} lines name no file in {folder} "
                f"({few(unknown)}): write one relative path or stem per line"
            )
        return list(dict.fromkeys(known[line] for line in wanted))

    def _listed_name(self, line: str, known: Container[str]) -> str:
        """The name of ``known`` with which a line begins; if there is none, the line."""
        for text in (line, re.split(r"[\s,;]", line)[0]):
            name = os.path.normpath(plain_name(text))
            if os.path.isabs(name):
                name = os.path.relpath(name, os.path.abspath(self.folder))
            stem, suffix = os.path.splitext(name)
            if name in known:
                return name
            if suffix.lower() in io.IMAGE_SUFFIXES and stem in known:  # a.jpg for a.JPG
                return stem
        return line

    def _read_table(self, path: Path) -> list[Files]:
        """The split's rows of a CSV table of paths below the root."""
        columns = {"mask": "labels", "depth": "depth", "objects": "objects"}
        columns = {column: kind for column, kind in columns.items() if getattr(self, kind)}
        names = (self.split, self.split_on_disk)
        files: list[Files] = []
        table = io.read_table(path, ["split", "image", *columns], remedy="name the columns so")
        rows = [row for _, row in table]
        splits = dict.fromkeys(row[0] for row in rows)
        if not splits.keys() & names:
            held = few([*splits], 6) or "nothing"
            raise DataError(
                f"{path}: no image found: the column split holds {held}, not {self.split}: "
                f"correct it, or set data.split_names.{self.split}"
            )
        for split, image, *texts in rows:
            if split in names:
                pairs = zip(columns.values(), texts, strict=True)
                below = partial(path_below, self.folder, source=path)
                maps: dict[str, Any] = {kind: below(text) for kind, text in pairs if text}
                files.append(Files(below(image), **maps))
        return existing(self._keep(files), source=path, remedy="check data.root and the table")

    @property
    def _lists(self) -> dict[str, str]:
        return {split: name for split, name in (self.split_files or {}).items() if name}

    def list_file(self) -> Path:
        name = self._lists.get(self.split)
        if name is None:
            known = f"split {self.split} (it has {', '.join(self._lists)})"
            raise DataError(f"data.split_files names no list for {known}: add it")
        return self.folder / name

    def _find(self, template: str, *, option: str) -> tuple[Path, bool]:
        """The folder of a template, and whether it holds only files of this split."""
        folder = self.path_of(template)
        if not folder.is_dir():
            raise missing_path(folder, what="folder", remedy=f"check data.root and {option}")
        if "%split" in template or self._lists:
            return folder, "%split" in template
        own = folder / self.split_on_disk
        if own.is_dir():
            return own, True
        others = [name for name in _SPLIT_FOLDERS if (folder / name).is_dir()]
        known = self.split in (self.split_names or {})
        name = f"{'' if known else '+'}data.split_names.{self.split}"
        if others:  # using the folder for all splits would mix their files
            raise DataError(
                f"folder {own} does not exist, but {folder} holds "
                f"{', '.join(others)}: make it, set {name}={others[-1]}, or "
                f"set {option}={template.rstrip('/')}/{others[0]} to divide it by data.fractions"
            )
        return folder, False


def scan(folder: Path, name: str, suffixes: Sequence[str], *, option: str) -> dict[str, Path]:
    """The files below a folder by key: their relative path, its last part reduced to the stem.

    Args:
        name: a template with ``%stem``, matched against the file's name without suffix, or with
            it if the template has one: ``%stem_leftImg8bit``, ``sync_depth_%stem``, ``%stem.png``.
        suffixes: which files are searched for.
        option: the setting of ``name``, for messages.
    """
    if name.count("%stem") != 1:
        raise DataError(f"{option}={name} must hold %stem once, as in %stem_leftImg8bit")
    before, after = plain_name(name).split("%stem")
    with_suffix = PurePosixPath("x" + after).suffix.lower() in suffixes
    pattern = re.compile(re.escape(before) + "(.*)" + re.escape(after), re.DOTALL)
    found: dict[str, Path] = {}
    other: Path | None = None
    for path in files_below(folder):
        match = pattern.fullmatch(plain_name(path.name if with_suffix else path.stem))
        if match is None or path.suffix.lower() not in suffixes:
            other = other or path
            continue
        key = plain_name((path.parent.relative_to(folder) / match[1]).as_posix())
        if key in found:
            raise DataError(
                f"{found[key]} and {path} have one name: remove one, or tell them apart by "
                f"{option} (such as %stem{found[key].suffix})"
            )
        found[key] = path
    if not found:
        raise DataError(
            f"no file in {folder} fits {option}={name} with a suffix of {' '.join(suffixes)}; "
            f"{f'found {other}' if other else 'it is empty'}: set {option}, or check the folder"
        )
    return dict(sorted(found.items()))
