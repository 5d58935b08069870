"""One pass over a data set that scores a checkpoint, or predictions on disk."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning as L
from torch import Tensor, nn

from dpt.config import build
from dpt.config.schema import EvaluateConfig
from dpt.data import Dataset, read_in_order
from dpt.data.statistics import measure_bands
from dpt.evaluation import callbacks, coco_results, predictions
from dpt.evaluation.scoring import PICTURE_WIDTH, PanelPicture, Scorer
from dpt.exporting.runtimes import Precision, Runtime, is_exported, make_runtime, with_bf16_weights
from dpt.metrics import Protocol
from dpt.model import DPT
from dpt.nn.tta import Model, Predictions, augmented, joined, mirror
from dpt.objectives import OBJECTIVES, Objective, base
from dpt.process import handle_signals, log
from dpt.types.outputs import HeadPrediction, OutputSpec, array_specs
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import Batch, Inputs
from dpt.viz import shrink
from dpt.weights.base import naming
from dpt.weights.formats import fingerprint

_PRECISIONS: dict[str, Precision] = {"32-true": "fp32", "bf16-mixed": "bf16"}
"""Of a runtime, by Lightning's name."""

WEIGHTS_NOTE = "weights"
"""Fact in ``metrics.json``: the fingerprint of the model that was scored."""


def objectives_of(
    outputs: Mapping[str, OutputSpec], data: Dataset, protocol: Protocol
) -> dict[str, Objective]:
    """Returns an objective for each output that the data has labels for; ValueError without one."""
    objectives: dict[str, Objective] = {}
    for name, output in outputs.items():
        cls = OBJECTIVES.get(name)
        if cls is None:
            remedy = f"choose from {', '.join(OBJECTIVES)}, or name your module in DPT_PLUGINS"
            raise ValueError(f"no objective for the head {name}: {remedy}")
        if {cls.target, cls.scored_by} & {*data.info.targets}:
            data.adopt_classes(output.class_names)
            objectives[name] = cls.from_output(output, data, protocol)
            if protocol.resize is not None:
                objectives[name].resize = protocol.resize
    if not objectives:
        given = ", ".join(build.LABEL_NAMES[t] for t in data.info.targets) or "images alone"
        fault = f"the checkpoint predicts {', '.join(outputs)}, the data gives {given}"
        raise ValueError(f"nothing to score: {fault}")
    scored = objectives.values()
    lacks_rules = protocol.rules and not any(objective.has_rules for objective in scored)
    is_for_depth = protocol.depth_notes() != Protocol().depth_notes()
    if lacks_rules or (is_for_depth and all(objective.target != "depth" for objective in scored)):
        fault = f"no effect on {', '.join(objectives)}, which is all that is scored"
        raise ValueError(f"protocol={protocol.name}: {fault}: choose another, such as whole")
    return objectives


