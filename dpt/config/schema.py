"""The types of the commands' configurations.

:func:`read_config` builds and checks one, once, right after it was composed or read from a run's
``config.yaml``. Below it there are objects. Defaults that a person rarely changes stand in the
classes whose settings they are, and not in the YAML files.
"""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import lightning as L
import pydantic
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from pydantic import BeforeValidator, Field, PlainValidator
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.config.objects import Part, read_arguments, read_part
from dpt.config.overrides import keys_of
from dpt.data import Dataset, MixDataset, TrainTransform
from dpt.files import missing_path
from dpt.metrics import Protocol
from dpt.model_config import check_parts
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.types.outputs import DepthKind
from dpt.validation import STRICT, Count, Plain, PlainMapping, Positive, validate

log = logging.getLogger("dpt")

Seed = Annotated[int, Field(ge=0, lt=2**32)]
Side = Annotated[int, Field(ge=1, le=13_000)]  # two of them: no more than dpt.files.MAX_PIXELS


# --- Data


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """How samples are batched: the keys of ``data`` that every data set shares."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    image_size: tuple[Side, Side] = (384, 384)
    eval_size: tuple[Side, Side] = (384, 384)
    batch_size: Annotated[int, Field(ge=1, le=10**6)] = 8
    num_workers: Annotated[int, Field(ge=0, le=1000)] = 2
    on_error: Literal["raise", "skip"] = "raise"
    prompt_points: Annotated[int, Field(ge=1, le=10**6)] = 200


LOADER_KEYS = (*(f.name for f in fields(LoaderSettings)), "train", "val", "download")
"""Keys of ``data`` that every data set has and none takes as an argument."""
_PARTS_OF_FILES = ("bands", "image_max", "nodata", "exif")


@dataclass(frozen=True)
class SplitConfig:
    """The data set of one split; ``rest`` are images without labels that are trained on too."""

    part: Part[Dataset]
    rest: Part[Dataset] | None


@dataclass(frozen=True)
class DataConfig:
    """A data set, its loader, and where it comes from: ``data``.

    Attributes:
        splits: of ``train`` and ``val``, whose settings can differ, and of others (``""``).
        sets: of a mix.
        values: the plain data that this was read from.
    """

    loader: LoaderSettings
    splits: dict[str, SplitConfig]
    sets: "dict[str, DataConfig]"
    values: Plain

    @classmethod
    def read(cls, values: object, where: str = "data") -> Self:
        """Checks plain data: ``kind``, arguments of this data set, and ``LOADER_KEYS``."""
        if values is None:
            raise ValueError(f"{where} must be given: {where}=NAME")
        plain: Plain = validate(Plain, values, where)
        of_loader = {f.name: plain[f.name] for f in fields(LoaderSettings) if f.name in plain}
        if of_loader.get("eval_size") is None and "image_size" in of_loader:
            of_loader["eval_size"] = of_loader["image_size"]
        sets: dict[str, DataConfig] = {}
        if plain.get("kind") == "mix":
            described = validate(dict[str, Plain], plain.get("sets", {}), f"{where}.sets")
            sets = {name: cls.read(v, f"{where}.sets.{name}") for name, v in described.items()}
        return cls(
            loader=validate(LoaderSettings, of_loader, where),
            splits={split: _read_split(plain, split, where) for split in ("train", "val", "")},
            sets=sets,
            values=plain,
        )

    @property
    def kind(self) -> str:
        return str(self.values["kind"])

    def setting(self, name: str) -> Any:
        """Returns a setting of the training data; None if it was not given."""
        return self.splits["train"].part.settings.get(name)

    def changed(self, **settings: object) -> Self:
        """Returns the same with other settings of the data set or the loader."""
        return type(self).read({**self.values, **settings})

    def make(self, split: str) -> Dataset:
        """Makes the data set of one split.

        A mix decides itself which splits of its sets it needs. With ``unlabelled``, the train split
        is a mix of labelled and unlabelled images in equal numbers.
        """
        config = self.splits.get(split, self.splits[""])
        if self.sets:
            makers = {name: data.make for name, data in self.sets.items()}
            return config.part.build(split=split, sets=makers)
        if config.rest is None:
            return config.part.build(split=split)
        folder = config.rest.settings["root"]
        if config.rest.name == "unlabelled" and not Path(folder).expanduser().is_dir():
            raise missing_path(Path(folder), what="folder", remedy="check data.unlabelled")
        # made here, since errors of a mix name data.sets
        labelled, rest = config.part.build(split=split), config.rest.build(split=split)
        return MixDataset(
            sets={"labelled": lambda _: labelled, "unlabelled": lambda _: rest},
            split=split,
            weights={"labelled": 1.0, "unlabelled": 1.0},
        )


def _read_split(data: PlainMapping, split: str, where: str) -> SplitConfig:
    settings = {key: value for key, value in data.items() if key not in LOADER_KEYS}
    settings |= validate(Plain | None, data.get(split), f"{where}.{split}") or {}
    if data.get("kind") == "mix":
        settings.pop("sets", None)
        return SplitConfig(read_part(settings, where, Dataset), None)
    key = f"{where}.unlabelled"
    unlabelled = validate(bool | str | None, settings.pop("unlabelled", None), key)
    if not unlabelled or split != "train":
        return SplitConfig(read_part(settings, where, Dataset), None)
    if unlabelled is True:
        rest = {**settings, "unlabelled": True}
    else:
        rest = {key: settings[key] for key in _PARTS_OF_FILES if key in settings}
        rest |= {"kind": "unlabelled", "root": unlabelled}
    if settings.get("missing") == "keep":  # images without labels are in the other part
        settings["labelled"] = settings.get("labelled") or "all"
    return SplitConfig(read_part(settings, where, Dataset), read_part(rest, where, Dataset))


# --- Task and model


def _read_objectives(values: object) -> dict[str, Part[Objective]]:
    nodes: dict[str, Plain] = validate(dict[str, Plain], values, "task.objectives")
    parts = {}
    for name, node in nodes.items():
        where = f"task.objectives.{name}"
        if not name.isidentifier() or name in dir(nn.ModuleDict):
            raise ValueError(f"{where}: cannot be the name of one: rename it")
        if "head" not in node:  # the experiment sets options of a head that this task lacks
            raise ValueError(f"{where}: this task has none: choose the task of the experiment")
        parts[name] = read_part(node, where, Objective)
    return parts


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What is learned: ``task``. The further keys are values that several settings copy."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    monitor: str = ""
    objectives: Annotated[dict[str, Part[Objective]], PlainValidator(_read_objectives)]
    teacher: Annotated[
        Part[Teacher], PlainValidator(partial(read_part, where="task.teacher", base=Teacher))
    ]
    kind: Any = None
    max_depth: Any = None
    canonical_focal: Any = None
    sky: Any = None
    sky_from: Any = None
    sky_class: Any = None
    log_variance: Any = None
    depth_loss: Any = None
    segmentation_loss: Any = None
    set_loss: Any = None
    num_queries: Any = None


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """A named model with changes of it, or the model of a file: ``model``.

    The settings of encoder, decoder, heads and preprocessing are plain data, to which the data set
    and the objectives add theirs before :class:`dpt.model_config.ModelConfig` types them.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    name: str
    encoder: Plain
    decoder: Plain = field(default_factory=dict)
    preprocessing: Plain = field(default_factory=dict)
    heads: dict[str, Plain] = field(default_factory=dict)
    head: str = "dpt"
    in_channels: Count | None = None
    weights: str | None = None
    compile: bool = False
    checkpoint_activations: bool = False
    save_memory: bool | Literal["auto"] = "auto"
    channels_last: bool = False
    calibration: Plain | None = None

    @property
    def encoder_weights(self) -> str | None:
        weights: str | None = validate(
            str | None, self.encoder.get("weights"), "model.encoder.weights"
        )
        return weights


