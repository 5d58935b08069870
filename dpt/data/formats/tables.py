"""Reads lists and tables of files: text files with a name a line, and CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpt.files import DataError, decoding, few, read_text


def read_list(path: Path) -> list[str]:
    """Returns the lines of a text file that are neither blank nor comments (``#``)."""
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_cells(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Reads a CSV file whose first line is a header.

    Commas, semicolons or tabs separate the cells.

    Yields:
        The position of each line for messages, ``FILE: line N``, and the texts of its cells; as
        many as those of the header, "" where the line is too short.
    """
    with decoding(path, "a table"):
        text = read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        source = io.StringIO(text, newline="")
        rows = csv.reader(source, delimiter=separator, skipinitialspace=True, strict=True)
        count = 0  # of the cells of the header
        for row in rows:
            where = f"{path}: line {rows.line_num}"
            count = count or len(row)
            if any(row[count:]):
                fault = f"{len(row)} cells for {count} columns"
                raise DataError(f"{where}: {fault}: put texts that hold {separator!r} in quotes")
            lines = [line for cell in row for line in cell.splitlines()[1:]]
            if any(line.count(separator) >= count - 1 for line in lines):
                fault = "a cell in quotes holds line breaks and what looks like further rows"
                raise DataError(f"{where}: {fault}: close its quote, or write it in one line")
            if row:
                cells = [cell.strip() for cell in row[:count]]
                yield where, cells + [""] * (count - len(cells))


def read_table(
    path: str | Path, columns: Sequence[str], *, remedy: str
) -> Iterator[tuple[str, list[str]]]:
    """Reads ``columns`` of a CSV file as :func:`read_cells` does, without the header."""
    rows = read_cells(path)
    _, header = next(rows, ("", []))
    positions = _positions(path, header, columns, remedy)
    for where, cells in rows:
        yield where, [cells[k] for k in positions]


def _positions(
    path: str | Path, header: Sequence[str], columns: Sequence[str], remedy: str
) -> list[int]:
    """Returns the positions of ``columns`` in a header line, whose names may be in capitals."""
    names = [cell.lower() for cell in header]
    absent = [column for column in columns if column.lower() not in names]
    repeated = [column for column in columns if names.count(column.lower()) > 1]
    if absent or repeated:
        fault = f"no column {', '.join(absent)}" if absent else f"several columns {repeated[0]}"
        present = few(header, 6) or "none"
        raise DataError(f"{path}: {fault} (it has {present}): {remedy}")
    return [names.index(column.lower()) for column in columns]


def parse_number(text: str) -> float:
    """Returns a number in plain ASCII; ValueError for others that ``float`` reads, as 1_0."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a plain number")
    return float(text)
