"""The types of the commands' configurations.

:meth:`Config.read` builds and checks one, once, right after it was composed or read from a run's
``config.yaml``. Below it there are objects. Defaults that a person rarely changes stand in the
classes whose settings they are, and not in the YAML files.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from pydantic import BeforeValidator, Field
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.config.objects import UNNAMED, Part, Slot, complete, read_part, read_settings
from dpt.config.overrides import keys_of
from dpt.data import Dataset, MixDataset, TrainTransform
from dpt.data.loading import LoaderSettings, Side
from dpt.metrics import Protocol
from dpt.model_config import check_parts
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.process import log
from dpt.types.outputs import DepthKind
from dpt.validation import Count, NonNegative, Plain, PlainMapping, Positive, Settings, validate

ENCODER_RATE = 0.1
"""Of a pretrained encoder, as a fraction of the rate of the rest."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]


# --- Data


_OF_LOADER = tuple(f.name for f in fields(LoaderSettings))
LOADER_KEYS = (*_OF_LOADER, "train", "val", "download")
"""Keys of ``data`` that every data set has and none takes as an argument."""
_PARTS_OF_FILES = ("bands", "image_max", "nodata", "exif")


@dataclass(frozen=True)
class DataConfig:
    """A data set, its loader, and where it comes from: ``data``.

    Attributes:
        parts: the data set of ``train`` and ``val``, whose settings can differ, and of other splits
            (``""``).
        rest: images without labels that are trained on too.
        sets: of a mix.
        values: the plain data that this was read from.
    """

    loader: LoaderSettings
    parts: dict[str, Part[Dataset]]
    rest: Part[Dataset] | None
    sets: "dict[str, DataConfig]"
    values: Plain

    @classmethod
    def read(cls, values: object, where: str = "data") -> Self:
        """Checks plain data: ``kind``, arguments of this data set, and ``LOADER_KEYS``."""
        plain: Plain = validate(Plain, values, where)
        of_loader = {key: plain[key] for key in _OF_LOADER if key in plain}
        if of_loader.get("eval_size") is None and "image_size" in of_loader:
            of_loader["eval_size"] = of_loader["image_size"]
        settings = {split: _settings_of(plain, split, where) for split in ("train", "val", "")}
        sets: dict[str, DataConfig] = {}
        rest = None
        if plain.get("kind") == "mix":
            described = validate(dict[str, Plain], plain.get("sets", {}), f"{where}.sets")
            sets = {name: cls.read(v, f"{where}.sets.{name}") for name, v in described.items()}
        else:
            rest = _take_unlabelled(settings, where)
        return cls(
            loader=validate(LoaderSettings, of_loader, where),
            parts={split: read_part(s, where, Dataset) for split, s in settings.items()},
            rest=rest,
            sets=sets,
            values=plain,
        )

    @property
    def kind(self) -> str:
        return str(self.values["kind"])

    def changed(self, **settings: object) -> Self:
        """Returns the same with other settings of the data set or the loader."""
        return type(self).read({**self.values, **settings})

    def make(self, split: str) -> Dataset:
        """Makes the data set of one split.

        A mix decides itself which splits of its sets it needs. With ``unlabelled``, the train split
        is a mix of labelled and unlabelled images in equal numbers.
        """
        part = self.parts.get(split, self.parts[""])
        if self.sets:
            return part.build(split=split, sets={name: s.make for name, s in self.sets.items()})
        if self.rest is None or split != "train":
            return part.build(split=split)
        # made here, since errors of a mix name data.sets
        labelled, rest = part.build(split=split), self.rest.build(split=split)
        return MixDataset(
            sets={"labelled": lambda _: labelled, "unlabelled": lambda _: rest},
            split=split,
            weights={"labelled": 1.0, "unlabelled": 1.0},
        )


