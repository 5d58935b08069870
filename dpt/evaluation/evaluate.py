"""Scores a checkpoint, or predictions that lie on disk, by a protocol."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import torch.distributed as dist
from torch import Tensor, nn

from dpt.config import build
from dpt.config.objects import convert
from dpt.config.trainer import build_trainer, require_images, trainer_arguments
from dpt.evaluation.callbacks import FailedFiles, Panels
from dpt.evaluation.objectives import objectives_of
from dpt.evaluation.predictions import Manifest, Pairs, find_folders, scored_pairs
from dpt.evaluation.protocol import Protocol, read_protocol, settings
from dpt.evaluation.report import write_confusion, write_per_image, write_report
from dpt.evaluation.scoring import Scorer
from dpt.metrics.depth import PredictionKind
from dpt.model import DPT
from dpt.objectives import DepthObjective, Objective
from dpt.objectives.base import same_size_groups, take
from dpt.run_log import log_scores, write_json
from dpt.types import Batch

log = logging.getLogger("dpt")


def evaluate(cfg: Mapping[str, Any]) -> dict[str, float]:
    """Scores ``cfg["checkpoint"]`` or the files in ``cfg["predictions"]`` on one split.

    Writes ``metrics.json``, ``per_image.csv``, ``confusion.csv``, ``report.html`` and pictures.
    Each image counts exactly once on any number of ranks.

    Args:
        cfg: as plain data (``conf/evaluate.yaml``).
    """
    if bool(cfg["checkpoint"]) == bool(cfg["predictions"]):
        if cfg["checkpoint"]:
            raise ValueError("checkpoint and predictions are both given: leave out one of them")
        raise ValueError(
            "checkpoint must be given: checkpoint=FILE (or predictions=DIR, to score files)"
        )
    L.seed_everything(convert(cfg["seed"], int, "seed"), verbose=False)
    protocol = read_protocol(cfg["protocol"])
    dataset = build.make_dataset(cfg["data"], cfg["split"])
    run = _score_checkpoint if cfg["checkpoint"] else _score_files
    scorer, notes = run(cfg, dataset, protocol)
    scores = {f"val/{name}": value for name, value in scorer.scores().items()}
    is_leader = not dist.is_initialized() or dist.get_rank() == 0
    if dist.is_initialized():
        dist.destroy_process_group()
    if is_leader:
        _write(cfg, scorer, notes, protocol)
    return scores


class Evaluation(L.LightningModule):
    """Scores image by image, the model asked as a protocol says."""

    def __init__(
        self, *, model: DPT, objectives: Mapping[str, Objective], protocol: Protocol, scorer: Scorer
    ) -> None:
        super().__init__()
        self.model = model
        self.objectives: Any = nn.ModuleDict(objectives)
        self.protocol = protocol
        self.scorer = scorer

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        preprocessing = self.model.preprocessing
        ask = self.protocol.ask(self.model, multiple_of=preprocessing.multiple_of)
        return dict(ask(preprocessing.normalize(images)))

    def validation_step(self, batch: Batch, batch_index: int) -> dict[str, Any]:
        groups = []
        for images, positions in same_size_groups(batch):
            outputs, labels = self(images), take(batch, positions)
            self.scorer.add(outputs, labels, images)
            groups.append((outputs, labels))
        return {"groups": groups}  # for the pictures

    def on_validation_epoch_end(self) -> None:
        self.scorer.gather()


def _score_checkpoint(
    cfg: Mapping[str, Any], dataset: Any, protocol: Protocol
) -> tuple[Scorer, dict[str, Any]]:
    """The scores of a model, and what else a reader of them must know."""
    model = DPT.from_pretrained(cfg["checkpoint"])
    image_size = convert(cfg["image_size"], tuple[int, int] | None, "image_size")
    data_size = convert(cfg["data"].get("eval_size"), tuple[int, int] | None, "data.eval_size")
    if image_size is not None:
        model.preprocessing = replace(model.preprocessing, image_size=image_size)
    size = list(model.preprocessing.image_size)
    if data_size is not None and list(data_size) != size:
        log.warning(
            "data.eval_size=%s is for training and changes nothing here: images are resized to "
            "cover %s; to change that, give image_size=[H,W]", list(data_size), size,
        )  # fmt: skip
    objectives = objectives_of(model.spec["heads"], dataset, protocol)
    loader = build.eval_loader(
        dataset,
        build.loader_settings(cfg["data"]),
        model.preprocessing,
        [o.target for o in objectives.values()],
    )
    scorer = Scorer(objectives, palette=dataset.info.palette or None)
    task = Evaluation(model=model, objectives=objectives, protocol=protocol, scorer=scorer)
    trainer = build_trainer(
        **trainer_arguments(cfg["trainer"]) | {"enable_checkpointing": False},
        logger=False,
        callbacks=[FailedFiles(), Panels(folder=str(Path(cfg["run_dir"]) / "panels"))],
    )
    require_images(trainer, len(dataset))
    trainer.validate(task, loader, verbose=False)
    rule = model.preprocessing.resize
    return scorer, {
        "image_size": f"{size[0]}x{size[1]} (height x width), {rule.replace('_', ' ')}",
        "precision": str(trainer.precision),
        **{k: v for o in objectives.values() for k, v in o.notes.items()},
    }


def _score_files(
    cfg: Mapping[str, Any], dataset: Any, protocol: Protocol
) -> tuple[Scorer, dict[str, Any]]:
    """The scores of predictions on disk."""
    folder = Path(cfg["predictions"]).expanduser()
    scale = convert(cfg["predictions_scale"], float | None, "predictions_scale")
    manifest = Manifest(folder)
    wanted = cfg["predictions_kind"] or manifest.kind or "metric"
    kind = convert(wanted, PredictionKind, "predictions_kind")
    folders = find_folders(folder, dataset.info.targets)
    heads: dict[str, Any] = {}
    if "depth" in folders:
        heads["depth"] = {"kind": kind}
    if "labels" in folders:
        heads["segmentation"] = {"num_classes": dataset.info.num_classes}
    objectives = objectives_of(heads, dataset, protocol)
    pairs = Pairs(
        dataset, folders, manifest=manifest, scale=scale, kind=kind, kb_crop=protocol.kb_crop
    )
    scorer = Scorer(objectives, palette=dataset.info.palette or None)
    workers = build.loader_settings(cfg["data"]).num_workers
    for outputs, labels in scored_pairs(pairs, num_workers=workers):
        scorer.add(outputs, labels, labels["image"])
    notes = {k: v for o in objectives.values() for k, v in o.notes.items()}
    if "depth" in objectives:
        notes["predictions_kind"] = str(kind)
    return scorer, notes


def _write(
    cfg: Mapping[str, Any], scorer: Scorer, notes: Mapping[str, Any], protocol: Protocol
) -> None:
    """Everything that an evaluation leaves in its folder."""
    folder = Path(cfg["run_dir"])
    scores, intervals = scorer.scores(), scorer.intervals()
    depth = scorer.objectives.get("depth")
    depth_protocol = depth.metrics.protocol if isinstance(depth, DepthObjective) else None
    used = settings(protocol, depth_protocol, asked=bool(cfg["checkpoint"]))
    values: dict[str, Any] = {f"val/{k}": v for k, v in scores.items()}
    for name, bounds in intervals.items():
        if not name.startswith("range/"):
            values[f"ci95_low/{name}"], values[f"ci95_high/{name}"] = bounds
    source, count = cfg["checkpoint"] or cfg["predictions"], len(scorer.records)
    write_json(folder / "metrics.json", {**values, **notes, **used, "images": count})
    write_per_image(folder / "per_image.csv", scorer)
    write_confusion(folder / "confusion.csv", scorer)
    title = protocol.name + (
        f" with {changed}" if (changed := used.get("protocol/changed")) else ""
    )
    facts = [f"{source}, scored on {count} images of split {cfg['split']}. Protocol: {title}."]
    if cfg["checkpoint"]:
        facts.append(f"{protocol.words()} Input: {notes['image_size']}.")
    if depth_protocol is not None:
        facts.append(depth_protocol.words())
    write_report(folder / "report.html", scorer, scores, intervals, facts=facts)
    log_scores(scores, intervals, title=f"{source} on {cfg['split']}, protocol {title}")
    log.info("%d images; report: %s", count, folder / "report.html")
