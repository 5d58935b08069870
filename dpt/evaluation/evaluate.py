"""Evaluation of a checkpoint, or of predictions on disk, under a protocol."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from torch import Tensor, nn

from dpt.config import build
from dpt.config.objects import check_arguments
from dpt.config.overrides import keys_of
from dpt.config.run_folder import save_config
from dpt.config.run_keys import Seed
from dpt.config.trainer import build_trainer, require_images, trainer_arguments
from dpt.data import read_in_order
from dpt.evaluation.baselines import named, trivial_scores
from dpt.evaluation.callbacks import FailedFiles, Panels
from dpt.evaluation.plausibility import DepthCheck, LabelsCheck
from dpt.evaluation.predictions import Pairs
from dpt.evaluation.report import write_confusion, write_per_image, write_report
from dpt.evaluation.scoring import PICTURE_WIDTH, Scorer, blocks_of
from dpt.html import require_free
from dpt.metrics.protocols import PredictionKind, Protocol
from dpt.model import DPT
from dpt.nn.tta import augmented
from dpt.objectives import OBJECTIVES, Objective
from dpt.objectives.base import (
    evaluated,
    lower_is_better,
    nonfinite_summary,
    same_size_groups,
    take,
)
from dpt.process import handle_signals, is_first_rank
from dpt.run_log import log_table, write_json
from dpt.types import Batch, HeadPrediction, OutputSpec
from dpt.validation import Positive, validate
from dpt.viz import shrink
from dpt.weights.base import naming

log = logging.getLogger("dpt")


def evaluate(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Scores ``cfg["checkpoint"]`` or the files in ``cfg["predictions"]`` on one split.

    Writes ``metrics.json``, ``per_image.csv``, ``confusion.csv``, ``report.html`` and pictures.
    Returns each score as ``val/NAME``. Each image counts once on any number of processes. ``cfg``
    is plain data (``conf/evaluate.yaml``).
    """
    for key in ("checkpoint", "predictions"):
        validate(str | None, cfg[key], key)
    if bool(cfg["checkpoint"]) == bool(cfg["predictions"]):
        raise ValueError("give one of the two: checkpoint=FILE, or predictions=DIR to score files")
    of_files = "predictions_scale", "predictions_kind"
    if cfg["checkpoint"] and (unused := [key for key in of_files if cfg[key] is not None]):
        raise ValueError(f"{unused[0]} has no effect on checkpoint=FILE: leave it out")
    cfg = {**cfg, "data": build.data_of_evaluation(cfg)}
    L.seed_everything(validate(Seed, cfg["seed"], "seed"), verbose=False)
    protocol = Protocol(**check_arguments(Protocol, cfg["protocol"], "protocol"))
    if is_first_rank():
        written = ("per_image.csv", "confusion.csv", "panels")
        require_free(Path(cfg["run_dir"]), "evaluation.html", written)
    dataset = build.make_dataset(cfg["data"], cfg["split"]).without_repeats()
    if blocks := validate(str | None, cfg["blocks"], "blocks"):  # a mistake fails before scoring
        blocks_of([dataset.name(index) for index in range(len(dataset))], blocks)
    run = _score_checkpoint if cfg["checkpoint"] else _score_files
    scorer, notes = run(cfg, dataset, protocol)
    if not scorer.rows:
        raise ValueError("no image was scored, see the lines above")
    scores = {f"val/{name}": value for name, value in scorer.scores().items()}
    rank = dist.get_rank() if dist.is_initialized() else 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank == 0:
        save_config(cfg, Path(cfg["run_dir"]))
        _write(cfg, scorer, dataset, {"protocol": protocol.name, **notes})
    return scores


def objectives_of(
    outputs: Mapping[str, OutputSpec], data: Any, protocol: Protocol
) -> dict[str, Objective]:
    """An objective for each output that the data has labels for; ValueError if there is none."""
    objectives: dict[str, Objective] = {}
    for name, output in outputs.items():
        cls = OBJECTIVES.get(name)
        if cls is None:
            raise ValueError(
                f"no objective for the head {name}: choose from {', '.join(OBJECTIVES)}, or name "
                "the module of your own in DPT_PLUGINS"
            )
        if {cls.target, cls.scored_by} & {*data.info.targets}:
            data.adopt_classes(output.class_names)
            objectives[name] = cls.from_output(output, data, protocol)
            if protocol.resize is not None:
                objectives[name].resize = protocol.resize
    if not objectives:
        given = ", ".join(build.LABEL_NAMES[t] for t in data.info.targets) or "images alone"
        hint = ", and inpainting is scored in training alone" if "inpainting" in outputs else ""
        raise ValueError(
            f"nothing to score: the checkpoint predicts {', '.join(outputs)}, "
            f"the data gives {given}{hint}"
        )
    is_for_depth = protocol.depth_notes() != Protocol().depth_notes()
    if is_for_depth and all(objective.target != "depth" for objective in objectives.values()):
        raise ValueError(
            f"protocol={protocol.name} says how depth is scored, but only {', '.join(objectives)} "
            "is scored: choose another protocol, such as whole or slide"
        )
    return objectives


