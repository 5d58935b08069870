"""Hydra: from a command line to one configuration, a run's folder, and messages for mistakes.

Only the standard library is imported at the top: ``dpt --help`` must start at once.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from dpt.plugins import load_plugins

MISTAKES = (ValueError, OSError)
"""Errors that a user can correct: the message is printed, the stack trace goes to log.txt only."""

LESS_MEMORY = (
    "reduce data.batch_size or data.image_size, or set trainer.precision=bf16-mixed, "
    "model.checkpoint_activations=true, or trainer.accumulate_grad_batches=N for the same step"
)

ENDED, FINISHED = "ended", "finished"
"""Key in metrics.json that says how a run ended, and its value for a run that is complete."""


def config_dir() -> Path:
    """The configuration files: the repository's in an editable install, else the package's own."""
    package = Path(__file__).parents[1]
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no configuration files beside {package}: reinstall the package")


def config_name(command: str) -> str:
    """The file in ``conf`` that a command starts from: ``dpt data check`` has data_check."""
    return re.sub(r"[ -]", "_", command)


def fail(message: str) -> NoReturn:
    """Prints ``error: message`` as one line and exits with 1."""
    if os.environ.get("DPT_DEBUG"):
        traceback.print_exc()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(1)


def run_configured(command: str, job: str, arguments: Sequence[str]) -> None:
    """Composes a command's configuration and calls its job with it.

    Args:
        command: such as ``train``.
        job: ``module:function``, called with the configuration as plain data.
        arguments: Hydra overrides and flags.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    typed = sys.argv
    config = config_name(command)
    # Hydra accepts the flag only before the overrides
    arguments = sorted(arguments, key=lambda a: a not in ("-m", "--multirun"))

    def task(cfg: Any) -> None:
        sys.argv = typed  # other processes of the same run are started from it
        module, _, name = job.partition(":")
        _run_job(cfg, getattr(import_module(module), name), old)

    entry = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config)
    wants_help = {"-h", "--help"} & set(arguments)
    try:
        old = run_to_resume(config, arguments)
        folder = [f"run_dir='{old}'"] if old else []
        sys.argv = [typed[0], *arguments, *folder]
        with _without_private_files() if wants_help else nullcontext():
            entry(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_explain(error, config, arguments)) from error
    finally:
        sys.argv = typed


@contextmanager
def _without_private_files() -> Iterator[None]:
    """Removes files whose names begin with _ from Hydra's help: only other files include them."""
    try:
        with redirect_stdout(StringIO()) as text:
            yield
    finally:  # Hydra may leave by SystemExit
        print(re.sub(r"\b_\w+, ", "", text.getvalue()).rstrip())


# ------------------------------------------------------------------------------- resuming a run


def run_to_resume(config: str, arguments: Sequence[str]) -> Path | None:
    """The folder of the run that ``resume=`` names; None without one, or if there is no such run.

    Raises:
        ValueError: ``resume`` names no run, or is combined with a sweep.
    """
    values = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if not values or values[-1] == "null":
        return None
    if {"-m", "--multirun"} & set(arguments):
        raise ValueError("resume continues one run: remove -m")
    from omegaconf import OmegaConf

    folder_keys = ("run_dir=", "hydra.run.dir=")  # Lightning starts the other ranks by the second
    given = [Path(a.partition("=")[2].strip("\"'")) for a in arguments if a.startswith(folder_keys)]
    overrides = [a for a in arguments if "=" in a and not a.startswith(("-", "hydra."))]
    cfg = _compose(config, [*overrides, *_search_path(arguments)])
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    if "now:" not in f"{raw['run_dir']} {raw['paths']['name']}":
        given = given or [Path(cfg.run_dir)]  # a folder of fixed name: only that run can be meant
    siblings = Path(cfg.paths.runs) / cfg.task.name
    return find_run(values[-1].strip("\"'"), given[-1] if given else None, siblings)


def find_run(resume: str, run_dir: Path | None, siblings: Path) -> Path | None:
    """The folder of the run that ``resume`` means; None: start a new one.

    Args:
        resume: a run's folder, one of its checkpoints, or ``auto``.
        run_dir: the folder given by the user; ``auto`` continues it if it holds a run.
        siblings: the folder with all runs of the task; ``auto`` without a ``run_dir`` takes the
            newest of them that has a checkpoint and did not finish.
    """
    if resume == "auto":
        if run_dir is not None:
            return run_dir if (run_dir / "config.yaml").is_file() else None
        runs = sorted(siblings.glob("*/config.yaml"), key=lambda p: p.stat().st_mtime)
        return next((p.parent for p in reversed(runs) if _is_unfinished(p.parent)), None)
    folder = Path(resume)
    if folder.suffix == ".ckpt" and folder.is_file():
        folder = folder.parent.parent
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"resume={resume}: not a run's folder (it would hold config.yaml and checkpoints/)"
        )
    return folder


def _is_unfinished(folder: Path) -> bool:
    if not any((folder / "checkpoints").glob("*.ckpt")):
        return False
    try:
        return json.loads((folder / "metrics.json").read_text()).get(ENDED) != FINISHED
    except (OSError, ValueError):
        return True


def _compose(config: str, overrides: Sequence[str]) -> Any:
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose(config, overrides=list(overrides))


