"""Parts of the inputs for workers on many machines, and the journal of each worker.

A worker writes the files of its own part and appends to its own journal below ``shards/`` in the
output folder. ``dpt predict --merge`` joins the journals.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import filelock

from dpt.files import DataError
from dpt.predict.records import JOURNALS

T = TypeVar("T")

LAUNCHERS = {
    "slurm": ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    "torchrun": ("RANK", "WORLD_SIZE", ""),
    "kubernetes": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
}
"""The variables of each launcher: number of this worker, number of workers, and the first number,
which is 0 without a variable."""


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts of a list; ``number`` is in 1..count."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def file_name(self) -> str:
        """The name of the shard's files, without suffix."""
        return f"{self.number}-of-{self.count}"

    def part(self, items: Sequence[T]) -> list[T]:
        """Returns every ``count``-th item: large items that follow one another are divided."""
        return list(items[self.number - 1 :: self.count])

    @classmethod
    def parse(cls, text: str) -> "Shard | None":
        """Returns the shard that ``3/16`` or ``3-of-16`` names; None for other texts."""
        match = re.fullmatch(r"([1-9]\d{0,8})(?:/|-of-)([1-9]\d{0,8})", text)
        shard = cls(int(match[1]), int(match[2])) if match else None
        return shard if shard and shard.number <= shard.count else None

    @classmethod
    def chosen(cls, text: str, environment: Mapping[str, str] = os.environ) -> "Shard":
        """Returns the shard of ``--shard text``: K/N, a launcher's name, or ``auto`` for the only
        launcher whose variables are set."""
        if shard := cls.parse(text):
            return shard
        launchers = [text] if text in LAUNCHERS else []
        if text == "auto":
            launchers = [name for name, names in LAUNCHERS.items() if names[0] in environment]
        if not launchers and text != "auto":
            choices = ", ".join((*LAUNCHERS, "auto"))
            raise ValueError(f"--shard {text}: write K/N with K in 1..N, or one of {choices}")
        if len(launchers) != 1:
            found = " and ".join(LAUNCHERS[name][0] for name in launchers) or "no launcher's number"
            raise ValueError(f"--shard {text}: found {found} in the environment: write K/N")
        names = LAUNCHERS[launchers[0]]
        values = {name: environment.get(name, "0" if name == names[2] else "") for name in names}
        if all(re.fullmatch(r"\d{1,9}", values[name]) for name in names if name):
            first = int(values[names[2]] or 0)
            number, count = int(values[names[0]]) - first + 1, int(values[names[1]])
            if shard := cls.parse(f"{number}/{count}"):
                return shard
        found = ", ".join(f"{name}={values[name] or 'nothing'}" for name in names if name)
        raise ValueError(f"--shard {text}: found {found}, must be consecutive numbers: write K/N")


def shards_of(folder: Path) -> list[Shard]:
    """Returns the shards that have a journal in an output folder."""
    shards = [Shard.parse(path.stem) for path in (folder / JOURNALS).glob("*.jsonl")]
    found = [shard for shard in shards if shard is not None]
    return sorted(found, key=lambda shard: (shard.count, shard.number))


@contextmanager
def held(folder: Path, shard: Shard | None) -> Iterator[None]:
    """Keeps other processes from working on the same inputs of an output folder.

    Raises:
        DataError: a live process works on ``shard`` or on one of another division. Without
            ``shard``, on any.
    """
    with ExitStack() as stack:
        others = [s for s in shards_of(folder) if shard is None or s.count != shard.count]
        for each in [*others, *([] if shard is None else [shard])]:
            path = folder / JOURNALS / f"{each.file_name}.lock"
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock = stack.enter_context(filelock.FileLock(path, blocking=False))
            except filelock.Timeout:
                fault = f"another process predicts shard {each}"
                raise DataError(f"{path}: {fault}: wait until it has ended, or stop it") from None
            if each != shard:
                lock.release()
        yield
