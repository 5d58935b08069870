"""Metres from known depths: a few measured points, sparse LiDAR, or another camera's depth.

>>> known = read_points("points.csv")
>>> report = calibrate(model, known)
>>> model.calibration = report.calibration
>>> model.save_pretrained("metres")
"""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch

from dpt.data.datasets.folder import scan
from dpt.data.formats import io, pictures
from dpt.files import DataError, path_below
from dpt.geometry import aspects_agree
from dpt.model import DPT
from dpt.predict import Predictor, inputs
from dpt.types.outputs import OutputSpec
from dpt.types.preprocessing import Calibration, CalibrationSpace
from dpt.validation import MAX_METRES

POINTS_PER_IMAGE = 2000  # sampled from a depth map: enough to fit a scale and a shift
MIN_POINTS = 4
ROBUST_POINTS = 12  # with fewer points, outliers are not rejected: all points are fitted
METRES = (0.05, 200.0)  # known depths with a median outside this range are not in metres
MIN_SPREAD = 1.05  # smallest ratio of far to near known depths that separates scale and shift
MARGIN = 10.0  # metres are clamped to the nearest known depth / MARGIN .. the farthest * MARGIN
START_POINTS = 1000  # most points of the first estimate, which takes quadratic time
POOR = 0.15  # mean relative error above which the report warns


@dataclass(frozen=True, eq=False)
class KnownDepths:
    """The known depths of one image."""

    image: Path
    x: np.ndarray  # float (N,), fraction of the width, in 0..1
    y: np.ndarray  # float (N,), fraction of the height
    depth: np.ndarray  # float (N,), metres
    exif: bool  # whether the points refer to the image rotated upright, as viewers show it

    def sample(self, values: np.ndarray) -> np.ndarray:
        """Returns the nearest of ``values`` (H, W) at each point: (N,)."""
        height, width = values.shape
        rows = np.minimum((self.y * height).astype(int), height - 1)
        columns = np.minimum((self.x * width).astype(int), width - 1)
        return values[rows, columns]


def read_points(path: str | Path, *, images: str | Path | None = None) -> list[KnownDepths]:
    """Reads known depths from a table with the columns ``image, x, y, depth_m``, in any order.

    Args:
        path: the CSV file. ``x`` and ``y`` are in pixels from the image's upper left, from 0.
        images: the folder in which the images are; None: the folder of the table.

    Raises:
        DataError: a column is missing, a value is not a number, an image is outside of the
            folder, or a point is outside its image.
    """
    folder = Path(path).parent if images is None else Path(images)
    sizes: dict[Path, tuple[int, int]] = {}
    points: dict[Path, list[list[float]]] = {}
    for where, (name,), (x, y, depth) in inputs.read_points(path, "image"):
        image = path_below(folder, name, path)
        if image not in sizes:
            sizes[image] = pictures.upright_size(image)
        height, width = sizes[image]
        inputs.require_inside(where, x, y, sizes[image])
        points.setdefault(image, []).append([(x + 0.5) / width, (y + 0.5) / height, depth])
    known_depths = []
    for image, rows in points.items():
        x, y, metres = np.array(rows).T
        known_depths.append(KnownDepths(image, x, y, metres, exif=True))
    return known_depths


def read_maps(
    images: str | Path, depth: str | Path, *, scale: float = 0.001, invalid: Sequence[float] = (0,)
) -> list[KnownDepths]:
    """Reads known depths from dense or sparse maps of the image's aspect ratio, by file stem.

    Of an image that its EXIF orientation turns, maps fit the stored or the upright pixels.

    Args:
        images, depth: folders; searched with their sub-folders.
        scale: metres = value in the file × scale; 0.001 for millimetres, as in ``data=folder``.
        invalid: values in the file that mean "not measured".

    Raises:
        DataError: a folder is empty, no names match, a file cannot be read, or a map has another
            aspect ratio than its image, or that of its stored and of its upright pixels.
    """
    image_files = scan(Path(images), "%stem", io.IMAGE_SUFFIXES, option="--images")
    depth_files = scan(Path(depth), "%stem", io.DEPTH_SUFFIXES, option="--depth")
    pairs = [(image_files[key], depth_files[key]) for key in image_files if key in depth_files]
    if not pairs:
        raise DataError(f"no file of {images} has the stem of one of {depth}: name them alike")
    return [_read_map(*pair, scale=scale, invalid=invalid) for pair in pairs]


