"""The metadata of an exported file: what a program must know to use it, written and read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dpt
from dpt.exporting.graph import Graph
from dpt.files import parse_json
from dpt.model import DPT
from dpt.types.outputs import DEPTH_UNITS, OutputSpec
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.validation import Plain, to_plain, validate


def describe(model: DPT, graph: Graph, *, size: tuple[int, int] | None) -> dict[str, str]:
    """Returns the file's metadata, what a user must know by name; lists and objects are JSON."""
    rule = model.preprocessing
    count = len(rule.mean)
    if graph.preprocessing is None:
        content = "RGB / 255" if rule.is_rgb else "bands"
        form = f"float32 (batch, {count}, height, width): {content}, minus mean, divided by std"
    elif rule.is_rgb:
        form = "uint8 (batch, height, width, 3): RGB, normalised inside"
    else:
        form = f"float32 (batch, height, width, {count}): bands, normalised inside"
    outputs = {name: replace(spec, record=None) for name, spec in graph.model.outputs.items()}
    depth = next((spec for spec in outputs.values() if spec.kind == "depth"), None)
    if depth is not None and depth.canonical_focal is not None and model.calibration is not None:
        # the calibration is of the output as it is, and takes the place of the focal length
        unit = DEPTH_UNITS["up_to_scale"]
        outputs[depth.name] = replace(depth, canonical_focal=None, unit=unit)
    metadata: Plain = {
        "dpt_version": dpt.__version__,
        "model": model.config.name,
        "outputs": {name: asdict(spec) for name, spec in outputs.items()},
        "input": form,
        "input_size": list(size) if size else "any",
        "resize": f"before the input: {rule.resize} image_size, {rule.interpolation}",
        **{k: v for k, v in to_plain(rule).items() if k not in ("resize", "interpolation")},
        "preprocessing": to_plain(rule),
        "normalises": graph.preprocessing is not None,
    }
    if model.calibration is not None:
        metadata["calibration"] = to_plain(model.calibration)
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()}


@dataclass(frozen=True)
class Description:
    """What :func:`describe` wrote of a model.

    Attributes:
        normalises: whether the file normalises images, which it takes with channels last.
        size: (H, W) of images, if it is fixed.
    """

    preprocessing: Preprocessing
    outputs: dict[str, OutputSpec]
    calibration: Calibration | None
    normalises: bool
    size: tuple[int, int] | None

    @classmethod
    def read(cls, metadata: Mapping[str, str], path: Path) -> Description:
        """Returns what the metadata of a file state; ValueError if something is missing."""
        needed = ("preprocessing", "outputs", "normalises", "input_size")
        absent = [key for key in needed if key not in metadata]
        if absent:
            fault = f"its metadata do not state {', '.join(absent)}, and nothing is guessed"
            raise ValueError(f"{path}: {fault}: write it by dpt export, or give the checkpoint")
        keys = (*needed, "calibration")
        texts = {key: metadata[key] for key in keys if key in metadata}
        values = {k: v if v == "any" else parse_json(v, path) for k, v in texts.items()}

        def typed(kind: Any, key: str) -> Any:
            return validate(kind, values.get(key), f"{path}: {key}")

        size = None if values["input_size"] == "any" else typed(tuple[int, int], "input_size")
        return cls(
            preprocessing=typed(Preprocessing, "preprocessing"),
            outputs=typed(dict[str, OutputSpec], "outputs"),
            calibration=typed(Calibration | None, "calibration"),
            normalises=typed(bool, "normalises"),
            size=size,
        )
