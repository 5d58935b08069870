"""Metres from known depths: a few measured points, sparse LiDAR, or another camera's depth.

>>> known = read_points("points.csv")
>>> report = calibrate(model, known)
>>> model.calibration = report.calibration
>>> model.save_pretrained("metres")
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from dpt.calibrate.fit import fit
from dpt.calibrate.points import Known, read_maps, read_points
from dpt.calibrate.report import Report, make_report
from dpt.data.resize import resize_image
from dpt.model import DPT

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
    points = [each.sample(predict_depth(model, each.read_image())) for each in known]
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


def predict_depth(model: DPT, image: np.ndarray) -> np.ndarray:
    """What the depth head says of a picture (H, W, 3), at its own size, as evaluation resizes."""
    rule = model.preprocessing
    size = rule.input_size(*image.shape[:2])
    shown = resize_image(image, size, rule=rule.interpolation)
    batch = torch.from_numpy(shown).permute(2, 0, 1)[None]
    with torch.inference_mode():
        depth = model(rule.normalize(batch))["depth"][None]
        whole = F.interpolate(depth, size=image.shape[:2], mode="bilinear", align_corners=False)
    return whole[0, 0].numpy()
