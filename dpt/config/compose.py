"""Hydra: from the command line of a command to its configuration, as plain data."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from dpt.config.job import run_job
from dpt.config.overrides import escaped, unreadable
from dpt.config.resumed_config import followers, resumed_config, run_to_resume
from dpt.config.run_folder import refuse_used, save_config
from dpt.files import config_dir
from dpt.process import is_first_rank
from dpt.validation import Plain, unknown_key

SWEEP = {"-m", "--multirun"}
HELP = {"-h", "--help"}
USER_FILES = {"-cd", "--config-dir"}
PRINTING = {"-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info", "-sc"}
DATACLASS_SETTINGS = (
    "augment.",
    *(f"model.{part}." for part in ("encoder", "decoder", "heads", "preprocessing")),
)
"""Settings of training that dataclasses check and give defaults to; the files name few of them."""
TRAINING = {"train", "find-lr", "data check"}
FLAGS = SWEEP | HELP | USER_FILES | PRINTING | {"--shell-completion"}
"""The flags of Hydra that dpt accepts."""


def run_configured(command: str, job: str, arguments: Sequence[str]) -> None:
    """Composes a command's configuration and calls its job with it.

    Args:
        command: such as ``train``; ``data check`` starts from ``conf/data_check.yaml``.
        job: ``module:function``, called with the configuration as plain data.
        arguments: Hydra overrides and flags.
    """
    # Hydra accepts the flag of a sweep only before the overrides
    arguments = [_as_hydra_reads(argument, command) for argument in arguments]
    arguments.sort(key=lambda argument: argument not in SWEEP)
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    if HELP & {*flags}:
        _print_help(command, arguments)
        return
    for flag in flags:
        if flag not in FLAGS:
            raise ValueError(f"there is no flag {flag}: write {flag.lstrip('-')}=VALUE")
    run = run_to_resume(command, arguments, is_sweep=bool(SWEEP & {*flags}))
    if run is not None:
        overrides = _without_user_files(arguments)
        run_job(job, run.folder, partial(resumed_config, run.folder, overrides, run.resume))
        return
    scores: dict[str, dict[str, float] | None] = {}  # of each run of a sweep; None: failed
    typed = sys.argv

    def call_job(cfg: DictConfig) -> None:
        sys.argv = typed  # other processes of the same run are started from it
        name, folder = _run_of(arguments)
        scores[name] = None
        try:
            scores[name] = run_job(job, folder, partial(_values, command, cfg, folder))
        except SystemExit as end:
            if len(scores) == 1 or end.code != 1:  # the others would fail like the first
                raise

    with explained(arguments), _read_by_hydra(arguments):
        _hydra_main(command, call_job)()
    if SWEEP & {*flags} and any(scores.values()):
        from dpt.run_log import log_sweep

        log_sweep(scores)
    if len(scores) > 1 and None in scores.values():
        raise SystemExit(1)


def _as_hydra_reads(argument: str, command: str) -> str:
    """Returns an override as Hydra needs it.

    ``optim=null`` becomes ``optim='null'``: Hydra's error would not name the group. Settings of a
    dataclass become ``++KEY=VALUE``: the configuration files need not name them.
    """
    is_setting = command in TRAINING and argument.startswith(DATACLASS_SETTINGS)
    if is_setting or re.match(r"[\w.]+\._target_=", argument):
        return f"++{argument}"
    group, _, value = argument.partition("=")
    if (config_dir() / group).is_dir() and re.fullmatch(r"(?i)null|true|false|[-+.\d]+", value):
        return f"{group}='{value}'"
    return argument


def _without_user_files(arguments: Sequence[str]) -> list[str]:
    """Returns the overrides for a resumed run, which has used a user's own groups already."""
    overrides = list(arguments)
    for flag in USER_FILES & {*overrides}:
        index = overrides.index(flag)
        del overrides[index : index + 2]
    overrides = [a for a in overrides if a.partition("=")[0] not in USER_FILES]
    flags = [argument for argument in overrides if argument.startswith("-")]
    if flags:
        raise ValueError(f"{flags[0]} has no effect with resume: leave it out")
    return overrides


def _print_help(command: str, arguments: Sequence[str]) -> None:
    """Prints Hydra's help, without files whose names begin with _: other files include them."""
    with redirect_stdout(StringIO()) as text, suppress(SystemExit), _read_by_hydra(arguments):
        _hydra_main(command, print)()
    print(re.sub(r"\b_\w+, ", "", text.getvalue()).rstrip())