def _settings_of(data: PlainMapping, split: str, where: str) -> Plain:
    """Returns the arguments of the data set of a split."""
    left_out = (*LOADER_KEYS, "sets") if data.get("kind") == "mix" else LOADER_KEYS
    settings = {key: value for key, value in data.items() if key not in left_out}
    return settings | (validate(Plain | None, data.get(split), f"{where}.{split}") or {})


def _take_unlabelled(settings: dict[str, Plain], where: str) -> Part[Dataset] | None:
    """Takes ``unlabelled`` out of the settings of all splits, and returns the data set of images
    without labels that it asks for."""
    given = {split: of_split.pop("unlabelled", None) for split, of_split in settings.items()}
    unlabelled = validate(bool | str | None, given["train"], f"{where}.unlabelled")
    if not unlabelled:
        return None
    train = settings["train"]
    rest = {**train, "unlabelled": True}
    if unlabelled is not True:
        rest = {key: train[key] for key in _PARTS_OF_FILES if key in train}
        rest |= {"kind": "unlabelled", "root": unlabelled}
    if train.get("missing") == "keep":  # images without labels are in the other part
        train["labelled"] = train.get("labelled") or "all"
    return read_part(rest, where, Dataset)


# --- Task and model


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Settings):
    """What is learned: ``task``. The further keys are values that several settings copy."""

    name: str
    monitor: str = ""
    objectives: dict[str, Part[Objective]]
    teacher: Part[Teacher]
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

    def __post_init__(self) -> None:
        for name in self.objectives:
            if not name.isidentifier() or name in dir(nn.ModuleDict):
                raise ValueError(f"task.objectives.{name}: cannot be the name of one: rename it")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """A named model with changes of it, or the model of a file: ``model``.

    The settings of encoder, decoder, heads and preprocessing are plain data, to which the data set
    and the objectives add theirs before :class:`dpt.model_config.ModelConfig` types them.
    """

    name: str
    encoder: Plain
    decoder: Plain = field(default_factory=dict)
    preprocessing: Plain = field(default_factory=dict)
    heads: dict[str, Plain] = field(default_factory=dict)
    head: str = "dpt"
    weights: str | None = None
    compile: bool = False
    checkpoint_activations: bool = False
    save_memory: bool | Literal["auto"] = "auto"
    channels_last: bool = False
    calibration: Plain | None = None

    def __post_init__(self) -> None:
        of_data = ("weights", "image_size")
        encoder = {key: value for key, value in self.encoder.items() if key not in of_data}
        check_parts(encoder, self.decoder, self.preprocessing)

    @property
    def encoder_weights(self) -> str | None:
        weights: str | None = validate(
            str | None, self.encoder.get("weights"), "model.encoder.weights"
        )
        return weights


# --- Training

_Precision = Literal[
    "auto", "32-true", "32", "bf16-mixed", "bf16", "16-mixed", "16", "64-true", "64"
]
"""bf16-true and 16-true are left out: Lightning would cast labels too, such as depth."""
_Limit = Annotated[int | float, Field(ge=1e-9, le=10**9)] | None
_OF_TRAINER: Plain = {  # arguments that the Trainer does not check
    "precision": Annotated[_Precision, BeforeValidator(str)],
    "accumulate_grad_batches": Count,
    "check_val_every_n_epoch": Count | None,
    "val_check_interval": _Limit,
    "log_every_n_steps": Count | None,
    "gradient_clip_val": NonNegative | None,
    "limit_train_batches": _Limit,
}
UNNAMED[L.Trainer] = Slot(later=("logger", "callbacks"), types=_OF_TRAINER)
UNNAMED[TrainTransform] = Slot(later=("image_size", "targets", "prompts", "class_names"))


