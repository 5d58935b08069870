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


def read_table(
    path: str | Path, columns: Sequence[str], *, remedy: str
) -> Iterator[tuple[str, list[str]]]:
    """Reads ``columns`` of a CSV file with a header line.

    Commas, semicolons or tabs separate the cells.

    Yields:
        The row's position for messages, ``FILE: line N``, and its texts; "" where it is too short.
    """
    with decoding(path, "a table"):
        text = read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        source = io.StringIO(text, newline="")
        rows = csv.reader(source, delimiter=separator, skipinitialspace=True, strict=True)
        header = next(rows, [])
        positions = _positions(path, header, columns, remedy)
        for row in rows:
            where = f"{path}: line {rows.line_num}"
            if any(row[len(header) :]):
                fault = f"{len(row)} cells for {len(header)} columns"
                raise DataError(f"{where}: {fault}: put texts that hold {separator!r} in quotes")
            lines = [line for cell in row for line in cell.splitlines()[1:]]
            if any(line.count(separator) >= len(header) - 1 for line in lines):
                fault = "a cell in quotes holds line breaks and what looks like further rows"
                raise DataError(f"{where}: {fault}: close its quote, or write it in one line")
            if row:
                yield where, [row[k].strip() if k < len(row) else "" for k in positions]


def _positions(
    path: str | Path, header: Sequence[str], columns: Sequence[str], remedy: str
) -> list[int]:
    """Returns the positions of ``columns`` in a header line, whose names may be in capitals."""
    names = [cell.strip().lower() for cell in header]
    absent = [column for column in columns if column.lower() not in names]
    repeated = [column for column in columns if names.count(column.lower()) > 1]
    if absent or repeated:
        fault = f"no column {', '.join(absent)}" if absent else f"several columns {repeated[0]}"
        present = few([cell.strip() for cell in header], 6) or "none"
        raise DataError(f"{path}: {fault} (it has {present}): {remedy}")
    return [names.index(column.lower()) for column in columns]


def parse_number(text: str) -> float:
    """Returns a number in plain ASCII; ValueError for others that ``float`` reads, as 1_0."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a plain number")
    return float(text)
