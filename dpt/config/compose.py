"""Hydra: from a command line to one configuration, a run's folder, and messages for mistakes.

Only the standard library is imported at the top: ``dpt --help`` must start at once.
"""

import json
import logging
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from dpt.files import config_dir, run_folder, without_passwords
from dpt.plugins import load_plugins
from dpt.process import is_first_rank, lack_of_memory

# errors that a user can correct: the message is printed, the stack trace goes to log.txt only
MISTAKES = (ValueError, OSError)
SWEEP = {"-m", "--multirun"}
FLAGS = {  # the flags of Hydra that dpt accepts
    *SWEEP, "-h", "--help", "-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info",
    "-cd", "--config-dir", "-sc", "--shell-completion",
}  # fmt: skip
LOCK_SECONDS = 10  # to wait for another process: loader workers outlive a killed one
LESS_MEMORY = (
    "reduce data.batch_size, data.image_size or the model's sizes, or set "
    "trainer.precision=bf16-mixed, model.checkpoint_activations=true, or "
    "trainer.accumulate_grad_batches=N for the same step"
)


def fail(message: str) -> NoReturn:
    """Prints ``error: message`` as one line and exits with 1."""
    if os.environ.get("DPT_DEBUG"):
        traceback.print_exc()
    line = " ".join(re.split(r"[\s\x00-\x1f\x7f-\x9f]+", message.strip()))[:4000]  # no escapes
    print(f"error: {without_passwords(line)}", file=sys.stderr)
    raise SystemExit(1)


def run_configured(command: str, job: str, arguments: Sequence[str]) -> None:
    """Composes a command's configuration and calls its job with it.

    Args:
        command: such as ``train``; ``data check`` starts from ``conf/data_check.yaml``.
        job: ``module:function``, called with the configuration as plain data.
        arguments: Hydra overrides and flags.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    typed, config = sys.argv, re.sub("[ -]", "_", command)
    # Hydra accepts the flag only before the overrides
    arguments = sorted(map(_as_hydra_reads, arguments), key=lambda a: a not in SWEEP)

    results: dict[str, dict[str, float] | None] = {}  # of each run of a sweep; None: failed

    @hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config)
    def entry(cfg: Any) -> None:
        sys.argv = typed  # other processes of the same run are started from it
        module, _, name = job.partition(":")
        hydra_cfg: Any = HydraConfig.get()
        overrides: Any = OmegaConf.to_container(hydra_cfg.overrides.task)  # may hold ${...}
        changed = (o for o in overrides if o not in arguments)
        run = " ".join([str(hydra_cfg.job.get("num", 0)), *changed])
        try:
            call = getattr(import_module(module), name)
            results[run] = _run_job(cfg, call, overrides, given) or {}
        except SystemExit as end:
            if not results or end.code != 1:  # if the first run fails, the others would fail alike
                raise
            results[run] = None

    try:
        if {"-h", "--help"} & set(arguments):
            sys.argv = [typed[0], *arguments]
            with redirect_stdout(StringIO()) as text, suppress(SystemExit):
                entry()
            # files whose names begin with _ are included by other files only
            print(re.sub(r"\b_\w+, ", "", text.getvalue()).rstrip())
            return
        for flag in (a.partition("=")[0] for a in arguments if a.startswith("-")):
            if flag not in FLAGS:
                raise ValueError(f"there is no flag {flag}: write {flag.lstrip('-')}=VALUE")
        arguments, given = _resumed(arguments), arguments
        sys.argv = [typed[0], *arguments]
        entry()
        if SWEEP & set(arguments) and any(results.values()):
            from dpt.run_log import log_sweep

            log_sweep(results)
        if None in results.values():
            raise SystemExit(1)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_explain(error)) from error
    finally:
        sys.argv = typed


def composed(name: str, overrides: Sequence[str]) -> Any:
    """The configuration of a command, within :func:`run_configured`."""
    from hydra import compose

    return compose(name, [*overrides])


def as_text(value: Any) -> str:
    """The value as Hydra reads it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_argument(key: str, value: object) -> str:
    """``key=value`` as typed in a shell, in quotes if Hydra or the shell needs them."""
    plain = f"{key}={value}"
    is_plain = re.fullmatch(r"[-\w./:=@+]+", plain, re.ASCII)
    return plain if is_plain else shlex.quote(f"{key}={as_text(str(value))}")


