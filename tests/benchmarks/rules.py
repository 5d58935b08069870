"""Rules of scoring beside the code that defines them, on :mod:`benchmarks.rule_arrays`.

``rule_numbers.json`` holds what the originals computed on them, each by its own code at the commit
that stands there, with float32 in it replaced by float64; of MiDaS's gist by a copy of it. null is
NaN, or for a whole image: left out. BTS and the KITTI devkit, which is C++, are written down here
from their source. Rules for segmentation are compared in the same way, with
``class_rule_numbers.json``; torchmetrics runs itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from benchmarks.originals import bts_errors
from benchmarks.rule_arrays import (
    CLASS_CASES,
    DEPTH_CASES,
    K,
    class_arrays,
    class_scores,
    depth_image,
    depth_scores,
)
from benchmarks.timing import markdown
from torchmetrics.classification import MulticlassJaccardIndex

from dpt.metrics.rules import RULES, SEGMENTATION_RULES, DepthImage, DepthRule, Rule
from dpt.types.outputs import DepthKind


class Row(NamedTuple):
    """A rule beside its original on one image, or data set; None: the image is left out."""

    rule: Rule
    original: str
    case: str
    ours: np.ndarray | None
    theirs: np.ndarray | None

    @property
    def difference(self) -> float:
        """The largest difference; infinite where only one side has a value."""
        if self.ours is None or self.theirs is None:
            return 0.0 if self.ours is self.theirs else np.inf
        is_equal = (self.ours == self.theirs) | (np.isnan(self.ours) & np.isnan(self.theirs))
        with np.errstate(invalid="ignore"):
            differences = np.where(is_equal, 0.0, np.abs(self.ours - self.theirs))
        return float(np.nan_to_num(differences, nan=np.inf).max())


def kitti_filled(depth: np.ndarray) -> np.ndarray:
    """Returns what ``interpolateBackground`` of the devkit's ``io_depth.h`` does, by its loops."""
    depth = np.where(depth > 0, depth, -1.0)
    height, width = depth.shape
    for row in depth:
        known = [u for u in range(width) if row[u] >= 0]
        for first, second in pairwise(known):
            row[first + 1 : second] = min(row[first], row[second])
        if known:
            row[: known[0]] = row[known[0]]
            row[known[-1] + 1 :] = row[known[-1]]
    for u in range(width):
        known = [v for v in range(height) if depth[v, u] >= 0]
        if known:
            depth[: known[0], u] = depth[known[0], u]
            depth[known[-1] + 1 :, u] = depth[known[-1], u]
    return depth


def kitti_errors(image: DepthImage) -> list[float] | None:
    """Returns what ``depthError`` does, with the root of SILog that the benchmark reports."""
    counted = image.valid & (image.depth > 0)
    if not counted.any():
        return None
    p, t = kitti_filled(image.prediction)[counted], image.depth[counted]
    with np.errstate(invalid="ignore"):
        error = np.log(t) - np.log(p)
    inverse = np.abs(1 / (t / 1000) - 1 / (p / 1000))
    squared = (error**2).mean()
    values = [
        100 * np.sqrt(squared - error.sum() ** 2 / len(t) ** 2),
        100 * ((t - p) ** 2 / t**2).mean(),
        100 * (np.abs(t - p) / t).mean(),
        np.sqrt((inverse**2).mean()),
        inverse.mean(),
        np.abs(t - p).mean(),
        np.sqrt(((t - p) ** 2).mean()),
        np.abs(error).mean(),
        np.sqrt(squared),
    ]
    return [float(value) for value in values]


def bts_scores(image: DepthImage) -> list[float] | None:
    """Returns ``bts_errors`` after the clamps of BTS's ``eval``."""
    low, high = 1e-3, image.max_depth
    counted = image.valid & (image.depth > low) & (image.depth < high)
    if not counted.any():
        return None
    prediction = np.nan_to_num(image.prediction[counted], nan=low, posinf=high).clip(low, high)
    scores = bts_errors(image.depth[counted], prediction)
    return [float(scores[name]) for name in RULES["bts"].scores]