class Evaluation(L.LightningModule):
    """Scores a model image by image, with the test-time augmentation of a protocol."""

    def __init__(self, *, model: DPT, protocol: Protocol, scorer: Scorer) -> None:
        super().__init__()
        self.model = model
        self.objectives: Any = nn.ModuleDict({**scorer.objectives, **scorer.whole})
        self.protocol, self.scorer = protocol, scorer

    def forward(self, images: Tensor) -> dict[str, HeadPrediction]:
        preprocessing = self.model.preprocessing
        predict = augmented(
            self.model,
            self.model.outputs,
            flip=self.protocol.flip,
            scales=self.protocol.scales,
            window=self.protocol.window,
            stride=self.protocol.stride,
            multiple_of=preprocessing.multiple_of,
            resize=self.protocol.resize or preprocessing.output_interpolation,
        )
        return dict(predict(preprocessing.normalize(images)))

    def on_validation_start(self) -> None:
        handle_signals()  # Lightning's own handler ignores SIGTERM

    def validation_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        groups = []
        for images, positions in same_size_groups(batch):
            predictions, labels = self(images), take(batch, positions)
            objectives = self.objectives.values()
            outputs = evaluated(predictions, self.model.heads, objectives, labels)
            self.scorer.add(outputs, labels, images)
            groups.append((outputs, labels))
        return {"groups": groups}  # for the pictures

    def on_validation_epoch_end(self) -> None:
        self.scorer.gather()


Scored = tuple[Scorer, dict[str, Any]]
"""A scorer that has seen the predictions, and notes for ``metrics.json``."""


def _score_checkpoint(cfg: Mapping[str, Any], dataset: Any, protocol: Protocol) -> Scored:
    model = DPT.from_pretrained(cfg["checkpoint"])
    if model.calibration is not None:
        log.warning(
            "the calibration of the model is not used: to score its metres, use dpt predict, then "
            "dpt evaluate predictions=DIR"
        )
    image_size = validate(tuple[int, int] | None, cfg["image_size"], "image_size")
    if image_size is not None:
        model.preprocessing = replace(model.preprocessing, image_size=image_size)
    resize = protocol.resize or model.preprocessing.output_interpolation
    protocol = replace(protocol, resize=resize)
    objectives = objectives_of(model.outputs, dataset, protocol)
    loader = build.eval_loader(
        dataset,
        build.loader_settings(cfg["data"]),
        model.preprocessing,
        [o.target for o in objectives.values()],
    )
    scorer = Scorer(objectives, model.outputs)
    panels = Panels(folder=str(Path(cfg["run_dir"]) / "panels"))
    trainer = build_trainer(
        **trainer_arguments(cfg["trainer"]) | {"enable_checkpointing": False},
        logger=False,
        callbacks=[FailedFiles(), panels],
    )
    require_images(trainer, len(dataset))
    task = Evaluation(model=model, protocol=protocol, scorer=scorer)
    trainer.validate(task, loader, verbose=False)
    pictures = sorted(panels.pictures.items())
    scorer.examples = [(name, shrink(rgb, PICTURE_WIDTH)) for _, (name, rgb) in pictures]
    height, width = model.preprocessing.image_size
    rule = model.preprocessing.resize.replace("_", " ")
    return scorer, {
        "image_size": f"{height}x{width} (height x width), {rule}",
        "precision": str(trainer.precision),
        **protocol.view_notes(),
    }


