"""The command line: ``dpt COMMAND ...`` and ``python train.py ...``.

A user's mistake gets one message and a non-zero exit, never a stack trace.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

MISTAKES = (ValueError, OSError)
"""What a user can mend: the message is enough, and the stack trace goes to log.txt alone."""

HELP = """\
dpt: Dense Prediction Transformers

Usage
  dpt train [GROUP=CHOICE ...] [KEY=VALUE ...]     train; the same as python train.py
  dpt evaluate checkpoint=FILE data=NAME [...]     score a checkpoint
  dpt convert SRC DST --to FORMAT                  write a checkpoint in another project's format
  dpt bench [model|data|metrics] [...]             time and memory beside other implementations

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
    if command in COMMANDS:
        run_hydra(command, COMMANDS[command], arguments)
    elif command in FILE_COMMANDS:
        try:
            FILE_COMMANDS[command](arguments)
        except MISTAKES as error:
            fail(str(error))
    else:
        names = ", ".join([*COMMANDS, *FILE_COMMANDS])
        print(f"error: no command {command!r}; there are {names}", file=sys.stderr)
        raise SystemExit(2)


def _train(cfg: dict[str, Any]) -> None:
    from dpt.engine.fit import fit

    fit(cfg)


def _evaluate(cfg: dict[str, Any]) -> None:
    from dpt.engine.evaluate import evaluate

    evaluate(cfg)


def _convert(arguments: list[str]) -> None:
    from dpt.weights.convert import convert, writable

    parser = argparse.ArgumentParser(
        prog="dpt convert",
        description="Writes a checkpoint in another format; whatever the model uses is kept bit "
        "for bit, and what a format cannot express is refused.",
    )
    parser.add_argument("src", help="a file or folder in any format that is read")
    parser.add_argument("dst", help="the folder or file to write")
    parser.add_argument("--to", required=True, choices=writable(), help="the format to write")
    options = parser.parse_args(arguments)
    print(convert(options.src, options.dst, to=options.to))


def _bench(arguments: list[str]) -> None:
    import torch

    from dpt.engine.bench import DTYPES, bench
    from dpt.engine.bench_parts import bench_data, bench_metrics
    from dpt.zoo import list_models

    parser = argparse.ArgumentParser(
        prog="dpt bench",
        description="Times forward passes and training steps beside other implementations, taking "
        "turns in one process; prints medians, ratios to ours, and memory.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="model",
        choices=("model", "data", "metrics"),
        help="data: loading and augmentation on one core; metrics: their updates",
    )
    parser.add_argument("--root", help="data: a folder with images and depth; else made-up photos")
    parser.add_argument("--model", default="dpt_base", choices=list_models())
    parser.add_argument("--task", default="depth", choices=("depth", "segmentation"))
    parser.add_argument("--size", default=[384, 384], nargs=2, type=int, metavar=("H", "W"))
    parser.add_argument("--batch", default=1, type=int)
    parser.add_argument("--dtype", default="fp32", choices=tuple(DTYPES))
    parser.add_argument(
        "--against",
        default="",
        help="comma-separated: transformers, smp, dpt-optimized; NAME-compile compiles it",
    )
    parser.add_argument("--train", action="store_true", help="training steps too")
    parser.add_argument("--rounds", default=7, type=int, help="turns that count")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = vars(parser.parse_args(arguments))
    what, root, rounds = given.pop("what"), given.pop("root"), given["rounds"]
    given["size"] = tuple(given["size"])
    given["against"] = [name for name in given["against"].split(",") if name]
    if what == "data":
        print(bench_data(root=root, size=given["size"], rounds=rounds))
    elif what == "metrics":
        print(bench_metrics(rounds=rounds))
    else:
        print(bench(**given))


COMMANDS: dict[str, Callable[[dict[str, Any]], None]] = {"train": _train, "evaluate": _evaluate}
"""Commands on configured data: they take Hydra overrides."""
FILE_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "convert": _convert,
    "bench": _bench,
}
"""Commands on files: they take ordinary flags."""


def run_hydra(command: str, job: Callable[[dict[str, Any]], None], arguments: list[str]) -> None:
    """Composes the command's configuration from ``arguments`` and runs ``job`` on it."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come here instead of being printed
    typed = sys.argv
    # Hydra takes the flag in front only
    arguments = sorted(arguments, key=lambda a: a not in ("-m", "--multirun"))
    sys.argv = [typed[0], *arguments]

    def task(cfg: Any) -> None:
        sys.argv = typed  # processes of the same run are started from it
        run_job(cfg, job)

    entry = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=command)
    asks_help = {"-h", "--help"} & set(arguments)
    try:
        with tidy_help() if asks_help else nullcontext():
            entry(task)()
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error, command, arguments))
    except MISTAKES as error:
        fail(str(error))
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


def run_job(cfg: Any, job: Callable[[dict[str, Any]], None]) -> None:
    """One run: its folder, its log, its configuration on disk, then the job."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from dpt.engine.report import start_log

    hydra_cfg = HydraConfig.get()
    OmegaConf.update(cfg, "run_dir", hydra_cfg.runtime.output_dir)
    if hydra_cfg.mode is RunMode.MULTIRUN and cfg.trainer.devices not in (1, "1", "auto"):
        fail("-m runs on one device each: leave trainer.devices at 1, or start the runs one by one")
    folder = Path(cfg.run_dir)
    leader = os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("RANK", "0") == "0"
    start_log(folder if leader else None)
    quiet_libraries()
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
        if leader:
            (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        job(values)  # type: ignore[arg-type]
    except Exception as error:
        if leader:
            with (folder / "log.txt").open("a") as file:
                file.write(traceback.format_exc())
        if isinstance(error, OmegaConfBaseException):
            fail(explain(error))
        if isinstance(error, MISTAKES):
            fail(str(error))
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


def explain(error: Exception, command: str = "train", arguments: Sequence[str] = ()) -> str:
    """A configuration error as one line that says what is allowed."""
    text = str(error)
    refused = re.search(r"Could not override '([^']+)'", text)
    if refused:
        return _allowed_keys(refused[1], command, arguments) or text
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


def _allowed_keys(key: str, command: str, arguments: Sequence[str]) -> str | None:
    """What stands where the misspelt ``key`` was looked for."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    from dpt.engine.configure import unknown_key

    *parents, last = re.split(r"[./]", key.split("@")[0])
    choices = [a for a in arguments if re.match(r"[\w/]+=", a) and not a.startswith(f"{key}=")]
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = compose(command, overrides=choices)
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
    ):
        warnings.filterwarnings("ignore", message=message)

    import lightning  # noqa: F401  (it sets the levels of its logs when imported)

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
