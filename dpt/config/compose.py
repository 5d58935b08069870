"""Hydra: from a command line to one configuration, a run's folder, and messages for mistakes.

Only the standard library is imported at the top: ``dpt --help`` must start at once.
"""

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from dpt.config.overrides import as_argument, escaped
from dpt.files import (
    MAX_MESSAGE,
    config_dir,
    explain,
    read_text,
    real_path,
    reason,
    require_own_files,
    run_folder,
    without_passwords,
)
from dpt.process import is_first_rank, lack_of_memory

# errors that a user can correct: the message is printed, the stack trace goes to log.txt only
MISTAKES = (ValueError, OSError)
SWEEP = {"-m", "--multirun"}
FLAGS = {  # the flags of Hydra that dpt accepts
    *SWEEP, "-h", "--help", "-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info",
    "-cd", "--config-dir", "-sc", "--shell-completion",
}  # fmt: skip
_RESULTS = ("config.yaml", "metrics.json", "nonfinite.csv", "panels", "lr.json", "lr.png")
LOCK_SECONDS = 10  # to wait for another process: loader workers outlive a killed one
LESS_MEMORY = (
    "reduce data.batch_size, data.image_size or the model's sizes, or set "
    "trainer.precision=bf16-mixed, model.checkpoint_activations=true, or "
    "trainer.accumulate_grad_batches=N for the same step"
)


def fail(fault: str | Exception) -> NoReturn:
    """Prints ``error: fault`` as one line and exits with 1."""
    message = explain(fault) if isinstance(fault, OSError) else str(fault)
    if os.environ.get("DPT_DEBUG"):
        traceback.print_exc()
    # without escapes, which a terminal would obey
    line = " ".join(re.split(r"[\s\x00-\x1f\x7f-\x9f]+", message.strip()))[:MAX_MESSAGE]
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
        hydra_cfg: Any = HydraConfig.get()
        overrides: Any = OmegaConf.to_container(hydra_cfg.overrides.task)  # may hold ${...}
        changed = (o for o in overrides if o not in arguments)
        run = " ".join([str(hydra_cfg.job.get("num", 0)), *changed])
        try:
            results[run] = _compose_job(command, cfg, job, overrides) or {}
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
        if resumed := _run_to_resume(command, arguments):
            _resume(job, resumed[1], resumed[0], arguments)
            return
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


def _as_hydra_reads(argument: str) -> str:
    """``optim='null'`` for ``optim=null``: else Hydra's error message does not name the group."""
    group, _, value = argument.partition("=")
    if (config_dir() / group).is_dir() and re.fullmatch(r"(?i)null|true|false|[-+.\d]+", value):
        return f"{group}='{value}'"
    return argument


def _run_to_resume(command: str, arguments: Sequence[str]) -> tuple[str, Path] | None:
    """Returns the typed value of ``resume`` and the folder of the run; None if none is resumed.

    Raises:
        ValueError: ``resume`` names no run, or cannot be combined with the other arguments.
    """
    keys = ("resume=", "run_dir=")
    plain = (argument.lstrip("+") for argument in arguments)
    typed = dict(argument.split("=", 1) for argument in plain if argument.startswith(keys))
    place = typed.get("resume", "null").strip("\"'")
    if place.lower() == "null":
        return None
    if command != "train":
        raise ValueError(f"dpt {command} resumes no run: leave resume={place} out")
    if SWEEP & set(arguments):
        raise ValueError("resume continues one run: remove -m")
    path = Path(typed.get("run_dir", "runs").strip("\"'") if place == "auto" else place)
    folder = run_folder(path)
    if folder != path and not path.is_file():
        raise ValueError(f"resume={place}: no such file")
    other = Path(typed.get("run_dir", str(folder)).strip("\"'"))
    if real_path(other) != real_path(folder):
        raise ValueError(f"run_dir={other}: a resumed run stays in {folder}: leave run_dir out")
    if (folder / "config.yaml").is_file():
        return place, folder.absolute()
    if place == "auto":
        return None
    raise ValueError(
        f"resume={place}: not a run's folder (it would hold config.yaml and checkpoints/)"
    )


def _resume(job: str, folder: Path, resume: str, arguments: Sequence[str]) -> None:
    """Continues the run in ``folder``; Hydra has no part in it."""
    from dpt.config.resume import resumed_config

    overrides = list(arguments)
    for flag in ("--config-dir", "-cd"):  # of a user's own groups, which the run has used already
        if flag in overrides:
            del overrides[overrides.index(flag) : overrides.index(flag) + 2]
        overrides = [argument for argument in overrides if not argument.startswith(f"{flag}=")]
    flags = [argument for argument in overrides if argument.startswith("-")]
    if flags:
        raise ValueError(f"{flags[0]} has no effect with resume: leave it out")
    _run_job(job, folder, lambda: resumed_config(folder, overrides, resume))


