"""Files of class names in an unknown folder: ``classes.txt``, ``class_dict.csv``, ..."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from dpt.data.formats.rules import name_of_class
from dpt.data.layouts.base import Folder
from dpt.files import DataError, parse_json, read_text
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import validate

_NAMES = r"class(es|_names|_dict\w*)?|names|palette|labelmap"
CLASS_FILE = rf"(?i)(.*/)?(label)?_?({_NAMES})\.(txt|csv|json)"
MAX_VALUES = 256  # of masks: 255 classes, and one that means unlabelled
NO_CLASS = r"(?i)_*(void|unlabell?ed|ignored?|undefined)_*"
"""Names that often mean unlabelled."""
LARGEST_VALUES = {IGNORE_INDEX, *(2**bits - 1 for bits in (16, 31, 32, 63, 64))}
"""The largest values of types of pixels, which mean unlabelled."""

_MAX_BYTES = 1 << 17  # also the limit of csv.reader
_HEX_COLOR = "#[0-9a-fA-F]{6}"
_HEADERS = ("name", "names", "class", "classes", "label", "labels")  # of a CSV with names alone
_Byte = Annotated[int, Field(ge=0, le=255)]
Color = tuple[_Byte, _Byte, _Byte]


def _rgb(color: object) -> object:
    """Returns ``[80, 227, 194]`` for ``#50E3C2``, and other values as they are."""
    if isinstance(color, str) and re.fullmatch(_HEX_COLOR, color):
        return list(bytes.fromhex(color[1:]))
    return color


@dataclass(frozen=True)
class ClassRow:
    """A class in a file of class names; None is what the file does not say."""

    name: str
    id: int | None = None
    color: Annotated[Color, BeforeValidator(_rgb)] | None = None


@dataclass
class ClassFile:
    """The classes that a file names; without one there are no rows."""

    path: str = ""  # below the root
    rows: list[ClassRow] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)  # ids that mean unlabelled


_RawRow = dict[str, object]
"""The fields of a ``ClassRow``, not checked yet."""


def read_class_file(folder: Folder) -> ClassFile:
    """Reads the first file of the folder whose name is one of class names."""
    candidates = [path for path in folder.paths if re.fullmatch(CLASS_FILE, path)]
    if not candidates:
        return ClassFile()
    path = candidates[0]
    source = folder.root / path
    text = read_text(source, limit=_MAX_BYTES)
    ignored: list[int] = []
    if path.lower().endswith(".json"):
        raw_rows, ignored = _rows_of_json(text, source)
    elif path.lower().endswith(".csv"):
        raw_rows = _rows_of_csv(text)
    else:
        raw_rows = _rows_of_text(text)
    if len(raw_rows) > MAX_VALUES:
        fault = f"{len(raw_rows)} classes, at most {MAX_VALUES - 1}"
        raise DataError(f"{source}: {fault}: keep those of the masks")
    rows = [validate(ClassRow, row, f"{source}: class") for row in raw_rows]
    if rows[:1] == [ClassRow("__ignore__")]:  # labelme's -1, without ids
        del rows[0]
    void_ids = [row.id for row in rows if row.id is not None and re.fullmatch(NO_CLASS, row.name)]
    ignored += [i for i in void_ids if i < 0 or i in LARGEST_VALUES]
    kept = [row for row in rows if row.id is None or row.id not in ignored]
    named = [replace(row, name=name_of_class(row.name, source)) for row in kept]
    return ClassFile(path, named, ignored)


def _rows_of_json(text: str, source: Path) -> tuple[list[_RawRow], list[int]]:
    """Returns the classes of a list, ``{name: id}`` or ``{id: name}``, which may stand below
    ``classes`` or ``names``, and the values of ``ignore_index``."""
    table = parse_json(text, source)
    if not isinstance(table, dict) or not {"classes", "names"} & table.keys():
        table = {"classes": table}
    classes = table.get("classes", table.get("names"))
    if isinstance(classes, dict):
        if all(isinstance(value, int) for value in classes.values()):
            classes = {str(number): name for name, number in classes.items()}
        ids = [key for key in classes if re.fullmatch(r"-?[0-9]{1,9}", key)]
        classes = [{"id": int(key), "name": classes[key]} for key in ids]
    if not isinstance(classes, list) or not classes:
        remedy = "write a list of names, or {id: name}"
        raise DataError(f"{source}: no names of classes: {remedy}")
    rows = [row if isinstance(row, dict) else {"name": row} for row in classes]
    names = [key for key in ("name", "title", "label") if key in rows[0]]
    name = names[0] if names else "name"
    where = f"{source}: ignore_index"
    ignored = validate(int | list[int] | None, table.get("ignore_index"), where)
    return (
        [{"name": row.get(name), "id": row.get("id"), "color": row.get("color")} for row in rows],
        [ignored] if isinstance(ignored, int) else ignored or [],
    )


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _rows_of_text(text: str) -> list[_RawRow]:
    """Returns the classes of lines with an id or none, a name, and a colour or none."""
    rows: list[_RawRow] = []
    for line in _lines(text):
        words, color = _split_color([word for word in re.split(r"[,;:\s]", line) if word])
        has_id = len(words) > 1 and re.fullmatch(r"-?\d+", words[0])
        name = " ".join(words[1:] if has_id else words)  # may hold further numbers
        rows.append({"name": name, "id": words[0] if has_id else None, "color": color})
    return [row for row in rows if row["name"]]


def _rows_of_csv(text: str) -> list[_RawRow]:
    """Returns the classes of a table of names, ids and colours in any order, perhaps with a
    header."""
    rows: list[_RawRow] = []
    lines = _lines(text)
    has_numbers = any(re.search(r"(^|[,;\t])\s*\d+\s*($|[,;\t])", line) for line in lines)
    for number, line in enumerate(lines):
        (cells,) = csv.reader([re.sub(r"[;\t]", ",", line)], skipinitialspace=True)
        words = [cell.strip() for cell in cells if cell.strip()]
        may_be_header = has_numbers or (number == 0 and words[:1] and words[0].lower() in _HEADERS)
        if not words or (may_be_header and not any(word.isdecimal() for word in words)):
            continue
        words, color = _split_color(words)
        ids = [word for word in words if re.fullmatch(r"-?\d+", word)] if len(words) > 1 else []
        name = " ".join(word for word in words if word not in ids)
        rows.append({"name": name, "id": ids[0] if ids else None, "color": color})
    return rows


def _split_color(words: list[str]) -> tuple[list[str], Sequence[str] | str | None]:
    """Splits the words of a line into those before its colour, and the colour."""
    if len(words) > 3 and all(word.isdecimal() for word in words[-3:]):
        return words[:-3], words[-3:]
    if len(words) > 1 and re.fullmatch(_HEX_COLOR, words[-1]):
        return words[:-1], words[-1]
    return words, None
