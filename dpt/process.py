"""The process of a command: how signals end it, and which of several ranks it is.

Only the standard library is imported: signals are handled before anything slow is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 10.0
"""Seconds that a stopped command has to remove its temporary files."""

_guards: list[Timer] = []
_RANKS = ("LOCAL_RANK", "RANK", "SLURM_PROCID")  # of Lightning, torchrun, srun


class Stopped(SystemExit):
    """Raised by a signal: code 128 + N, and a line for the user."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.message = f"stopped by {signal.Signals(number).name}"


def is_first_rank() -> bool:
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block by :class:`Stopped`, and its child processes with it."""
    before = [signal.getsignal(number) for number in SIGNALS]
    handle_signals()
    try:
        yield
    except Stopped as reason:
        kill_children()
        report(reason)
        raise
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
        while _guards:
            _guards.pop().cancel()


def handle_signals() -> None:
    """Ctrl-C and SIGTERM raise :class:`Stopped`; a second Ctrl-C ends the process at once.

    To be called again where a library has set handlers of its own.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in SIGNALS:  # SIGTERM may come twice: timeout(1) sends it to the process and its group
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: end_now(Stopped(number)))
    guard = Timer(PATIENCE, end_now, [Stopped(number)])  # if a library hangs or drops the exception
    guard.daemon = True
    guard.start()
    _guards.append(guard)
    raise Stopped(number)


def end_now(reason: Stopped) -> None:
    """Ends the process without any clean-up, and its child processes."""
    report(reason)
    kill_children()
    os._exit(int(reason.code or 0))


def report(reason: Stopped) -> None:
    """Prints why the command ends, once for all ranks."""
    if is_first_rank():
        print(reason.message, file=sys.stderr, flush=True)


def kill_children() -> None:
    """Kills the daemon processes of ``multiprocessing``, such as loader workers."""
    if "multiprocessing" not in sys.modules:
        return
    import multiprocessing

    if sys.platform != "win32" and current_thread() is main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise an error for each
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def end_with_parent() -> None:
    """This process is killed when the one that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
