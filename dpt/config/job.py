"""Running a command's job in its folder: lock, log, and one line for a mistake.

Little is imported at the top: a command that fails must say so at once.
"""

import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dpt.files import MAX_MESSAGE, explain, reason, require_own_files, without_passwords
from dpt.process import is_first_rank, lack_of_memory

if TYPE_CHECKING:
    from dpt.validation import Plain

# errors that a user can correct: the message is printed, the stack trace goes to log.txt only
MISTAKES = (ValueError, OSError)
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


def run_job(job: str, folder: Path, make_values: "Callable[[], Plain]") -> dict[str, float]:
    """Calls ``job`` in the folder of its run, with its configuration as plain data.

    A user's mistake ends the process here: Hydra would print a line of its own about an exception.

    Args:
        job: ``module:function``.
        folder: made if it is missing; no other process may run in it.
        make_values: returns the configuration, once the folder is locked.

    Returns:
        The scores that the job returns, if any.
    """
    from filelock import FileLock, Timeout
    from lightning.fabric.utilities.exceptions import MisconfigurationException

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
        return vars(import_module(module))[name](make_values()) or {}
    except Exception as error:
        if is_first_rank():
            with (folder / "log.txt").open("a", errors="backslashreplace") as file:
                file.write(without_passwords(traceback.format_exc()))
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
