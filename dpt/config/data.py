"""Data sets and loaders of a run, made from their part of the configuration."""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from torch.utils.data import DataLoader

from dpt.config.objects import check_arguments, read_part
from dpt.config.overrides import keys_of, parse
from dpt.config.resumed_config import DIVIDING, refuse_foreign, run_in, with_overrides
from dpt.data import Dataset, EvalTransform, MixDataset, TrainTransform, make_loader
from dpt.files import few, missing_path, run_folder
from dpt.types.preprocessing import Preprocessing
from dpt.validation import Plain, PlainMapping, to_plain, unknown_key, validate

log = logging.getLogger("dpt")

LOADER_KEYS = (  # of ``data``, that every data set has and none takes as an argument
    "image_size",
    "eval_size",
    "batch_size",
    "num_workers",
    "on_error",
    "prompt_points",
    "train",
    "val",
    "download",
)
Side = Annotated[int, Field(ge=1, le=13_000)]  # two of them: no more than dpt.files.MAX_PIXELS


@dataclass(frozen=True)
class LoaderSettings:
    """How samples are batched; the part of ``data`` that every data set shares."""

    image_size: tuple[Side, Side]
    eval_size: tuple[Side, Side]
    batch_size: Annotated[int, Field(ge=1, le=10**6)]
    num_workers: Annotated[int, Field(ge=0, le=1000)]
    on_error: Literal["raise", "skip"] = "raise"
    prompt_points: Annotated[int, Field(ge=1, le=10**6)] = 200


def refuse_unused(overrides: Iterable[str]) -> None:
    """Raises ValueError for loader keys of the sets of a mix, which has its own."""
    for key in sorted(keys_of(overrides)):
        match = re.fullmatch(r"data\.sets\.[^.]+\.(\w+)", key)
        if match and match[1] in LOADER_KEYS and match[1] not in ("train", "val"):
            raise ValueError(f"{key} has no effect in a mix: set data.{match[1]}")


def loader_settings(data: PlainMapping) -> LoaderSettings:
    values = {k: data[k] for k in LoaderSettings.__dataclass_fields__ if k in data}
    if values.get("eval_size") is None:
        values["eval_size"] = values.get("image_size")
    return LoaderSettings(**check_arguments(LoaderSettings, values, "data"))


def make_dataset(data: PlainMapping, split: str, *, where: str = "data") -> Dataset:
    """Makes the data set of one split.

    ``data.train`` and ``data.val`` hold arguments for one split only.

    The ``sets`` of a mix become functions that take a split and build a data set, so that the mix
    decides which splits it needs. With ``unlabelled``, the train split is a mix of labelled and
    unlabelled images in equal numbers.
    """
    node = {k: v for k, v in data.items() if k not in LOADER_KEYS}
    split = validate(str, split, "split")
    of_split = validate(Plain | None, data.get(split), f"{where}.{split}")
    node |= of_split or {}
    unlabelled = validate(bool | str | None, node.pop("unlabelled", None), f"{where}.unlabelled")
    if unlabelled and "sets" in node:
        raise ValueError(f"{where}.unlabelled: a mix has none; set it for a set of {where}.sets")
    if split == "train" and unlabelled:
        if isinstance(unlabelled, str) and not Path(unlabelled).expanduser().is_dir():
            raise missing_path(Path(unlabelled), what="folder", remedy="check data.unlabelled")
        parts = ("page", "bands", "image_max", "nodata", "exif")
        kept = {key: node[key] for key in parts if key in node}
        images = {"kind": "unlabelled", "root": unlabelled} | kept
        part = {**node, "unlabelled": True} if unlabelled is True else images
        if node.get("missing") == "keep":  # images without labels are in the other part
            node = {**node, "labelled": node.get("labelled") or "all"}
        # made here, since errors of a mix name data.sets
        labelled, rest = (
            read_part(settings, where, Dataset).build(split=split) for settings in (node, part)
        )
        return MixDataset(
            sets={"labelled": lambda _: labelled, "unlabelled": lambda _: rest},
            split=split,
            weights={"labelled": 1.0, "unlabelled": 1.0},
        )
    if "sets" in node:
        sets = validate(dict[str, Plain], node["sets"], f"{where}.sets")
        node["sets"] = {
            name: partial(make_dataset, part, where=f"{where}.sets.{name}")
            for name, part in sets.items()
        }
    return read_part(node, where, Dataset).build(split=split)


