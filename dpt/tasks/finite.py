"""Steps whose loss or gradient is not finite: left out, counted, and written down."""

from __future__ import annotations

import csv
import logging
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger("dpt")

FILE = "nonfinite.csv"


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
        self, *, step: int, loss: float, norm: float, names: Sequence[str], rank: int, folder: Path
    ) -> None:
        """A step was not taken: its samples go to ``nonfinite.csv`` in ``folder``.

        Raises:
            ValueError: it was the last of too many in a row.
        """
        self.total += 1
        self.in_a_row += 1
        path = folder / FILE
        new = not path.exists()
        with path.open("a", newline="") as file:
            rows = csv.writer(file)
            if new:
                rows.writerow(["step", "rank", "loss", "gradient_norm", "sample"])
            rows.writerows([step, rank, loss, norm, name] for name in names)
        if self.total == 1 or self.total & (self.total - 1) == 0:  # 1, 2, 4, 8, ...
            log.warning(
                "step %d: loss %g, gradient norm %g: step skipped (%d so far); its samples are in "
                "%s", step, loss, norm, self.total, path,
            )  # fmt: skip
        if self.in_a_row >= self.limit:
            raise ValueError(
                f"loss or gradient not finite in {self.in_a_row} steps in a row; the samples are "
                f"in {path}. Look at those files (dpt data check), lower optim.lr, or use "
                f"trainer.precision=32-true; resume=RUN continues from the last checkpoint"
            )
