"""Metres from known depths: a few measured points, sparse LiDAR, or another camera's depth.

>>> known = read_points("points.csv")
>>> report = calibrate(model, known)
>>> model.calibration = report.calibration
>>> model.save_pretrained("metres")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpt.calibrate.fit import fit
from dpt.calibrate.points import Known, read_maps, read_points
from dpt.model import DPT
from dpt.predict import Predictor
from dpt.types import Calibration

__all__ = ["Known", "Report", "Residuals", "calibrate", "read_maps", "read_points"]

SHOWN = 20  # images in the printed table: those with the largest error
POOR = 0.15  # mean relative error above which the report warns


@dataclass(frozen=True)
class Residuals:
    """Errors of one image or of all. Pairs are before and after the calibration."""

    name: str
    points: int  # known depths
    inliers: float  # share of them that agree with the fit
    abs_rel: tuple[float, float]  # mean |predicted - known| / known of all points
    rmse: tuple[float, float]  # root mean square of predicted - known of all points, metres

    def __str__(self) -> str:
        return (
            f"{self.points:6d}  {self.inliers:7.1%}  {self.abs_rel[0]:14.3f}  "
            f"{self.abs_rel[1]:5.3f}  {self.rmse[0]:15.3f}  {self.rmse[1]:5.3f}"
        )


@dataclass(frozen=True)
class Report:
    """A calibration and its errors; ``str(report)`` is a table.

    Attributes:
        calibration: to be set as ``model.calibration``.
        before: what the errors before the calibration refer to.
        images: errors of each image.
        overall: errors of all points together.
    """

    calibration: Calibration
    before: str
    images: tuple[Residuals, ...]
    overall: Residuals

    def __str__(self) -> str:
        shown = sorted(self.images, key=lambda r: -r.abs_rel[1])[:SHOWN]
        width = max(len("all images"), *(len(r.name) for r in shown))
        lines = [
            f"{'image':{width}}  points  inliers  abs_rel before  after  rmse (m) before  after"
        ]
        lines += [f"{r.name:{width}}  {r}" for r in (*shown, self.overall)]
        if left := len(self.images) - len(shown):
            lines.append(f"({left} images with smaller errors are not shown)")
        c = self.calibration
        what = "1 / depth" if c.space == "inverse_depth" else "depth"
        shift = f" {'-' if c.shift < 0 else '+'} {abs(c.shift):.6g}" if c.shift else ""
        lines.append(f"before: {self.before}")
        lines.append(
            f"fit:    {what} = {c.scale:.6g} x prediction{shift}, "
            f"clamped to {c.min_depth:.3g}..{c.max_depth:.3g} m"
        )
        if self.overall.abs_rel[1] > POOR:
            lines.append(
                f"note:   the mean error is still {self.overall.abs_rel[1]:.0%}: the points or the "
                "predictions do not agree on one scale"
            )
        return "\n".join(lines)


def calibrate(model: DPT, known: Sequence[Known], *, with_shift: bool | None = None) -> Report:
    """Fits one scale and shift from the model's predictions to known depths, over all images.

    A relative model predicts inverse depth whose scale and shift may differ between images. One
    calibration for all is accurate as far as they do not: for one camera in one kind of place.

    Args:
        model: has a depth head. It is not changed, and its present calibration is not used.
        known: depths of at least a few pixels.
        with_shift: fit a shift beside the scale; None does so for relative models alone.

    Raises:
        ValueError: the model has no depth head, or the known depths do not determine the fit.
    """
    spec = next((spec for spec in model.outputs.values() if spec.kind == "depth"), None)
    if spec is None:
        raise ValueError(f"nothing to calibrate: the heads are {', '.join(model.heads)}, no depth")
    if not known:
        raise ValueError("nothing to calibrate: there are no images with known depths")
    predictor = Predictor(model)
    predictor.calibration = None
    parts: list[np.ndarray] = []
    for each in known:
        predicted = predictor(each.read_image()).depth
        assert predicted is not None
        parts.append(each.sample(predicted))
    prediction = np.concatenate(parts).astype(np.float64)
    depth = np.concatenate([each.depth for each in known])
    calibration, inliers = fit(
        prediction,
        depth,
        space="inverse_depth" if spec.is_inverse_depth else "depth",
        with_shift=spec.is_inverse_depth if with_shift is None else with_shift,
    )
    before, label = model.calibration, "the previous calibration"
    if before is None:
        label, scale = "the model's prediction", 1.0
        if spec.is_inverse_depth:
            label = "1 / prediction, scaled by the medians (it has no unit)"
            scale = float(np.median(1 / depth) / max(np.median(prediction), 1e-9))
        limits = {"min_depth": calibration.min_depth, "max_depth": calibration.max_depth}
        before = Calibration(scale=scale, space=calibration.space, **limits)
    values = torch.from_numpy(prediction)
    errors = np.stack([c.to_metres(values).numpy() - depth for c in (before, calibration)])

    def residuals(name: str, where: np.ndarray | slice) -> Residuals:
        off, true = errors[:, where], depth[where]
        first, second = (np.abs(off) / true).mean(1).tolist()
        rmse = np.sqrt((off**2).mean(1)).tolist()
        share = float(inliers[where].mean())
        return Residuals(name, len(true), share, (first, second), (rmse[0], rmse[1]))

    owner = np.repeat(np.arange(len(known)), [len(each.depth) for each in known])
    images = tuple(residuals(known[i].image.name, owner == i) for i in np.unique(owner))
    return Report(calibration, label, images, residuals("all images", slice(None)))
