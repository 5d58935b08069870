"""How far predictions are from known depths, before and after a calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpt.calibrate.points import Known
from dpt.types import Calibration

SHOWN = 20
"""Images in the printed table: those with the largest error."""
POOR = 0.15


@dataclass(frozen=True)
class Residuals:
    """Of one image, or of all.

    Attributes:
        name: of the image.
        points: known depths.
        inliers: share of them that agree with the fit.
        abs_rel: mean |predicted - known| / known of all points, before and after.
        rmse: root mean square of predicted - known of all points, metres, before and after.
    """

    name: str
    points: int
    inliers: float
    abs_rel: tuple[float, float]
    rmse: tuple[float, float]


@dataclass(frozen=True)
class Report:
    """A calibration and what it achieves.

    Attributes:
        calibration: to be set as ``model.calibration``.
        before: what the first of each pair of errors is of.
        images: residuals of each image.
        overall: residuals of all points together.
    """

    calibration: Calibration
    before: str
    images: tuple[Residuals, ...]
    overall: Residuals

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        shown = sorted(self.images, key=lambda r: -r.abs_rel[1])[:SHOWN]
        width = max(len("all images"), *(len(r.name) for r in shown))
        yield f"{'image':{width}}  points  inliers  abs_rel before  after  rmse (m) before  after"
        rows = [*shown, self.overall] if len(self.images) > 1 else shown
        for r in rows:
            yield (
                f"{r.name:{width}}  {r.points:6d}  {r.inliers:7.1%}  {r.abs_rel[0]:14.3f}  "
                f"{r.abs_rel[1]:5.3f}  {r.rmse[0]:15.3f}  {r.rmse[1]:5.3f}"
            )
        if left := len(self.images) - len(shown):
            yield f"({left} images with smaller errors are not shown)"
        c = self.calibration
        what = "1 / depth" if c.space == "inverse_depth" else "depth"
        shift = f" {'-' if c.shift < 0 else '+'} {abs(c.shift):.6g}" if c.shift else ""
        yield f"before: {self.before}"
        yield (
            f"fit:    {what} = {c.scale:.6g} x prediction{shift}, "
            f"held within {c.min_depth:.3g} and {c.max_depth:.3g} m"
        )
        if self.overall.abs_rel[1] > POOR:
            yield (
                f"note:   depth is still off by {self.overall.abs_rel[1]:.0%} on average: the "
                "points, or the model, do not agree on one scale"
            )


def make_report(
    known: Sequence[Known],
    prediction: np.ndarray,
    *,
    calibration: Calibration,
    inliers: np.ndarray,
    before: Calibration | None,
) -> Report:
    """The residuals of a fit.

    Args:
        known: of each image.
        prediction: float (N,), at the points of all images in their order.
        calibration, inliers: see :func:`dpt.calibrate.fit.fit`.
        before: the calibration that this one replaces.
    """
    depth = np.concatenate([each.depth for each in known])
    label = "the calibration that was there"
    if before is None:
        label = "as the model predicts"
        scale = 1.0
        if calibration.space == "inverse_depth":
            label = "1 / prediction, scaled by the medians (it has no unit)"
            scale = float(np.median(1 / depth) / max(np.median(prediction), 1e-9))
        limits = {"min_depth": calibration.min_depth, "max_depth": calibration.max_depth}
        before = Calibration(scale=scale, space=calibration.space, **limits)
    values = torch.from_numpy(np.asarray(prediction, np.float64))
    pair = (before.to_metres(values).numpy(), calibration.to_metres(values).numpy())

    def residuals(name: str, part: slice) -> Residuals:
        first, second = ((found - depth)[part] for found in pair)

        def both(score: Callable[[np.ndarray], np.floating]) -> tuple[float, float]:
            return float(score(first)), float(score(second))

        return Residuals(
            name,
            points=len(depth[part]),
            inliers=float(inliers[part].mean()),
            abs_rel=both(lambda off: np.mean(np.abs(off) / depth[part])),
            rmse=both(lambda off: np.sqrt(np.mean(off**2))),
        )

    ends = np.cumsum([len(each.depth) for each in known])
    parts = [slice(int(e) - len(k.depth), int(e)) for k, e in zip(known, ends, strict=True)]
    filled = [(k, p) for k, p in zip(known, parts, strict=True) if len(k.depth)]
    return Report(
        calibration=calibration,
        before=label,
        images=tuple(residuals(each.image.name, part) for each, part in filled),
        overall=residuals("all images", slice(None)),
    )
