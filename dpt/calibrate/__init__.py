"""Metres from known depths: a few measured points, sparse LiDAR, or another camera's depth.

>>> known = read_points("points.csv")
>>> report = calibrate(model, known)
>>> model.calibration = report.calibration
>>> model.save_pretrained("metres")
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpt.calibrate.fit import fit
from dpt.calibrate.points import Known, read_maps, read_points
from dpt.calibrate.report import Report, make_report
from dpt.model import DPT
from dpt.predict import Predictor

__all__ = ["Known", "Report", "calibrate", "read_maps", "read_points"]


def calibrate(model: DPT, known: Sequence[Known], *, with_shift: bool | None = None) -> Report:
    """Fits one scale and shift from what ``model`` predicts to what is known, over all images.

    A relative model predicts inverse depth whose scale and shift may differ from image to image.
    One calibration for all holds as far as they do not: for one camera in one kind of place.

    Args:
        model: has a depth head; it is left as it is, and what it was calibrated to is not used.
        known: depths of at least a few pixels.
        with_shift: fit a shift beside the scale; None does so for relative models alone.

    Raises:
        ValueError: the model has no depth head, or the known depths do not determine the fit.
    """
    if "depth" not in model.heads:
        raise ValueError(f"nothing to calibrate: this model has {', '.join(model.heads)}, no depth")
    relative = model.spec["heads"]["depth"].get("kind", "relative") == "relative"
    predictor = Predictor(model)
    predictor.calibration = None  # what the model itself says

    def predicted(each: Known) -> np.ndarray:
        depth = predictor(each.read_image()).depth
        assert depth is not None
        return each.sample(depth)

    points = [predicted(each) for each in known]
    prediction = np.concatenate(points) if points else np.zeros(0)
    depth = np.concatenate([each.depth for each in known]) if known else np.zeros(0)
    calibration, inliers = fit(
        prediction,
        depth,
        space="inverse_depth" if relative else "depth",
        with_shift=relative if with_shift is None else with_shift,
    )
    return make_report(
        known, prediction, calibration=calibration, inliers=inliers, before=model.calibration
    )
