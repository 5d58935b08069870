"""Which files belong together, and to which split: folders, name templates, lists, fractions."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dpt.data.base import DataError, few, missing_path
from dpt.data.datasets.splits import DEFAULT_FRACTIONS, share_out
from dpt.data.formats import io

_SPLIT_FOLDERS = ("train", "training", "val", "valid", "validation", "test", "testing", "dev")


class Files(NamedTuple):
    """One image and the files of its labels, where it has them."""

    image: Path
    labels: Path | None
    depth: Path | None


class Unpaired(NamedTuple):
    """Files that no sample uses."""

    images: list[Path]
    """Photos with neither labels nor depth."""
    maps: list[Path]
    """Label and depth files of no photo."""


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Where the files of one split are.

    Attributes:
        root: the folder that templates and lists start from.
        split: its name.
        on_disk: its name in folder names.
        split_files: a list file for each split; None if folders or fractions tell them apart.
        fractions: each split's share where nothing else tells them apart.
    """

    root: Path
    split: str
    on_disk: str
    split_files: Mapping[str, str] | None = None
    fractions: Mapping[str, float] | None = None

    def find(self, template: str, *, option: str) -> tuple[Path, bool]:
        """The folder of a template, and whether it holds this split's files only."""
        if self.split_files is None or "%split" in template:
            return split_folder(self.root, template, self.on_disk, option=option)
        folder = self.root / template
        if not folder.is_dir():
            raise missing_path(folder, what="folder", remedy=f"check data.root and {option}")
        return folder, False


def pair_files(
    folders: Folders,
    *,
    images: tuple[str, str],
    labels: tuple[str | None, str],
    depth: tuple[str | None, str],
    missing: str,
) -> list[Files]:
    """The files of a split, paired by key.

    Args:
        folders: where to look.
        images, labels, depth: folder and name template of each kind; no folder, no such files.
        missing: ``raise``, ``skip`` or ``keep`` images that have neither labels nor depth.
    """
    chosen = _find_images(folders, *images)
    maps: dict[str, dict[str, Path]] = {}
    for kind, (folder, name) in {"labels": labels, "depth": depth}.items():
        if folder is not None:
            maps[kind] = _find_maps(folders, folder, name, chosen, kind=kind)
    bare = [key for key in chosen if maps and not any(key in found for found in maps.values())]
    if bare and missing == "raise":
        raise DataError(
            f"{len(bare)} of {len(chosen)} images in {next(iter(chosen.values())).parent} have no "
            f"{' and no '.join(maps)} (images without labels: {few(bare)}): add the files, fix "
            "the name templates, or set data.missing=skip, or keep to learn from a task.teacher"
        )
    dropped = set(bare) if missing == "skip" else set()
    return [
        Files(path, maps.get("labels", {}).get(key), maps.get("depth", {}).get(key))
        for key, path in chosen.items()
        if key not in dropped
    ]


def unpaired_files(
    folders: Folders,
    *,
    images: tuple[str, str],
    labels: tuple[str | None, str],
    depth: tuple[str | None, str],
) -> Unpaired:
    """What :func:`pair_files`, with the same arguments, has no partner for."""
    chosen = _find_images(folders, *images)
    folder, images_own = folders.find(images[0], option="data.images")
    photos = scan(folder, name=images[1], suffixes=io.IMAGE_SUFFIXES, option="data.images_name")
    paired: set[str] = set()
    stray: list[Path] = []
    for kind, (template, name) in {"labels": labels, "depth": depth}.items():
        if template is None:
            continue
        found = _find_maps(folders, template, name, chosen, kind=kind)
        paired |= found.keys()
        _, maps_own = folders.find(template, option=f"data.{kind}")
        if maps_own or not images_own:  # else they may belong to another split's photos
            stray += [path for key, path in found.items() if key not in photos]
    has_maps = labels[0] is not None or depth[0] is not None
    return Unpaired([chosen[key] for key in chosen if has_maps and key not in paired], stray)


def split_folder(root: Path, template: str, split: str, *, option: str) -> tuple[Path, bool]:
    """The folder that holds the files of a split, and whether it holds only those.

    ``%split`` in the template is replaced; else a sub-folder named after the split is taken where
    there is one; else the folder itself, which the splits then share.
    """
    if "%split" in template:
        folder = root / template.replace("%split", split)
        if not folder.is_dir():
            raise missing_path(folder, what="folder", remedy=f"check data.root and {option}")
        return folder, True
    folder = root / template
    if not folder.is_dir():
        raise missing_path(folder, what="folder", remedy=f"check data.root and {option}")
    if (folder / split).is_dir():
        return folder / split, True
    others = [name for name in _SPLIT_FOLDERS if (folder / name).is_dir()]
    if others:  # sharing the folder out would mix their files
        raise DataError(
            f"folder {folder / split} does not exist, but {folder} holds {', '.join(others)}: "
            f"make it, or name it with data.split_names.{split}={others[-1]}, or set "
            f"{option}={template.rstrip('/')}/{others[0]} to share one folder out by data.fractions"
        )
    return folder, False


