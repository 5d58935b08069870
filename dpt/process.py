"""The process of a command: how signals end it, its rank, and errors for lack of memory.

Only the standard library is imported: signals are handled before anything slow is imported.
"""

import ctypes
import os
import re
import signal
import sys
import time
from _thread import start_new_thread  # takes no lock, unlike threading.Thread
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0  # seconds that a stopped command has to remove its temporary files
_RANKS = ("LOCAL_RANK", "RANK", "SLURM_PROCID")  # of Lightning, torchrun, srun


class Stopped(SystemExit):
    """Raised by a signal: code 128 + N, and a line for the user."""

    def __init__(self, number: int, remark: str = "") -> None:
        super().__init__(128 + number)
        self.message = f"stopped by {signal.Signals(number).name}{remark}"


def is_first_rank() -> bool:
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def lack_of_memory(error: BaseException) -> str | None:
    """The short message of an error for lack of memory; None for other errors."""
    message = str(error)
    # torch.OutOfMemoryError of GPUs, and the RuntimeErrors of CPUs
    found = re.search("out of memory|can't allocate memory|size calculation overflowed", message)
    if not isinstance(error, MemoryError) and not (found and isinstance(error, RuntimeError)):
        return None
    return message.rpartition("Allocator: ")[2].partition(". ")[0] or "out of memory"


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise :class:`Stopped` in the block, and then end the process."""
    before = [signal.getsignal(number) for number in SIGNALS]
    hook, sys.unraisablehook = sys.unraisablehook, _end_if_dropped
    handle_signals()
    try:
        yield
    except Stopped as reason:
        end_now(reason)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
        sys.unraisablehook = hook


def handle_signals() -> None:
    """Ctrl-C and SIGTERM raise :class:`Stopped`; a second Ctrl-C ends the process at once.

    To be called again where a library has set handlers of its own.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # SIGTERM may come twice: timeout(1) sends it to the process and to its group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: end_now(Stopped(number)))
    start_new_thread(_limit_time, (number,))
    raise Stopped(number)


def _end_if_dropped(error: Any) -> None:
    """Ends the process if Python drops :class:`Stopped`, as it does in ``__del__``."""
    if isinstance(error.exc_value, Stopped):
        end_now(error.exc_value)
    sys.__unraisablehook__(error)


def _limit_time(number: int) -> None:
    """Ends a stopped process if a library hangs or drops the exception."""
    time.sleep(PATIENCE)
    end_now(Stopped(number))


def end_now(reason: Stopped) -> None:
    """Ends the process; the first rank prints why.

    Python's own clean-up is left out: it may wait for ever for a loader's worker.
    """
    try:
        if is_first_rank():
            print(reason.message, file=sys.stderr, flush=True)
        sys.stdout.flush()
    finally:
        os._exit(int(reason.code or 0))


def flush_output() -> OSError | None:
    """Writes what was printed; the error if that fails, and what is left is dropped: Python would
    print a trace about it at the end."""
    if sys.stdout is None:  # closed
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def end_with_parent() -> None:
    """Makes the kernel kill this process when its parent process ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
