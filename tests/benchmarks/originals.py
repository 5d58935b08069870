"""Scores beside the code that defines them, on random sets.

The sets have ties, empty maps, ignored pixels and NaN.

- AP: pycocotools' ``COCOeval``.
- PQ: panopticapi, which is not on PyPI: the algorithm of its ``pq_compute``, written down here.
- mIoU: torchmetrics' ``MulticlassJaccardIndex``, and the formula of Hugging Face's ``mean_iou``.
- Depth: ``compute_errors`` of BTS (Lee et al. 2019), written down here, and torchmetrics.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from math import isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchmetrics import MeanAbsoluteError, MeanSquaredError
from torchmetrics.classification import MulticlassJaccardIndex

from dpt.metrics import DepthMetrics, SegmentationMetrics
from dpt.metrics.instances import InstanceMetrics
from dpt.metrics.panoptic import PanopticMetrics
from dpt.segments import NO_SEGMENT, SegmentMap, segments_of
from dpt.types import ObjectMask

Scores = dict[str, float]
NAMES = ("a", "b", "c")
COCO_STATS = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5,
              "recall": 8}  # fmt: skip
THINGS = (True, True, False, False)


class Objects(NamedTuple):
    """True and predicted objects of an image, masks bool (N, H, W)."""

    true: np.ndarray
    true_classes: np.ndarray
    crowd: np.ndarray
    areas: np.ndarray  # as the annotation states them, which need not be those of the masks
    found: np.ndarray
    classes: np.ndarray
    scores: np.ndarray


def _boxes(places: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Masks bool (N, H, W) of rectangles (top, left, height, width), cut at the border."""
    masks = np.zeros((len(places), *size), bool)
    for mask, (top, left, height, width) in zip(masks, places, strict=True):
        mask[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
    return masks


def random_objects(random: np.random.Generator) -> Objects:
    """Overlapping rectangles on a coarse grid, so that IoUs hit thresholds exactly, with crowds,
    equal scores, and sometimes more than a hundred predictions of one class."""
    size, step = (130, 150), int(random.choice([1, 5, 10]))
    count = int(random.choice([0, 1, 3, 8]))
    sides = random.integers((0, 0, 2, 2), (110, 130, 120, 140), (count, 4)) // step * step
    sides[:, 2:] = np.maximum(sides[:, 2:], step)
    true = _boxes(sides, size)
    number = int(random.choice([0, 2, 12, 30], p=[0.1, 0.3, 0.4, 0.2]))
    if random.random() < 0.03:
        number = 160
    true_classes = random.integers(0, 2, count)  # the last class has no object
    near = random.integers(0, max(count, 1), number)
    moved = sides[near] if count else np.full((number, 4), 20)
    moved = moved + random.integers(-2, 3, (number, 4)) * step * (random.random((number, 1)) < 0.5)
    moved[:, 2:] = np.maximum(moved[:, 2:], step)
    classes = random.integers(0, 1 if number > 100 else 3, number)
    if count:
        classes = np.where(random.random(number) < 0.7, true_classes[near], classes)
    digits = int(random.choice([1, 3, 16]))
    return Objects(
        true,
        true_classes,
        random.random(count) < 0.2,
        true.sum((1, 2)) * random.choice([1.0, 1.3], count),
        _boxes(moved, size),
        classes,
        random.random(number).round(digits),
    )


def _codes(masks: np.ndarray) -> list[dict[str, Any]]:
    return rle.encode(np.asfortranarray(masks.transpose(1, 2, 0).astype(np.uint8)))


def pycocotools_scores(images: list[Objects]) -> Scores:
    """The scores of ``COCOeval``; NaN for its -1."""
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for k, image in enumerate(images):
        truth = zip(_codes(image.true), image.true_classes, image.crowd, image.areas, strict=True)
        for code, c, crowd, area in truth:
            annotations.append(
                {"id": len(annotations) + 1, "image_id": k, "category_id": int(c),
                 "iscrowd": int(crowd), "area": float(area), "segmentation": code}
            )  # fmt: skip
        for code, c, score in zip(_codes(image.found), image.classes, image.scores, strict=True):
            row = {"image_id": k, "category_id": int(c), "score": score, "segmentation": code}
            results.append(row)
    height, width = images[0].true.shape[1:]
    content = {
        "images": [{"id": k, "height": height, "width": width} for k in range(len(images))],
        "annotations": annotations,
        "categories": [{"id": c, "name": name} for c, name in enumerate(NAMES)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth, nothing = COCO(), COCO()
        truth.dataset, nothing.dataset = content, {**content, "annotations": []}
        truth.createIndex()
        nothing.createIndex()
        found = truth.loadRes(results) if results else nothing
        evaluation = COCOeval(truth, found, "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = {name: float(evaluation.stats[place]) for name, place in COCO_STATS.items()}
    return {name: float("nan") if value < 0 else value for name, value in values.items()}


def add_objects(metric: InstanceMetrics, image: Objects, index: int) -> None:
    """Updates the metric with an image."""
    columns = image.true_classes.tolist(), image.crowd.tolist(), image.areas.tolist()
    truth = [
        ObjectMask(c, code["counts"].decode(), crowd, area)
        for code, c, crowd, area in zip(_codes(image.true), *columns, strict=True)
    ]
    found = (torch.from_numpy(each) for each in (image.found, image.classes, image.scores))
    metric.update(*found, truth, index)


def compare_instances(random: np.random.Generator) -> tuple[Scores, Scores]:
    images = [random_objects(random) for _ in range(int(random.integers(1, 12)))]
    metric = InstanceMetrics(NAMES)
    for k, image in enumerate(images):
        add_objects(metric, image, k)
    return _values(metric.compute()), pycocotools_scores(images)


def _blocks(random: np.random.Generator, count: int) -> np.ndarray:
    """A map (24, 32) of ids in blocks of four pixels."""
    return random.integers(0, count, (6, 8)).repeat(4, 0).repeat(4, 1)


def compare_panoptic(random: np.random.Generator) -> tuple[Scores, Scores]:
    metric, sums = PanopticMetrics(THINGS), np.zeros((4, len(THINGS)))
    for _ in range(int(random.integers(1, 6))):
        labels, objects = _blocks(random, 5), _blocks(random, 3)
        labels[labels == 4] = 255
        if random.random() < 0.1:
            labels[:] = 255
        objects[labels > 1] = 0
        ids = np.where(_blocks(random, 3) == 0, _blocks(random, 5), labels % 4) * 4
        ids += np.where(_blocks(random, 3) == 0, _blocks(random, 3), objects)
        ids[_blocks(random, 9) == 0] = -1
        if random.random() < 0.1:
            ids[:] = -1
        present = np.unique(ids[ids >= 0])
        found = np.where(ids < 0, NO_SEGMENT, np.searchsorted(present, ids))
        classes = random.integers(0, 4, len(present)) if random.random() < 0.2 else present // 4 % 4
        prediction = SegmentMap(
            torch.from_numpy(found), torch.from_numpy(classes), torch.ones(len(classes))
        )
        truth = segments_of(torch.from_numpy(labels), torch.from_numpy(objects), THINGS)
        metric.update(prediction, truth)
        sums += panopticapi_sums(found, classes, labels, objects)
    iou, positives, false_positives, false_negatives = sums
    total = positives + (false_positives + false_negatives) / 2
    with np.errstate(invalid="ignore"):
        by_class = {
            "pq": iou / total,
            "sq": np.where(total > 0, iou / np.maximum(positives, 1), np.nan),
            "rq": positives / total,
        }
    return _values(metric.compute()), {k: _nanmean(v) for k, v in by_class.items()}


def panopticapi_sums(
    found: np.ndarray, classes: np.ndarray, labels: np.ndarray, objects: np.ndarray
) -> np.ndarray:
    """Sum of IoU, true and false positives and false negatives, (4, K): ``pq_compute``."""
    sums, void = np.zeros((4, len(THINGS))), labels == 255
    true = [(c, n == 0, (labels == c) & (objects == n)) for c in (0, 1) for n in range(3)]
    true += [(c, False, labels == c) for c in (2, 3)]
    true = [segment for segment in true if segment[2].any()]
    matched, hit = set(), set()
    for p, c in enumerate(classes):
        for t, (true_class, is_crowd, mask) in enumerate(true):
            if true_class != c or is_crowd:
                continue
            shared = ((found == p) & mask).sum()
            union = (found == p).sum() + mask.sum() - shared - ((found == p) & void).sum()
            if shared / union > 0.5:
                sums[:2, c] += shared / union, 1
                matched.add(p)
                hit.add(t)
    for t, (c, is_crowd, _) in enumerate(true):
        sums[3, c] += t not in hit and not is_crowd
    for p, c in enumerate(classes):
        ignored = void.copy()
        for true_class, is_crowd, mask in true:
            ignored |= mask & is_crowd & (true_class == c)
        share = ((found == p) & ignored).sum() / (found == p).sum()
        sums[2, c] += p not in matched and not share > 0.5
    return sums


def _random_labels(random: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Truth and prediction of some images: equal in part, with unlabelled pixels and images, and
    classes that do not occur."""
    maps = []
    for _ in range(int(random.integers(1, 5))):
        truth = random.integers(0, int(random.integers(1, 6)), (20, 30))
        wrong = random.random(truth.shape) < random.choice([0.0, 0.3, 1.0])
        found = np.where(wrong, random.integers(0, 5, truth.shape), truth)
        truth[random.random(truth.shape) < random.choice([0.0, 0.4, 1.0], p=[0.4, 0.5, 0.1])] = 255
        maps.append((truth, found))
    return maps


def compare_classes(random: np.random.Generator) -> tuple[Scores, Scores]:
    maps, metric = _random_labels(random), SegmentationMetrics(5)
    original = MulticlassJaccardIndex(5, ignore_index=255, average="none", validate_args=False)
    inter, union = np.zeros(5), np.zeros(5)
    for truth, found in maps:
        pair = torch.from_numpy(found)[None], torch.from_numpy(truth)[None]
        metric.update(*pair)
        original.update(*pair)
        known = truth != 255  # mean_iou of Hugging Face's evaluate, from mmsegmentation
        areas = [
            np.histogram(ids, bins=5, range=(0, 4))[0]
            for ids in (found[known & (found == truth)], found[known], truth[known])
        ]
        inter, union = inter + areas[0], union + areas[1] + areas[2] - areas[0]
    with np.errstate(invalid="ignore"):
        wanted = _nanmean(inter / union)
    by_class = original.compute().double().numpy()  # 0 for classes that occur nowhere
    ours = _values(metric.compute())
    theirs = {"miou": wanted, "miou (torchmetrics)": _nanmean(by_class[union > 0])}
    return {**ours, "miou (torchmetrics)": ours["miou"]}, theirs


def bts_errors(gt: np.ndarray, pred: np.ndarray) -> Scores:
    """``compute_errors`` of BTS's ``bts_test.py``."""
    thresh = np.maximum(gt / pred, pred / gt)
    err = np.log(pred) - np.log(gt)
    return {
        "silog": np.sqrt(np.mean(err**2) - np.mean(err) ** 2) * 100,
        "abs_rel": np.mean(np.abs(gt - pred) / gt),
        "log10": np.mean(np.abs(np.log10(pred) - np.log10(gt))),
        "rmse": np.sqrt(((gt - pred) ** 2).mean()),
        "sq_rel": np.mean((gt - pred) ** 2 / gt),
        "rmse_log": np.sqrt((err**2).mean()),
        "delta1": (thresh < 1.25).mean(),
        "delta2": (thresh < 1.25**2).mean(),
        "delta3": (thresh < 1.25**3).mean(),
    }


def compare_depth(random: np.random.Generator) -> tuple[Scores, Scores]:
    """Maps with invalid pixels, NaN there, depths beyond the range, and ratios of exactly 1.25."""
    metric = DepthMetrics(max_depth=10.0)
    absolute, square = MeanAbsoluteError(), MeanSquaredError()
    rows: list[Scores] = []
    pixels: list[Scores] = []
    for _ in range(int(random.integers(1, 6))):
        truth = random.integers(1, 20, (12, 16)) / 2
        found = truth * random.choice([0.8, 1.0, 1.25, 2.0], truth.shape)
        found += random.choice([0.0, 0.5]) * random.random(truth.shape)
        valid = random.random(truth.shape) < random.choice([0.0, 0.5, 1.0], p=[0.1, 0.5, 0.4])
        truth[~valid & (random.random(truth.shape) < 0.5)] = np.nan
        metric.update(*(torch.from_numpy(each)[None] for each in (found, truth, valid)))
        if not valid.any():
            continue
        gt, pred = truth[valid], np.clip(found[valid], 1e-3, 10.0)
        rows.append(bts_errors(gt, pred))
        absolute.reset()
        square.reset()
        values = torch.from_numpy(np.log10(pred)), torch.from_numpy(np.log10(gt))
        absolute.update(*values)
        square.update(torch.from_numpy(pred), torch.from_numpy(gt))
        pixels.append({"log10": float(absolute.compute()), "rmse": float(square.compute().sqrt())})
    ours = _values(metric.compute())
    theirs = {name: _nanmean(np.array([r[name] for r in rows])) for name in ours if rows
              and name in rows[0]}  # fmt: skip
    for name in ("log10", "rmse"):
        key = f"{name} (torchmetrics)"
        ours[key] = ours[name]
        theirs[key] = _nanmean(np.array([row[name] for row in pixels]))
    return ours, theirs


def _values(scores: dict[str, torch.Tensor]) -> Scores:
    return {name: float(value) for name, value in scores.items()}


def _nanmean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


COMPARISONS: dict[str, tuple[str, Callable[[np.random.Generator], tuple[Scores, Scores]]]] = {
    "AP": ("pycocotools COCOeval", compare_instances),
    "PQ": ("panopticapi pq_compute", compare_panoptic),
    "mIoU": ("mean_iou of evaluate", compare_classes),
    "depth": ("BTS compute_errors", compare_depth),
}


def differences(kind: str, sets: int, *, seed: int = 0) -> dict[str, tuple[int, float]]:
    """For each score the number of sets in which it has a value, and the largest difference; where
    only one side has a value it is infinite."""
    random = np.random.default_rng(seed)
    found: dict[str, tuple[int, float]] = {}
    for _ in range(sets):
        ours, theirs = COMPARISONS[kind][1](random)
        for name, wanted in theirs.items():
            count, largest = found.get(name, (0, 0.0))
            if isnan(wanted) or isnan(ours[name]):
                difference = 0.0 if isnan(wanted) and isnan(ours[name]) else float("inf")
            else:
                difference = abs(wanted - ours[name])
            found[name] = count + (not isnan(wanted)), max(largest, difference)
    return found


def table(sets: int = 200) -> str:
    """All scores, in Markdown."""
    lines = ["| metric | original | sets | largest difference |", "|---|---|---|---|"]
    for kind, (original, _) in COMPARISONS.items():
        lines += [_row(name, original, *row) for name, row in differences(kind, sets).items()]
    return "\n".join(lines)


def _row(name: str, original: str, count: int, largest: float) -> str:
    score, _, other = name.partition(" (")
    return f"| {score} | {other.rstrip(')') or original} | {count} | {largest:.1e} |"