def _without_null(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return {name: part for name, part in value.items() if part is not None}


@dataclass(frozen=True, kw_only=True)
class Paths(Settings):
    """Folders that other keys are made of: ``paths``."""

    data_dir: str = "data"
    runs: str = "runs"
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """What the configurations of all commands have.

    Attributes:
        overrides: arguments of the command line.
        values: the plain data that this was read from, which the folder of the run stores.
    """

    run_dir: str
    paths: Paths = Paths()
    data: DataConfig
    overrides: list[str] = field(default_factory=list)
    values: Plain = field(default_factory=dict)

    @classmethod
    def read(cls, values: PlainMapping) -> Self:
        """Checks plain data.

        Raises:
            ValueError: one line that names the key, what was found and what is allowed.
        """
        data = DataConfig.read(values.get("data"))
        config: Self = read_settings(cls, {**values, "data": data, "values": {**values}}, "")
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


@dataclass(frozen=True, kw_only=True)
class RunConfig(Config):
    """A training run: ``conf/train.yaml``."""

    task: TaskConfig
    model: ModelSettings
    augment: Part[TrainTransform]
    optim: Part[Optimizer]
    schedule: Part[LRScheduler]
    trainer: Part[L.Trainer]
    callbacks: Annotated[dict[str, Part[Callback]], BeforeValidator(_without_null)]
    logger: Annotated[dict[str, Part[Logger]], BeforeValidator(_without_null)]
    seed: Seed
    steps: Count
    max_skipped_steps: Count
    resume: str | None
    overwrite: bool
    follows: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, values: PlainMapping) -> Self:
        """Checks plain data, see :meth:`Config.read`. A pretrained encoder has a tenth of the rate,
        if no ``optim.encoder_lr`` is given."""
        config = super().read(values)
        optim = config.optim.settings
        if config.model.encoder_weights is None or optim.get("encoder_lr", 0) is not None:
            return config
        rate = {"encoder_lr": ENCODER_RATE * optim["lr"]}
        return super().read({**values, "optim": {**config.values["optim"], **rate}})

    def completed(self, model: PlainMapping, trainer: PlainMapping) -> Self:
        """Returns the same with every value written out.

        Args:
            model: the configuration of the model that was made.
            trainer: settings with the precision of this machine.
        """
        encoder = {**model["encoder"], "weights": self.model.encoder_weights}
        return self.changed(
            augment=complete(self.augment),
            model={**self.values["model"], **model, "encoder": encoder},
            trainer={**trainer},
        )


# --- Other commands


@dataclass(frozen=True, kw_only=True)
class Sweep(Settings):
    """The rates that are tried: ``find``."""

    lr_min: Positive = 1e-6
    lr_max: Positive = 1.0
    steps: Annotated[int, Field(ge=10, le=10**6)] = 100

    def __post_init__(self) -> None:
        if self.lr_min >= self.lr_max:
            raise ValueError(f"find.lr_min={self.lr_min:g} must be below lr_max={self.lr_max:g}")


@dataclass(frozen=True, kw_only=True)
class FindLrConfig(RunConfig):
    """``dpt find-lr``: ``conf/find_lr.yaml``."""

    find: Sweep = Sweep()


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

    protocol: Protocol
    trainer: Part[L.Trainer]
    checkpoint: str | None = None
    predictions: str | None = None
    predictions_scale: Positive | None = None
    predictions_kind: DepthKind | None = None
    split: str = "val"
    runtime: str | None = None
    image_size: tuple[Side, Side] | None = None
    blocks: str | None = None
    seed: Seed = 0

    @property
    def source(self) -> str:
        """The checkpoint, or the folder of predictions."""
        return str(self.checkpoint or self.predictions)

    def __post_init__(self) -> None:
        of_files = ("predictions_scale", "predictions_kind")
        others = of_files if self.predictions is None else ("image_size", "runtime")
        unused = [key for key in others if getattr(self, key) is not None]
        unused += sorted(self.typed_keys & {"data.image_size", "data.eval_size"})
        if unused:
            log.warning("%s: no effect on %s: see image_size", ", ".join(unused), self.source)


@dataclass(frozen=True, kw_only=True)
class PackConfig(Config):
    """``dpt data pack``: ``conf/data_pack.yaml``."""

    split: Splits
    out: str
    shard_mb: Annotated[float, Field(gt=0, lt=1e9)] = 100.0