def values_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of Hydra's overrides by key; ValueError for one that cannot be parsed."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        if sweeps := [each.input_line for each in parsed if each.is_sweep_override()]:
            remedy = f"quote a value with commas, as in {as_argument('KEY', 'A, B')}"
            raise ValueError(f"{sweeps[0]}: has several values: {remedy}")
        return {override.key_or_group: override.value() for override in parsed}
    except HydraException as error:
        raise ValueError(f"{str(error).splitlines()[0]}: write KEY=VALUE") from None


def _as_hydra_reads(argument: str) -> str:
    """``optim='null'`` for ``optim=null``: else Hydra's error message does not name the group."""
    group, _, value = argument.partition("=")
    if (config_dir() / group).is_dir() and re.fullmatch(r"(?i)null|true|false|[-+.\d]+", value):
        return f"{group}='{value}'"
    return argument


def _resumed(arguments: Sequence[str]) -> list[str]:
    """With ``resume=``, the run's own arguments, the given ones and the run's folder, so that keys
    of the run's groups can be set; else the given arguments."""
    places = {key: a.partition("=")[2].strip("\"'") for a in arguments
              if (key := a.partition("=")[0]) in ("resume", "run_dir")}  # fmt: skip
    place = places.get("resume", "null")
    if place == "null":
        return [*arguments]
    if SWEEP & set(arguments):
        raise ValueError("resume continues one run: remove -m")
    path = Path(places.get("run_dir", "runs") if place == "auto" else place)
    folder = run_folder(path)
    if folder != path and not path.is_file():
        raise ValueError(f"resume={place}: no such file")
    if not (folder / "config.yaml").is_file():
        if place == "auto":
            return [*arguments]
        raise ValueError(
            f"resume={place}: not a run's folder (it would hold config.yaml and checkpoints/)"
        )
    from dpt.config.objects import merged_overrides, own_overrides

    flags = [a for a in arguments if a.startswith("-")]
    given = [a for a in arguments if not a.startswith("-")]
    own, given = merged_overrides(own_overrides(folder), given)
    return [*flags, *own, *given, f"run_dir='{folder}'"]


def _run_job(
    cfg: Any, job: Callable[[dict[str, Any]], Any], overrides: list[str], given: Sequence[str]
) -> Any:
    """One run: its folder, its log, its configuration on disk, then the job. ``overrides`` made
    ``cfg``; ``given`` are the arguments of the command line.

    With ``resume``, the configuration of the run in the folder, if any, is the base. A user's
    mistake ends the process here: Hydra would print a line of its own about an exception.
    """
    from filelock import FileLock, Timeout
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dpt.config.objects import continued
    from dpt.run_log import start_log

    hydra_cfg = HydraConfig.get()
    resume = cfg.get("resume")
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    if resume == "auto" and "paths.name" in raw["run_dir"] and "now:" in raw["paths"]["name"]:
        fail("resume=auto needs run_dir=DIR, the folder of the run to continue or to start")
    OmegaConf.update(cfg, "run_dir", hydra_cfg.runtime.output_dir)
    if "overrides" in cfg:
        OmegaConf.update(cfg, "overrides", overrides)
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    if hydra_cfg.mode is RunMode.MULTIRUN and devices not in (1, "1", "auto"):
        fail("-m runs on one device: leave trainer.devices at 1, or start the runs one by one")
    folder = Path(cfg.run_dir)
    lock = FileLock(folder / ".lock")
    try:
        if is_first_rank():
            lock.acquire(timeout=LOCK_SECONDS)
        start_log(folder if is_first_rank() else None)
    except Timeout:
        fail(f"run_dir={folder}: another process is writing to it: wait for it, or give another")
    except OSError as error:
        fail(str(error))
    quiet_libraries()
    try:
        load_plugins()
        if is_first_rank() and not resume:
            _refuse_used(folder, cfg)
        if resume and (folder / "config.yaml").is_file():
            cfg = continued(cfg, folder, given)
        values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        if is_first_rank() and not resume and not cfg.get("overwrite"):
            save_config(values, folder)  # otherwise RunState saves it, after all checks
        return job(values)
    except Exception as error:
        if is_first_rank():
            with (folder / "log.txt").open("a", errors="backslashreplace") as file:
                file.write(without_passwords(traceback.format_exc()))
        if isinstance(error, OmegaConfBaseException):
            fail(_explain(error))
        if isinstance(error, (*MISTAKES, MisconfigurationException)):
            fail(str(error))
        if fault := lack_of_memory(error):
            fail(f"{fault}: {LESS_MEMORY}")
        raise
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()  # else the next job of a sweep would join this run
        lock.release()


