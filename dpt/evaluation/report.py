"""Files of an evaluation: tables of images and classes, and an HTML report."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpt import html
from dpt.atomic import write_bytes
from dpt.evaluation.scoring import Scorer
from dpt.objectives.base import lower_is_better
from dpt.run_log import as_text

Intervals = Mapping[str, tuple[float, float]]

CONFUSIONS = 20


def write_per_image(path: Path, scorer: Scorer) -> None:
    """A line for each image: its name and its scores; empty where it has no label."""
    rows = [row for _, row in sorted(scorer.rows.items())]
    cells = (
        [as_text(name), *("" if v != v else f"{v:.8g}" for v in row.values())] for name, row in rows
    )
    _write_csv(path, [["name", *map(as_text, rows[0][1])], *cells])


def write_confusion(path: Path, scorer: Scorer) -> None:
    """Counts, truth by row and prediction by column; no file without a confusion matrix."""
    for names, counts in confusions(scorer):
        names = tuple(map(as_text, names))
        rows = [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
        _write_csv(path, [["truth", *names, "no class"], *rows])


def confusions(scorer: Scorer) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Class names and confusion matrix (K, K + 1) of each metric that has one."""
    found = (o.metrics.confusion_of(scorer.states_of(key)) for key, o in scorer.objectives.items())
    return [confusion for confusion in found if confusion is not None]


def write_report(
    path: Path,
    scorer: Scorer,
    scores: Mapping[str, float],
    intervals: Intervals,
    *,
    baselines: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, Any],
) -> None:
    """Writes an HTML page; ``settings`` say what was scored and how, ``baselines`` are scores of
    predictors that use no trained model, by their kind and name."""
    lower = lower_is_better(scorer.objectives.values())
    names = [scorer.sorted_by(key) for key in scorer.objectives] + [*scorer.whole_scores][:1]

    def headline(name: str) -> tuple[Any, ...]:
        """A score, its interval, and by baseline its score and whether it is worse."""
        sign, score = -1 if name in lower else 1, scores[name]
        others = [(kind, row[name]) for kind, row in baselines.items() if name in row]
        return name, score, *intervals[name], [(*o, sign * score > sign * o[1]) for o in others]

    html.write_report(
        path,
        "evaluation.html",
        settings=[(name, str(value)) for name, value in settings.items()],
        headlines=[headline(name) for name in names],
        columns=["metric", "score", "95 % from", "to", "better", *baselines],
        scores=[
            (
                *(name, value, *intervals[name], "lower" if name in lower else "higher"),
                *(row.get(name) for row in baselines.values()),
            )
            for name, value in scores.items()
            if "/" not in name
        ],
        classes=[_classes(*found, scores, intervals) for found in confusions(scorer)],
        galleries=[
            ("Examples", scorer.examples),
            *(
                (f"Worst images by {scorer.sorted_by(key)}", [(p.caption, p.rgb) for p in pictures])
                for key, pictures in scorer.worst.items()
            ),
        ],
    )


def _classes(
    names: Sequence[str], counts: np.ndarray, scores: Mapping[str, float], intervals: Intervals
) -> dict[str, Any]:
    """Variables of the report's section on classes: tables of classes and of confusions."""
    truth, total = counts.sum(1), max(1, counts.sum())
    recall = counts.diagonal() / np.where(truth, truth, np.nan)
    wrong, columns = counts.copy(), [*names, "no class"]
    np.fill_diagonal(wrong[:, : len(names)], 0)
    largest = np.argsort(wrong, axis=None)[::-1][:CONFUSIONS]
    return {
        "rows": [
            (name, share, scores[f"iou/{name}"], *intervals[f"iou/{name}"], accuracy)
            for name, share, accuracy in zip(names, truth / total, recall, strict=True)
        ],
        "confusions": [
            (names[row], columns[column], count / total, count / truth[row])
            for row, column in zip(*np.unravel_index(largest, wrong.shape), strict=True)
            if (count := wrong[row, column])
        ],
    }


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_bytes(path, text.getvalue().encode(errors="backslashreplace"))
