"""Files of an evaluation: tables of images and classes, and an HTML report."""

from __future__ import annotations

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

Intervals = Mapping[str, tuple[float, float]]

SHADED_CLASSES = 40
"""Largest number of classes of a confusion matrix in the report."""
CONFUSIONS = 20


def write_per_image(path: Path, scorer: Scorer) -> None:
    """A line for each image: its name and its scores; empty where it has no label."""
    rows = list(scorer.per_image())
    columns = list(rows[0][1])
    cells = ([name, *("" if v != v else f"{v:.8g}" for v in row.values())] for name, row in rows)
    _write_csv(path, [["name", *columns], *cells])


def write_confusion(path: Path, scorer: Scorer) -> None:
    """Counts, truth by row and prediction by column; no file without a confusion matrix."""
    for names, counts in confusions(scorer):
        rows = [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
        _write_csv(path, [["truth", *names, "no class"], *rows])


def confusions(scorer: Scorer) -> list[tuple[tuple[str, ...], np.ndarray]]:
    """Class names and confusion matrix (K, K + 1) of each metric that has one."""
    found = (o.metrics.confusion_of(scorer.total(key)) for key, o in scorer.objectives.items())
    return [confusion for confusion in found if confusion is not None]


def write_report(
    path: Path,
    scorer: Scorer,
    scores: Mapping[str, float],
    intervals: Intervals,
    *,
    facts: Sequence[str],
) -> None:
    """Writes an HTML page; ``facts`` are sentences on what was scored and how."""
    lower = lower_is_better(scorer.objectives.values())
    galleries = []
    for key, gallery in scorer.galleries.items():
        measure = scorer.sorted_by(key)
        best, worst = gallery.extremes() if measure in lower else gallery.extremes()[::-1]
        for title, pictures in (("Worst", worst), ("Best", best)):
            captioned = [(f"{p.name}: {measure} {p.score:.4g}", p.rgb) for p in pictures]
            galleries.append((f"{title} images by {measure}", captioned))
    html.write_report(
        path,
        "evaluation.html",
        facts=facts,
        scores=[
            (name, value, *intervals[name], "lower" if name in lower else "higher")
            for name, value in scores.items()
            if "/" not in name
        ],
        classes=[_classes(*found, scores, intervals) for found in confusions(scorer)],
        ranges=_ranges(scores),
        galleries=[(title, pictures) for title, pictures in galleries if pictures],
    )


def _classes(
    names: Sequence[str], counts: np.ndarray, scores: Mapping[str, float], intervals: Intervals
) -> dict[str, Any]:
    """Variables of the report's sections on classes."""
    truth = counts.sum(1)
    recall = counts.diagonal() / np.where(truth, truth, np.nan)
    header = ["class", "share of truth", "IoU", "95 % from", "to", "accuracy", "boundary IoU"]
    rows = [
        (name, share, scores[f"iou/{name}"], *intervals[f"iou/{name}"], accuracy,
         scores.get(f"boundary_iou/{name}"))
        for name, share, accuracy in zip(names, truth / max(1, truth.sum()), recall, strict=True)
    ]  # fmt: skip
    shares = counts / np.where(truth, truth, np.nan)[:, None]
    columns = [*names, "no class"] if counts[:, -1].any() else [*names]
    return {
        "iou": {name: scores[f"iou/{name}"] for name in names},
        "table": (header, rows),
        "columns": columns,
        "shares": list(zip(names, shares[:, : len(columns)].tolist(), strict=True)),
        "is_shaded": len(names) <= SHADED_CLASSES,
        "largest": _largest_confusions(names, counts),
    }


def _largest_confusions(names: Sequence[str], counts: np.ndarray) -> list[tuple]:
    """Truth, prediction, share of all pixels and of the true class's, most pixels first."""
    wrong = counts.copy()
    np.fill_diagonal(wrong[:, : len(names)], 0)
    total, columns = max(1, counts.sum()), [*names, "no class"]
    order = np.argsort(wrong, axis=None)[::-1][:CONFUSIONS]
    return [
        (names[row], columns[column], wrong[row, column] / total,
         wrong[row, column] / counts[row].sum())
        for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[row, column]
    ]  # fmt: skip


def _ranges(scores: Mapping[str, float]) -> list[tuple[str, dict[str, float]]]:
    """Scores ``range/<label>/<measure>`` as captions and bars; empty ranges are left out."""
    captions = {
        "abs_rel": "abs_rel over the pixels of each range",
        "rmse": "rmse (metres) over the pixels of each range",
        "share": "Share of the pixels",
    }
    parts = [(k.split("/"), v) for k, v in scores.items() if k.startswith("range/")]
    labels = [label for (_, label, measure), value in parts if measure == "share" and value > 0]
    return [
        (caption, {label: scores[f"range/{label}/{measure}"] for label in labels})
        for measure, caption in captions.items()
        if labels
    ]


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_bytes(path, text.getvalue().encode())
