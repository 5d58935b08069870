"""Scores of one image by the names that several projects share."""

import math
from collections.abc import Callable, Mapping

from dpt.metrics.rules.moments import Moments

Errors = Mapping[str, Callable[[Moments], float]]

DELTAS: Errors = {
    "delta1": lambda m: m.delta1,
    "delta2": lambda m: m.delta2,
    "delta3": lambda m: m.delta3,
}
COMMON: Errors = {
    "abs_rel": lambda m: m.abs_rel,
    "rmse": lambda m: math.sqrt(m.square),
    "rmse_log": lambda m: math.sqrt(m.log_square),
    "log10": lambda m: m.log_absolute / math.log(10),
    "silog": lambda m: 100 * m.silog(),
    **DELTAS,
}
EIGEN: Errors = {**COMMON, "sq_rel": lambda m: m.sq_rel}
"""What most projects report, as in the BTS evaluation (Lee et al. 2019)."""
