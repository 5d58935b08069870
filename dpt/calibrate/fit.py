"""Fits one scale and one shift from predictions to known depths; outliers are rejected."""

from __future__ import annotations

import numpy as np

from dpt.types import Calibration, CalibrationSpace

MIN_POINTS = 4
MIN_SPREAD = 1.05  # smallest ratio of far to near known depths that separates scale and shift
MARGIN = 10.0  # metres are clamped to the nearest known depth / MARGIN .. the farthest * MARGIN
START_POINTS = 1000  # points that the first estimate is made from; it takes quadratic time


def fit(
    prediction: np.ndarray, depth: np.ndarray, *, space: CalibrationSpace, with_shift: bool
) -> tuple[Calibration, np.ndarray]:
    """The scale and shift of smallest relative error.

    With the target t, 1/depth or depth as ``space`` says, a point's residual is
    (scale · prediction + shift) / t - 1: near and far points count alike. Siegel's repeated
    medians (1982), which tolerate almost one half of outliers, give a first estimate. Repeated
    least squares over the points within 2.5 standard deviations refines it (Rousseeuw and Leroy
    1987, chapters 1 and 5).

    Args:
        prediction: float (N,), as the model predicts.
        depth: float (N,), metres, above 0.
        space: in which to fit.
        with_shift: fit a shift too, not a scale alone.

    Returns:
        The calibration, and which points agree with it, bool (N,).

    Raises:
        ValueError: there are too few points, they do not determine the fit, or predictions decrease
            where the known values increase.
    """
    from scipy.stats import siegelslopes

    usable = np.isfinite(prediction)
    if usable.sum() < MIN_POINTS:
        raise ValueError(f"{usable.sum()} points of known depth: at least {MIN_POINTS} are needed")
    known, x = depth[usable], prediction[usable]
    target = 1 / known if space == "inverse_depth" else known
    columns = [x, np.ones(len(known))] if with_shift else [x]
    rows = np.stack(columns, axis=1) / target[:, None]
    if not with_shift:
        solution = np.array([np.nanmedian(target / np.where(x == 0, np.nan, x))])
    elif np.ptp(x) <= 1e-9 * np.abs(x).max():
        raise ValueError("the model predicts one value at all points, which determines no fit")
    else:
        few = np.random.default_rng(0).permutation(len(x))[:START_POINTS]
        slope, shift = siegelslopes(target[few], x[few])
        solution = np.array([slope, shift])
    deviation = 1.4826 * (1 + 5 / max(len(known) - len(columns), 1))  # of a median of one
    agrees = np.zeros(len(known), bool)
    for _ in range(100):
        before, residual = agrees, np.abs(rows @ solution - 1)
        agrees = residual <= 2.5 * max(deviation * float(np.median(residual)), 1e-6)
        if (agrees == before).all():
            break
        solution = np.linalg.lstsq(rows[agrees], np.ones(agrees.sum()), rcond=None)[0]
    near, far = np.quantile(known[agrees], [0.05, 0.95])
    if with_shift and far < MIN_SPREAD * near:
        raise ValueError(
            f"nearly all known depths lie between {near:.3g} and {far:.3g} m, where scale and "
            "shift cannot be told apart: add points that are nearer or farther"
        )
    if solution[0] <= 0:
        raise ValueError(
            f"predictions decrease where {space.replace('_', ' ')} increases: check that points "
            "and images belong together"
        )
    calibration = Calibration(
        scale=float(solution[0]),
        shift=float(solution[1]) if with_shift else 0.0,
        space=space,
        min_depth=float(known[agrees].min() / MARGIN),
        max_depth=float(known[agrees].max() * MARGIN),
    )
    inliers = np.zeros(len(depth), bool)
    inliers[usable] = agrees
    return calibration, inliers
