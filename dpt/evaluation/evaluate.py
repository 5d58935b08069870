"""``dpt evaluate``: scores a checkpoint, or predictions on disk, and writes the results."""

import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import lightning as L
import torch.distributed as dist

from dpt.config.data import data_of_evaluation, loader_settings, make_dataset
from dpt.config.objects import check_arguments
from dpt.config.overrides import keys_of
from dpt.config.run_folder import save_config
from dpt.config.run_keys import Seed
from dpt.data import Dataset
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.blocks import blocks_of
from dpt.evaluation.parts import (
    Part,
    add_parts,
    find_parts,
    holds_part,
    require_same_images,
    write_part,
)
from dpt.evaluation.passes import load_scorer, score_files, score_images
from dpt.evaluation.report import (
    LEFT_OUT_FILE,
    log_rules,
    write_confusion,
    write_left_out,
    write_per_image,
    write_report,
)
from dpt.evaluation.scoring import DatasetScores, Scorer
from dpt.files import plural
from dpt.html import require_free
from dpt.metrics import Protocol
from dpt.objectives.batches import nonfinite_summary
from dpt.predict.shards import Shard
from dpt.process import is_first_rank
from dpt.run_log import log_table, write_json
from dpt.validation import PlainMapping, validate

log = logging.getLogger("dpt")


def evaluate(cfg: PlainMapping) -> dict[str, float]:
    """Scores ``cfg["checkpoint"]`` or the files in ``cfg["predictions"]`` on one split.

    Writes ``metrics.json``, ``per_image.csv``, ``left_out.csv``, ``confusion.csv``, ``report.html``
    and pictures; with ``cfg["shard"]`` the scores of one part of the images alone, which
    ``cfg["merge"]`` joins. Each image counts once on any number of processes.

    Args:
        cfg: plain data (``conf/evaluate.yaml``).

    Returns:
        Each score as ``val/NAME``.
    """
    for key in ("checkpoint", "predictions", "shard", "merge"):
        validate(str | None, cfg[key], key)
    parts = _parts(cfg)
    cfg = cfg if not parts else {**parts[0].config, "run_dir": cfg["run_dir"], "shard": None}
    if bool(cfg["checkpoint"]) == bool(cfg["predictions"]):
        raise ValueError("give one of the two: checkpoint=FILE, or predictions=DIR to score files")
    for key in ("predictions_scale", "predictions_kind", "predictions_encoding"):
        if cfg["checkpoint"] and cfg[key] is not None:
            raise ValueError(f"{key} has no effect on checkpoint=FILE: leave it out")
    shard = _shard(cfg)
    cfg = {**cfg, "data": cfg["data"] if parts else data_of_evaluation(cfg)}
    L.seed_everything(validate(Seed, cfg["seed"], "seed"), verbose=False)
    protocol = Protocol(**check_arguments(Protocol, cfg["protocol"], "protocol"))
    is_repeated = shard is not None and holds_part(Path(cfg["run_dir"]), shard)
    if is_first_rank() and not is_repeated:
        written = ("per_image.csv", LEFT_OUT_FILE, "confusion.csv", "panels")
        require_free(Path(cfg["run_dir"]), "evaluation.html", written)
    dataset = make_dataset(cfg["data"], cfg["split"]).without_repeats()
    # a mistake fails before scoring
    blocks = blocks_of(dataset, validate(str | None, cfg["blocks"], "blocks"))
    scorer = _scored(cfg, dataset, protocol, shard, parts)
    if not scorer.images:
        raise ValueError("no image was scored, see the lines above")
    scorer.notes["protocol"] = protocol.name
    scores = scorer.scores()
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if is_first:
        save_config(cfg, Path(cfg["run_dir"]))
        if shard is None:
            _write(cfg, scorer, scorer.result(blocks), dataset)
        else:
            file = write_part(Path(cfg["run_dir"]), scorer, shard)
            log.info("part %s: %s: %s", shard, plural(len(scorer.images), "image"), file)
    return {f"val/{name}": value for name, value in scores.items()}


