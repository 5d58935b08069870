"""Images and labels that a CSV table lists."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpt.data.layouts.base import Detected, Folder, Row
from dpt.data.layouts.class_file import CLASS_FILE
from dpt.data.layouts.kinds import kind_of_word
from dpt.data.layouts.samples import samples_of
from dpt.data.splits import SPLITS, split_word
from dpt.files import DataError, few, path_below, plural, read_cells


def match_tables(folder: Folder) -> Detected | None:
    """Recognises a CSV file with columns of images and of labels, or one such file for each
    split."""
    tables = _read_tables(folder)
    rows = [row for rows in tables.values() for row in rows]
    if not rows:
        return None
    folder.used.update(tables)
    folder.note(f"layout: {plural(len(rows), 'row')} of {few([*tables])}, such as {rows[0].image}")
    return samples_of(folder, rows)


def _read_tables(folder: Folder) -> dict[str, list[Row]]:
    """Returns the rows of each table of images and labels."""
    tables: dict[str, list[Row]] = {}
    for path in folder.paths:
        if not path.lower().endswith(".csv"):
            continue
        try:
            lines = [cells for _, cells in read_cells(folder.root / path)]
        except DataError as error:
            folder.note(f"not used: {error}")
            folder.used.add(path)
            continue
        rows = _rows_of_table(folder.root, path, lines)
        if rows:
            tables[path] = rows
        elif not re.fullmatch(CLASS_FILE, path):
            folder.leave_out([path], ", without paths of images and labels")
    if len(tables) < 2:
        return tables
    splits = {path: split_word(path)[0] for path in tables}
    if not all(splits.values()) or len(set(splits.values())) < len(splits):
        remedy = "keep one, or name them after their splits, such as train.csv and val.csv"
        raise DataError(f"{folder.root}: {few(list(tables))} list images and labels: {remedy}")
    return {
        path: [row._replace(split=splits[path]) for row in rows] for path, rows in tables.items()
    }


def _rows_of_table(root: Path, path: str, lines: Sequence[Sequence[str]]) -> list[Row]:
    """Returns the samples of a table; none if no column holds paths of images, or none of labels.

    Args:
        lines: the cells of the header, if there is one, and of each row.

    Raises:
        DataError: the table names splits without images, an unknown split, or missing files.
    """
    base, source = Path(path).parent, root / path
    columns = _columns(root, base, lines)
    split_column = columns.pop("split", None)
    if "images" not in columns or not {"labels", "depth"} & columns.keys():
        if split_column is not None:
            remedy = "add their paths from its folder, or move it elsewhere"
            raise DataError(f"{source}: names splits, but no images and labels: {remedy}")
        return []
    rows = []
    has_header = not any(_is_file(root, base / cell) for cell in lines[0])
    for line in lines[has_header:]:
        word = "" if split_column is None else line[split_column].lower()
        if word and word not in SPLITS:
            raise DataError(f"{source}: the split {word}: write {', '.join(SPLITS)}")
        files = {
            kind: path_below(root, str(base / line[column]), source).relative_to(root).as_posix()
            for kind, column in columns.items()
            if line[column]
        }
        image = files.pop("images", "")
        if image:
            rows.append(Row(image, **files, split=SPLITS.get(word, "")))
    files_of_rows = [file for row in rows for file in (row.image, row.labels, row.depth) if file]
    missing = [file for file in files_of_rows if not os.path.isfile(root / file)]
    if missing:
        fault = f"{len(missing)} of its files do not exist ({few(missing)})"
        raise DataError(f"{source}: {fault}: add them, or remove their rows")
    return rows


def _columns(root: Path, base: Path, lines: Sequence[Sequence[str]]) -> dict[str, int]:
    """Returns the positions of the columns of splits and of files, by ``split``, ``images``,
    ``labels`` and ``depth``."""
    columns: dict[str, int] = {}
    for number, (name, *every_cell) in enumerate(zip(*lines, strict=True)):
        cells = [cell for cell in every_cell if cell]
        if 2 * sum(cell.lower() in SPLITS for cell in cells) > len(cells):
            columns["split"] = number
        elif any(_is_file(root, base / cell) for cell in cells):
            columns.setdefault(kind_of_word(name) or "images", number)
    return columns


def _is_file(root: Path, name: Path) -> bool:
    try:
        return os.path.isfile(path_below(root, str(name), root))
    except DataError:  # the table's rows are refused later
        return os.path.isfile(root / name)
