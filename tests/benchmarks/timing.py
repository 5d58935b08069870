"""Timing of several functions in turn, and tables of the results in Markdown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence


def take_turns(
    runs: Mapping[str, Callable[[int], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Returns the seconds of each run, which gets the number of its turn; the runs take turns.

    The first ``warm_up`` turns, all with number 0, do not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(-warm_up, rounds):
        for name, run in runs.items():
            start = clock()
            run(max(turn, 0))
            if turn >= 0:
                seconds[name].append(clock() - start)
    return seconds


def median_ratio(seconds: Sequence[float], reference: Sequence[float]) -> float:
    """Returns the median of the ratios of turns to those of a reference."""
    return statistics.median(s / r for s, r in zip(seconds, reference, strict=True))


def median_rate(seconds: Sequence[float], count: int) -> float:
    """Returns how many of ``count`` things of a turn are done in a second."""
    return count / statistics.median(seconds)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    cells = [header, ["---"] * len(header), *rows]
    lines = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in cells)
    return "\n".join(f"| {line} |" for line in lines)


def timing_table(seconds: Mapping[str, Sequence[float]], *, unit: str) -> str:
    """Returns the median of each run in ``unit`` (``samples/s`` or ``ms``), and its ratio to the
    first run."""
    first = next(iter(seconds.values()))
    rows = []
    for name, values in seconds.items():
        median = statistics.median(values)
        shown = 1 / median if unit == "samples/s" else 1e3 * median
        rows.append([name, f"{shown:.1f}", f"{median_ratio(values, first):.2f}"])
    return markdown(["", unit, "time / ours"], rows)
