"""A run's log, progress, table of scores and metrics.json."""

import csv
import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import StringIO
from math import inf
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dpt.files import without_passwords, write_bytes
from dpt.process import is_first_rank, log, say, visible

T = TypeVar("T")


class _Terminal(logging.Handler):
    """Prints to what ``sys.stdout`` is now: a progress bar replaces it to keep lines apart."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(RuntimeError):  # a signal while printing
            say(self.format(record))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(without_passwords(super().format(record)))


def start_log(folder: Path | None) -> None:
    """Sends the project's log to the terminal, and to ``folder/log.txt`` unless it is None."""
    log.handlers.clear()
    log.setLevel(logging.INFO if is_first_rank() else logging.WARNING)
    log.propagate = False
    log.disabled = False  # Hydra disables existing loggers, also before the second run of a process
    terminal = _Terminal()
    terminal.setFormatter(_Formatter("%(message)s"))
    log.addHandler(terminal)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "log.txt"
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError(f"{path}: must be a file, no link, FIFO or folder: remove it")
        file = logging.FileHandler(path, errors="backslashreplace")
        file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(file)


def tracked(items: Iterable[T], total: int, *, title: str) -> Iterator[T]:
    """Yields ``items`` with a progress bar in a terminal, or a log line per quarter elsewhere."""
    if sys.stdout.isatty():
        yield from track(items, description=title, total=total)
        return
    quarters = {max(1, round(total * part / 4)) for part in range(1, 5)}
    for count, item in enumerate(items, 1):
        yield item
        if count in quarters:
            log.info("%s: %d of %d", title, count, total)


def write_json(path: Path, values: Mapping[str, float | str]) -> None:
    """Writes a flat JSON object atomically; NaN and infinity become null."""
    flat = {k: None if v in (inf, -inf) or v != v else v for k, v in sorted(values.items())}
    write_bytes(path, (json.dumps(flat, indent=2) + "\n").encode())


def csv_cell(cell: str) -> str:
    """Returns a cell of a CSV file that no spreadsheet takes for a formula."""
    cell = visible(cell)  # csv takes a carriage return for the end of a line
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\n")) else cell


def write_csv(path: Path, rows: Iterable[Sequence[str | float]], *, digits: int = 8) -> None:
    """Writes a table; texts are no formulas, and NaN is empty."""

    def cell(value: str | float) -> str:
        if isinstance(value, str):
            return csv_cell(value)
        if isinstance(value, int):
            return str(value)
        return "" if value != value else f"{value:.{digits}g}"

    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows([*map(cell, row)] for row in rows)
    write_bytes(path, text.getvalue().encode(errors="backslashreplace"))


def log_table(
    columns: Mapping[str, Mapping[str, float]], *, title: str, lower_is_better: Collection[str]
) -> None:
    """Logs a table of scores, one line for each metric, without those of single classes and ranges.

    The last of the columns defines the lines; names in ``lower_is_better`` lack ``val/``.
    """
    rows = []
    for metric in list(columns.values())[-1]:
        name = metric.removeprefix("val/")
        if "/" in name:
            continue
        values = [column.get(metric, float("nan")) for column in columns.values()]
        better = "↓" if name in lower_is_better else "↑"
        cells = ["-" if v != v else f"{v:.4f}" for v in values]
        rows.append([f"{metric} {better}", *cells])
    header = ["metric", *(name.replace(" ", "\n") for name in columns)]
    log_rows(f"{title} (↓: lower is better)", header, rows)


def log_sweep(results: Mapping[str, Mapping[str, float] | None]) -> None:
    """Logs a line with up to six scores of each run of a sweep; None: the run failed."""
    names = list(dict.fromkeys(k for v in results.values() for k in v or () if k.count("/") < 2))
    rows = [
        [run, *(f"{v[k]:.4g}" if k in v else "-" for k in names[:6])] if v else [run, "failed"]
        for run, v in results.items()
    ]
    log_rows("Sweep", ["run", *names[:6]], rows)


def log_rows(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Logs a table; all columns but the first are aligned to the right."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=not index)
    for row in rows:
        table.add_row(*row)
    text = StringIO()
    # names may hold brackets, which are no markup
    console = Console(file=text, width=100, color_system=None, force_jupyter=False, markup=False)
    console.print(table)
    log.disabled = False  # Hydra disables existing loggers, also at the end of a sweep
    log.info("%s\n%s", title, text.getvalue().rstrip())