def complete_augment(augment: PlainMapping) -> Plain:
    """Returns the settings of the augmentation with those that stand at their default."""
    defaults = {f.name: f.default for f in fields(TrainTransform) if f.default is not MISSING}
    for name in ("targets", "prompts"):  # task and model set them
        del defaults[name]
    values: Plain = to_plain({**defaults, **augment})
    return values


def make_train_loader(
    dataset: Dataset,
    settings: LoaderSettings,
    augment: PlainMapping,
    seed: int,
    targets: Sequence[str | None],
    *,
    prompts: bool = False,
) -> DataLoader:
    """Returns the loader of training; with ``prompts`` the model takes sparse depth."""
    given = {"image_size": settings.image_size, "targets": list(targets), "prompts": prompts}
    keys = complete_augment({}).keys() - given.keys()
    for key in augment.keys() - keys:
        raise ValueError(unknown_key(f"augment.{key}", key, sorted(keys)))
    transform = TrainTransform(**check_arguments(TrainTransform, {**given, **augment}, "augment"))
    batches = _batches(settings, targets)
    return make_loader(dataset, transform, **batches, training=True, seed=seed)


def make_eval_loader(
    dataset: Dataset,
    settings: LoaderSettings,
    preprocessing: Preprocessing,
    targets: Sequence[str | None],
    *,
    prompts: bool = False,
    part: Sequence[int] | None = None,
) -> DataLoader:
    """Returns the loader of evaluation, of all samples or ``part`` of them; with ``prompts`` the
    model takes sparse depth."""
    batches = _batches(settings, targets)
    transform = EvalTransform(preprocessing, settings.prompt_points if prompts else 0)
    return make_loader(dataset, transform, **batches, training=False, seed=0, part=part)


def _batches(settings: LoaderSettings, targets: Sequence[str | None]) -> Plain:
    return {
        "batch_size": settings.batch_size,
        "num_workers": settings.num_workers,
        "targets": targets,
        "skip_broken": settings.on_error == "skip",
    }


def data_of_evaluation(cfg: PlainMapping) -> Plain:
    """Returns ``data`` of ``dpt evaluate``: as given, or that of the checkpoint's run.

    Args:
        cfg: as plain data (``conf/evaluate.yaml``). Keys such as ``data.batch_size`` on the command
            line change the run's data.
    """
    keys = keys_of(cfg["overrides"])
    if "data" in keys:
        return cfg["data"]
    path = Path(cfg["checkpoint"] or "").expanduser()
    folder = run_folder(path)
    if not path.exists():
        remedy = "check the path, and give data=NAME for a name on the Hugging Face hub"
        raise missing_path(path, what="checkpoint", remedy=remedy)
    if not (cfg["checkpoint"] and (folder / "config.yaml").is_file()):
        raise ValueError(
            f"data=NAME must be given: {cfg['checkpoint'] or cfg['predictions']} is not a run's "
            "folder or a checkpoint inside one, which name their data"
        )
    overrides = [o for o in parse(cfg["overrides"]) if re.match(r"data\.|paths\.data_dir$", o.key)]
    divides = [o.key for o in overrides if o.key.partition(".")[2] in DIVIDING]
    if divides:
        log.warning("%s: the run may have been trained on images of this split", few(divides))
    log.info("data: of the run %s", folder)
    data: Plain = with_overrides(run_in(folder), overrides)["data"]
    foreign = {"data": data, "callbacks": {}, "logger": {}}
    refuse_foreign(foreign, folder, {override.key for override in overrides})
    return data