def _score_files(cfg: Mapping[str, Any], dataset: Any, protocol: Protocol) -> Scored:
    plain, views = Protocol(), ("flip", "scales", "window", "stride")
    unused = [f"protocol.{key}" for key in views if getattr(protocol, key) != getattr(plain, key)]
    unused += ["image_size"] if cfg["image_size"] is not None else []
    unused += sorted(k for k in keys_of(cfg["overrides"]) if k.partition(".")[0] == "trainer")
    if unused:
        raise ValueError(
            f"{', '.join(unused)}: no effect on predictions=DIR, which are scored as they are: "
            "leave it out, or choose another protocol, such as whole"
        )
    pairs = Pairs(
        dataset,
        Path(cfg["predictions"]).expanduser(),
        scale=validate(Positive | None, cfg["predictions_scale"], "predictions_scale"),
        kind=validate(PredictionKind | None, cfg["predictions_kind"], "predictions_kind"),
    )
    objectives = objectives_of(pairs.outputs, dataset, protocol)
    scorer = Scorer(objectives, pairs.outputs)
    checks: dict[str, LabelsCheck | DepthCheck] = {}
    notes: dict[str, Any] = {}
    if "segmentation" in objectives:
        checks["segmentation"] = LabelsCheck(dataset.info.num_classes, dataset.label_rule)
    if "depth" in objectives:
        has_unit = objectives["depth"].notes["protocol/alignment"] == "none"
        checks["depth"] = DepthCheck(is_relative=pairs.kind == "relative", has_unit=has_unit)
        notes["predictions_kind"] = pairs.kind
    workers = build.loader_settings(cfg["data"]).num_workers
    for outputs, labels in read_in_order(pairs.read, range(len(dataset)), num_workers=workers):
        scorer.add(outputs, labels, labels["image"])
        for name, check in checks.items():
            check.add(outputs[name].tensor, labels)
    for name, check in checks.items():
        place = f"predictions={cfg['predictions']}: {name}"
        with naming(place):
            remarks = check.remarks()
        for remark in remarks:
            log.warning("%s: %s", place, remark)
        if remarks:
            notes[f"remarks/{name}"] = "; ".join(remarks)
    return scorer, notes


def _write(cfg: Mapping[str, Any], scorer: Scorer, dataset: Any, notes: Mapping[str, Any]) -> None:
    """Writes the files of an evaluation; then a ValueError if a prediction is not finite."""
    folder, source = Path(cfg["run_dir"]), cfg["checkpoint"] or cfg["predictions"]
    blocks = blocks_of([name for _, (name, _) in sorted(scorer.rows.items())], cfg["blocks"])
    scores, intervals = scorer.scores(), scorer.intervals(blocks)
    objectives = [*scorer.objectives.values(), *scorer.whole.values()]
    broken = [scorer.nonfinite[index] for index in sorted(scorer.nonfinite)]
    settings = {"images": len(scorer.rows), "blocks": int(blocks.max()) + 1, **notes}
    settings["nonfinite_predictions"] = len(broken)
    settings |= {k: v for objective in objectives for k, v in objective.notes.items()}
    low, high = ({k: v[i] for k, v in intervals.items()} for i in (0, 1))
    values = settings | {f"val/{k}": v for k, v in scores.items()}
    values |= {f"ci95_low/{k}": v for k, v in low.items()}
    values |= {f"ci95_high/{k}": v for k, v in high.items()}
    write_json(folder / "metrics.json", values)  # already here, since baselines are slow
    write_per_image(folder / "per_image.csv", scorer)
    write_confusion(folder / "confusion.csv", scorer)
    rows = _baselines(cfg, scorer, dataset)
    write_json(folder / "metrics.json", values | named(rows))
    settings = {"scored": source, "split": cfg["split"], **settings}
    baselines = {
        kind: {k.removeprefix("val/"): v for k, v in row.items()} for kind, row in rows.items()
    }
    write_report(
        folder / "report.html", scorer, scores, intervals, baselines=baselines, settings=settings
    )
    log_table(
        {**baselines, "ci95 low": low, "ci95 high": high, "score": scores},
        title=f"{source} on {cfg['split']}, protocol {notes['protocol']}",
        lower_is_better=lower_is_better(objectives),
    )
    log.info("%d images; report: %s", settings["images"], folder / "report.html")
    if broken:
        raise ValueError(f"{nonfinite_summary(broken)}: the scores are unreliable")


def _baselines(cfg: Mapping[str, Any], scorer: Scorer, dataset: Any) -> dict[str, dict[str, float]]:
    """The scores of :func:`trivial_scores`; empty, with a warning, without a train split."""
    settings = build.loader_settings(cfg["data"])
    size, workers = settings.image_size, settings.num_workers
    try:
        train = build.make_dataset(cfg["data"], "train")
        train.adopt_classes(dataset.info.class_names)
        scored = sorted(scorer.rows)
        return trivial_scores(
            scorer.objectives, train, dataset, size, indices=scored, num_workers=workers
        )
    except (ValueError, OSError) as error:
        log.warning("no baselines, which need the train split: %s", error)
        return {}