def _read_model(values: object) -> ModelSettings:
    model: ModelSettings = validate(ModelSettings, values, "model")
    of_data = ("weights", "image_size")
    encoder = {key: value for key, value in model.encoder.items() if key not in of_data}
    check_parts(encoder, model.decoder, model.preprocessing)
    return model


# --- Training


Precision = Literal[
    "auto", "32-true", "32", "bf16-mixed", "bf16", "16-mixed", "16", "64-true", "64"
]
"""bf16-true and 16-true are left out: Lightning would cast labels too, such as depth."""
TRAINER_TYPES: Plain = {  # of arguments that the Trainer does not check, or with an assertion
    "precision": Annotated[Precision, BeforeValidator(str)],
    "max_steps": Annotated[int, Field(ge=-1, le=10**9)],
    "max_epochs": Annotated[int, Field(ge=-1, le=10**9)] | None,
    "num_nodes": Annotated[int, Field(ge=1, le=10**6)],
    "accumulate_grad_batches": Annotated[int, Field(ge=1, le=10**6)],
    "check_val_every_n_epoch": Annotated[int, Field(ge=1, le=10**9)] | None,
    "val_check_interval": Annotated[int | float, Field(ge=1e-9, le=10**9)] | None,
    "log_every_n_steps": Count | None,
    "gradient_clip_val": Annotated[int | float, Field(ge=0, le=10**9)] | None,
    "limit_train_batches": Annotated[int | float, Field(ge=1e-9, le=10**9)] | None,
}