def scan(folder: Path, *, name: str, suffixes: Sequence[str], option: str) -> dict[str, Path]:
    """The files below a folder by key: their relative path, its last part reduced to the stem.

    Args:
        folder: searched with its sub-folders; hidden files are skipped.
        name: a template with ``%stem``, matched against the file's name without suffix, or with
            it if the template has one: ``%stem_leftImg8bit``, ``sync_depth_%stem``, ``%stem.png``.
        suffixes: what counts as a file of this kind.
        option: which setting to name in messages.
    """
    if name.count("%stem") != 1:
        raise DataError(f"{option}={name} must hold %stem once, as in %stem_leftImg8bit")
    before, after = name.split("%stem")
    with_suffix = PurePosixPath("x" + after).suffix.lower() in suffixes
    pattern = re.compile(re.escape(before) + "(.*)" + re.escape(after))
    found: dict[str, Path] = {}
    passed_over: list[Path] = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        relative = Path(parent).relative_to(folder)
        for file in sorted(files):
            stem, suffix = os.path.splitext(file)
            if file.startswith("."):
                continue
            match = pattern.fullmatch(file if with_suffix else stem)
            if match is None or suffix.lower() not in suffixes:
                passed_over.append(Path(parent, file))
                continue
            key = (relative / match[1]).as_posix()
            if key in found:
                raise DataError(
                    f"{found[key]} and {Path(parent, file)} have one name: remove one, or tell "
                    f"them apart by {option} (such as %stem{found[key].suffix})"
                )
            found[key] = Path(parent, file)
    if not found:
        example = f"; found {passed_over[0]}" if passed_over else "; it is empty"
        raise DataError(
            f"no file in {folder} fits {option}={name} with a suffix of {' '.join(suffixes)}"
            f"{example}: set {option}, or check the folder"
        )
    return dict(sorted(found.items()))


def select_listed(
    files: Mapping[str, Path], *, text: str, list_file: Path, root: Path, folder: Path
) -> list[str]:
    """The keys that a list names, one per line, in the list's order.

    A line is a path from ``folder`` or from ``root``, with or without suffix, or a bare stem if
    only one file has it. Blank lines and lines that begin with ``#`` are skipped.
    """
    known: dict[str, str] = {}
    doubtful: set[str] = set()
    for key, path in files.items():
        for base in (folder, root):
            if path.is_relative_to(base):
                relative = path.relative_to(base)
                known[relative.as_posix()] = known[relative.with_suffix("").as_posix()] = key
        for short in {PurePosixPath(key).name, path.stem, path.name}:
            if known.setdefault(short, key) != key:
                doubtful.add(short)
    known.update((key, key) for key in files)
    lines = [line.strip().replace("\\", "/").removeprefix("./") for line in text.splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    unknown = [line for line in wanted if line not in known or line in doubtful - files.keys()]
    if unknown:
        raise DataError(
            f"{list_file}: {len(unknown)} of {len(wanted)} lines name no single file in {folder} "
            f"({few(unknown)}): write one relative path or stem per line"
        )
    if not wanted:
        raise DataError(f"{list_file}: the list is empty: write one relative path or stem per line")
    return list(dict.fromkeys(known[line] for line in wanted))


def _find_images(folders: Folders, template: str, name: str) -> dict[str, Path]:
    """The split's images by key."""
    folder, own = folders.find(template, option="data.images")
    # Arrays count as photos only where the template says so: beside photos they are depth.
    suffixes = (".npy",) if name.endswith(".npy") else io.IMAGE_SUFFIXES
    found = scan(folder, name=name, suffixes=suffixes, option="data.images_name")
    lists, split = folders.split_files, folders.split
    if lists is not None:
        if split not in lists:
            raise DataError(
                f"data.split_files names no list for split {split} (it has {', '.join(lists)}): "
                "add it"
            )
        path = folders.root / lists[split]
        text = io.read_text(path)
        keys = select_listed(found, text=text, list_file=path, root=folders.root, folder=folder)
    elif own:
        return found
    else:
        keys = share_out(found, split=split, fractions=folders.fractions or DEFAULT_FRACTIONS)
    return {key: found[key] for key in keys}


def _find_maps(
    folders: Folders, template: str, name: str, images: Mapping[str, Path], *, kind: str
) -> dict[str, Path]:
    folder, _ = folders.find(template, option=f"data.{kind}")
    suffixes = io.LABEL_SUFFIXES if kind == "labels" else io.DEPTH_SUFFIXES
    found = scan(folder, name=name, suffixes=suffixes, option=f"data.{kind}_name")
    if not images.keys() & found.keys():
        image = next(iter(images))
        closest = difflib.get_close_matches(image, list(found)[:1000], n=1, cutoff=0)[0]
        raise DataError(
            f"no image pairs with a file of {folder}: after the templates their names are "
            f"{image} and {closest}: set data.images_name and "
            f"data.{kind}_name so that %stem is what they have in common"
        )
    return found
