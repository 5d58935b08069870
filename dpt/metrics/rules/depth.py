"""Rules for the depth of single pixels."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpt.metrics.rules import base
from dpt.metrics.rules.base import DepthRule, Errors, Floats, Mask, Moments, Pixels


class Bts(DepthRule):
    """The rule of ``compute_errors`` and the clamps before it.

    Original: cleinc/bts pytorch/bts_test.py: compute_errors
    """

    name = "bts"
    summary = "Clamps metres to the range of the data and fits nothing."
    errors: ClassVar[Errors] = base.EIGEN

    def predicted(self, pixels: Pixels) -> Floats:
        low, high = self.min_depth, pixels.image.max_depth
        metres = np.nan_to_num(pixels.prediction, nan=low, posinf=high, neginf=low)
        return metres.clip(low, high)


class KittiOfficial(DepthRule):
    """The rule of ``depthError``, after ``interpolateBackground``; errors of 1/depth are per km.

    Original: KITTI depth devkit cpp/evaluate_depth.cpp: depthError
    """

    name = "kitti_official"
    summary = (
        "Fills the holes of the prediction from their row and has no largest depth; sq_rel is "
        "divided by the squared depth."
    )
    min_depth = 0.0
    has_max_depth = False
    errors: ClassVar[Errors] = {
        "silog": lambda m: 100 * m.silog(),
        "sq_rel_percent": lambda m: 100 * m.sq_rel_squared,
        "abs_rel_percent": lambda m: 100 * m.abs_rel,
        "irmse_per_km": lambda m: 1000 * math.sqrt(m.inverse_square),
        "imae_per_km": lambda m: 1000 * m.inverse,
        "mae": lambda m: m.absolute,
        "rmse": lambda m: math.sqrt(m.square),
        "log_mae": lambda m: m.log_absolute,
        "rmse_log": lambda m: math.sqrt(m.log_square),
    }

    def predicted(self, pixels: Pixels) -> Floats:
        return filled(pixels.image.prediction)[pixels.mask]


def filled(depth: Floats) -> Floats:
    """Returns depth (H, W) whose holes, values not above 0, are filled from their row.

    A hole gets the smaller of its two neighbours in the row, or the only one. Rows of holes get the
    first row with a value below them, or the last one above them; between two rows with values they
    are -1, as in the original.
    """
    is_known = depth > 0
    if is_known.all() or not is_known.any():
        return np.where(is_known, depth, -1.0)
    last = depth.shape[1] - 1
    columns = np.broadcast_to(np.arange(last + 1), depth.shape)
    before = np.maximum.accumulate(np.where(is_known, columns, -1), axis=1)
    after = np.where(is_known, columns, last + 1)[:, ::-1]
    after = np.minimum.accumulate(after, axis=1)[:, ::-1]
    left = np.take_along_axis(depth, before.clip(min=0), 1)
    right = np.take_along_axis(depth, after.clip(max=last), 1)
    left, right = np.where(before < 0, np.inf, left), np.where(after > last, np.inf, right)
    result: Floats = np.where(is_known, depth, np.minimum(left, right))
    rows = np.flatnonzero(is_known.any(1))
    result[~is_known.any(1)] = -1.0
    extended: Floats = result[np.arange(len(depth)).clip(rows[0], rows[-1])]
    return extended


class DepthAnythingMetric(DepthRule):
    """The rule of ``eval_depth`` and of the loop in ``train.py`` around it.

    Original: DepthAnything/Depth-Anything-V2 metric_depth/util/metric.py: eval_depth
    """

    name = "depth_anything_metric"
    summary = (
        "Clamps nothing, leaves out images with fewer than 10 pixels, and halves the second term "
        "of silog."
    )
    min_pixels = 10
    errors: ClassVar[Errors] = {**base.EIGEN, "silog": lambda m: m.silog(weight=0.5)}
    factors: ClassVar[Mapping[str, float]] = {"silog": 100.0}

    def counted(self, image: base.DepthImage) -> Mask:
        depth = image.depth
        return image.valid & (depth >= self.min_depth) & (depth <= image.max_depth)


_TAU: Errors = {"tau": lambda m: m.within3}


class UniDepth(DepthRule):
    """The rule of ``eval_depth``, without its ``d_auc`` and ``medianlog``.

    Original: lpiccinelli-eth/UniDepth unidepth/utils/evaluation_depth.py: eval_depth
    """

    name = "unidepth"
    summary = "Clamps nothing; silog is the unbiased standard deviation, tau a bound of 3 %."
    errors: ClassVar[Errors] = {**base.EIGEN, "silog": lambda m: 100 * m.silog_unbiased(), **_TAU}

    def counted(self, image: base.DepthImage) -> Mask:
        return image.valid & (image.depth > 0) & (image.depth <= image.max_depth)


class UniDepthSsi(UniDepth):
    """The scores that end in ``_ssi``."""

    name = "unidepth_ssi"
    summary = "As unidepth, after a fit of scale and shift in depth."
    fitted = base.LINE
    kinds = base.DEPTH_KINDS
    errors: ClassVar[Errors] = {
        **{name: base.COMMON[name] for name in ("abs_rel", "delta1")},
        **_TAU,
    }


class UniDepthSi(UniDepthSsi):
    """The scores that end in ``_si``."""

    name = "unidepth_si"
    summary = "As unidepth, after a fit of the median."
    fitted = "median"

    def predicted(self, pixels: Pixels) -> Floats:
        return pixels.prediction * (pixels.median_depth / pixels.median_prediction)


class DinoV3(DepthRule):
    """The rule of ``dinov3/eval/depth`` with ``config-nyu.yaml``.

    Original: facebookresearch/dinov3 dinov3/eval/depth: metrics.py, eval.py
    """

    name = "dinov3"
    summary = "Scores inside Eigen's crop of NYU, scaled to the size of the map, and clamps metres."
    is_clamped = True
    errors: ClassVar[Errors] = {
        **base.EIGEN,
        "silog": lambda m: 0.0 if math.isnan(m.log) else 100 * m.silog(),  # as the original
        "mae": lambda m: m.absolute,
    }

    def counted(self, image: base.DepthImage) -> Mask:
        (height, width), is_inside = image.valid.shape, np.zeros_like(image.valid)
        rows = slice(int(45 / 480 * height), int(471 / 480 * height))
        is_inside[rows, int(41 / 640 * width) : int(601 / 640 * width)] = True
        return super().counted(image) & is_inside


class DinoV3Aligned(DinoV3):
    """The same with ``align_least_squares``, as ``config-nyu-synthmix-dpt-inference.yaml``."""

    name = "dinov3_aligned"
    summary = "As dinov3, after a fit of scale and shift in depth."
    fitted = base.LINE
    kinds = base.DEPTH_KINDS


class Ultralytics(DepthRule):
    """The rule of ``DepthMetrics`` with ``align="median"``, its default.

    Original: ultralytics 8.4.190 utils/metrics.py:1908: DepthMetrics
    """

    name = "ultralytics"
    summary = (
        "Multiplies each prediction by the quotient of the medians, and leaves out images with "
        "fewer than 10 pixels."
    )
    fitted = "median"
    kinds = base.DEPTH_KINDS
    min_pixels = 10
    errors: ClassVar[Errors] = {
        **base.DELTAS,
        **{name: base.COMMON[name] for name in ("abs_rel", "rmse", "silog")},
    }

    def predicted(self, pixels: Pixels) -> Floats:
        low, high = self.min_depth, min(pixels.image.max_depth, np.finfo(float).max)
        values = pixels.prediction
        finite = np.isfinite(values)
        if finite.all():
            values = values * (pixels.median_depth / max(pixels.median_prediction, low))
        elif finite.any():
            median = max(base.lower_median(values[finite]), low)
            values = values * (base.lower_median(pixels.depth[finite]) / median)
        return np.nan_to_num(values, nan=high, posinf=high, neginf=low).clip(low, high)


class Marigold(DepthRule):
    """The rule of ``script/depth/eval.py`` with ``--alignment least_square``.

    Original: prs-eth/Marigold src/util/metric.py, src/util/alignment.py
    """

    name = "marigold"
    summary = "Fits scale and shift in depth, then clamps to the range of the data."
    fitted = base.LINE
    kinds = base.DEPTH_KINDS
    is_clamped = True
    errors: ClassVar[Errors] = {**base.EIGEN, "i_rmse": lambda m: math.sqrt(m.inverse_square)}


class DepthEstimation(DepthRule):
    """The rule of its ``evaluate`` for models of relative depth: ``Evaluator``.

    Original: depth-estimation 0.1.3 evaluation/metrics.py: Evaluator
    """

    name = "depth_estimation"
    summary = "Fits scale and shift in depth, and pools the pixels of all images."
    fitted = base.LINE
    kinds = base.DEPTH_KINDS
    errors: ClassVar[Errors] = {  # the roots are taken of the means over all images
        "rmse": lambda m: m.square,
        "rmse_log": lambda m: m.log_square,
        "abs_rel": lambda m: m.abs_rel,
        "sq_rel": lambda m: m.sq_rel,
        **base.DELTAS,
    }

    def predicted(self, pixels: Pixels) -> Floats:
        is_fitted = len(pixels.prediction) > 1
        return (super().predicted(pixels) if is_fitted else pixels.prediction).clip(min=1e-6)

    def weight(self, pixels: int) -> float:
        return float(pixels)

    def finish(self, total: Floats) -> Floats:
        means = super().finish(total)
        return np.append(np.sqrt(means[:2]), means[2:])


class Midas(DepthRule):
    """The rule of ``BadPixelMetric``; predictions of depth are inverted first.

    Original: gist ranftlr/a1c7a24e: BadPixelMetric
    """

    name = "midas"
    summary = (
        "Fits scale and shift in inverse depth, caps depth, and reports percent of bad pixels."
    )
    fitted = "scale, shift of 1/d"
    kinds = base.ALL_KINDS
    min_depth = 0.0
    errors: ClassVar[Errors] = {"bad_pixels": lambda m: 100 * (1 - m.at_most)}

    def predicted(self, pixels: Pixels) -> Floats:
        disparity = pixels.disparity
        if np.isfinite(disparity).all():
            disparity = base.in_depth(disparity, 1 / pixels.depth)
        else:  # as the original, whose equations have no solution then
            disparity = disparity * 0.0
        return 1 / np.maximum(disparity, 1 / pixels.image.max_depth)


class DepthAnythingRelative(Midas):
    """The zero-shot table of Depth Anything V1 and V2: MiDaS's fit, other numbers.

    The authors publish no script for it (Yang et al. 2024, table 2: AbsRel and δ1).

    Original: none published: fit of MiDaS's gist, formulas of metric_depth/util/metric.py
    """

    name = "depth_anything_relative"
    summary = "Fits and caps as MiDaS, and reports abs_rel and the fraction of good pixels."
    errors: ClassVar[Errors] = {"abs_rel": base.COMMON["abs_rel"], **base.DELTAS}


LARGEST = 300.0
"""Metres; predictions that are not between 0 and this become 0."""
EPSILON = 1e-10
"""Added to both depths, so that a ratio of exactly 1.25 is within."""


class Metric3D(DepthRule):
    """The rule of ``MetricAverageMeter``, and of ``postprocess_per_image`` before it: no fit.

    The logarithms of ``silog`` and ``rmse_log`` are to base 10. Invalid pixels are also counted as
    good where the prediction is not above 0, so that δ can exceed 1.

    Original: YvanYin/Metric3D mono/utils/avg_meter.py, do_test.py
    """

    name = "metric3d"
    summary = (
        "Sets predictions beyond 300 m to 0, has no largest depth, takes logarithms to base 10, "
        "and counts invalid pixels with a prediction of 0 as good."
    )
    min_depth = 1e-8
    has_max_depth = False
    errors: ClassVar[Errors] = {
        **base.COMMON,  # δ stand last
        "silog": lambda m: m.silog() / math.log(10),
        "rmse_log": lambda m: math.sqrt(m.log_square) / math.log(10),
    }
    factors: ClassVar[Mapping[str, float]] = {"silog": 100 * math.log(10)}

    def aligned(self, pixels: Pixels) -> Floats:
        """Returns the whole map (H, W) after the fit of this column."""
        prediction = pixels.image.prediction
        return (prediction > 0) * (prediction < LARGEST) * prediction

    def values(self, pixels: Pixels) -> Floats:
        aligned = self.aligned(pixels)
        moments = Moments.of(aligned[pixels.mask] + EPSILON, pixels.depth + EPSILON)
        values = np.array([error(moments) for error in self.errors.values()])
        outside = aligned[~pixels.mask]
        values[-3:] += np.count_nonzero(outside < 1.25 * EPSILON) / len(pixels.depth)
        return values


class Metric3DMedian(Metric3D):
    """The column ``median match``."""

    name = "metric3d_median"
    summary = "As metric3d, after a fit of the median."
    fitted = "median"
    kinds = base.DEPTH_KINDS

    def aligned(self, pixels: Pixels) -> Floats:
        prediction = super().aligned(pixels)
        median = base.lower_median(prediction[pixels.mask])
        return prediction * pixels.median_depth / median


class Metric3DGlobal(Metric3D):
    """The column ``global match``: ``align_scale_shift``, for more than 10 pixels."""

    name = "metric3d_global"
    summary = "As metric3d, after a fit of scale and shift; of the median if the scale is negative."
    fitted = base.LINE
    kinds = base.DEPTH_KINDS

    def aligned(self, pixels: Pixels) -> Floats:
        prediction = super().aligned(pixels)
        values = prediction[pixels.mask]
        if len(values) <= 10:
            return prediction
        scale, shift = base.least_squares(values, pixels.depth)
        if scale >= 0:
            return prediction * scale + shift
        return prediction * pixels.median_depth / (base.lower_median(values) + 1e-8)


PAIRS = 50_000
"""Pairs that are drawn in each image."""
TIE = 1.03
"""Pairs whose depths have at most this quotient have no order."""


@lru_cache(maxsize=1)
def _draws() -> NDArray[np.uint64]:
    """Returns integers (PAIRS, 2) below 2³², of splitmix64 (Steele et al. 2014) with the seed 0."""
    z = np.arange(1, 2 * PAIRS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(32)).reshape(PAIRS, 2)


def ordered_pairs(depth: Floats) -> NDArray[np.int64]:
    """Returns indices (P, 2) into depths (N,) of pairs that have an order, P <= 50,000.

    The indices are floor(draw · N / 2³²), the draws being the same for every image.
    """
    pairs = (_draws() * np.uint64(len(depth)) >> np.uint64(32)).astype(np.int64)
    first, second = depth[pairs[:, 0]], depth[pairs[:, 1]]
    return pairs[np.maximum(first, second) > TIE * np.minimum(first, second)]


class Whdr(DepthRule):
    """The fraction of wrong pairs, over the pairs of all images.

    The pixels that count are numbered by rows. The original has one pair of an image, from people,
    and stops at a tie of the prediction.

    Original: yifjiang/relative-depth-using-pytorch validation_crit/validate_crit_DIW.py
    """

    name = "whdr"
    summary = (
        "Draws 50,000 pairs of pixels of each image by one seed, leaves out those whose depths "
        "differ by at most 3 %, and reports the fraction that the prediction does not put in order."
    )
    kinds = base.ALL_KINDS
    min_depth = 0.0
    has_max_depth = False
    scores = ("whdr",)

    def predicted(self, pixels: Pixels) -> Floats:
        values = pixels.prediction
        return -values if pixels.image.kind == "relative" else values

    def sums(self, image: base.DepthImage) -> Floats:
        """Returns the numbers of pixels that count, of ordered pairs and of wrong ones."""
        pixels = image.pixels(self.counted(image))
        depth, values = pixels.depth, self.predicted(pixels)
        if not len(depth):
            return np.zeros(3)
        first, second = ordered_pairs(depth).T
        is_right = np.where(
            depth[first] > depth[second],
            values[first] > values[second],
            values[first] < values[second],
        )
        return np.array([len(depth), len(first), np.count_nonzero(~is_right)], dtype=np.float64)


SIDE = 64
"""Fits of MoGe read one pixel of each cell of a grid of 64 x 64."""


@lru_cache(maxsize=4)
def _by_cell(height: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns flat indices of pixels, ordered by cell and distance to its centre, and where each
    cell ends in this order.

    A pixel on the border of two cells belongs to the upper or left one.
    """
    cells, distances = [], []
    for size in (height, width):
        centres = np.arange(size) + 0.5
        cell = np.ceil(centres * SIDE / size).astype(np.int64) - 1
        cells.append(cell)
        distances.append((centres - (cell + 0.5) * size / SIDE) ** 2)
    cell_of_pixel = (cells[0][:, None] * SIDE + cells[1]).ravel()
    order = np.lexsort((np.add.outer(*distances).ravel(), cell_of_pixel))
    return order, np.bincount(cell_of_pixel, minlength=SIDE**2).cumsum()