def _search_path(arguments: Sequence[str]) -> list[str]:
    """The override equal to ``--config-dir``, for ``compose``, which reads no flags."""
    for here, following in zip(arguments, (*arguments[1:], ""), strict=True):
        flag, _, folder = here.partition("=")
        if flag in ("--config-dir", "-cd"):
            return [f"hydra.searchpath=['file://{Path(folder or following).resolve()}']"]
    return []


# --------------------------------------------------------------------------------------- a run


def _run_job(cfg: Any, job: Callable[[dict[str, Any]], Any], old: Path | None) -> None:
    """One run: its folder, its log, its configuration on disk, then the job.

    A user's mistake ends the process here: Hydra would print a line of its own about an exception.

    Args:
        cfg: the composed configuration.
        job: called with the configuration as plain data.
        old: the folder of a run to continue; its configuration is the base then.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from torch import OutOfMemoryError

    from dpt.atomic import write_bytes
    from dpt.config.objects import continued
    from dpt.run_log import start_log

    hydra_cfg = HydraConfig.get()
    OmegaConf.update(cfg, "run_dir", hydra_cfg.runtime.output_dir)
    if "overrides" in cfg:
        OmegaConf.update(cfg, "overrides", list(hydra_cfg.overrides.task))
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    if hydra_cfg.mode is RunMode.MULTIRUN and devices not in (1, "1", "auto"):
        fail("-m runs on one device: leave trainer.devices at 1, or start the runs one by one")
    folder = Path(cfg.run_dir)
    ranks = ("LOCAL_RANK", "RANK", "SLURM_PROCID")  # of Lightning, torchrun, srun
    is_first_rank = all(os.environ.get(name, "0") == "0" for name in ranks)
    start_log(folder if is_first_rank else None)
    quiet_libraries()
    start, before = time.time(), None
    try:
        load_plugins()
        if old is not None:
            before = (old / "config.yaml").read_bytes()
            cfg = continued(cfg, old, hydra_cfg.overrides.task)
        values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        if is_first_rank:
            save_config(values, folder)
        job(values)
    except Exception as error:
        if is_first_rank:
            with (folder / "log.txt").open("a") as file:
                file.write(traceback.format_exc())
            saved = [p.stat().st_mtime for p in (folder / "checkpoints").glob("*.ckpt")]
            if before is not None and max(saved, default=0) < start:  # nothing was trained
                write_bytes(folder / "config.yaml", before)
        if isinstance(error, OmegaConfBaseException):
            fail(_explain(error))
        if isinstance(error, MISTAKES):
            fail(str(error))
        if isinstance(error, OutOfMemoryError):
            fail(f"{str(error).partition('. ')[0]}: {LESS_MEMORY}")
        raise
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()  # else the next job of a sweep would join this run


def save_config(cfg: Mapping[str, Any], folder: Path) -> None:
    """Writes ``config.yaml``, from which a run is resumed."""
    from omegaconf import OmegaConf

    from dpt.atomic import write_bytes

    write_bytes(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(cfg))).encode())


def quiet_libraries() -> None:
    """Silences library notices that a user cannot act on, each by its own message."""
    for message in (
        r".*LeafSpec.*is deprecated.*",
        r".*does not have many workers.*",
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*It is recommended to use .*sync_dist=True.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*Experiment logs directory .* exists and is not empty.*",
        r".*You defined a `validation_step` but have no `val_dataloader`.*",  # dpt find-lr
    ):
        warnings.filterwarnings("ignore", message=message)

    import lightning  # noqa: F401  (it sets the levels of its logs when imported)

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


# ------------------------------------------------------------------------------------- messages


def _explain(error: Exception, config: str = "train", arguments: Sequence[str] = ()) -> str:
    """A configuration error as one line that says what is allowed."""
    text = str(error)
    refused = re.search(r"Could not override '([^']+)'", text)
    if refused:
        return _allowed_keys(refused[1], config, arguments) or text
    group = re.search(
        r"Could not find '([^']+)'.*?Available options in '[^']*':(.*?)(Config search path|$)",
        text,
        re.S,
    )
    if group:
        choices = [name for name in group[2].split() if not name.startswith("_")]
        return f"there is no {group[1]}; choose from {', '.join(choices)}"
    missing = re.search(r"full_key: (\S+)", text)
    if missing and "Missing mandatory value" in text:
        return f"{missing[1]} must be given: {missing[1]}=VALUE"
    return text.split("\n")[0] if "full_key" in text else text


def _allowed_keys(key: str, config: str, arguments: Sequence[str]) -> str | None:
    """The keys beside the misspelt ``key``; None if there is no such place."""
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    from dpt.validation import unknown_key

    *parents, last = re.split(r"[./]", key.split("@")[0])
    choices = [a for a in arguments if re.match(r"[\w/]+=", a) and not a.startswith(f"{key}=")]
    try:
        GlobalHydra.instance().clear()
        cfg = _compose(config, [*choices, *_search_path(arguments)])
        node = OmegaConf.select(cfg, ".".join(parents)) if parents else cfg
    except Exception:
        return None
    if isinstance(node, DictConfig):
        return unknown_key(key, last, [str(k) for k in node])
    top = [str(k) for k in cfg]
    return unknown_key(key, parents[0], top) if parents and parents[0] not in top else None
