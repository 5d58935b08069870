"""Arrays on which code that computes scores can be tested, the same on every machine.

They come from one seed, by operations that IEEE 754 defines to the last bit: the sine is a
polynomial, because that of libraries is not.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from dpt.metrics.rules import DepthImage, DepthRule, SegmentationRule
from dpt.metrics.rules.base import Floats, Mask
from dpt.metrics.segmentation import confusion_matrix
from dpt.types.outputs import DepthKind

MAX_DEPTH = 10.0
"""Metres; the largest depth of the data."""
DEPTH_CASES = ("smooth", "holes", "ties", "far", "zeros", "few", "empty", "nan")
K = 19
"""The number of classes; that of Cityscapes, whose script knows no other."""
CLASS_CASES = (
    *("all", "absent", "only_predicted", "only_labelled", "holes", "no_class", "wrong", "empty"),
    "regions",
)

Ids = NDArray[np.uint8]


def _random(*seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def _sine(angle: Floats) -> Floats:
    """Returns the sine by its power series, to 1e-10."""
    angle = angle - 2 * np.pi * np.floor(angle / (2 * np.pi) + 0.5)
    squared, series = angle * angle, np.ones_like(angle)
    for power in range(22, 0, -2):
        series = 1 - squared * series / (power * (power + 1))
    return angle * series


def _smooth(random: np.random.Generator, size: tuple[int, int]) -> Floats:
    rows, columns = np.linspace(0, 3, size[0])[:, None], np.linspace(0, 4, size[1])
    return 4 + 2 * _sine(rows + columns * random.random()) + random.random(size)


def depth_arrays(case: str, kind: DepthKind = "metric") -> tuple[Floats, Floats, Mask]:
    """Returns prediction, depth (0 or NaN where invalid) and valid, each (H, W)."""
    random = _random(50, DEPTH_CASES.index(case))
    size = (96, 130) if case in ("smooth", "far") else (60, 84)
    depth = _smooth(random, size)
    noise = 1 + 0.3 * (random.random(size) - 0.5) + 0.1 * _sine(np.arange(size[1]) / 9)
    if case == "ties":
        depth = (2 * depth).round() / 2
        noise = random.choice([0.8, 1.0, 1.25, 2.0], size)
    if case == "far":
        depth *= 1.5
    prediction = depth * noise if case == "ties" else depth * noise * 1.1
    if kind == "relative":
        prediction = 3 / prediction + 0.2
    valid = np.ones(size, dtype=bool)
    if case in ("holes", "zeros", "nan"):
        valid = random.random(size) < 0.4
    if case == "few":
        valid = np.zeros(size, dtype=bool)
        valid[random.integers(20, 50, 7), random.integers(20, 60, 7)] = True
    if case == "empty":
        valid[:] = False
    depth[~valid] = 0.0 if case != "holes" else np.nan
    if case == "zeros":
        prediction[random.random(size) < 0.1] = 0.0
        prediction[:3] = prediction[-2:] = 0.0
        prediction[20, 30:70] = 0.0
    if case == "nan":
        prediction[random.random(size) < 0.01] = np.nan
    return prediction, depth, valid


def depth_image(case: str, kind: DepthKind = "metric") -> DepthImage:
    """Returns the arrays as a rule reads them."""
    prediction, depth, valid = depth_arrays(case, kind)
    return DepthImage(prediction, depth, valid, kind, MAX_DEPTH)


def depth_scores(rule: DepthRule, *images: DepthImage) -> Floats | None:
    """Returns the scores of a data set; None if all its images are left out."""
    total = np.sum([rule.sums(image) for image in images], axis=0)
    return rule.finish(total) if total.any() else None


def class_arrays(case: str) -> list[tuple[Ids, Ids]]:
    """Returns prediction and labels (H, W) of three images; 255 is no class."""
    random = _random(50, 50, CLASS_CASES.index(case))
    if case == "regions":
        return [_regions(random, size) for size in ((8, 10), (6, 4), (20, 30))]
    images = []
    for index in range(3):
        labels = np.repeat(random.integers(0, K, (24, 8)), 4, axis=1).astype(np.uint8)
        guesses = random.integers(0, K, labels.shape)
        if case in ("absent", "only_predicted"):
            labels[labels % 5 == 2] = 1
        if case in ("absent", "only_labelled"):
            guesses[guesses % 5 == 2] = 1
        kept = random.random(labels.shape) < (0.0 if case == "wrong" else 0.7)
        if case == "only_labelled":
            kept &= labels % 5 != 2
        prediction = np.where(kept, labels, guesses).astype(np.uint8)
        if case == "wrong":
            prediction[prediction == labels] = (labels[prediction == labels] + 1) % K
        if case in ("holes", "no_class"):
            labels[random.random(labels.shape) < 0.2] = 255
        if case == "no_class":
            prediction[random.random(labels.shape) < 0.1] = 255
        if case == "empty" or (case == "holes" and index == 1):
            labels[:] = 255
        images.append((prediction, labels))
    return images


def _regions(random: np.random.Generator, blocks: tuple[int, int]) -> tuple[Ids, Ids]:
    """Returns maps of blocks of 16 pixels: moved in the prediction, some wrong, some unlabelled."""
    labels = random.integers(0, K - 4, blocks).astype(np.uint8)
    guesses = random.integers(0, K - 2, blocks).astype(np.uint8)
    prediction = np.where(random.random(blocks) < 0.8, labels, guesses)
    prediction[random.random(blocks) < 0.05] = 255
    labels[random.random(blocks) < 0.1] = 255
    full = [ids.repeat(16, 0).repeat(16, 1) for ids in (prediction, labels)]
    return np.roll(full[0], (2, -3), axis=(0, 1)), full[1]


def class_counts(case: str) -> Floats:
    """Returns the confusion matrix (K, K + 1) of the three images."""
    counts = torch.zeros(K, K + 1)
    for prediction, labels in class_arrays(case):
        counts += confusion_matrix(torch.from_numpy(prediction), torch.from_numpy(labels), K)
    return counts.double().numpy()


def class_scores(rule: SegmentationRule, case: str) -> Floats:
    """Returns the scores of the three images."""
    sums = np.sum([rule.sums(*maps, K) for maps in class_arrays(case)], axis=0)
    return rule.finish(np.hstack([class_counts(case), sums]))
