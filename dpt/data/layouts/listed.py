"""Labels that files list: those of label tools, and CSV tables of images and masks."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.annotations.base import UNLABELLED, AnnotationFormat, Annotations
from dpt.data.datasets.annotated import format_named, read_annotations
from dpt.data.datasets.indoor import stamped_pairs
from dpt.data.layouts.base import SUFFIXES, Detected, Folder, Match, Row
from dpt.data.layouts.pictures import KINDS, kind_of_word
from dpt.data.layouts.splits import divide
from dpt.data.layouts.values import PairMatch
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, few, path_below, plural, read_cells, required_file
from dpt.validation import Plain


def match_label_tool(tool: AnnotationFormat, folder: Folder) -> Match | None:
    """Finds the files of a label tool and their images; None, with a note, if no image of theirs is
    there."""
    given = folder.given.get("annotations")
    is_chosen = bool(given) and format_named(str(given)) is tool
    has_maps = "labels" in folder.given or folder.given.get("depth")
    if has_maps or bool(given) != is_chosen:
        return None
    sources = tool.find(folder.root, folder.free)
    if not sources and not is_chosen:
        return None
    settings, chosen, unread = _files_of_splits(folder, tool, sources)
    annotations, bare = read_annotations(
        folder.root,
        tool.name,
        chosen=[folder.root / path for path in chosen],
        images=folder.root / (folder.given.get("images") or "."),
    )
    splits = {_below(folder, image.image): image.split for image in annotations.images}
    present = splits.keys() & {*folder.paths}
    absent = sorted(splits.keys() - present)
    rows = [Row(path, split=split) for path, split in splits.items() if path in present]
    names = few(sorted({*sources}.difference(unread)))
    if not rows:
        fault = f"no image of {tool.title} is there ({few(absent)})"
        folder.note(f"not used: {names}: {fault}: copy the images into it")
        return None
    count = plural(sum(len(image.objects) for image in annotations.images), "object")
    return _ToolMatch(
        sentence=f"{tool.title} ({names}): {count} in {plural(len(rows), 'image')}",
        key=f"data.annotations={tool.name}",
        rows=rows,
        bare=[Row(_below(folder, path)) for path in bare],
        files={*sources, *annotations.lists, *_maps_of(folder, annotations, unread)},
        annotations=annotations,
        settings={"annotations": tool.name, **settings},
        absent=absent,
        unread=unread,
    )


def _maps_of(folder: Folder, annotations: Annotations, unread: Sequence[str]) -> set[str]:
    """Returns the pictures of objects, also those in folders named after unread files."""
    maps = {_below(folder, image.map_file) for image in annotations.images if image.map_file}
    folders = {os.path.splitext(path)[0] for path in unread}
    return maps | {path for path in folder.pictures if os.path.dirname(path) in folders}


def _files_of_splits(
    folder: Folder, tool: AnnotationFormat, sources: Sequence[str]
) -> tuple[Plain, list[str], list[str]]:
    """Returns the settings of the files of train and val, their paths, and other files; the path
    that the user has given, or none, if there are no such files."""
    given = folder.given.get("annotation_files")
    words_of: dict[str, dict[str, str]] = defaultdict(dict)
    for path in sources if tool.lists_classes else ():
        split, word = split_word(path)
        if split:
            template = re.sub(rf"(?<![^-_. /]){word}(?![^-_. /])", "%split", path)
            words_of[template].setdefault(split, word)
    for template, words in words_of.items():
        if template == (given or template) and {"train", "val"} <= words.keys():
            settings: Plain = {"annotation_files": template}
            settings |= {f"split_names.{split}": word for split, word in words.items()}
            chosen = [template.replace("%split", word) for word in words.values()]
            return settings, chosen, sorted({*sources}.difference(chosen))
    return {}, [str(given)] if given else [], []


@dataclass(kw_only=True)
class _ToolMatch(Match):
    """Objects of a label tool."""

    annotations: Annotations
    settings: Plain
    absent: list[str]  # images that are not there
    unread: Sequence[str]  # files of other objects in the same images

    def read(self, folder: Folder) -> Detected:
        images = self.annotations.images
        names = (item.class_name for image in images for item in image.objects)
        objects = Counter("unlabelled" if name == UNLABELLED else name for name in names)
        folder.note(
            "objects: " + few([f"{name} ({n})" for name, n in objects.most_common()], 40),
            *(f"labels: {note}" for note in self.annotations.notes),
        )
        folder.used.update(self.files, *self.rows)
        folder.leave_out(self.absent, " not there")
        folder.leave_out(self.unread, f", as {self.settings.get('annotation_files')}", "file")
        folder.leave_out([row.image for row in self.bare], " without a label file")
        rows = divide(folder, self.rows, [])
        task, *others = self._tasks()
        return Detected(task, rows, self.settings, folder.notes, (*others,))

    def _tasks(self) -> list[str]:
        """Returns what can be trained, the usual task first."""
        classes = self.annotations.classes
        if classes and not any(row.is_thing for row in classes):
            return ["segmentation"]
        if self.annotations.background:
            return ["instance", "segmentation", "panoptic"]
        return ["panoptic", "segmentation"]


def _below(folder: Folder, path: Path) -> str:
    return path.relative_to(folder.root).as_posix()


def match_stamps(folder: Folder) -> Match | None:
    """Pairs images and depth maps by their times, which ``rgb.txt`` and ``depth.txt`` list in the
    folder of each sequence of TUM."""
    if any(folder.given.get(key) for key in ("annotations", "images", "labels", "depth")):
        return None
    present, rows, lists = {*folder.paths}, list[Row](), list[str]()
    for path in folder.paths:
        base = Path(path).parent
        others = (base / "depth.txt").as_posix()
        if Path(path).name == "rgb.txt" and others in present:
            pairs = stamped_pairs(folder.root / base)
            named = [((base / i).as_posix(), (base / m).as_posix()) for i, m in pairs]
            rows += [Row(image, depth=m) for image, m in named if {image, m} <= present]
            lists += [path, others]
    return PairMatch.of(rows, title=f"by times ({few(lists)})", key="", lists=lists)


def match_tables(folder: Folder) -> Match | None:
    """Reads CSV files with columns of images and of labels: one, or one for each split."""
    if folder.given.get("annotations"):
        return None
    tables: dict[str, list[Row]] = {}
    for path in (path for path in folder.paths if path.lower().endswith(".csv")):
        try:
            lines = [cells for _, cells in read_cells(folder.root / path)]
        except DataError as error:
            folder.note(f"not used: {error}")
            folder.used.add(path)
            continue
        rows = lines and _rows_of_table(folder, path, lines)
        if rows:
            tables[path] = rows
    rows = _with_splits(folder, tables)
    match = PairMatch.of(rows, title=f"a table ({few([*tables])})", key="", lists=[*tables])
    if match is not None:
        match.files.update(folder.pictures)
    return match


def _with_splits(folder: Folder, tables: Mapping[str, list[Row]]) -> list[Row]:
    """Returns the rows of all tables, of several with the splits after which they are named."""
    if len(tables) < 2:
        return [row for rows in tables.values() for row in rows]
    splits = {path: split_word(path)[0] for path in tables}
    if "" in splits.values() or len({*splits.values()}) < len(splits):
        remedy = "keep one, name them after their splits (train.csv, val.csv), or give a folder"
        raise DataError(f"{folder.root}: {few([*tables])} list images and labels: {remedy}")
    return [row._replace(split=splits[path]) for path, rows in tables.items() for row in rows]


def _rows_of_table(folder: Folder, path: str, lines: Sequence[Sequence[str]]) -> list[Row]:
    """Returns the samples of a table; none if no column holds paths of images, or none of labels.

    Args:
        lines: the cells of the header, if there is one, and of each row.

    Raises:
        DataError: the table names splits without images, an unknown split, or missing files.
    """
    base, source = Path(path).parent, folder.root / path
    columns = _columns(folder, base, lines, source)
    split_column = columns.pop("split", None)
    if "images" not in columns or not {"labels", "depth"} & columns.keys():
        if split_column is not None:
            remedy = "add their paths from its folder, or move it elsewhere"
            raise DataError(f"{source}: names splits, but no images and labels: {remedy}")
        return []
    rows, split_of = [], {"": "", **SPLITS}
    has_header = not any(_is_picture(folder.root, base / cell) for cell in lines[0])
    for line in lines[has_header:]:
        word = "" if split_column is None else line[split_column].lower()
        if word not in split_of:
            raise DataError(f"{source}: the split {word}: write {', '.join(SPLITS)}")
        named = {kind: base / line[k] for kind, k in columns.items() if line[k]}
        files = {kind: _file(folder.root, name, source) for kind, name in named.items()}
        if "images" in files:
            rows.append(Row(files.pop("images"), **files, split=split_of[word]))
    return rows


def _file(root: Path, name: Path, source: Path) -> str:
    """Returns the path below the root of a file that a table names, and that exists."""
    path = required_file(path_below(root, str(name), source), remedy=f"correct {source}")
    return path.relative_to(root).as_posix()


def _columns(
    folder: Folder, base: Path, lines: Sequence[Sequence[str]], source: Path
) -> dict[str, int]:
    """Returns the positions of the columns of splits and of files, by ``split``, ``images``,
    ``labels`` and ``depth``; none if a key of ``data`` names a folder, not a column.

    Raises:
        DataError: several columns may be of one kind: a question.
    """
    chosen = {str(folder.given[kind]): kind for kind in KINDS if folder.given.get(kind)}
    if not chosen.keys() <= {*lines[0]}:
        return {}
    columns: dict[str, list[str]] = defaultdict(list)
    for name, *cells in zip(*lines, strict=True):
        kind = chosen.get(name) or _kind_of_column(folder.root, base, name, cells)
        is_other = kind in chosen.values() and name not in chosen
        if kind and not is_other and folder.given.get(kind, kind):
            columns[kind].append(name)
    for kind, names in columns.items():
        if len(names) > 1:
            asked = kind if {"labels", "depth"} & columns.keys() else "labels"
            keys = " or ".join(f"data.{asked}={name}" for name in names)
            raise DataError(f"{source}: {few(names, 8)} are columns of pictures: set {keys}")
    return {kind: lines[0].index(names[0]) for kind, names in columns.items()}


def _kind_of_column(root: Path, base: Path, name: str, every_cell: Sequence[str]) -> str:
    """Returns ``split`` or the kind of the files of a column; empty if it holds neither."""
    cells = [cell for cell in every_cell if cell]
    if 2 * sum(cell.lower() in SPLITS for cell in cells) > len(cells):
        return "split"
    is_of_files = any(_is_picture(root, base / cell) for cell in cells)
    return (kind_of_word(name) or "images") if is_of_files else ""


def _is_picture(root: Path, name: Path) -> bool:
    """Returns whether a cell is the path of a picture; one elsewhere is refused later."""
    if name.suffix.lower() not in SUFFIXES:
        return False
    try:
        return os.path.isfile(path_below(root, str(name), root))
    except DataError:
        return os.path.isfile(root / name)