WRITTEN_DOWN = {"bts": bts_scores, "kitti_official": kitti_errors}


def _original(rule: Rule) -> str:
    return re.search("Original: (.*)", type(rule).__doc__)[1]


def _row(rule: DepthRule, original: str, case: str, kind: DepthKind, theirs: object) -> Row:
    expected = None if theirs is None else np.array(theirs, dtype=float)
    return Row(rule, original, case, depth_scores(rule, depth_image(case, kind)), expected)


def rows() -> Iterator[Row]:
    """Yields each rule on each image."""
    for name, function in WRITTEN_DOWN.items():
        for case in DEPTH_CASES:
            theirs = function(depth_image(case))
            yield _row(RULES[name], _original(RULES[name]), case, "metric", theirs)
    for entry in json.loads(Path(__file__).with_name("rule_numbers.json").read_text()):
        rule = RULES[entry["rule"]]
        assert tuple(entry["scores"]) == rule.scores
        for case, theirs in entry["images"].items():
            yield _row(rule, entry["original"], case, entry["kind"], theirs)


def torchmetrics_miou(case: str) -> float:
    """Returns the mIoU of torchmetrics; NaN if it raises, as for predictions of no class."""
    metric = MulticlassJaccardIndex(K, average="macro", ignore_index=255)
    try:
        for prediction, labels in class_arrays(case):
            metric.update(torch.from_numpy(prediction).long(), torch.from_numpy(labels).long())
    except RuntimeError:
        return np.nan
    return metric.compute().item()


def class_rows() -> Iterator[Row]:
    """Yields each rule for segmentation on each data set."""
    rule = SEGMENTATION_RULES["torchmetrics"]
    for case in CLASS_CASES:
        theirs = np.array([torchmetrics_miou(case)])
        yield Row(rule, _original(rule), case, class_scores(rule, case), theirs)
    for entry in json.loads(Path(__file__).with_name("class_rule_numbers.json").read_text()):
        rule = SEGMENTATION_RULES[entry["rule"]]
        assert tuple(entry["scores"]) == rule.scores
        for case, values in entry["images"].items():
            ours, theirs = class_scores(rule, case), np.array(values, dtype=float)
            yield Row(rule, entry["original"], case, ours, theirs)


def _by_rule(rows: Iterable[Row]) -> Iterator[tuple[Rule, list[str]]]:
    """Yields each rule, and the cells: what it does, its original, largest difference."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.rule.name, []).append(row)
    for group in groups.values():
        rule = group[0].rule
        original = re.match(r"\S+/\S+ [0-9a-f]{12}|[^,:;]+", group[0].original)[0]
        difference = f"{max(row.difference for row in group):.0e}"
        yield rule, [rule.summary, original, difference]


COLUMNS = ["what it does", "original code", "largest difference"]


def depth_table() -> list[list[str]]:
    """Returns a row for each rule for depth."""
    return [[f"`{r.name}`", r.fitted or "–", *cells] for r, cells in _by_rule(rows())]


def class_table() -> list[list[str]]:
    """Returns a row for each rule for segmentation."""
    by_rule = _by_rule(class_rows())
    rule_of = SEGMENTATION_RULES
    return [
        [f"`{r.name}`", rule_of[r.name].absent, rule_of[r.name].no_class, *cells]
        for r, cells in by_rule
    ]


def run(arguments: list[str]) -> None:
    """Prints the tables of all rules."""
    if arguments:
        raise SystemExit("python tests/benchmarks rules: takes no arguments")
    print(markdown(["rule", "fitted", *COLUMNS], depth_table()), end="\n\n")
    print(markdown(["rule", "absent class", "no class predicted", *COLUMNS], class_table()))