def nearest_in_cells(valid: Mask) -> NDArray[np.int64]:
    """Returns the flat index of the valid pixel nearest to the centre of each cell, (N,), N <= 64².

    Of pixels at the same distance the first one counts; cells without a valid pixel are left out.

    Args:
        valid: bool (H, W).
    """
    order, ends = _by_cell(*valid.shape)
    positions = np.append(np.flatnonzero(valid.ravel()[order]), len(order))
    first = positions[np.searchsorted(positions, np.append(0, ends[:-1]))]
    nearest: NDArray[np.int64] = order[first[first < ends]]
    return nearest


class MogeMetric(DepthRule):
    """MoGe (Wang et al. 2025): the scores ``depth_metric``.

    Original: microsoft/MoGe moge/test/metrics.py, moge/utils/alignment.py
    """

    name = "moge_metric"
    summary = "Fits nothing, clamps nothing, and has no largest depth."
    min_depth = 0.0
    has_max_depth = False
    errors: ClassVar[Errors] = {"abs_rel": lambda m: m.moge_rel, "delta1": base.DELTAS["delta1"]}


class MogeScale(MogeMetric):
    """The scores ``depth_scale_invariant``."""

    name = "moge_scale"
    summary = "Fits the scale that minimises the sum of |d - g| / g, and has no largest depth."
    fitted = "scale (L1)"
    kinds = base.DEPTH_KINDS

    def predicted(self, pixels: Pixels) -> Floats:
        cells = nearest_in_cells(pixels.mask)
        maps = pixels.image
        return self.fitted_values(
            pixels.prediction, maps.prediction.flat[cells], maps.depth.flat[cells]
        )

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        """Returns ``values`` after the fit of ``prediction`` (N,) to ``depth`` (N,)."""
        return values * base.scale_l1(prediction, depth, 1 / depth)


class MogeAffine(MogeScale):
    """The scores ``depth_affine_invariant``.

    The original sums no error of the pixels whose prediction equals that of the pixel about which
    it turns a line, so that it misses the minimum where predictions are equal.
    """

    name = "moge_affine"
    summary = "As moge_scale, with a scale and a shift."
    fitted = "scale, shift (L1)"

    def fitted_values(self, values: Floats, prediction: Floats, depth: Floats) -> Floats:
        scale, shift = base.line_l1(prediction, depth, 1 / depth)
        return values * scale + shift


class MogeDisparity(MogeMetric):
    """The scores ``disparity_affine_invariant``."""

    name = "moge_disparity"
    summary = "Fits scale and shift in inverse depth, and caps at the largest depth of the image."
    fitted = "scale, shift of 1/d"
    kinds = base.ALL_KINDS

    def predicted(self, pixels: Pixels) -> Floats:
        depth = pixels.depth
        disparity = base.in_depth(pixels.disparity, 1 / depth)
        floor = 1 / float(depth.max())
        return 1 / np.maximum(disparity, floor)
