"""Files of an evaluation: tables of images and classes, and an HTML report."""

import csv
import io
import logging
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpt import html
from dpt.atomic import write_bytes
from dpt.evaluation.scoring import DatasetScores, ImageScore
from dpt.metrics import Confusion
from dpt.metrics.base import RuleTable
from dpt.run_log import csv_cell, log_rows

log = logging.getLogger("dpt")

CONFUSIONS = 20
LEFT_OUT_FILE = "left_out.csv"


def write_per_image(path: Path, images: Sequence[ImageScore]) -> None:
    """Writes a line for each image: its name and its scores; empty where it has no label."""
    rows = [["name", *map(csv_cell, images[0].scores)]]
    for image in images:
        values = ["" if np.isnan(v) else f"{v:.8g}" for v in image.scores.values()]
        rows.append([csv_cell(image.name), *values])
    write_csv(path, rows)


def write_left_out(path: Path, result: DatasetScores) -> None:
    """Writes the scores of all images, then a line for each block: those without its images.

    The differences of two evaluations get their intervals from these (``dpt compare``).
    """
    left_out = result.left_out
    if not left_out.scores:
        return
    columns = [[left_out.scores[name], *left_out.without[name]] for name in left_out.scores]
    sizes = [left_out.images.sum(), *left_out.images]
    names = ["", *result.blocks.joined().names]
    rows = [["without", "images", *map(csv_cell, left_out.scores)]]
    for name, size, values in zip(names, sizes, np.transpose(columns).tolist(), strict=True):
        cells = ["" if np.isnan(v) else f"{v:.12g}" for v in values]
        rows.append([csv_cell(name), str(size), *cells])
    write_csv(path, rows)


def write_confusion(path: Path, confusions: Sequence[Confusion]) -> None:
    """Writes counts, ground truth by row and prediction by column; no file without a matrix."""
    for confusion in confusions:
        names = [csv_cell(name) for name in confusion.class_names]
        counts = confusion.counts.astype(str).tolist()
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        write_csv(path, [["ground truth", *names, "no class"], *rows])


def write_report(
    path: Path,
    result: DatasetScores,
    *,
    baselines: Mapping[str, Mapping[str, float]],
    settings: Mapping[str, object],
) -> None:
    """Writes an HTML page.

    Args:
        baselines: scores of predictors that use no trained model, by their kind and name.
        settings: what was scored and how.
    """
    table = []
    for name in (name for name in result.scores if "/" not in name):
        better = "lower" if name in result.lower_is_better else "higher"
        baseline_values = [row.get(name) for row in baselines.values()]
        interval = result.intervals[name]
        table.append((name, result.scores[name], *interval, better, *baseline_values))
    galleries = {"Examples": result.examples}
    galleries |= {f"Worst images by {name}": pictures for name, pictures in result.worst.items()}
    html.write_page(
        path,
        "evaluation.html",
        settings=[(name, str(value)) for name, value in settings.items()],
        headlines=[_headline(name, result, baselines) for name in result.headlines],
        columns=["metric", "score", "95 % from", "to", "better", *baselines],
        scores=table,
        rules=[_rules(rules) for rules in result.rules],
        blocks=str(result.blocks),
        classes=[_classes(confusion, result) for confusion in result.confusions],
        galleries=[
            (title, [(picture.caption, picture.rgb) for picture in pictures])
            for title, pictures in galleries.items()
        ],
    )


def _headline(
    name: str, result: DatasetScores, baselines: Mapping[str, Mapping[str, float]]
) -> tuple[object, ...]:
    """Returns a score, its interval, and whether it is better than each baseline."""
    sign = -1 if name in result.lower_is_better else 1
    score = result.scores[name]
    beside = [(kind, row[name]) for kind, row in baselines.items() if name in row]
    comparisons = [(kind, value, sign * score > sign * value) for kind, value in beside]
    return name, score, *result.intervals[name], comparisons


def _rules(table: RuleTable) -> dict[str, Sequence]:
    """Returns what the report's two tables of rules hold: common scores, and all else."""
    texts = table.texts()
    return {
        "columns": table.columns[:-2],
        "scores": [row[:-2] for row in texts],
        "others": [[row[0], row[-1], row[-2]] for row in texts[:-1]],  # without the spread
        "note": table.note,
    }


def log_rules(table: RuleTable, scores: Mapping[str, float]) -> None:
    """Logs the common scores of rules in a table, and then what some rules alone score."""
    texts = table.texts()
    header = [column.replace(" ", "\n") for column in table.columns[:-2]]
    log_rows("By the rules of others", header, [row[:-2] for row in texts])
    common = {name for name in scores if "/" not in name} | {"left_out"}
    width = max(len(row[0]) for row in texts) + 2
    lines = []
    for rule, *_ in texts[:-1]:  # without the spread
        names = [n.removeprefix(f"{rule}/") for n in scores if n.startswith(f"{rule}/")]
        own = [f"{name}={scores[f'{rule}/{name}']:.4g}" for name in names if name not in common]
        text = f"{rule:{width}}{', '.join(own)}"
        lines += textwrap.wrap(text, 100, subsequent_indent=" " * width) if own else []
    if lines:
        log.info("Scores that only some of these rules have\n%s", "\n".join(lines))


def _classes(confusion: Confusion, result: DatasetScores) -> dict[str, list[tuple[html.Cell, ...]]]:
    """Returns the rows of the report's tables of classes and of confusions."""
    names, counts = confusion
    labelled = counts.sum(1)
    total = max(1, counts.sum())
    recall = counts.diagonal() / np.where(labelled, labelled, np.nan)
    rows: list[tuple[html.Cell, ...]] = []
    for name, pixels, accuracy in zip(names, labelled, recall, strict=True):
        iou = f"iou/{name}"
        rows.append((name, pixels / total, result.scores[iou], *result.intervals[iou], accuracy))
    wrong = counts.copy()
    np.fill_diagonal(wrong[:, : len(names)], 0)
    largest = np.argsort(wrong, axis=None)[::-1][:CONFUSIONS]
    columns = [*names, "no class"]
    confusions: list[tuple[html.Cell, ...]] = []
    for row, column in zip(*np.unravel_index(largest, wrong.shape), strict=True):
        count = wrong[row, column]
        if count:
            confusions.append((names[row], columns[column], count / total, count / labelled[row]))
    return {"rows": rows, "confusions": confusions}


def write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Writes cells as they are, see :func:`dpt.run_log.csv_cell`."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_bytes(path, text.getvalue().encode(errors="backslashreplace"))
