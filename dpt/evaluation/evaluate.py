"""``dpt evaluate``: scores a checkpoint, or predictions on disk, and writes the results."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass

import lightning as L
import torch.distributed as dist

from dpt.config.run_folder import save_config
from dpt.config.schema import EvaluateConfig
from dpt.data import Dataset
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.passes import score_checkpoint, score_files
from dpt.evaluation.report import (
    LEFT_OUT_FILE,
    log_rules,
    write_confusion,
    write_left_out,
    write_per_image,
    write_report,
)
from dpt.evaluation.scoring import DatasetScores, Scorer, blocks_of
from dpt.files import plural
from dpt.html import require_free
from dpt.objectives.batches import nonfinite_summary
from dpt.process import is_first_rank
from dpt.run_log import log_table, write_json

log = logging.getLogger("dpt")


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
    protocol = config.protocol
    if is_first_rank():
        written = ("per_image.csv", LEFT_OUT_FILE, "confusion.csv", "panels")
        require_free(config.folder, "evaluation.html", written)
    dataset = config.data.make(config.split).without_repeats()
    # a mistake fails before scoring
    blocks = blocks_of(dataset, config.blocks)
    score = score_checkpoint if config.checkpoint else score_files
    scorer = score(config, dataset, protocol)
    if not scorer.images:
        raise ValueError("no image was scored, see the lines above")
    scorer.notes["protocol"] = protocol.name
    scores = {f"val/{name}": value for name, value in scorer.scores().items()}
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if not is_first:
        return Evaluation(scores)
    save_config(config.values, config.folder)
    result = scorer.result(blocks)
    _write(config, scorer, result, dataset)
    return Evaluation(scores, tuple(result.headlines), frozenset(result.lower_is_better))


def _write(config: EvaluateConfig, scorer: Scorer, result: DatasetScores, dataset: Dataset) -> None:
    """Writes the files of an evaluation.

    Raises:
        ValueError: a prediction is not finite. The files are written before.
    """
    folder = config.folder
    source = config.source
    remedy = REMEDIES["checkpoint" if config.checkpoint else "predictions"]
    broken = [image.name for image in result.images if not image.is_finite]
    notes = {
        "images": len(result.images),
        "blocks": len(result.blocks.names),
        "blocks_kind": result.blocks.kind,
        "headlines": ", ".join(result.headlines),
        "lower_is_better": ", ".join(sorted(result.lower_is_better & result.scores.keys())),
        **result.notes,
        "nonfinite_predictions": len(broken),
    }
    low = {name: interval.low for name, interval in result.intervals.items()}
    high = {name: interval.high for name, interval in result.intervals.items()}
    columns = {"val": result.scores, "ci95_low": low, "ci95_high": high}
    values = notes | {f"{c}/{k}": v for c, column in columns.items() for k, v in column.items()}
    write_json(folder / "metrics.json", values)  # already here, since baselines are slow
    write_per_image(folder / "per_image.csv", result.images)
    write_left_out(folder / LEFT_OUT_FILE, result)
    write_confusion(folder / "confusion.csv", result.confusions)
    rows = _baselines(config, scorer, dataset)
    write_json(folder / "metrics.json", values | named(rows))
    baselines = {
        kind: {name.removeprefix("val/"): value for name, value in row.items()}
        for kind, row in rows.items()
    }
    write_report(
        folder / "report.html",
        result,
        baselines=baselines,
        settings={"scored": source, "split": config.split, **notes},
    )
    log_table(
        {**baselines, "ci95 low": low, "ci95 high": high, "score": result.scores},
        title=f"{source} on {config.split}, protocol {notes['protocol']}",
        lower_is_better=result.lower_is_better,
    )
    for table in result.rules:
        log_rules(table, result.scores)
    log.info("%d images; report: %s", len(result.images), folder / "report.html")
    log.info("%s", verdict(result, baselines, remedy))
    if broken:
        raise ValueError(f"{nonfinite_summary(broken)}: the scores are unreliable")


REMEDIES = {
    "checkpoint": "train longer, add images, or check the labels (dpt data check)",
    "predictions": "check unit, kind and encoding of the predictions (dpt evaluate --help)",
}
"""What may help if a model, or files of predictions, are no better than a baseline."""


def verdict(
    result: DatasetScores, baselines: Mapping[str, Mapping[str, float]], remedy: str
) -> str:
    """Returns a sentence that compares the first score with the best baseline."""
    name = result.headlines[0]
    score, interval, count = result.scores[name], result.intervals[name], len(result.images)
    text = f"{name} {score:.3f} on {plural(count, 'image')}"
    if not math.isnan(interval.low):
        text += f" (95 % interval over {result.blocks}: {interval.low:.3f} to {interval.high:.3f})"
    elif len(result.blocks.names) == 1 < count:
        text += f" (no interval, as they are one {result.blocks.kind}: set blocks=)"
    sign = -1 if name in result.lower_is_better else 1
    rows = [(sign * row[name], kind) for kind, row in baselines.items() if name in row]
    rows = [row for row in rows if not math.isnan(row[0])]
    if not rows:
        return text
    best, kind = max(rows)
    baseline = f"the baseline {kind} ({sign * best:.3f})"
    if sign * score > best:
        return f"{text}: better than {baseline}"
    return f"{text}: no better than {baseline}: {remedy}"


def _baselines(
    config: EvaluateConfig, scorer: Scorer, dataset: Dataset
) -> dict[str, dict[str, float]]:
    """Returns :func:`trivial_scores`; empty, with a warning, without a train split."""
    settings = config.data.loader
    try:
        train = config.data.make("train")
        train.adopt_classes(dataset.info.class_names)
        return trivial_scores(
            scorer.objectives,
            train,
            dataset,
            settings.image_size,
            indices=sorted(scorer.images),
            num_workers=settings.num_workers,
        )
    except (ValueError, OSError) as error:
        log.warning("no baselines, which need the train split: %s", error)
        return {}