def _compose_job(command: str, cfg: Any, job: str, overrides: list[str]) -> Any:
    """One run of a configuration that Hydra composed from ``overrides``."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from dpt.config.resume import followers

    hydra_cfg = HydraConfig.get()
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    is_dated = "paths.name" in raw["run_dir"] and "now:" in raw["paths"]["name"]
    if cfg.get("resume") == "auto" and is_dated:
        fail("resume=auto needs run_dir=DIR, the folder of the run to continue or to start")
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    if hydra_cfg.mode is RunMode.MULTIRUN and devices not in (1, "1", "auto"):
        fail("-m runs on one device: leave trainer.devices at 1, or start the runs one by one")
    runtime: Any = OmegaConf.to_container(hydra_cfg.runtime, resolve=False)  # names may hold ${
    folder = Path(runtime["output_dir"])

    def values() -> dict[str, Any]:
        is_new = is_first_rank() and not cfg.get("resume")
        if is_new:
            _refuse_used(command, folder, overwrite=bool(cfg.get("overwrite")))
        resolved: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        resolved["run_dir"] = str(folder)
        if "overrides" in cfg:
            resolved["overrides"] = overrides
        if "follows" in cfg:
            resolved["follows"] = followers(raw)
        if is_new and not (command == "train" and cfg.get("overwrite")):
            save_config(resolved, folder)  # otherwise RunState saves it, after all checks
        return resolved

    OmegaConf.update(cfg, "run_dir", escaped(str(folder)))
    return _run_job(job, folder, values)


def _run_job(job: str, folder: Path, make_values: Callable[[], dict[str, Any]]) -> Any:
    """One run: its folder, its log, its configuration as plain data, then the job.

    A user's mistake ends the process here: Hydra would print a line of its own about an exception.
    """
    from filelock import FileLock, Timeout
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from omegaconf.errors import OmegaConfBaseException

    from dpt.run_log import start_log

    lock = FileLock(folder / ".lock")
    try:
        if is_first_rank():
            require_own_files(folder)
            lock.acquire(timeout=LOCK_SECONDS)
        start_log(folder if is_first_rank() else None)
    except Timeout:
        fail(f"run_dir={folder}: another process is writing to it: wait for it, or give another")
    except MISTAKES as error:
        fail(error)
    quiet_libraries()
    try:
        module, _, name = job.partition(":")
        call = getattr(import_module(module), name)
        return call(make_values())
    except Exception as error:
        if is_first_rank():
            with (folder / "log.txt").open("a", errors="backslashreplace") as file:
                file.write(without_passwords(traceback.format_exc()))
        if isinstance(error, OmegaConfBaseException):
            fail(_explain(error))
        if isinstance(error, (*MISTAKES, MisconfigurationException)):
            fail(error)
        if fault := lack_of_memory(error):
            fail(f"{fault}: {LESS_MEMORY}")
        raise
    finally:
        _finish_wandb()
        lock.release()


def _finish_wandb() -> None:
    """Ends the W&B run: the next job of a sweep would join it. A failure is only reported."""
    if "wandb" not in sys.modules:
        return
    try:
        sys.modules["wandb"].finish()
    except Exception as error:  # its service may have ended
        logging.getLogger("dpt").warning("W&B: finish failed (%s)", reason(error))


def _refuse_used(command: str, folder: Path, *, overwrite: bool) -> None:
    """Raises ValueError if the folder holds a run, scores or a configuration of the user that the
    command would overwrite."""
    trains = command == "train"
    if trains and overwrite:
        return
    remedy = ", or overwrite=true" if trains else ""
    if any(folder.glob("checkpoints/*.ckpt")) or (
        not trains and (folder / "metrics.json").exists()
    ):
        resume = f", {as_argument('resume', folder)} to continue it" if trains else ""
        raise ValueError(
            f"run_dir={folder} holds a run already: give another run_dir{resume}{remedy}"
        )
    path = folder / "config.yaml"
    is_run = path.exists() and re.search(r"(?m)^run_dir:", read_text(path))
    strange = [folder / name for name in _RESULTS if (folder / name).exists()]
    if strange and not is_run:
        raise ValueError(
            f"{strange[0]}: is not of a run: give another run_dir{remedy}, which replaces it"
        )


def remove_run(folder: Path) -> None:
    """Removes what an earlier run left in the folder, for ``overwrite=true``."""
    names = ("metrics.json", "nonfinite.csv")
    for path in (*folder.glob("checkpoints/*.ckpt"), *(folder / name for name in names)):
        path.unlink(missing_ok=True)


def save_config(values: Mapping[str, Any], folder: Path) -> None:
    """Writes ``config.yaml``, from which a run is resumed; :func:`dpt.files.read_yaml` reads it
    back unchanged, but for passwords."""
    import json

    import yaml

    from dpt.atomic import write_bytes
    from dpt.config.resume import map_strings

    plain = map_strings(values, without_passwords)
    text = json.dumps(plain, ensure_ascii=False, default=str)
    readable = not re.search("[\x85\u2028\u2029\ufeff]", text)  # YAML takes these for line ends
    content = yaml.safe_dump(plain, sort_keys=False, allow_unicode=readable)
    write_bytes(folder / "config.yaml", content.encode())


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
    unresolved = re.search(r"interpolation '(.*)', possible interpolation keys: (.*)", text)
    if unresolved:  # conf/first_run is chosen by groups that were removed
        names = {*re.findall(r"\$\{(\w+)\}", unresolved[1])} - {*unresolved[2].split(", ")}
        return f"{', '.join(sorted(names))} must be given, as GROUP=NAME"
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
