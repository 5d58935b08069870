"""Scores beside the code that defines them, on random sets.

The sets have ties, empty maps, ignored pixels and NaN.

- AP: pycocotools' ``COCOeval``.
- PQ: panopticapi, which is not on PyPI: the algorithm of its ``pq_compute``, written down here.
- mIoU: torchmetrics' ``MulticlassJaccardIndex``, and the formula of Hugging Face's ``mean_iou``.
- Depth: ``compute_errors`` of BTS (Lee et al. 2019), written down here.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from benchmarks.timing import markdown
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchmetrics.classification import MulticlassJaccardIndex

from dpt.metrics import DepthMetrics, SegmentationMetrics
from dpt.metrics.instances import InstanceMetrics, encode_masks
from dpt.metrics.segmentation import PanopticMetrics
from dpt.segments import NO_SEGMENT, SegmentMap, segments_of
from dpt.types.samples import ObjectMask

Scores = dict[str, float]
Compare = Callable[[np.random.Generator], tuple[Scores, Scores]]
"""Returns this project's scores and the original's on a random set."""
NAMES = ("a", "b", "c")
COCO_STATS = {0: "ap", 1: "ap50", 2: "ap75", 3: "ap_small", 4: "ap_medium", 5: "ap_large"}
COCO_STATS[8] = "recall"
THINGS = (True, True, False, False)
NUM_CLASSES = 5


class Objects(NamedTuple):
    """True and predicted objects of an image, masks bool (N, H, W)."""

    true_masks: torch.Tensor
    true_classes: np.ndarray
    is_crowd: np.ndarray
    areas: np.ndarray  # as the annotation states them, which need not be those of the masks
    masks: torch.Tensor
    classes: np.ndarray
    scores: np.ndarray


def _boxes(corners: np.ndarray, size: tuple[int, int]) -> torch.Tensor:
    """Returns masks (N, H, W) of rectangles (top, left, height, width), cut at the border."""
    masks = torch.zeros((len(corners), *size), dtype=torch.bool)
    for mask, (top, left, height, width) in zip(masks, corners.tolist(), strict=True):
        mask[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = True
    return masks


def random_objects(random: np.random.Generator) -> Objects:
    """Returns overlapping rectangles on a coarse grid, so that IoUs hit thresholds exactly.

    There are crowds, equal scores, and sometimes more than a hundred predictions of one class.
    """
    size, step = (130, 150), int(random.choice([1, 5, 10]))
    count = int(random.choice([0, 1, 3, 8]))
    boxes = random.integers((0, 0, 2, 2), (110, 130, 120, 140), (count, 4)) // step * step
    boxes[:, 2:] = np.maximum(boxes[:, 2:], step)
    true_masks = _boxes(boxes, size)
    number = int(random.choice([0, 2, 12, 30], p=[0.1, 0.3, 0.4, 0.2]))
    if random.random() < 0.03:
        number = 160
    true_classes = random.integers(0, 2, count)  # the last class has no object
    near = random.integers(0, max(count, 1), number)
    moved = boxes[near] if count else np.full((number, 4), 20)
    moved = moved + random.integers(-2, 3, (number, 4)) * step * (random.random((number, 1)) < 0.5)
    moved[:, 2:] = np.maximum(moved[:, 2:], step)
    classes = random.integers(0, 1 if number > 100 else 3, number)
    if count:
        classes = np.where(random.random(number) < 0.7, true_classes[near], classes)
    digits = int(random.choice([1, 3, 16]))
    return Objects(
        true_masks,
        true_classes,
        random.random(count) < 0.2,
        true_masks.sum((1, 2)).numpy() * random.choice([1.0, 1.3], count),
        _boxes(moved, size),
        classes,
        random.random(number).round(digits),
    )


def pycocotools_scores(images: list[Objects]) -> Scores:
    """Returns the scores of ``COCOeval``; NaN for its -1."""
    annotations: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for image_id, image in enumerate(images):
        for k, code in enumerate(encode_masks(image.true_masks)):
            annotation = {
                "id": len(annotations) + 1,
                "image_id": image_id,
                "category_id": int(image.true_classes[k]),
                "iscrowd": int(image.is_crowd[k]),
                "area": float(image.areas[k]),
                "segmentation": code,
            }
            annotations.append(annotation)
        for code, c, score in zip(
            encode_masks(image.masks), image.classes, image.scores, strict=True
        ):
            row = {"image_id": image_id, "category_id": int(c), "score": score}
            results.append(row | {"segmentation": code})
    height, width = images[0].true_masks.shape[1:]
    content = {
        "images": [{"id": k, "height": height, "width": width} for k in range(len(images))],
        "annotations": annotations,
        "categories": [{"id": c, "name": name} for c, name in enumerate(NAMES)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        ground_truth, nothing = COCO(), COCO()
        ground_truth.dataset, nothing.dataset = content, {**content, "annotations": []}
        ground_truth.createIndex()
        nothing.createIndex()
        predicted = ground_truth.loadRes(results) if results else nothing
        evaluation = COCOeval(ground_truth, predicted, "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = {name: float(evaluation.stats[position]) for position, name in COCO_STATS.items()}
    return {name: float("nan") if value < 0 else value for name, value in values.items()}


def add_objects(metric: InstanceMetrics, image: Objects, index: int) -> None:
    """Updates the metric with an image."""
    columns = image.true_classes.tolist(), image.is_crowd.tolist(), image.areas.tolist()
    ground_truth = [
        ObjectMask(c, code, is_crowd, area)
        for code, c, is_crowd, area in zip(encode_masks(image.true_masks), *columns, strict=True)
    ]
    classes, scores = torch.from_numpy(image.classes), torch.from_numpy(image.scores)
    metric.update(image.masks, classes, scores, ground_truth, index)


def compare_instances(random: np.random.Generator) -> tuple[Scores, Scores]:
    images = [random_objects(random) for _ in range(int(random.integers(1, 12)))]
    metric = InstanceMetrics(NAMES)
    for k, image in enumerate(images):
        add_objects(metric, image, k)
    return metric.scores(), pycocotools_scores(images)


def _blocks(random: np.random.Generator, count: int) -> np.ndarray:
    """Returns a map (24, 32) of ids in blocks of four pixels."""
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
        predicted = np.where(ids < 0, NO_SEGMENT, np.searchsorted(present, ids))
        classes = random.integers(0, 4, len(present)) if random.random() < 0.2 else present // 4 % 4
        segments = SegmentMap(
            torch.from_numpy(predicted), torch.from_numpy(classes), torch.ones(len(classes))
        )
        metric.update(
            segments, segments_of(torch.from_numpy(labels), torch.from_numpy(objects), THINGS)
        )
        sums += panopticapi_sums(predicted, classes, labels, objects)
    iou, positives, false_positives, false_negatives = sums
    total = positives + (false_positives + false_negatives) / 2
    with np.errstate(invalid="ignore"):
        by_class = {
            "pq": iou / total,
            "sq": np.where(total > 0, iou / np.maximum(positives, 1), np.nan),
            "rq": positives / total,
        }
    return metric.scores(), {name: _nanmean(values) for name, values in by_class.items()}


def panopticapi_sums(
    predicted: np.ndarray, classes: np.ndarray, labels: np.ndarray, objects: np.ndarray
) -> np.ndarray:
    """Returns sums of IoU, true and false positives and false negatives, (4, K): ``pq_compute``."""
    sums, void = np.zeros((4, len(THINGS))), labels == 255
    true = [(c, n == 0, (labels == c) & (objects == n)) for c in (0, 1) for n in range(3)]
    true += [(c, False, labels == c) for c in (2, 3)]
    true = [segment for segment in true if segment[2].any()]
    matched, hit = set(), set()
    for p, c in enumerate(classes):
        for t, (true_class, is_crowd, mask) in enumerate(true):
            if true_class != c or is_crowd:
                continue
            shared = ((predicted == p) & mask).sum()
            union = ((predicted == p) & ~void).sum() + mask.sum() - shared
            if shared / union > 0.5:
                sums[:2, c] += shared / union, 1
                matched.add(p)
                hit.add(t)
    for t, (c, is_crowd, _) in enumerate(true):
        sums[3, c] += t not in hit and not is_crowd
    for p, c in enumerate(classes):
        crowds = [mask for true_class, is_crowd, mask in true if is_crowd and true_class == c]
        is_ignored = np.any([void, *crowds], axis=0)
        fraction = ((predicted == p) & is_ignored).sum() / (predicted == p).sum()
        sums[2, c] += p not in matched and not fraction > 0.5
    return sums


def compare_classes(random: np.random.Generator) -> tuple[Scores, Scores]:
    """Maps equal in part, with unlabelled pixels and images, and classes that do not occur."""
    metric = SegmentationMetrics(NUM_CLASSES)
    original = MulticlassJaccardIndex(NUM_CLASSES, ignore_index=255, average="none")
    intersection, union = np.zeros(NUM_CLASSES), np.zeros(NUM_CLASSES)
    for _ in range(int(random.integers(1, 5))):
        labels = random.integers(0, int(random.integers(1, 6)), (20, 30))
        is_wrong = random.random(labels.shape) < random.choice([0.0, 0.3, 1.0])
        predicted = np.where(is_wrong, random.integers(0, NUM_CLASSES, labels.shape), labels)
        unlabelled = random.choice([0.0, 0.4, 1.0], p=[0.4, 0.5, 0.1])
        labels[random.random(labels.shape) < unlabelled] = 255
        metric.update(torch.from_numpy(predicted), torch.from_numpy(labels))
        original.update(torch.from_numpy(predicted)[None], torch.from_numpy(labels)[None])
        is_known = labels != 255  # mean_iou of Hugging Face's evaluate, from mmsegmentation
        shared, predicted_area, true_area = (
            np.histogram(ids, bins=NUM_CLASSES, range=(0, NUM_CLASSES - 1))[0]
            for ids in (labels[predicted == labels], predicted[is_known], labels[is_known])
        )
        intersection += shared
        union += predicted_area + true_area - shared
    with np.errstate(invalid="ignore"):
        mean_iou = _nanmean(intersection / union)
    by_class = original.compute().double().numpy()  # 0 for classes that occur nowhere
    theirs = {"miou": mean_iou, "miou by torchmetrics": _nanmean(by_class[union > 0])}
    ours = metric.scores()["miou"]
    return {"miou": ours, "miou by torchmetrics": ours}, theirs


def bts_errors(gt: np.ndarray, pred: np.ndarray) -> Scores:
    """Returns what ``compute_errors`` of BTS's ``bts_test.py`` does."""
    thresh = np.maximum(gt / pred, pred / gt)
    err = np.log(pred) - np.log(gt)
    return {
        "abs_rel": np.mean(np.abs(gt - pred) / gt),
        "sq_rel": np.mean((gt - pred) ** 2 / gt),
        "rmse": np.sqrt(((gt - pred) ** 2).mean()),
        "rmse_log": np.sqrt((err**2).mean()),
        "log10": np.mean(np.abs(np.log10(pred) - np.log10(gt))),
        "silog": np.sqrt(np.mean(err**2) - np.mean(err) ** 2) * 100,
        "delta1": (thresh < 1.25).mean(),
        "delta2": (thresh < 1.25**2).mean(),
        "delta3": (thresh < 1.25**3).mean(),
    }


