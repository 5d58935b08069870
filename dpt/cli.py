"""The command line: ``dpt COMMAND ...`` and ``python train.py ...``.

A user's mistake gets one message and a non-zero exit, never a stack trace.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from torch import OutOfMemoryError

from dpt.plugins import load_plugins

MISTAKES = (ValueError, OSError)
"""What a user can mend: the message is enough, and the stack trace goes to log.txt alone."""

LESS_MEMORY = (
    "take a smaller data.batch_size or data.image_size, trainer.precision=bf16-mixed, "
    "model.checkpoint_activations=true, or trainer.accumulate_grad_batches=N for the same step"
)
"""What a run that fills a GPU can do."""

HELP = """\
dpt: Dense Prediction Transformers

Usage
  dpt train [GROUP=CHOICE ...] [KEY=VALUE ...]     train; the same as python train.py
  dpt find-lr data=NAME task=NAME [...]            the learning rate to start from
  dpt evaluate checkpoint=FILE data=NAME [...]     score a checkpoint, or predictions on disk
  dpt data check data=NAME [...]                   look for faults in a data set
  dpt data download data=NAME                      fetch a data set
  dpt data pack data=NAME out=DIR                  write a data set as shards that can be streamed
  dpt predict CKPT INPUTS ... --out DIR            depth and masks of photos, folders, videos
  dpt calibrate CKPT --points FILE --out FOLDER    fit predicted depth to known metres
  dpt export CKPT OUT.onnx|OUT.pt2                 write one file for other programs, checked
  dpt convert SRC DST --to FORMAT                  write a checkpoint in another project's format
  dpt inspect CKPT IMAGE [--out sheet.png]         attention, tokens and read-out as a picture
  dpt demo CKPT                                    a page in the browser: drop a photo

