"""Steps whose loss or gradient is not finite: left out, counted, and written down."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpt.atomic import write_bytes

log = logging.getLogger("dpt")

FILE = "nonfinite.csv"
HEADER = ["step", "rank", "loss", "gradient_norm", "sample"]


class SkippedSteps:
    """How many steps were skipped, and how many of them in a row.

    Args:
        limit: skipped steps in a row after which the run stops.
    """

    def __init__(self, *, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"max_skipped_steps={limit} must be at least 1")
        self.limit = limit
        self.total = 0
        self.in_a_row = 0

    def passed(self) -> None:
        """A step was taken."""
        self.in_a_row = 0

    def add(
        self,
        *,
        step: int,
        norm: float,
        batches: Sequence[tuple[float, Sequence[str]]],
        rank: int,
        folder: Path,
    ) -> None:
        """A step was not taken: its samples go to ``nonfinite.csv`` in ``folder``.

        Args:
            step: steps before it.
            norm: of its gradient.
            batches: loss and samples of every batch that it would have learned from.
            rank: of this process.
            folder: of the run.

        Raises:
            ValueError: it was the last of too many in a row.
        """
        self.total += 1
        self.in_a_row += 1
        path = folder / FILE
        with path.open("a", newline="") as file:
            rows = csv.writer(file)
            if file.tell() == 0:
                rows.writerow(HEADER)
            for loss, names in batches:
                rows.writerows([step, rank, loss, norm, name] for name in names)
        if self.total == 1 or self.total & (self.total - 1) == 0:  # 1, 2, 4, 8, ...
            losses = [f"{loss:g}" for loss, _ in batches]
            log.warning(
                "step %d: loss %s, gradient norm %g: step skipped (%d so far); its samples are in "
                "%s", step, ", ".join(losses), norm, self.total, path,
            )  # fmt: skip
        if self.in_a_row >= self.limit:
            raise ValueError(
                f"loss or gradient not finite in {self.in_a_row} steps in a row; the samples are "
                f"in {path}. Look at those files (dpt data check), lower optim.lr, or use "
                f"trainer.precision=32-true; resume=RUN continues from the last checkpoint"
            )


class NormStatistics:
    """BatchNorm's running statistics, which a forward pass has changed before its loss is known.

    Args:
        model: is not to change its layers any more.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self.buffers = [b for norm in norms for b in norm.buffers()]
        self.kept = [b.clone() for b in self.buffers]

    def after_step(self, *, taken: bool) -> None:
        """Keeps them, or puts back those of the last step that was taken."""
        source, target = (self.buffers, self.kept) if taken else (self.kept, self.buffers)
        for a, b in zip(source, target, strict=True):
            b.copy_(a)


def forget_later(folder: Path, step: int) -> None:
    """Takes the steps from ``step`` on, which will be done again, out of ``nonfinite.csv``."""
    path = folder / FILE
    if path.is_file():
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row and row != HEADER]
        text = StringIO(newline="")
        csv.writer(text).writerows([HEADER, *(row for row in rows if int(row[0]) < step)])
        write_bytes(path, text.getvalue().encode())