def _parts(cfg: PlainMapping) -> list[Part]:
    """Returns the parts that ``merge`` joins; empty without it."""
    if cfg["merge"] is None:
        return []
    others = sorted(keys_of(cfg["overrides"]) - {"merge", "run_dir"})
    if others:
        fault = f"{', '.join(others)}: no effect on merge={cfg['merge']}"
        raise ValueError(f"{fault}, which has the settings of its parts: leave it out")
    return find_parts(Path(cfg["merge"]).expanduser())


def _shard(cfg: PlainMapping) -> Shard | None:
    """Returns the part of the images that ``shard`` names; None for all."""
    text = cfg["shard"]
    if text is None:
        return None
    if cfg["predictions"]:
        raise ValueError(f"shard={text}: files of predictions are scored as a whole: leave it out")
    if cfg["runtime"] == "auto":
        raise ValueError("runtime=auto: each part might be scored by another: name one of them")
    if text in ("auto", "torchrun"):  # whose processes are ranks of one evaluation
        raise ValueError(f"shard={text}: write K/N, slurm or kubernetes, or use trainer.devices")
    return Shard.chosen(text, option="shard=")


def _scored(
    cfg: PlainMapping, dataset: Dataset, protocol: Protocol, shard: Shard | None, parts: list[Part]
) -> Scorer:
    """Returns the scores of the images, or of those of one part, or of all finished parts."""
    if cfg["predictions"]:
        return score_files(cfg, dataset, protocol)
    model, scorer = load_scorer(cfg, dataset, protocol)
    indices_of = partial(_batches_of, cfg=cfg, length=len(dataset))
    if parts:
        skips_broken = loader_settings(cfg["data"]).on_error == "skip"
        require_same_images(parts, dataset, indices_of, skips_broken=skips_broken)
        add_parts(scorer, parts, Path(cfg["run_dir"]))
        return scorer
    indices = None if shard is None else indices_of(shard)
    if shard is not None and scorer.whole:
        names = ", ".join(scorer.whole)
        raise ValueError(f"shard={shard}: {names} is scored from all images together: leave it out")
    score_images(cfg, model, scorer, dataset, protocol, indices)
    return scorer


def _batches_of(shard: Shard, cfg: PlainMapping, length: int) -> list[int]:
    """Returns the samples of a part: whole batches, on which the last bits of scores depend."""
    size = loader_settings(cfg["data"]).batch_size
    starts = range(0, length, size)
    if shard.count > len(starts):
        remedy = f"at most {len(starts)} parts, or a smaller data.batch_size"
        raise ValueError(f"shard={shard}: more parts than batches: {remedy}")
    return [k for start in shard.part(starts) for k in range(length)[start : start + size]]


def _write(cfg: PlainMapping, scorer: Scorer, result: DatasetScores, dataset: Dataset) -> None:
    """Writes the files of an evaluation.

    Raises:
        ValueError: a prediction is not finite. The files are written before.
    """
    folder = Path(cfg["run_dir"])
    source = cfg["checkpoint"] or cfg["predictions"]
    remedy = REMEDIES["checkpoint" if cfg["checkpoint"] else "predictions"]
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
    rows = _baselines(cfg, scorer, dataset)
    write_json(folder / "metrics.json", values | named(rows))
    baselines = {
        kind: {name.removeprefix("val/"): value for name, value in row.items()}
        for kind, row in rows.items()
    }
    write_report(
        folder / "report.html",
        result,
        baselines=baselines,
        settings={"scored": source, "split": cfg["split"], **notes},
    )
    log_table(
        {**baselines, "ci95 low": low, "ci95 high": high, "score": result.scores},
        title=f"{source} on {cfg['split']}, protocol {notes['protocol']}",
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


def _baselines(cfg: PlainMapping, scorer: Scorer, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Returns :func:`trivial_scores`; empty, with a warning, without a train split."""
    settings = loader_settings(cfg["data"])
    try:
        train = make_dataset(cfg["data"], "train")
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