def _read_map(image: Path, file: Path, *, scale: float, invalid: Sequence[float]) -> KnownDepths:
    """Reads a depth map; more than ``POINTS_PER_IMAGE`` values are sampled."""
    metres, valid = io.read_depth(file, scale=scale, invalid=invalid)
    (height, width), stored = metres.shape, pictures.read_size(image)
    orientation = pictures.exif_orientation(image)
    fits_stored = aspects_agree(metres.shape, stored)
    fits_upright = aspects_agree(metres.shape, pictures.upright_size(image))
    if not (fits_stored or fits_upright) or (fits_stored and fits_upright and orientation != 1):
        shape = f"{width}x{height} (width x height)"
        other = f"{image}, {stored[1]}x{stored[0]}, EXIF orientation {orientation}"
        raise DataError(f"{file}: {shape} does not tell how it fits {other}: save both upright")
    indices = np.flatnonzero(valid)
    if len(indices) > POINTS_PER_IMAGE:
        random = np.random.default_rng(zlib.crc32(os.fsencode(image.name)))
        indices = np.sort(random.choice(indices, POINTS_PER_IMAGE, replace=False))
    y, x = np.divmod(indices, width)
    depth = metres.flat[indices].astype(float)
    return KnownDepths(image, (x + 0.5) / width, (y + 0.5) / height, depth, exif=fits_upright)


@dataclass(frozen=True)
class Residuals:
    """Errors of one image or of all, with the calibration."""

    name: str
    points: int  # known depths
    inliers: float  # fraction of them that agree with the fit
    abs_rel: float  # mean |predicted - known| / known of all points
    rmse: float  # root mean square of predicted - known of all points, metres


@dataclass(frozen=True)
class Report:
    """A calibration and its errors; ``str(report)`` is a table."""

    calibration: Calibration
    images: tuple[Residuals, ...]
    overall: Residuals  # of all points
    was_metric: bool  # whether the model predicts metres without a calibration

    def __str__(self) -> str:
        rows = (*sorted(self.images, key=lambda r: -r.abs_rel), self.overall)
        width = max(len(r.name) for r in rows)
        lines = [f"{'image':{width}}  points  inliers  abs_rel  rmse (m)"]
        lines += [
            f"{r.name:{width}}  {r.points:6d}  {r.inliers:7.1%}  {r.abs_rel:7.3f}  {r.rmse:8.3f}"
            for r in rows
        ]
        c = self.calibration
        if self.was_metric and not 0.2 < c.scale < 5:
            lines.append("note:   this model predicts metres already: check the unit of the depths")
        what = "1 / depth" if c.space == "inverse_depth" else "depth"
        lines.append(
            f"fit:    {what} = {c.scale:.6g} x prediction {c.shift:+.6g}, "
            f"clamped to {c.min_depth:.3g}..{c.max_depth:.3g} m"
        )
        if self.overall.abs_rel > POOR:
            error = f"the mean error is {self.overall.abs_rel:.0%}"
            lines.append(f"note:   {error}: points and predictions do not agree on one scale")
        return "\n".join(lines)


def calibrate(model: DPT, known: Sequence[KnownDepths]) -> Report:
    """Fits a scale, and for inverse depth a shift, from predictions to known depths.

    One calibration serves all images, although scale and shift of relative depth may differ
    between them: it is accurate for one camera in one kind of place. The model is not changed, and
    its present calibration is not used.

    Raises:
        ValueError: the model has no depth head or predicts NaN, or the known depths are not in
            metres or do not determine the fit.
    """
    spec = next((spec for spec in model.outputs.values() if spec.kind == "depth"), None)
    if spec is None or not known:
        raise ValueError("nothing to calibrate: no head for depth, or no image with known depths")
    depth = np.concatenate([k.depth for k in known])
    median = float(np.median(depth)) if len(depth) else METRES[0]
    if not METRES[0] <= median <= METRES[1]:
        remedy = "check --depth-scale (1: metres, 0.001: millimetres) or the column depth_m"
        raise ValueError(f"the median of the known depths is {median:.3g} m: {remedy}")
    predicted = _predict(model, spec, known)
    space: CalibrationSpace = "inverse_depth" if spec.is_inverse_depth else "depth"
    calibration, is_inlier = fit_calibration(predicted, depth, space=space)
    error = calibration.to_metres(torch.from_numpy(predicted)).numpy() - depth

    def residuals(name: str, points: np.ndarray | slice) -> Residuals:
        errors, depths = error[points], depth[points]
        abs_rel = float((np.abs(errors) / depths).mean())
        rmse = float(np.sqrt((errors**2).mean()))
        return Residuals(name, len(depths), float(is_inlier[points].mean()), abs_rel, rmse)

    image_index = np.repeat(np.arange(len(known)), [len(k.depth) for k in known])
    images = [residuals(known[i].image.name, image_index == i) for i in np.unique(image_index)]
    was_metric = spec.depth_kind == "metric" and spec.canonical_focal is None
    return Report(calibration, tuple(images), residuals("all images", slice(None)), was_metric)