dpt COMMAND --help explains a command.
"""


def config_dir() -> Path:
    """The configuration files: the repository's in an editable install, else the package's own."""
    package = Path(__file__).parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no configuration files beside {package}: reinstall the package")


def main(command: str | None = None) -> None:
    """Runs a command; without one, the first argument names it.

    Exit codes: 0 done, 1 a mistake in the input, 2 an unknown command, 128 + N stopped by signal N.
    """
    arguments = sys.argv[1:]
    if command is None:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(HELP, end="")
            return
        command, *arguments = arguments
    if arguments and f"{command} {arguments[0]}" in COMMANDS:  # of two words: dpt data check
        command, *arguments = f"{command} {arguments[0]}", *arguments[1:]
    if command in COMMANDS:
        run_hydra(command, arguments)
    elif command in FILE_COMMANDS:
        try:
            load_plugins()
            import_module(f"dpt.commands.{command}").run(arguments)
        except MISTAKES as error:
            fail(str(error))
    else:
        names = ", ".join([*COMMANDS, *FILE_COMMANDS])
        print(f"error: no command {command!r}; there are {names}", file=sys.stderr)
        raise SystemExit(2)


COMMANDS = {
    "train": "dpt.training.fit:fit",
    "evaluate": "dpt.evaluation.evaluate:evaluate",
    "data download": "dpt.commands.data_download:download",
    "data pack": "dpt.commands.data_pack:pack",
    "find-lr": "dpt.training.find_lr:find_lr",
    "data check": "dpt.data_check:check",
}
"""Commands on configured data: they take Hydra overrides, see :func:`config_name`."""
FILE_COMMANDS = ("predict", "calibrate", "export", "convert", "inspect", "demo")
"""Commands on files: they take ordinary flags, see :mod:`dpt.commands`."""


def config_name(command: str) -> str:
    """The file in ``conf`` that a Hydra command starts from: ``dpt data check`` has data_check."""
    return re.sub(r"[ -]", "_", command)


def _job(command: str) -> Callable[[dict[str, Any]], Any]:
    """The function that a Hydra command calls with its whole configuration, as plain data."""
    module, _, name = COMMANDS[command].partition(":")
    return getattr(import_module(module), name)


def run_hydra(command: str, arguments: list[str]) -> None:
    """Composes the command's configuration from ``arguments`` and runs its job on it."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed
    typed = sys.argv
    config = config_name(command)
    # Hydra takes the flag in front only
    arguments = sorted(arguments, key=lambda a: a not in ("-m", "--multirun"))

    def task(cfg: Any) -> None:
        sys.argv = typed  # processes of the same run are started from it
        run_job(cfg, _job(command), old)

    entry = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=config)
    asks_help = {"-h", "--help"} & set(arguments)
    try:
        old = run_to_resume(config, arguments)
        folder = [f"run_dir='{old}'"] if old else []
        sys.argv = [typed[0], *arguments, *folder]
        with tidy_help() if asks_help else nullcontext():
            entry(task)()
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error, config, arguments))
    except MISTAKES as error:
        fail(str(error))
    except KeyboardInterrupt:  # training, which still validates, takes the signal itself
        print("stopped", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        sys.argv = typed


@contextmanager
def tidy_help() -> Iterator[None]:
    """Leaves out of Hydra's help the files that only others include: their names begin with _."""
    try:
        with redirect_stdout(StringIO()) as text:
            yield
    finally:  # Hydra may leave by SystemExit
        print(re.sub(r"\b_\w+, ", "", text.getvalue()).rstrip())


def run_to_resume(config: str, arguments: Sequence[str]) -> Path | None:
    """The folder that ``resume=`` means, None where there is no such argument, or nothing yet."""
    wishes = [a.partition("=")[2] for a in arguments if a.startswith("resume=")]
    if not wishes or wishes[-1] == "null":
        return None
    if {"-m", "--multirun"} & set(arguments):
        raise ValueError("resume goes on with one run: leave out -m")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from dpt.training.resume import find_run

    places = ("run_dir=", "hydra.run.dir=")  # the second is how Lightning tells the other ranks
    given = [Path(a.partition("=")[2].strip("\"'")) for a in arguments if a.startswith(places)]
    overrides = [a for a in arguments if "=" in a and not a.startswith(("-", "hydra."))]
    overrides += own_configuration(arguments)
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(config, overrides=overrides)
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    if "now:" not in f"{raw['run_dir']} {raw['paths']['name']}":
        given = given or [Path(cfg.run_dir)]  # a job's own folder: others are no concern of its
    siblings = Path(cfg.paths.runs) / cfg.task.name
    return find_run(wishes[-1].strip("\"'"), given[-1] if given else None, siblings)


def own_configuration(arguments: Sequence[str]) -> list[str]:
    """The override by which Hydra finds the folder of ``--config-dir`` where it reads no flags."""
    for here, following in zip(arguments, (*arguments[1:], ""), strict=True):
        flag, _, folder = here.partition("=")
        if flag in ("--config-dir", "-cd"):
            return [f"hydra.searchpath=['file://{Path(folder or following).resolve()}']"]
    return []


def run_job(cfg: Any, job: Callable[[dict[str, Any]], Any], old: Path | None = None) -> None:
    """One run: its folder, its log, its configuration on disk, then the job.

    Args:
        cfg: what Hydra composed.
        job: called with the configuration as plain data.
        old: the folder of a run to go on with, whose configuration then counts.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dpt.atomic import write_bytes
    from dpt.config.objects import continued
    from dpt.run_log import start_log

    hydra_cfg = HydraConfig.get()
    OmegaConf.update(cfg, "run_dir", hydra_cfg.runtime.output_dir)
    devices = OmegaConf.select(cfg, "trainer.devices", default=1)
    if hydra_cfg.mode is RunMode.MULTIRUN and devices not in (1, "1", "auto"):
        fail("-m runs on one device each: leave trainer.devices at 1, or start the runs one by one")
    folder = Path(cfg.run_dir)
    ranks = ("LOCAL_RANK", "RANK", "SLURM_PROCID")  # of Lightning, torchrun, srun
    leader = all(os.environ.get(name, "0") == "0" for name in ranks)
    start_log(folder if leader else None)
    quiet_libraries()
    begun, before = time.time(), None
    try:
        load_plugins()
        if old is not None:
            before = (old / "config.yaml").read_bytes()
            cfg = continued(cfg, old, hydra_cfg.overrides.task)
        values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        if leader:
            text = OmegaConf.to_yaml(cfg, resolve=True)
            write_bytes(folder / "config.yaml", text.encode())  # a resumed run writes over its own
        job(values)
    except Exception as error:
        if leader:
            with (folder / "log.txt").open("a") as file:
                file.write(traceback.format_exc())
            saved = [p.stat().st_mtime for p in (folder / "checkpoints").glob("*.ckpt")]
            if before is not None and max(saved, default=0) < begun:  # it did not go on
                write_bytes(folder / "config.yaml", before)
        if isinstance(error, OmegaConfBaseException):
            fail(explain(error))
        if isinstance(error, MISTAKES):
            fail(str(error))
        if isinstance(error, OutOfMemoryError):
            fail(f"{str(error).partition('. ')[0]}: {LESS_MEMORY}")
        raise
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish()  # or the next job of a sweep would join this run


def fail(message: str) -> None:
    """Prints ``error: message`` as one line and exits with 1."""
    if os.environ.get("DPT_DEBUG"):
        traceback.print_exc()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(1)


def explain(error: Exception, config: str = "train", arguments: Sequence[str] = ()) -> str:
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
    """What stands where the misspelt ``key`` was looked for."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    from dpt.config.objects import unknown_key

    *parents, last = re.split(r"[./]", key.split("@")[0])
    choices = [a for a in arguments if re.match(r"[\w/]+=", a) and not a.startswith(f"{key}=")]
    choices += own_configuration(arguments)
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = compose(config, overrides=choices)
        node = OmegaConf.select(cfg, ".".join(parents)) if parents else cfg
    except Exception:
        return None
    if isinstance(node, DictConfig):
        return unknown_key(key, last, [str(k) for k in node])
    top = [str(k) for k in cfg]
    return unknown_key(key, parents[0], top) if parents and parents[0] not in top else None


def quiet_libraries() -> None:
    """Silences notices of libraries that no user can act on, each by its own message."""
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
