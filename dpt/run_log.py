"""What a run tells people: the log, and the table at its end."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dpt.atomic import write_bytes

T = TypeVar("T")


def start_log(folder: Path | None) -> None:
    """Sends the project's log to the terminal, and to ``log.txt`` in ``folder`` if there is one."""
    log = logging.getLogger("dpt")
    log.handlers.clear()
    log.setLevel(logging.INFO)
    log.propagate = False
    log.disabled = False  # Hydra disables what it finds, in the second run of a process too
    terminal = logging.StreamHandler(sys.stdout)
    terminal.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(terminal)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        file = logging.FileHandler(folder / "log.txt")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(file)


def tracked(items: Iterable[T], total: int, *, title: str) -> Iterator[T]:
    """The same items, with a progress bar; without a terminal with a line each quarter."""
    if sys.stdout.isatty():
        yield from track(items, description=title, total=total)
        return
    quarters = {max(1, round(total * part / 4)) for part in range(1, 5)}
    for count, item in enumerate(items, 1):
        yield item
        if count in quarters:
            logging.getLogger("dpt").info("%s: %d of %d", title, count, total)


def write_json(path: Path, values: Mapping[str, float | str]) -> None:
    """A flat object, written whole or not at all; NaN becomes null."""
    flat = {k: v if v == v else None for k, v in sorted(values.items())}
    write_bytes(path, (json.dumps(flat, indent=2) + "\n").encode())


def log_table(
    rows: Mapping[str, Mapping[str, float]], *, title: str, lower_is_better: Collection[str]
) -> None:
    """Logs scores: a column for each of ``rows`` (baselines and the model), a line for each metric.

    A star marks the best of each line.

    Args:
        rows: scores by name, by the name of the row.
        title: of the table.
        lower_is_better: names of the metrics that are better if lower, without ``val/``.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in rows:
        table.add_column(name, justify="right")
    for metric in list(rows.values())[-1]:
        if metric.startswith("val/iou/"):
            continue
        values = [row.get(metric, float("nan")) for row in rows.values()]
        lower = metric.removeprefix("val/") in lower_is_better
        finite = [v for v in values if v == v]
        best = (min if lower else max)(finite) if len(finite) > 1 else None
        cells = ["-  " if v != v else f"{v:.4f} {'*' if v == best else ' '}" for v in values]
        table.add_row(f"{metric} ({'lower' if lower else 'higher'} is better)", *cells)
    _log(table)


def log_scores(
    scores: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]],
    *,
    title: str,
    lower_is_better: Collection[str],
) -> None:
    """Logs scores with their confidence intervals, those of single classes and ranges left out."""
    logging.getLogger("dpt").info("%s", title)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("metric")
    for name in ("score", "95 % from", "to"):
        table.add_column(name, justify="right")
    for metric, value in scores.items():
        if "/" not in metric:
            cells = ["-" if v != v else f"{v:.4f}" for v in (value, *intervals[metric])]
            better = "lower" if metric in lower_is_better else "higher"
            table.add_row(f"{metric} ({better} is better)", *cells)
    _log(table)


def _log(table: Table) -> None:
    text = StringIO()
    Console(file=text, width=100, color_system=None, force_jupyter=False).print(table)
    logging.getLogger("dpt").info("%s", text.getvalue().rstrip())