@contextmanager
def _read_by_hydra(arguments: Sequence[str]) -> Iterator[None]:
    """Sets ``sys.argv``, which Hydra reads, to the arguments for a while."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    typed = sys.argv
    sys.argv = [typed[0], *arguments]
    try:
        yield
    finally:
        sys.argv = typed


def _hydra_main(command: str, task: Callable[[DictConfig], object]) -> Callable[[], object]:
    """Returns a function that calls ``task`` with each configuration that Hydra composes."""
    name = re.sub("[ -]", "_", command)
    return hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=name)(task)


def _run_of(arguments: Sequence[str]) -> tuple[str, Path]:
    """Returns the name in a sweep and the folder of the run that Hydra has composed."""
    hydra_cfg = HydraConfig.get()
    changed = [override for override in _overrides() if override not in arguments]
    is_single = OmegaConf.is_missing(hydra_cfg.job, "num")
    name = " ".join(["0" if is_single else str(hydra_cfg.job.num), *changed])
    # not resolved: the name of a folder may hold ${
    return name, Path(_plain(hydra_cfg.runtime)["output_dir"])


def _overrides() -> list[str]:
    """Returns the overrides of the run that Hydra has composed."""
    overrides: list[str] = _plain(HydraConfig.get().overrides)["task"]
    return overrides


def _plain(cfg: object, *, resolve: bool = False) -> Plain:
    return cast(Plain, OmegaConf.to_container(cfg, resolve=resolve, throw_on_missing=resolve))


def _values(command: str, cfg: DictConfig, folder: Path) -> Plain:
    """Returns a composed configuration as plain data, after checks of the run's folder."""
    from dpt.config.objects import with_names

    raw = _plain(cfg)
    is_dated = "paths.name" in raw["run_dir"] and "now:" in raw["paths"]["name"]
    if raw.get("resume") == "auto" and is_dated:
        raise ValueError("resume=auto needs run_dir=DIR, the folder of the run to continue")
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    if HydraConfig.get().mode is RunMode.MULTIRUN and devices not in (1, "1", "auto"):
        raise ValueError(
            "-m runs on one device: leave trainer.devices at 1, or start the runs one by one"
        )
    is_new = is_first_rank() and not raw.get("resume")
    overwrites = command == "train" and bool(raw.get("overwrite"))
    if is_new and not overwrites:
        refuse_used(folder, is_training=command == "train")
    cfg.run_dir = escaped(str(folder))
    with explained():
        values = with_names(_plain(cfg, resolve=True))
    values["run_dir"] = str(folder)
    if "overrides" in values:
        values["overrides"] = _overrides()
    if "follows" in values:
        values["follows"] = followers(raw)
    if is_new and not overwrites:
        save_config(values, folder)  # otherwise RunState saves it, after all checks
    return values


@contextmanager
def explained(arguments: Sequence[str] = ()) -> Iterator[None]:
    """Turns errors of Hydra and OmegaConf into ValueErrors that say what is allowed."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        cause, message = error.__cause__, str(error)
        removed = [a[1:] for a in arguments if a[:1] == "~" and (config_dir() / a[1:]).is_dir()]
        if isinstance(cause, ConfigAttributeError | ConfigKeyError):
            message = _allowed_keys(cause)
        elif isinstance(error, MissingConfigException) and error.options is not None:
            choices = ", ".join(name for name in error.options if not name.startswith("_"))
            message = f"there is no {error.missing_cfg_file}; choose from {choices}"
        elif isinstance(error, MissingMandatoryValue):
            message = f"{error.full_key} must be given: {error.full_key}=VALUE"
        elif isinstance(error, OverrideParseException):
            message = unreadable(error.override.removeprefix("++"))
        elif isinstance(error, OmegaConfBaseException):
            message = message.split("\n")[0]
        elif removed:  # conf/first_run is chosen by these groups
            message = f"{removed[0]} must be given, as GROUP=NAME"
        raise ValueError(message) from error


def _allowed_keys(error: OmegaConfBaseException) -> str:
    """Returns a message with the keys beside the misspelt one that OmegaConf did not find."""
    node, key, names = error.parent_node, str(error.full_key), str(error.key).split("/")
    if isinstance(node, DictConfig) and not node:
        copy = key.rpartition(".")[0]
        add = f"write +{key}=VALUE to add it"
        return (
            f"{copy} has no keys: {add}, or change {names[0]} where {copy} comes from (--cfg job)"
        )
    while len(names) > 1 and names[0] in node:  # a group inside of a group
        node = node[names.pop(0)]
    allowed = (
        [str(name) for name in node if name != "hydra"] if isinstance(node, DictConfig) else []
    )
    return unknown_key(key, names[0], allowed)
