"""Hydra: from the arguments of a command to its configuration, as plain data.

:func:`compose` uses Hydra's compose API. :func:`run_hydra` alone calls Hydra's own main function,
for its flags: sweeps, help, and printing.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, errors

from dpt.config.objects import named
from dpt.config.overrides import as_text, escaped, parse, split_config_dir, unreadable
from dpt.config.resumed_config import templates
from dpt.config.run_folder import fail
from dpt.files import config_dir
from dpt.process import is_first_rank
from dpt.validation import Plain, PlainMapping, unknown_key

DATACLASS_SETTINGS = (
    "augment.",
    *(f"model.{part}." for part in ("encoder", "decoder", "heads", "preprocessing")),
)
"""Settings of training that dataclasses check and give defaults to; the files name few of them."""
TRAINING = {"train", "find-lr", "data check"}
RUN_DIR = "DPT_RUN_DIR"
"""Environment variable: the run's folder, for the ranks that Lightning starts."""


@dataclass(frozen=True)
class Composition:
    """A composed configuration, in which keys still refer to others."""

    cfg: DictConfig
    overrides: list[str]  # as typed, with registered names in place of classes

    def with_values(self, values: PlainMapping, overrides: Sequence[str]) -> "Composition":
        """Returns a composition with other values at dotted keys, which others may refer to.

        Args:
            overrides: that would compose the same.
        """
        cfg = self.cfg.copy()
        for key, value in values.items():
            OmegaConf.update(cfg, key, value, force_add=True)
        return Composition(cfg, [*overrides])

    def values(self) -> Plain:
        """Returns the configuration as plain data: resolved, with an absolute ``run_dir``."""
        cfg = self.cfg.copy()
        raw = cast(Plain, OmegaConf.to_container(cfg))
        is_dated = "paths.name" in raw["run_dir"] and "now:" in raw["paths"]["name"]
        if raw.get("resume") == "auto" and is_dated:
            raise ValueError("resume=auto needs run_dir=DIR, the folder of the run to continue")
        with explained():
            of_first_rank = None if is_first_rank() else os.environ.get(RUN_DIR)
            folder = str(Path(of_first_rank or str(cfg.run_dir)).absolute())
            cfg.run_dir = escaped(folder)
            values = cast(Plain, OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        values["run_dir"] = folder
        if "overrides" in values:
            values["overrides"] = self.overrides
        if "follows" in values:
            values["follows"] = templates(raw)
        return values


def compose(command: str, arguments: Sequence[str]) -> Composition:
    """Composes the configuration of a command.

    Args:
        command: such as ``train``; ``data check`` starts from ``conf/data_check.yaml``.
        arguments: Hydra overrides, and ``--config-dir DIR`` for a user's own YAML files.

    Raises:
        ValueError: an unknown key or choice, or a text that is no override.
    """
    user_files, typed = split_config_dir(arguments)
    for argument in typed:
        if argument.lstrip("+~").startswith(("-", "hydra.", "hydra/")):
            raise ValueError(f"{argument}: give KEY=VALUE here; Hydra's own settings are for -m")
    typed = [named(*parse([word])).text if "_target_" in word else word for word in typed]
    overrides = [_as_hydra_reads(argument, command) for argument in typed]
    if user_files is not None:
        folder = Path(user_files).expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(f"--config-dir {user_files}: there is no such folder")
        overrides.append(f"hydra.searchpath=[{as_text(f'file://{folder}')}]")
    if GlobalHydra.instance().is_initialized():  # by a sweep, or by the user's own program
        GlobalHydra.instance().clear()
    with explained(), hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        return Composition(hydra.compose(_config_name(command), overrides), typed)


def _config_name(command: str) -> str:
    return re.sub("[ -]", "_", command)


def _as_hydra_reads(argument: str, command: str) -> str:
    """Returns an override as Hydra needs it.

    ``optim=null`` becomes ``optim='null'``: Hydra's error would not name the group. Settings of a
    dataclass become ``++KEY=VALUE``: the configuration files need not name them.
    """
    if command in TRAINING and argument.startswith(DATACLASS_SETTINGS):
        return f"++{argument}"
    group, _, value = argument.partition("=")
    if (config_dir() / group).is_dir() and re.fullmatch(r"(?i)null|true|false|[-+.\d]+", value):
        return f"{group}='{value}'"
    return argument


def run_hydra(
    command: str, arguments: Sequence[str], run: Callable[[str, list[str]], None]
) -> None:
    """Lets Hydra act on its flags; ``run`` is called with each run of a sweep: its name, which is
    its number and the overrides that differ, and its overrides.

    Hydra reads ``sys.argv``, and accepts the flag of a sweep only before the overrides.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    read = [_as_hydra_reads(argument, command) for argument in arguments]
    folder_of_user, _ = split_config_dir(arguments)
    user_files = [] if folder_of_user is None else [f"--config-dir={folder_of_user}"]
    sys.argv = [sys.argv[0], *sorted(read, key=lambda word: word not in ("-m", "--multirun"))]

    def task(cfg: DictConfig) -> None:
        if OmegaConf.select(cfg, "trainer.devices", default=1) not in (1, "1", "auto"):
            fail("-m runs on one device: leave trainer.devices at 1")
        # not resolved: the name of a folder may hold ${
        job = cast(Plain, OmegaConf.to_container(HydraConfig.get()))
        overrides = job["overrides"]["task"]
        changed = [override for override in overrides if override not in read]
        name = " ".join([str(job["job"]["num"]), *changed])
        kept = [override for override in overrides if not override.startswith("run_dir=")]
        folder = as_text(job["runtime"]["output_dir"])
        run(name, [*user_files, *kept, f"run_dir={folder}"])

    with explained():
        hydra.main(
            version_base="1.3", config_path=str(config_dir()), config_name=_config_name(command)
        )(task)()


def print_help(command: str, arguments: Sequence[str]) -> None:
    """Prints Hydra's help, without files whose names begin with _: other files include them."""
    with redirect_stdout(StringIO()) as text, suppress(SystemExit):
        run_hydra(command, arguments, print)
    print(re.sub(r"\b_\w+, ", "", text.getvalue()).rstrip())


@contextmanager
def explained() -> Iterator[None]:
    """Turns errors of Hydra and OmegaConf into ValueErrors that say what is allowed."""
    try:
        yield
    except (HydraException, errors.OmegaConfBaseException) as error:
        raise ValueError(_fault(error)) from error


def _fault(error: Exception) -> str:
    """Returns what is wrong with the arguments that Hydra or OmegaConf refused."""
    cause = error.__cause__
    if isinstance(cause, errors.ConfigAttributeError | errors.ConfigKeyError):
        return _allowed_keys(cause)
    if isinstance(error, MissingConfigException) and error.options is not None:
        choices = ", ".join(name for name in error.options if not name.startswith("_"))
        return f"there is no {error.missing_cfg_file}; choose from {choices}"
    if isinstance(error, errors.MissingMandatoryValue):
        return f"{error.full_key} must be given: {error.full_key}=VALUE"
    if isinstance(error, OverrideParseException):
        return unreadable(error.override.removeprefix("++"))
    return str(error).split("\n")[0]


def _allowed_keys(error: errors.OmegaConfBaseException) -> str:
    """Returns a message with the keys beside the misspelt one that OmegaConf did not find."""
    node, key, names = error.parent_node, str(error.full_key), str(error.key).split("/")
    while len(names) > 1 and names[0] in node:  # a group inside of a group
        node = node[names.pop(0)]
    allowed = [str(name) for name in node or () if name != "hydra"]
    text = unknown_key(key, names[0], allowed)
    return text if allowed else f"{text}; +{key}=VALUE adds it"
