"""One scale and one shift from predictions to known depths, in spite of wrong ones among them."""

from __future__ import annotations

import numpy as np

from dpt.types import Calibration, CalibrationSpace

MIN_POINTS = 4
MIN_SPREAD = 1.05
"""Ratio of far to near known depths from which a scale can be told from a shift."""
MARGIN = 10.0
"""Metres are held within the nearest known depth over this and the farthest times this."""
HYPOTHESES = 500
SCORED = 5000
"""Points that hypotheses are judged by, of those there are."""
BIWEIGHT = 4.685
"""Tukey's constant: nineteen twentieths of least squares' precision on normal errors."""


def fit(
    prediction: np.ndarray, depth: np.ndarray, *, space: CalibrationSpace, with_shift: bool
) -> tuple[Calibration, np.ndarray]:
    """The scale and shift of smallest relative error, robustly.

    With the target t, 1/depth or depth as ``space`` says, a point's residual is
    (scale · prediction + shift) / t - 1: near and far count alike. Least median of squares
    (Rousseeuw 1984) over random pairs of points finds what half of the points agree on; Tukey's
    biweight, iterated, refines it on all that agree.

    Args:
        prediction: float (N,), as the model predicts.
        depth: float (N,), metres, above 0.
        space: in which to fit.
        with_shift: fit a shift too, not a scale alone.

    Returns:
        The calibration, and which points agree with it, bool (N,).

    Raises:
        ValueError: there are too few points, they do not determine the fit, or predictions run
            against the known depths.
    """
    usable = np.isfinite(prediction)
    if usable.sum() < MIN_POINTS:
        raise ValueError(f"{usable.sum()} points of known depth: at least {MIN_POINTS} are needed")
    known = depth[usable]
    target = 1 / known if space == "inverse_depth" else known
    columns = [prediction[usable], np.ones(len(known))] if with_shift else [prediction[usable]]
    rows = np.stack(columns, axis=1) / target[:, None]
    solution = _least_median(rows)
    sigma = _deviation(rows @ solution - 1, rows.shape[1])
    agrees = np.abs(rows @ solution - 1) <= 2.5 * sigma
    if with_shift:
        _check_spread(known[agrees])
    for _ in range(100):
        off = (rows @ solution - 1) / (BIWEIGHT * sigma)
        root = np.clip(1 - off**2, 0, None)  # of Tukey's weight
        refined = np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0]
        done = np.allclose(refined, solution, rtol=1e-9, atol=1e-15)
        solution = refined
        if done:
            break
    if solution[0] <= 0:
        raise ValueError(
            f"predictions fall where {space.replace('_', ' ')} grows: check that points and images "
            "belong together"
        )
    agrees = np.abs(rows @ solution - 1) <= 2.5 * sigma
    inliers = np.zeros(len(depth), bool)
    inliers[usable] = agrees
    return (
        Calibration(
            scale=float(solution[0]),
            shift=float(solution[1]) if with_shift else 0.0,
            space=space,
            min_depth=float(known[agrees].min() / MARGIN),
            max_depth=float(known[agrees].max() * MARGIN),
        ),
        inliers,
    )


def _check_spread(depth: np.ndarray) -> None:
    """Raises ValueError where the depths that agree are all alike."""
    near, far = np.quantile(depth, [0.05, 0.95])
    if far < MIN_SPREAD * near:
        raise ValueError(
            f"nearly all known depths lie between {near:.3g} and {far:.3g} m, where scale and "
            "shift cannot be told apart: add points that are nearer or farther"
        )


def _least_median(rows: np.ndarray) -> np.ndarray:
    """Of solutions through as many random points as there are unknowns, the one of least median."""
    random = np.random.default_rng(0)
    unknowns = rows.shape[1]
    chosen = rows[random.integers(0, len(rows), (HYPOTHESES, unknowns))]
    size = np.abs(chosen).prod(axis=2).max(axis=1) if unknowns > 1 else 1.0
    solvable = np.abs(np.linalg.det(chosen)) > 1e-9 * size
    if not solvable.any():
        raise ValueError("the model predicts one value at all points: nothing can be fitted to it")
    solutions = np.linalg.solve(chosen[solvable], np.ones((solvable.sum(), unknowns, 1)))[..., 0]
    judges = rows if len(rows) <= SCORED else rows[random.permutation(len(rows))[:SCORED]]
    medians = [np.median(np.abs(judges @ solution - 1)) for solution in solutions]
    return solutions[int(np.argmin(medians))]


def _deviation(residual: np.ndarray, unknowns: int) -> float:
    """The standard deviation of what agrees (Rousseeuw and Leroy 1987, chapter 5, eq. 1.3)."""
    few = 1 + 5 / max(len(residual) - unknowns, 1)
    return max(1.4826 * few * float(np.median(np.abs(residual))), 1e-6)