def compare_depth(random: np.random.Generator) -> tuple[Scores, Scores]:
    """Maps with invalid pixels, NaN there, depths beyond the range, and ratios of exactly 1.25."""
    metric = DepthMetrics(max_depth=10.0)
    rows: list[Scores] = []
    for _ in range(int(random.integers(1, 6))):
        depth = random.integers(1, 20, (12, 16)) / 2
        predicted = depth * random.choice([0.8, 1.0, 1.25, 2.0], depth.shape)
        predicted += random.choice([0.0, 0.5]) * random.random(depth.shape)
        valid = random.random(depth.shape) < random.choice([0.0, 0.5, 1.0], p=[0.1, 0.5, 0.4])
        depth[~valid & (random.random(depth.shape) < 0.5)] = np.nan
        metric.update(*(torch.from_numpy(values) for values in (predicted, depth, valid)))
        if valid.any():
            rows.append(bts_errors(depth[valid], np.clip(predicted[valid], 1e-3, 10.0)))
    theirs = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} if rows else {}
    return metric.scores(), theirs


def _nanmean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


COMPARISONS: dict[str, tuple[str, Compare]] = {
    "AP": ("pycocotools COCOeval", compare_instances),
    "PQ": ("panopticapi pq_compute", compare_panoptic),
    "mIoU": ("mean_iou of evaluate", compare_classes),
    "depth": ("BTS compute_errors", compare_depth),
}


def differences(kind: str, sets: int, *, seed: int = 0) -> dict[str, tuple[int, float]]:
    """Returns the number of sets in which each score has a value, and the largest difference.

    The difference is infinite where only one side has a value.
    """
    random = np.random.default_rng(seed)
    _, compare = COMPARISONS[kind]
    results: dict[str, tuple[int, float]] = {}
    for _ in range(sets):
        ours, theirs = compare(random)
        for name, expected in theirs.items():
            count, largest = results.get(name, (0, 0.0))
            if isnan(expected) or isnan(ours[name]):
                difference = 0.0 if isnan(expected) and isnan(ours[name]) else float("inf")
            else:
                difference = abs(expected - ours[name])
            results[name] = count + (not isnan(expected)), max(largest, difference)
    return results


def table(sets: int = 200) -> str:
    """Returns all scores, in Markdown."""
    rows = [
        [name, original, str(count), f"{largest:.1e}"]
        for kind, (original, _) in COMPARISONS.items()
        for name, (count, largest) in differences(kind, sets).items()
    ]
    return markdown(["score", "original", "sets", "largest difference"], rows)