def _refuse_used(folder: Path, cfg: Any) -> None:
    """Raises ValueError if the folder holds a run or scores that the command would overwrite."""
    trains = "overwrite" in cfg
    is_used = any(folder.glob("checkpoints/*.ckpt"))
    is_used |= not trains and (folder / "metrics.json").exists()
    if is_used and not cfg.get("overwrite"):
        resume = as_argument("resume", folder)
        choices = f", {resume} to continue it, or overwrite=true" if trains else ""
        raise ValueError(f"run_dir={folder} holds a run already: give another run_dir{choices}")


def remove_run(folder: Path) -> None:
    """Removes what an earlier run left in the folder, for ``overwrite=true``."""
    names = ("metrics.json", "nonfinite.csv")
    for path in (*folder.glob("checkpoints/*.ckpt"), *(folder / name for name in names)):
        path.unlink(missing_ok=True)


def save_config(cfg: Mapping[str, Any], folder: Path) -> None:
    """Writes ``config.yaml``, from which a run is resumed."""
    from omegaconf import OmegaConf

    from dpt.atomic import write_bytes
    from dpt.config.objects import map_strings

    plain = map_strings(cfg, without_passwords)
    write_bytes(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(plain)).encode())


def quiet_libraries() -> None:
    """Silences library notices that a user cannot act on, each by its own message."""
    for message in (
        r".*LeafSpec.*is deprecated.*",
        r".*does not have many workers.*",
        r".*This DataLoader will create .* worker processes in total.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*It is recommended to use .*sync_dist=True.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*resuming from a checkpoint that ended before the epoch.*",  # RunState keeps the place
        r".*You defined a `validation_step` but have no `val_dataloader`.*",  # dpt find-lr
    ):
        warnings.filterwarnings("ignore", message=message)

    import lightning  # noqa: F401  (it sets the levels of its logs when imported)

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _explain(error: Exception) -> str:
    """A configuration error as one line that says what is allowed."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    text, cause = str(error), error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return _allowed_keys(cause)
    group = re.search(r"Could not find '([^']+)'.*?Available options in '[^']*':(.*)", text, re.S)
    if group:
        names = group[2].partition("Config search path")[0].split()
        choices = ", ".join(name for name in names if not name.startswith("_"))
        return f"there is no {group[1]}; choose from {choices}"
    missing = re.search(r"full_key: (\S+)", text)
    if missing and "Missing mandatory value" in text:
        return f"{missing[1]} must be given: {missing[1]}=VALUE"
    if "See https://hydra.cc" in text or "Error parsing override" in text:
        remedy = f"quote special characters, as in {as_argument('KEY', '^(.*)_')}"
        return f"{text.splitlines()[0]}: {remedy}"
    return text.split("\n")[0] if missing else text


def _allowed_keys(error: Any) -> str:
    """A message with the keys beside the misspelt one that OmegaConf did not find."""
    from omegaconf import DictConfig

    from dpt.validation import unknown_key

    node, parts = error.parent_node, str(error.key).split("/")
    if isinstance(node, DictConfig) and not node:
        copy = error.full_key.rpartition(".")[0]
        add = f"write +{error.full_key}=VALUE to add it"
        return (
            f"{copy} has no keys: {add}, or change {parts[0]} where {copy} comes from (--cfg job)"
        )
    while len(parts) > 1 and parts[0] in node:  # a group inside of a group
        node = node[parts.pop(0)]
    allowed = [str(k) for k in node if k != "hydra"] if isinstance(node, DictConfig) else []
    return unknown_key(error.full_key, parts[0], allowed)
