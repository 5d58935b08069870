"""The process of a command: signals, its output, its rank, its limits, and lack of memory.

Only the standard library is imported: signals are handled before anything slow is imported.
"""

import ctypes
import errno
import logging
import os
import re
import signal
import subprocess
import sys
import time
from _thread import start_new_thread  # takes no lock, unlike threading.Thread
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger("dpt")
"""Of the whole package."""
SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    SIGNALS.append(signal.SIGUSR1)
PATIENCE = 10.0  # seconds that a stopped command has to remove its temporary files
MAX_FILES = 1 << 16  # open at a time, where the system allows more
_SIZES = {"LOCAL_RANK": "WORLD_SIZE", "RANK": "WORLD_SIZE", "SLURM_PROCID": "SLURM_NTASKS"}
"""The rank and the number of processes of Lightning, torchrun and srun."""
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Stopped(SystemExit):
    """Raised by a signal: code 128 + N, and a line for the user."""

    def __init__(self, number: int, remark: str = "") -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name
        self.message = f"stopped by {self.name}{remark}"


def is_first_rank() -> bool:
    return all(os.environ.get(name, "0") == "0" for name in _SIZES)


def check_ranks() -> None:
    """Raises ValueError for a rank in the environment that no launcher has set."""
    for name, size in _SIZES.items():
        rank, ranks = os.environ.get(name, "0"), os.environ.get(size, "1")
        is_number = all(re.fullmatch("0|[1-9][0-9]{0,8}", text) for text in (rank, ranks))
        if rank != "0" and not (is_number and int(rank) < int(ranks)):
            raise ValueError(f"{name}={rank} must be a number below {size}={ranks}: unset it")


def raise_file_limit() -> None:
    """Allows as many open files as the system does: every tensor of a loader's worker is one."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
        if soft != resource.RLIM_INFINITY and soft < limit:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def lack_of_memory(error: BaseException) -> str | None:
    """Returns the short message of an error for lack of memory, or of the end of a loader's worker
    or of another rank, which mostly has this cause; None for other errors."""
    message = str(error)
    if isinstance(error, ImportError) and "failed to map segment" in message:
        return f"out of memory ({message.partition(':')[0]} cannot be loaded)"
    # torch.OutOfMemoryError of GPUs, and the RuntimeErrors of CPUs
    texts = "out of memory|can't allocate memory|size calculation overflowed|DataLoader worker"
    match = re.search(f"{texts}|DataLoader timed out|onnection closed by peer", message)
    if not isinstance(error, MemoryError) and not (match and isinstance(error, RuntimeError)):
        return None
    return message.rpartition("Allocator: ")[2].partition(". ")[0] or "out of memory"


def visible(text: str) -> str:
    """Returns the text with escapes in place of control characters, which a terminal would obey."""
    return _UNSEEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Prints visible text; the command goes on where the output is full or closed."""
    try:
        print(visible(text), flush=True)
    except OSError as error:
        if error.errno != errno.EPIPE:  # a reader such as head ends when it likes
            line = f"standard output: {error.strerror}: the command goes on without it"
            print(line, file=sys.stderr)
        _discard_output()


def flush_output() -> OSError | None:
    """Writes what was printed. Returns the error if that fails: the rest is dropped, since Python
    would print a trace about it at the end."""
    if sys.stdout is None:  # closed
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        return error
    return None


def _discard_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())  # takes what is left in buffers too
    os.close(null)


@contextmanager
def stoppable() -> Iterator[None]:
    """Makes ``SIGNALS`` raise :class:`Stopped` in the block, and then ends the process."""
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
    """Makes ``SIGNALS`` raise :class:`Stopped`; a second Ctrl-C ends the process at once.

    To be called again where a library has set handlers of its own.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    # SIGTERM may come twice: timeout(1) sends it to the process and to its group
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: end_now(Stopped(number)))
    start_new_thread(_limit_time, (number,))
    raise Stopped(number)


def _end_if_dropped(error: "sys.UnraisableHookArgs") -> None:
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


def requeue() -> str | None:
    """Asks SLURM to run this job, or this task of a job array, again.

    Returns what came of it; None outside of a SLURM job. Only the first rank asks.
    """
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or interactive or "SLURM_NTASKS" not in os.environ:
        return None
    if not is_first_rank():
        return ""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    code = subprocess.run(["scontrol", "requeue", job], check=False).returncode
    return f"scontrol requeue failed ({code})" if code else "SLURM starts the job again"


def end_with_parent() -> None:
    """Makes the kernel kill this process when its parent process ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
