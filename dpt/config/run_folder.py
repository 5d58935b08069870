"""The folder of a run: held by one process, with its log and its ``config.yaml``.

Little is imported at the top: a command that fails must say so at once.
"""

import json
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dpt import files
from dpt.config.overrides import as_argument, map_strings
from dpt.process import is_first_rank, log

if TYPE_CHECKING:
    from dpt.validation import PlainMapping

MISTAKES = (ValueError, OSError)
"""Errors that a user can correct: a command prints the message, and log.txt has the stack trace."""
RESULTS = ("config.yaml", "metrics.json", "nonfinite.csv", "panels", "lr.json", "lr.png")
LOCK_SECONDS = 10  # to wait for another process: loader workers outlive a killed one


def fail(fault: str | Exception) -> NoReturn:
    """Prints ``error: fault`` as one line and exits with 1."""
    print_fault(fault)
    raise SystemExit(1)


def print_fault(fault: str | Exception) -> None:
    """Prints ``error: fault`` as one line, without escapes, which a terminal would obey."""
    message = files.explain(fault) if isinstance(fault, OSError) else str(fault)
    if os.environ.get("DPT_DEBUG"):
        traceback.print_exc()
    line = " ".join(re.split(r"[\s\x00-\x1f\x7f-\x9f]+", message.strip()))[: files.MAX_MESSAGE]
    print(f"error: {files.without_passwords(line)}", file=sys.stderr)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds the folder of a run, and writes the log and the trace of an error to its log.txt.

    Args:
        folder: made if it is missing; no other process may write in it.
    """
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    from dpt.run_log import start_log

    lock: AbstractContextManager[object] = nullcontext()
    if is_first_rank():
        files.require_own_files(folder)
        fault = f"run_dir={folder}: another process is writing to it"
        lock = files.locked(folder / ".lock", fault=fault, seconds=LOCK_SECONDS)
    with lock:
        try:
            start_log(folder if is_first_rank() else None)
            quiet_libraries()
            yield
        except Exception as error:
            if is_first_rank():
                with (folder / "log.txt").open("a", errors="backslashreplace") as file:
                    file.write(files.without_passwords(traceback.format_exc()))
            if isinstance(error, MisconfigurationException):
                raise ValueError(str(error)) from error
            raise
        finally:
            _finish_wandb()


def _finish_wandb() -> None:
    """Ends the W&B run: the next run of the process would join it. A failure is only reported."""
    if "wandb" not in sys.modules:
        return
    try:
        sys.modules["wandb"].finish()
    except Exception as error:  # its service may have ended
        log.warning("W&B: finish failed (%s)", files.reason(error))


def quiet_libraries() -> None:
    """Silences library notices that a user cannot act on, each by its own message."""
    for message in (
        r".*LeafSpec.*is deprecated.*",
        r".*does not have many workers.*",
        r".*This DataLoader will create .* worker processes in total.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*It is recommended to use .*sync_dist=True.*",
        r".*The number of training batches .* is smaller than the logging interval.*",
        r".*resuming from a checkpoint that ended before the epoch.*",  # RunState sets the position
        r".*You defined a `validation_step` but have no `val_dataloader`.*",  # dpt find-lr
    ):
        warnings.filterwarnings("ignore", message=message)

    import lightning  # noqa: F401  (it sets the levels of its logs when imported)

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def refuse_used(folder: Path, *, is_training: bool) -> None:
    """Raises ValueError if the folder holds a run, scores or a configuration of the user that a
    command would overwrite."""
    config = folder / "config.yaml"
    is_run = config.exists() and re.search(r"(?m)^run_dir:", files.read_text(config))
    scores = [] if is_training else [folder / "metrics.json"]
    results = [] if is_run else [folder / name for name in RESULTS]
    used = [p for p in (*folder.glob("checkpoints/*.ckpt"), *scores, *results) if p.exists()]
    if used:
        resume = as_argument("resume", folder)
        remedy = f", overwrite=true, or {resume} to continue a run" if is_training else ""
        raise ValueError(f"{used[0]} exists already: give another run_dir{remedy}")


def remove_run(folder: Path) -> None:
    """Removes what an earlier run left in the folder, for ``overwrite=true``."""
    names = ("metrics.json", "nonfinite.csv")
    for path in (*folder.glob("checkpoints/*.ckpt"), *(folder / name for name in names)):
        path.unlink(missing_ok=True)


def save_config(values: "PlainMapping", folder: Path) -> None:
    """Writes ``config.yaml``, from which a run is resumed; :func:`dpt.files.read_yaml` reads it
    back unchanged, but for passwords."""
    import yaml

    plain = map_strings(values, files.without_passwords)
    text = json.dumps(plain, ensure_ascii=False, default=str)
    readable = not re.search("[\x85\u2028\u2029\ufeff]", text)  # YAML takes these for line ends
    content = yaml.safe_dump(plain, sort_keys=False, allow_unicode=readable)
    files.write_bytes(folder / "config.yaml", content.encode())