class Evaluation(L.LightningModule):
    """Scores a model image by image, with the test-time augmentation of a protocol.

    Args:
        predict: computes the tensors of the predictions in place of the model, see
            :meth:`dpt.exporting.runtimes.Runtime.tensors`; None for the model itself.
    """

    def __init__(
        self, model: DPT, protocol: Protocol, scorer: Scorer, predict: Model | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.predict: Predictions = lambda inputs: model(inputs.images, prompts=inputs.prompts)
        if predict is not None:
            self.predict = partial(joined, predict, model.outputs)
        self.objectives = nn.ModuleDict({**scorer.objectives, **scorer.whole})
        self.protocol = protocol
        self.scorer = scorer

    def forward(
        self, images: Tensor, prompts: Tensor | None = None, *, flip: bool = False
    ) -> dict[str, HeadPrediction]:
        preprocessing = self.model.preprocessing
        predict = augmented(
            self.predict,
            self.model.outputs,
            flip=flip,
            scales=self.protocol.scales,
            window=self.protocol.window,
            stride=self.protocol.stride,
            multiple_of=preprocessing.multiple_of,
            resize=self.protocol.resize or preprocessing.output_interpolation,
            rule=preprocessing,
        )
        return dict(predict(Inputs(preprocessing.normalize(images), prompts)))

    def on_validation_start(self) -> None:
        handle_signals()  # Lightning's own handler ignores SIGTERM

    def validation_step(self, batch: Batch, batch_index: int) -> dict[str, object]:
        groups = []
        for images, positions in base.same_size_groups(batch):
            labels = base.take(batch, positions)
            objectives = self.scorer.every_objective
            prompts = base.prompts_of(labels, self.model.outputs)
            predicted = self(images, prompts, flip=self.protocol.flip)
            outputs = base.evaluated(predicted, self.model.heads, objectives, labels)
            compared = [o.head for o in objectives if o.compares_mirrored]
            if compared:
                points = None if prompts is None else prompts.flip(-1)
                mirrored = self(images.flip(-1), points)
                second = base.evaluated(mirrored, self.model.heads, objectives, labels)
                for name in compared:
                    spec = self.model.outputs[name]
                    outputs[name].auxiliary = mirror(second[name].tensor, spec)
            self.scorer.add(outputs, labels, images)
            groups.append((outputs, labels))
        return {"groups": groups}  # for the pictures

    def on_validation_epoch_end(self) -> None:
        self.scorer.gather()


def score_checkpoint(config: EvaluateConfig, dataset: Dataset) -> Scorer:
    """Returns the scores of the checkpoint on a data set."""
    model, protocol = DPT.from_pretrained(config.source), config.protocol
    if model.calibration is not None:
        remedy = "score what dpt predict writes, by predictions=DIR"
        log.warning("the calibration of the model is not used: %s", remedy)
    if model.takes_prompts and tuple(protocol.scales) != (1.0,):
        fault = "no other sizes of sparse depth: leave it out"
        raise ValueError(f"protocol.scales={list(protocol.scales)}: {fault}")
    weights = fingerprint(model.config.to_dict(), model.state_dict())
    image_size = config.image_size
    if image_size is not None:
        model.preprocessing = replace(model.preprocessing, image_size=image_size)
    preprocessing = model.preprocessing
    resize = protocol.resize or preprocessing.output_interpolation
    protocol = replace(protocol, resize=resize)
    scorer = Scorer(objectives_of(model.outputs, dataset, protocol), model.outputs, preprocessing)
    loader = build.make_eval_loader(
        dataset,
        config.data.loader,
        preprocessing,
        [objective.target for objective in scorer.every_objective],
        prompts=model.takes_prompts,
    )
    panels = callbacks.Panels(folder=str(config.folder / "panels"))
    trainer = config.trainer.build(
        **build.trainer_arguments(config.trainer) | {"enable_checkpointing": False},
        logger=False,
        callbacks=[callbacks.FailedFiles(), panels],
    )
    build.require_images(trainer, len(dataset))
    runtime = _runtime(config, model, trainer)
    predict = None if runtime is None else runtime.tensors
    trainer.validate(Evaluation(model, protocol, scorer, predict), loader, verbose=False)
    height, width = preprocessing.image_size
    rule = preprocessing.resize.replace("_", " ")
    scorer.notes = {
        "image_size": f"{height}x{width} (height x width), {rule}",
        "precision": str(trainer.precision) if runtime is None else _PRECISIONS[trainer.precision],
        **({} if config.runtime is None else {"runtime": config.runtime}),
        WEIGHTS_NOTE: weights,
        **protocol.view_notes(),
        **scorer.notes,
    }
    for picture in panels.pictures.values():
        scorer.examples.append(PanelPicture(picture.caption, shrink(picture.rgb, PICTURE_WIDTH)))
    return scorer


def _runtime(config: EvaluateConfig, model: DPT, trainer: L.Trainer) -> Runtime | None:
    """Returns what predicts in place of the model as it is: the configured runtime, or PyTorch
    with bf16 weights in place of autocast; None if the model itself predicts."""
    name, device = config.runtime, trainer.strategy.root_device
    if name in (None, "torch"):
        return with_bf16_weights(model, device) if build.takes_bf16_weights(trainer) else None
    precision = _PRECISIONS.get(trainer.precision)
    if precision is None:
        fault = f"runtime={name} takes {' or '.join(_PRECISIONS)}"
        raise ValueError(f"trainer.precision={trainer.precision}: {fault}")
    chosen, source = (None, Path(name)) if is_exported(name) else (name, model)
    runtime = make_runtime(chosen, source, device=device, precision=precision)
    if runtime.outputs.keys() != array_specs(model.outputs).keys():
        fault = f"predicts {', '.join(runtime.outputs)}, not as checkpoint"
        raise ValueError(f"runtime={name}: {fault}")
    return runtime


def score_files(config: EvaluateConfig, dataset: Dataset) -> Scorer:
    """Returns the scores of the files in the folder of predictions."""
    path = Path(config.source).expanduser()
    predicted: predictions.Predicted
    if path.suffix.lower() == ".json":
        predicted = coco_results.CocoPredictions(dataset, path)
    else:
        predicted = predictions.PredictedDataset(dataset, path, config)
    objectives = objectives_of(predicted.outputs, dataset, config.protocol)
    preprocessing = measure_bands(dataset, images=4) or Preprocessing()
    scorer = Scorer(objectives, predicted.outputs, preprocessing)
    checks: dict[str, predictions.LabelsCheck | predictions.DepthCheck] = {}
    if "segmentation" in objectives:
        rule, names = dataset.label_rule, dataset.info.class_names
        checks["segmentation"] = predictions.LabelsCheck(names, rule)
    for name in sorted({"panoptic", "instance"} & objectives.keys()):
        checks[name] = predictions.SegmentsCheck(dataset.info.class_names)
    if "depth" in objectives:
        scorer.notes["predictions_kind"] = predicted.kind
        has_unit = scorer.notes["protocol/alignment"] == "none"
        is_inverse = predicted.kind == "relative"
        checks["depth"] = predictions.DepthCheck(is_inverse, has_unit, predicted.scale_to_change)
    workers = config.data.loader.num_workers
    for outputs, labels in read_in_order(predicted.read, range(len(dataset)), num_workers=workers):
        scorer.add(outputs, labels, labels["image"])
        for name, check in checks.items():
            size = objectives[name].ground_truth(labels, 0)[0].shape[-2:]
            check.add(objectives[name].predict(outputs[name].prediction, size), labels)
    for name, check in checks.items():
        source = f"predictions={config.source}: {name}"
        with naming(source):
            remarks = check.remarks()
        for remark in remarks:
            log.warning("%s: %s", source, remark)
        if remarks:
            scorer.notes[f"remarks/{name}"] = "; ".join(remarks)
    return scorer
