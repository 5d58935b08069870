"""The archive of arrays and expected scores, the same bytes on every machine."""

import io
import json
import math
import zipfile
from collections.abc import Mapping

import numpy as np

from dpt.html import render_markdown
from dpt.metrics.referee import (
    CLASS_CASES,
    DEPTH_CASES,
    MAX_DEPTH,
    K,
    class_arrays,
    class_scores,
    depth_arrays,
    depth_image,
    depth_scores,
)
from dpt.metrics.rules import RULES, SEGMENTATION_RULES, DepthRule, Rule
from dpt.metrics.rules.moments import Floats
from dpt.types import DepthKind

DIGITS = 6
"""Decimal places of expected scores."""
KINDS: tuple[DepthKind, ...] = ("metric", "relative")
POOLED = ("smooth", "holes", "far")
"""Images that are also scored as one data set."""
NOT_COMPARED = {"moge_affine": ("ties", "zeros")}
"""Images left out by rule: where predictions are equal, the original misses its minimum."""

Scores = Mapping[str, float | str]


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return round(value, DIGITS) + 0.0  # no -0.0


def _scores(rule: Rule, values: Floats | None) -> Scores | None:
    if values is None:
        return None
    return {n: _number(v) for n, v in zip(rule.scores, values.tolist(), strict=True)}


def _depth_scores(rule: DepthRule, kind: DepthKind) -> Mapping[str, Scores | None]:
    """Returns the scores by image, and those of a data set."""
    used = [case for case in DEPTH_CASES if case not in NOT_COMPARED.get(rule.name, ())]
    images = {case: depth_image(case, kind) for case in used}
    by_case = {case: _scores(rule, depth_scores(rule, image)) for case, image in images.items()}
    pooled = depth_scores(rule, *(images[case] for case in POOLED))
    return by_case | {"+".join(POOLED): _scores(rule, pooled)}


def _expected() -> str:
    depth = {
        rule.name: {kind: _depth_scores(rule, kind) for kind in KINDS if kind in rule.kinds}
        for rule in RULES.values()
    }
    segmentation = {
        rule.name: {case: _scores(rule, class_scores(rule, case)) for case in CLASS_CASES}
        for rule in SEGMENTATION_RULES.values()
    }
    scores = {"depth": depth, "segmentation": segmentation}
    return json.dumps(scores, indent=1, sort_keys=True) + "\n"


def _arrays() -> dict[str, np.ndarray]:
    """Returns the arrays by path."""
    arrays: dict[str, np.ndarray] = {}
    for case in DEPTH_CASES:
        for kind in KINDS:
            prediction, depth, valid = depth_arrays(case, kind)
            arrays[f"depth/{case}/{kind}"] = prediction
        arrays |= {f"depth/{case}/depth": depth, f"depth/{case}/valid": valid}
    for case in CLASS_CASES:
        for k, (classes, labels) in enumerate(class_arrays(case)):
            arrays[f"segmentation/{case}/{k}_prediction"] = classes
            arrays[f"segmentation/{case}/{k}_labels"] = labels
    return arrays


def archive() -> bytes:
    """Returns the zip file: without compression, whose bytes depend on the library."""
    readme = render_markdown(
        "referee.md",
        rules=(*RULES.values(), *SEGMENTATION_RULES.values()),
        digits=DIGITS,
        pooled="+".join(POOLED),
        max_depth=f"{MAX_DEPTH:g}",
        classes=K,
    )
    content = {"README.md": readme.encode(), "expected.json": _expected().encode()}
    for path, array in _arrays().items():
        buffer = io.BytesIO()
        little_endian = array.astype(array.dtype.newbyteorder("<"))
        np.lib.format.write_array(buffer, little_endian, version=(1, 0), allow_pickle=False)
        content[f"{path}.npy"] = buffer.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for path, data in content.items():
            entry = zipfile.ZipInfo(path)  # dated 1980
            entry.create_system = 3  # as on Linux
            entry.external_attr = 0o100644 << 16
            file.writestr(entry, data)
    return buffer.getvalue()
