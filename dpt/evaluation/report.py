"""What an evaluation leaves for its reader: tables of images and classes, and one HTML page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpt import html
from dpt.atomic import write_bytes
from dpt.evaluation.scoring import SORTED_BY, Picture, Scorer
from dpt.objectives import DepthObjective, SegmentationObjective
from dpt.run_log import is_lower_better

Intervals = Mapping[str, tuple[float, float]]

SHADED_CLASSES = 40
"""Confusion matrices of more classes do not fit on a page; the largest confusions do."""
CONFUSIONS = 20


def write_per_image(path: Path, scorer: Scorer) -> None:
    """A line an image: its name and its own scores; empty where it has no label."""
    rows = list(scorer.per_image())
    columns = list(rows[0][1])
    cells = ([name, *("" if v != v else f"{v:.8g}" for v in row.values())] for name, row in rows)
    _write_csv(path, [["name", *columns], *cells])


def write_confusion(path: Path, scorer: Scorer) -> None:
    """Pixel counts, truth by row and prediction by column; nothing without class masks."""
    found = _confusion(scorer)
    if found is not None:
        names, counts = found
        rows = [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
        _write_csv(path, [["truth", *names, "no class"], *rows])


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_bytes(path, text.getvalue().encode())


def _confusion(scorer: Scorer) -> tuple[tuple[str, ...], np.ndarray] | None:
    """Class names and int64 (K, K + 1), truth by row."""
    objective = scorer.objectives.get("segmentation")
    if not isinstance(objective, SegmentationObjective):
        return None
    counts = scorer.states("segmentation")["confusion"].numpy().astype(np.int64)
    return objective.metrics.class_names, counts


def write_report(
    path: Path,
    scorer: Scorer,
    scores: Mapping[str, float],
    intervals: Intervals,
    *,
    facts: Sequence[str],
) -> None:
    """One page that needs no network.

    Args:
        path: of the page.
        scorer: what was scored, with its best and worst images.
        scores, intervals: of the data set, by name.
        facts: what was scored and how, as sentences.
    """
    parts = [html.paragraph(fact) for fact in facts]
    parts += [html.heading("Scores"), _score_table(scores, intervals)]
    if "rmse_pooled" in scores:
        parts.append(
            html.paragraph(
                "Depth errors are the mean over images of each image's own number; those called "
                "pooled take the pixels of all images together."
            )
        )
    parts.append(
        html.paragraph(
            "Intervals hold 95 % of the scores of 1000 resamples of the images. Frames of one "
            "video are no independent images: then the intervals are too narrow."
        )
    )
    if isinstance(scorer.objectives.get("segmentation"), SegmentationObjective):
        parts += _classes(scorer, scores, intervals)
    if isinstance(scorer.objectives.get("depth"), DepthObjective):
        parts += _ranges(scores)
    for key in scorer.galleries:
        parts += _extremes(scorer, key)
    html.write_page(path, title="Evaluation", parts=parts)


def _score_table(scores: Mapping[str, float], intervals: Intervals) -> str:
    rows = [
        (name, value, *intervals[name], "lower" if is_lower_better(name) else "higher")
        for name, value in scores.items()
        if "/" not in name
    ]
    return html.table(["metric", "score", "95 % from", "to", "better"], rows)


def _classes(scorer: Scorer, scores: Mapping[str, float], intervals: Intervals) -> list[str]:
    found = _confusion(scorer)
    assert found is not None
    names, counts = found
    truth = counts.sum(1)
    recall = counts.diagonal() / np.where(truth, truth, np.nan)
    has_boundary = f"boundary_iou/{names[0]}" in scores
    rows = []
    for k, name in enumerate(names):
        row = [name, truth[k] / max(1, truth.sum()), scores[f"iou/{name}"]]
        row += [*intervals[f"iou/{name}"], recall[k]]
        row += [scores[f"boundary_iou/{name}"]] if has_boundary else []
        rows.append(row)
    header = ["class", "share of truth", "IoU", "95 % from", "to", "accuracy"]
    parts = [
        html.heading("Classes"),
        html.bars({name: scores[f"iou/{name}"] for name in names}, top=1.0),
        html.table([*header, *(["boundary IoU"] if has_boundary else [])], rows),
        html.heading("Confusion"),
    ]
    if len(names) <= SHADED_CLASSES:
        parts.append(html.paragraph("Percent of each true class (row) predicted as (column)."))
        parts.append(_shaded(names, counts))
    return [*parts, *_largest_confusions(names, counts)]


def _shaded(names: Sequence[str], counts: np.ndarray) -> str:
    """The confusion matrix as a table whose cells are as dark as they are large."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    columns = [*names] if not counts[:, -1].any() else [*names, "no class"]
    head = "".join(
        f'<th style="writing-mode: vertical-rl; padding: .3em">{html.escape(name)}</th>'
        for name in columns
    )
    body = []
    for name, row, total in zip(names, shares[:, : len(columns)], counts.sum(1), strict=True):
        cells = "".join(_shaded_cell(share if total else None) for share in row)
        body.append(f"<tr><th>{html.escape(name)}</th>{cells}</tr>")
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _shaded_cell(share: float | None) -> str:
    color = f"rgba(72, 120, 168, {share or 0:.2f})"
    ink = "#fff" if (share or 0) > 0.6 else "#000"
    text = "-" if share is None else "" if share < 0.005 else f"{100 * share:.0f}"
    style = f"background: {color}; color: {ink}; padding: .25em .4em; min-width: 1.6em"
    return f'<td class="number" style="{style}">{text}</td>'