def _predict(model: DPT, spec: OutputSpec, known: Sequence[KnownDepths]) -> np.ndarray:
    """Returns the first depth, without a calibration, at every known depth: float64 (N,)."""
    predictor = Predictor(model, sky="keep")
    # the output as it is, which a camera would change
    as_it_is = Calibration(1.0, space="depth", min_depth=1e-6, max_depth=MAX_METRES)
    predictor.calibration = None if spec.canonical_focal is None else as_it_is
    values, part = [], inputs.part_of(model.preprocessing)
    for points in known:
        prediction = predictor(io.read_image(points.image, exif=points.exif, part=part))
        prediction.require_finite()
        assert prediction.depth is not None
        values.append(points.sample(prediction.depth))
    return np.concatenate(values).astype(np.float64)


def fit_calibration(
    prediction: np.ndarray, depth: np.ndarray, *, space: CalibrationSpace
) -> tuple[Calibration, np.ndarray]:
    """Fits scale and shift of smallest relative error; also returns which points agree, bool (N,).

    The target t is 1/depth or depth, as ``space`` says. The residual of a point is
    (scale · prediction + shift) / t - 1, so near and far points have equal weight. Fewer than
    ``ROBUST_POINTS`` points are fitted by least squares. With more, Siegel's repeated medians
    (1982) give an estimate; repeated least squares over points within 2.5 standard deviations
    refine it (Rousseeuw and Leroy 1987, chapters 1 and 5). Up to 30 % outliers are harmless; with
    40 to 45 %, up to a tenth of the fits are wrong by more than 10 %.

    Args:
        prediction: float (N,), as the model predicts.
        depth: float (N,), metres; points that are not finite and above 0 are left out.
        space: ``inverse_depth`` to fit scale and shift, ``depth`` to fit the scale alone.

    Raises:
        ValueError: there are too few points, they do not determine the fit, or predictions decrease
            where the known values increase.
    """
    with_shift = space == "inverse_depth"
    usable = np.isfinite(prediction) & (depth > 0) & (depth < inf)
    if usable.sum() < MIN_POINTS:
        raise ValueError(f"{usable.sum()} points of known depth: at least {MIN_POINTS} are needed")
    measured, x = depth[usable], prediction[usable]
    target = 1 / measured if with_shift else measured
    columns = [x, np.ones(len(measured))] if with_shift else [x]
    rows = np.stack(columns, axis=1) / target[:, None]
    if np.ptp(x) <= 1e-9 * np.abs(x).max() and (with_shift or x[0] == 0):
        raise ValueError("the model predicts one value at all points: nothing can be fitted")
    agrees = np.ones(len(measured), bool)
    solution = np.linalg.lstsq(rows, np.ones(len(measured)), rcond=None)[0]
    if len(measured) >= ROBUST_POINTS:
        solution, agrees = _fit_without_outliers(rows, x, target)
    near, far = np.quantile(measured[agrees], [0.05, 0.95])
    if with_shift and far < MIN_SPREAD * near:
        fault = f"nearly all known depths lie between {near:.3g} and {far:.3g} m"
        raise ValueError(f"{fault}, too near for scale and shift: add nearer or farther points")
    if solution[0] <= 0:
        fault = f"predictions decrease where {space.replace('_', ' ')} increases"
        raise ValueError(f"{fault}: check that points and images belong together")
    calibration = Calibration(
        scale=float(solution[0]),
        shift=float(solution[1]) if with_shift else 0.0,
        space=space,
        min_depth=float(measured[agrees].min() / MARGIN),
        max_depth=float(measured[agrees].max() * MARGIN),
    )
    inliers = np.zeros(len(depth), bool)
    inliers[usable] = agrees
    return calibration, inliers


def _fit_without_outliers(
    rows: np.ndarray, x: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solves ``rows · solution = 1``; also returns which points agree with the solution."""
    from scipy.stats import siegelslopes

    if rows.shape[1] == 1:
        solution = np.array([np.nanmedian(target / np.where(x == 0, np.nan, x))])
    else:
        sample = np.random.default_rng(0).permutation(len(x))[:START_POINTS]
        solution = np.array(siegelslopes(target[sample], x[sample])[:2])
    deviation = 1.4826 * (1 + 5 / (len(x) - rows.shape[1]))  # per median absolute residual
    agrees = np.zeros(len(x), bool)
    for _ in range(100):
        before = agrees
        residual = np.abs(rows @ solution - 1)
        agrees = residual <= 2.5 * max(deviation * float(np.median(residual)), 1e-6)
        if (agrees == before).all():
            break
        solution = np.linalg.lstsq(rows[agrees], np.ones(agrees.sum()), rcond=None)[0]
    return solution, agrees
