"""CSV tables that list photos and their labels."""

import csv
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpt.data import DataError
from dpt.data_check.layouts.class_files import CLASS_FILE
from dpt.data_check.layouts.names import kind_of_words
from dpt.data_check.layouts.records import SPLITS, Folder, Row, split_word
from dpt.files import few, path_below, read_text

_Line = dict[str, str]  # cells by column


def rows_of_tables(folder: Folder, paths: Sequence[str]) -> list[Row]:
    """Returns the rows of the CSV file with columns of photos and of labels, or of one such file
    for each split; none if there is no such file."""
    tables: dict[str, list[Row]] = {}
    for path in paths:
        if not path.lower().endswith(".csv"):
            continue
        try:
            lines = _read_csv(folder.root / path)
        except DataError as error:
            folder.notes.append(f"not used: {error}")
            continue
        rows = _rows(folder.root, path, lines)
        if rows:
            tables[path] = rows
        elif not re.fullmatch(CLASS_FILE, path):
            folder.notes.append(f"not used: {path}, without paths of photos and labels")
    if len(tables) < 2:
        return [row for rows in tables.values() for row in rows]
    splits = {path: split_word(path)[0] for path in tables}
    if not all(splits.values()) or len(set(splits.values())) < len(splits):
        remedy = "keep one, or name them after their splits, such as train.csv and val.csv"
        raise DataError(f"{folder.root}: {few(list(tables))} list photos and labels: {remedy}")
    return [row._replace(split=splits[path]) for path, rows in tables.items() for row in rows]


def _read_csv(path: Path) -> list[_Line]:
    """Returns the lines of a table whose cells are separated by commas, semicolons or tabs."""
    text = read_text(path).replace("\\", "/")
    separator = max(",;\t", key=text.partition("\n")[0].count)
    source = io.StringIO(text, newline="")
    reader = csv.DictReader(source, delimiter=separator, skipinitialspace=True, restval="")
    try:
        return [{name: cell.strip() for name, cell in line.items() if name} for line in reader]
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV table ({error})") from None


def _rows(root: Path, path: str, lines: Sequence[_Line]) -> list[Row]:
    """Returns the samples of a table; none if no column holds paths of photos, or none of labels.

    Raises:
        DataError: the table names splits without photos, an unknown split, or missing files.
    """
    base, source = Path(path).parent, root / path
    columns = _columns(root, base, lines)
    split_column = columns.pop("split", "")
    if "image" not in columns or not {"labels", "depth"} & columns.keys():
        if split_column:
            remedy = "add their paths from its folder, or move it elsewhere"
            raise DataError(f"{source}: names splits, but no photos and labels: {remedy}")
        return []
    rows = []
    for line in lines:
        word = line.get(split_column, "").lower()
        if word and word not in SPLITS:
            raise DataError(f"{source}: {split_column} is {word}: write {', '.join(SPLITS)}")
        files = {
            kind: path_below(root, str(base / line[column]), source).relative_to(root).as_posix()
            for kind, column in columns.items()
            if line[column]
        }
        if "image" in files:
            rows.append(Row(**files, split=SPLITS.get(word, "")))
    files_of_rows = [file for row in rows for file in (row.image, row.labels, row.depth) if file]
    missing = [file for file in files_of_rows if not os.path.isfile(root / file)]
    if missing:
        fault = f"{len(missing)} of its files do not exist ({few(missing)})"
        raise DataError(f"{source}: {fault}: add them, or remove their rows")
    return rows


def _columns(root: Path, base: Path, lines: Sequence[_Line]) -> dict[str, str]:
    """Returns the columns that hold splits and files, by ``split``, ``image``, ``labels`` and
    ``depth``."""
    columns: dict[str, str] = {}
    for name in lines[0] if lines else ():
        cells = [line[name] for line in lines if line[name]]
        if 2 * sum(cell.lower() in SPLITS for cell in cells) > len(cells):
            columns["split"] = name
        elif any(_is_file(root, base / cell) for cell in cells):
            columns.setdefault(kind_of_words(re.split(r"[-_. ]+", name)) or "image", name)
    return columns


def _is_file(root: Path, name: Path) -> bool:
    try:
        return os.path.isfile(path_below(root, str(name), root))
    except DataError:  # the table's rows are refused later
        return os.path.isfile(root / name)