def _largest_confusions(names: Sequence[str], counts: np.ndarray) -> list[str]:
    """The off-diagonal entries with most pixels."""
    wrong = counts.copy()
    np.fill_diagonal(wrong[:, : len(names)], 0)
    total, columns = max(1, counts.sum()), [*names, "no class"]
    order = np.argsort(wrong, axis=None)[::-1][:CONFUSIONS]
    rows = []
    for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True):
        if pixels := int(wrong[row, column]):
            share = pixels / counts[row].sum()
            rows.append((names[row], columns[column], pixels / total, share))
    header = ["truth", "predicted", "share of all pixels", "of the true class"]
    return [html.heading("Largest confusions", 3), html.table(header, rows)] if rows else []


def _ranges(scores: Mapping[str, float]) -> list[str]:
    """Errors by the truth's depth; ranges without a pixel are left out."""
    found: dict[str, dict[str, float]] = {"abs_rel": {}, "rmse": {}, "share": {}}
    for name, value in scores.items():
        kind, _, rest = name.partition("/")
        if kind == "range":
            label, _, measure = rest.rpartition("/")
            if scores[f"range/{label}/share"] > 0:
                found[measure][label.removesuffix("m") + " m"] = value
    captions = {
        "abs_rel": "abs_rel over the pixels of each range",
        "rmse": "rmse (metres) over the pixels of each range",
        "share": "Share of the pixels",
    }
    parts = [html.heading("Error by depth")]
    for measure, caption in captions.items():
        parts += [html.paragraph(caption), html.bars(found[measure])]
    return parts


def _extremes(scorer: Scorer, key: str) -> list[str]:
    measure = SORTED_BY[key]
    low, high = scorer.galleries[key].extremes()
    best, worst = (low, high) if is_lower_better(measure) else (high, low)
    parts = []
    for title, pictures in (("Worst", worst), ("Best", best)):
        if pictures:
            parts.append(html.heading(f"{title} images by {measure}"))
            parts += [_figure(picture, measure) for picture in pictures]
    return parts


def _figure(picture: Picture, measure: str) -> str:
    return html.picture(picture.rgb, f"{picture.name}: {measure} {picture.score:.4g}")