OF_LOADER = ("image_size", "targets", "prompts")


def _read_trainer(values: object) -> Part[L.Trainer]:
    return read_arguments(L.Trainer, values, "trainer", ("logger", "callbacks"), TRAINER_TYPES)


def _read_augment(values: object) -> Part[TrainTransform]:
    return read_arguments(TrainTransform, values, "augment", OF_LOADER)


def _read_named(values: object, where: str, base: type) -> dict[str, Part[Any]]:
    """Reads parts whose ``kind`` is their key, unless they have another; null removes one."""
    nodes: dict[str, Plain | None] = validate(dict[str, Plain | None], values, where)
    return {
        name: read_part(node, f"{where}.{name}", base, default=name)
        for name, node in nodes.items()
        if node is not None
    }


def _typed(target: type, where: str) -> PlainValidator:
    return PlainValidator(lambda value: validate(target, value, where))


def _by(read: Callable[..., Any], **arguments: object) -> PlainValidator:
    return PlainValidator(partial(read, **arguments))


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Folders that other keys are made of: ``paths``."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    data_dir: str = "data"
    runs: str = "runs"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the configurations of all commands have.

    Attributes:
        overrides: arguments of the command line.
        values: the plain data that this was read from, which the folder of the run stores.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    run_dir: str
    paths: Annotated[Paths, _typed(Paths, "paths")] = field(default_factory=Paths)
    data: Annotated[DataConfig, _by(DataConfig.read)]
    overrides: list[str] = field(default_factory=list)
    values: Plain = field(default_factory=dict)

    @classmethod
    def read(cls, values: PlainMapping) -> Self:
        """Checks plain data.

        Raises:
            ValueError: one line that names the key, what was found and what is allowed.
        """
        config: Self = validate(cls, {**values, "values": {**values}}, "")
        return config

    def changed(self, **groups: object) -> Self:
        """Returns the same with other groups or keys at the top level."""
        return type(self).read({**self.values, **groups})

    @property
    def folder(self) -> Path:
        return Path(self.run_dir)

    @property
    def typed_keys(self) -> set[str]:
        """The keys that the command line set."""
        return keys_of(self.overrides)

    def without_effect(self) -> Iterator[str]:
        """Yields what a combination of settings makes useless."""
        for key in sorted(self.typed_keys):
            match = re.fullmatch(r"data\.sets\.[^.]+\.(\w+)", key)
            if match and match[1] in LOADER_KEYS and match[1] not in ("train", "val"):
                yield f"{key} has no effect in a mix: set data.{match[1]}"


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A training run: ``conf/train.yaml``."""

    task: Annotated[TaskConfig, _typed(TaskConfig, "task")]
    model: Annotated[ModelSettings, _by(_read_model)]
    augment: Annotated[Part[TrainTransform], _by(_read_augment)]
    optim: Annotated[Part[Optimizer], _by(read_part, where="optim", base=Optimizer)]
    schedule: Annotated[Part[LRScheduler], _by(read_part, where="schedule", base=LRScheduler)]
    trainer: Annotated[Part[L.Trainer], _by(_read_trainer)]
    callbacks: Annotated[
        dict[str, Part[Callback]], _by(_read_named, where="callbacks", base=Callback)
    ]
    logger: Annotated[dict[str, Part[Logger]], _by(_read_named, where="logger", base=Logger)]
    seed: Seed
    steps: Count
    max_skipped_steps: Count
    resume: str | None
    overwrite: bool
    follows: dict[str, list[str]] = field(default_factory=dict)

    def completed(self, model: PlainMapping, trainer: PlainMapping) -> Self:
        """Returns the same with every value written out.

        Args:
            model: the configuration of the model that was made.
            trainer: settings with the precision of this machine.
        """
        encoder = {**model["encoder"], "weights": self.model.encoder_weights}
        return self.changed(
            augment=self.augment.complete(OF_LOADER),
            model={**self.values["model"], **model, "encoder": encoder},
            trainer={**trainer},
        )

    def without_effect(self) -> Iterator[str]:
        yield from super().without_effect()
        typed, trainer = self.typed_keys, self.trainer.settings
        for key, other in {"preprocessing": "data.eval_size", "encoder": "data.image_size"}.items():
            if f"model.{key}.image_size" in typed:
                yield f"model.{key}.image_size has no effect: set {other}"
        if self.model.weights is not None and self.model.encoder.get("weights") is not None:
            yield "model.encoder.weights has no effect beside model.weights"
        if trainer.get("gradient_clip_algorithm") and not trainer.get("gradient_clip_val"):
            yield "trainer.gradient_clip_algorithm has no effect without gradient_clip_val"
        ends = trainer.get("max_epochs") is not None or trainer.get("max_steps", -1) != -1
        if "steps" in typed and ends and trainer.get("max_steps") != self.steps:
            yield f"steps={self.steps} has no effect beside trainer.max_steps or max_epochs"


# --- Other commands


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The rates that are tried: ``find``."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT

    lr_min: Positive = 1e-6
    lr_max: Positive = 1.0
    steps: Annotated[int, Field(ge=10, le=10**6)] = 100

    def __post_init__(self) -> None:
        if self.lr_min >= self.lr_max:
            raise ValueError(f"find.lr_min={self.lr_min:g} must be below lr_max={self.lr_max:g}")


@dataclass(frozen=True, kw_only=True)
class FindLrConfig(RunConfig):
    """``dpt find-lr``: ``conf/find_lr.yaml``."""

    find: Annotated[Sweep, _typed(Sweep, "find")] = field(default_factory=Sweep)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Splits = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class CheckConfig(RunConfig):
    """``dpt data check``: ``conf/data_check.yaml``.

    Attributes:
        limit: largest number of samples that are read of each split; None: all.
    """

    split: Splits
    limit: Count | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Config):
    """``dpt evaluate``: ``conf/evaluate.yaml``, which explains the keys."""

    protocol: Annotated[Protocol, _typed(Protocol, "protocol")]
    trainer: Annotated[Part[L.Trainer], PlainValidator(_read_trainer)]
    checkpoint: str | None = None
    predictions: str | None = None
    predictions_scale: Positive | None = None
    predictions_kind: DepthKind | None = None
    predictions_encoding: Literal["disparity", "log"] | None = None
    split: str = "val"
    runtime: str | None = None
    image_size: tuple[Side, Side] | None = None
    blocks: str | None = None
    seed: Seed = 0

    @property
    def source(self) -> str:
        """The checkpoint, or the folder of predictions."""
        return str(self.checkpoint or self.predictions)

    def without_effect(self) -> Iterator[str]:
        yield from super().without_effect()
        if self.predictions is None:
            of_files = ("scale", "kind", "encoding")
            keys = [f"predictions_{name}" for name in of_files]
            unused = [key for key in keys if getattr(self, key) is not None]
            source = "checkpoint=FILE"
        else:
            views = ("flip", "scales", "window", "stride")
            plain, protocol = Protocol(), self.protocol
            unused = [f"protocol.{k}" for k in views if getattr(protocol, k) != getattr(plain, k)]
            unused += [key for key in ("image_size", "runtime") if getattr(self, key) is not None]
            unused += sorted(key for key in self.typed_keys if key.startswith("trainer."))
            source = "predictions=DIR, which are scored as they are"
        if unused:
            yield f"{', '.join(unused)}: no effect on {source}"


@dataclass(frozen=True, kw_only=True)
class PackConfig(Config):
    """``dpt data pack``: ``conf/data_pack.yaml``."""

    split: Splits
    out: str
    shard_mb: Annotated[float, Field(gt=0, lt=1e9)] = 100.0


@dataclass(frozen=True, kw_only=True)
class DownloadConfig(Config):
    """``dpt data download``: ``conf/data_download.yaml``."""


C = TypeVar("C", bound=Config)


def read_config(kind: type[C], values: PlainMapping) -> C:
    """Builds the configuration of a command from plain data, and logs what has no effect in it.

    Raises:
        ValueError: one line that names the key, what was found and what is allowed.
    """
    config = kind.read(values)
    for warning in config.without_effect():
        log.warning("%s", warning)
    return config
