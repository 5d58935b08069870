"""``dpt evaluate``: scores a checkpoint, or predictions on disk, and writes tables and a report."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
import torch.distributed as dist

from dpt import html, run_log
from dpt.config.run_folder import save_config
from dpt.config.schema import EvaluateConfig
from dpt.data import Dataset
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.passes import score_checkpoint, score_files
from dpt.evaluation.scoring import ImageScore, Scorer, blocks_of
from dpt.files import plural
from dpt.metrics.base import Confusion, RuleTable
from dpt.metrics.intervals import FEWEST_BLOCKS
from dpt.objectives.base import nonfinite_summary
from dpt.process import is_first_rank, log

CONFUSIONS = 20
LEFT_OUT_FILE = "left_out.csv"
Baselines = Mapping[str, Mapping[str, float]]
"""Scores of predictors that use no trained model, by their kind and name."""


@dataclass(frozen=True)
class Evaluation:
    """The scores of an evaluation as ``val/NAME``; the first rank knows the rest too.

    Attributes:
        headlines: the first score of each output.
        lower_is_better: names of scores.
    """

    scores: dict[str, float]
    headlines: tuple[str, ...] = ()
    lower_is_better: frozenset[str] = frozenset()


def evaluate(config: EvaluateConfig) -> Evaluation:
    """Scores a checkpoint, or predictions on disk, on one split of a data set.

    Writes ``metrics.json``, ``per_image.csv``, ``left_out.csv``, ``confusion.csv``, ``report.html``
    and pictures. Each image counts once on any number of processes.

    Args:
        config: of the evaluation.
    """
    if bool(config.checkpoint) == bool(config.predictions):
        raise ValueError("give one of the two: checkpoint=FILE, or predictions=DIR to score files")
    L.seed_everything(config.seed, verbose=False)
    if is_first_rank():
        written = ("per_image.csv", LEFT_OUT_FILE, "confusion.csv", "panels")
        html.require_free(config.folder, "evaluation.html", written)
    dataset = config.data.make(config.split).without_repeats()
    blocks = blocks_of(dataset, config.blocks)  # a mistake fails before scoring
    score = score_checkpoint if config.checkpoint else score_files
    scorer = score(config, dataset)
    if not scorer.images:
        raise ValueError("no image was scored, see the lines above")
    scorer.notes["protocol"] = config.protocol.name
    scores = {f"val/{name}": value for name, value in scorer.scores.items()}
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if not is_first:
        return Evaluation(scores)
    save_config(config.values, config.folder)
    scorer.finish(blocks)
    _write(config, scorer, dataset)
    return Evaluation(scores, tuple(scorer.headlines), frozenset(scorer.lower_is_better))


def _write(config: EvaluateConfig, scorer: Scorer, dataset: Dataset) -> None:
    """Writes the files of an evaluation.

    Raises:
        ValueError: a prediction is not finite. The files are written before.
    """
    folder, source = config.folder, config.source
    images, scores = [*scorer.images.values()], scorer.scores
    broken = [image.name for image in images if not image.is_finite]
    notes = {
        "images": len(images),
        "blocks": len(scorer.blocks.names),
        "blocks_kind": scorer.blocks.kind,
        "headlines": ", ".join(scorer.headlines),
        "lower_is_better": ", ".join(sorted(scorer.lower_is_better & scores.keys())),
        **scorer.notes,
        "nonfinite_predictions": len(broken),
    }
    low = {name: interval.low for name, interval in scorer.intervals.items()}
    high = {name: interval.high for name, interval in scorer.intervals.items()}
    columns = {"val": scores, "ci95_low": low, "ci95_high": high}
    values = notes | {f"{c}/{k}": v for c, column in columns.items() for k, v in column.items()}
    run_log.write_json(folder / "metrics.json", values)  # already here, since baselines are slow
    write_per_image(folder / "per_image.csv", images)
    write_left_out(folder / LEFT_OUT_FILE, scorer)
    write_confusion(folder / "confusion.csv", scorer.confusions)
    rows = _baselines(config, scorer, dataset)
    run_log.write_json(folder / "metrics.json", values | named(rows))
    baselines = {
        kind: {name.removeprefix("val/"): value for name, value in row.items()}
        for kind, row in rows.items()
    }
    settings = {"scored": source, "split": config.split, **notes}
    _write_report(folder / "report.html", scorer, baselines, settings)
    run_log.log_table(
        {**baselines, "ci95 low": low, "ci95 high": high, "score": scores},
        title=f"{source} on {config.split}, protocol {config.protocol.name}",
        lower_is_better=scorer.lower_is_better,
    )
    for table in scorer.rules:
        _log_rules(table)
    log.info("%d images; report: %s", len(images), folder / "report.html")
    log.info("%s", verdict(scorer, baselines, is_of_files=config.checkpoint is None))
    if broken:
        raise ValueError(f"{nonfinite_summary(broken)}: the scores are unreliable")


def _baselines(
    config: EvaluateConfig, scorer: Scorer, dataset: Dataset
) -> dict[str, dict[str, float]]:
    """Returns :func:`trivial_scores`; empty, with a warning, without a train split."""
    try:
        train = config.data.make("train")
        train.adopt_classes(dataset.info.class_names)
        indices = sorted(scorer.images)
        return trivial_scores(scorer.objectives, train, dataset, indices, config.data.loader)
    except (ValueError, OSError) as error:
        log.warning("no baselines, which need the train split: %s", error)
        return {}


def verdict(scorer: Scorer, baselines: Baselines, *, is_of_files: bool) -> str:
    """Returns a sentence that compares the first score with the best baseline."""
    name, score, low, high, comparisons = _headline(scorer.headlines[0], scorer, baselines)
    text = f"{name} {score:.3f} on {plural(len(scorer.images), 'image')}"
    if not math.isnan(low):
        text += f" (95 % interval over {scorer.blocks}: {low:.3f} to {high:.3f})"
    elif len(scorer.blocks.names) < FEWEST_BLOCKS:
        text += f" (no interval over {scorer.blocks}, which are too few: add some, or set blocks=)"
    comparisons = [row for row in comparisons if not math.isnan(row[1])]
    if not comparisons:
        return text
    best_of = min if name in scorer.lower_is_better else max
    kind, best, is_better = best_of(comparisons, key=lambda row: row[1])
    if is_better:
        return f"{text}: better than the baseline {kind} ({best:.3f})"
    remedy = "train longer, add images, or check the labels (dpt data check)"
    if is_of_files:
        remedy = "check unit and kind of the predictions (dpt evaluate --help)"
    return f"{text}: no better than the baseline {kind} ({best:.3f}): {remedy}"


# --- tables -------------------------------------------------------------------------------------


def write_per_image(path: Path, images: Sequence[ImageScore]) -> None:
    """Writes a line for each image: its name and its scores; empty where it has no label."""
    rows: list[list[str | float]] = [["name", *images[0].scores]]
    rows += [[image.name, *image.scores.values()] for image in images]
    run_log.write_csv(path, rows)


def write_left_out(path: Path, scorer: Scorer) -> None:
    """Writes the scores of all images, then a line for each block: those without its images.

    The differences of two evaluations get their intervals from these (``dpt compare``).
    """
    left_out = scorer.left_out
    if not left_out.scores:
        return
    names = ["", *scorer.blocks.joined().names]
    sizes = [int(left_out.images.sum()), *left_out.images.tolist()]
    columns = [[left_out.scores[name], *left_out.without[name]] for name in left_out.scores]
    lines = zip(names, sizes, np.transpose(columns).tolist(), strict=True)
    rows: list[list[str | float]] = [["without", "images", *left_out.scores]]
    rows += [[name, size, *values] for name, size, values in lines]
    run_log.write_csv(path, rows, digits=12)


def write_confusion(path: Path, confusions: Sequence[Confusion]) -> None:
    """Writes counts, ground truth by row and prediction by column; no file without a matrix."""
    for names, counts in confusions:
        rows = [(name, *row) for name, row in zip(names, counts.tolist(), strict=True)]
        run_log.write_csv(path, [("ground truth", *names, "no class"), *rows])


def _log_rules(table: RuleTable) -> None:
    """Logs the common scores of rules in a table, and then what some rules alone score."""
    header = [column.replace(" ", "\n") for column in table.columns]
    run_log.log_rows("By the rules of others", header, table.rows)
    further = [f"{name}: {scores}" for name, _, scores in table.others if scores]
    if further:
        log.info("Scores that only some of these rules have\n%s", "\n".join(further))


# --- the report ---------------------------------------------------------------------------------


def _write_report(
    path: Path, scorer: Scorer, baselines: Baselines, settings: Mapping[str, object]
) -> None:
    """Writes an HTML page; ``settings`` say what was scored and how."""
    table = []
    for name in (name for name in scorer.scores if "/" not in name):
        better = "lower" if name in scorer.lower_is_better else "higher"
        baseline_values = [row.get(name) for row in baselines.values()]
        interval = scorer.intervals[name]
        table.append((name, scorer.scores[name], *interval, better, *baseline_values))
    galleries = {"Examples": scorer.examples}
    for key, pictures in scorer.worst.items():
        galleries[f"Worst images by {scorer.first_scores[key]}"] = pictures
    html.write_page(
        path,
        "evaluation.html",
        settings=[(name, str(value)) for name, value in settings.items()],
        headlines=[_headline(name, scorer, baselines) for name in scorer.headlines],
        columns=["metric", "score", "95 % from", "to", "better", *baselines],
        scores=table,
        rules=scorer.rules,
        blocks=str(scorer.blocks),
        classes=[_classes(confusion, scorer) for confusion in scorer.confusions],
        galleries=[
            (title, [(picture.caption, picture.rgb) for picture in pictures])
            for title, pictures in galleries.items()
        ],
    )


def _headline(
    name: str, scorer: Scorer, baselines: Baselines
) -> tuple[str, float, float, float, list[tuple[str, float, bool]]]:
    """Returns a score, its interval, and whether it is better than each baseline."""
    sign = -1 if name in scorer.lower_is_better else 1
    score = scorer.scores[name]
    beside = [(kind, row[name]) for kind, row in baselines.items() if name in row]
    comparisons = [(kind, value, sign * score > sign * value) for kind, value in beside]
    return name, score, *scorer.intervals[name], comparisons


def _classes(confusion: Confusion, scorer: Scorer) -> dict[str, list[tuple[html.Cell, ...]]]:
    """Returns the rows of the report's tables of classes and of confusions."""
    names, counts = confusion
    labelled = counts.sum(1)
    total = max(1, counts.sum())
    recall = counts.diagonal() / np.where(labelled, labelled, np.nan)
    rows: list[tuple[html.Cell, ...]] = []
    for name, pixels, accuracy in zip(names, labelled, recall, strict=True):
        iou = f"iou/{name}"
        rows.append((name, pixels / total, scorer.scores[iou], *scorer.intervals[iou], accuracy))
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
