"""Settings of a folder that its configuration leaves out: proposed from what the files hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dpt.config import build
from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.checks import listed
from dpt.data_check.scan import Finding
from dpt.run_log import tracked
from dpt.types import IGNORE_INDEX

_CLASSES = ("num_classes", "label_map", "class_names")
_METRES = 100.0  # valid depth while data.max_depth is unknown


def propose(data: Mapping[str, Any], splits: Sequence[str]) -> tuple[dict[str, Any], list[Finding]]:
    """Settings that a folder lacks, and a note about each. Reads the masks if it has no classes."""
    settings: dict[str, Any] = {}
    notes: list[Finding] = []
    is_folder = all(key in data for key in _CLASSES)
    if is_folder and data["depth"] and data["max_depth"] is None:
        settings["max_depth"] = _METRES
        message = f"data.max_depth is not given; {_METRES:g} m is taken here"
        remedy = "set it to the largest depth that training needs (see the table of depth)"
        notes.append(Finding("note", "proposal", ", ".join(splits), message, remedy))
    if is_folder and data["labels"] and not any(data[key] for key in _CLASSES):
        settings["num_classes"] = IGNORE_INDEX
        ids, colors = _read_masks({**data, **settings}, splits)
        if rows := data["label_colors"] or [list(color) for color, _ in colors.most_common()]:
            classes: dict[str, Any] = {"num_classes": len(rows), "label_colors": rows}
            counts = [colors[tuple(row)] for row in rows]
            message, last = f"the masks hold {len(rows)} colours", len(rows) - 1
            hint = (
                f"set data.num_classes={last} data.ignore_index={last} and move its row to the end"
            )
        elif ids:
            classes = class_settings(ids)
            counts = [
                ids[i] for i in classes.get("label_map", range(classes.get("num_classes", 0)))
            ]
            message, hint = f"the masks hold the ids {listed(ids)}", "name it in data.ignore_index"
        else:
            return settings, notes
        settings |= {"num_classes": None, **classes}
        given = {f"data.{key}": value for key, value in classes.items()}
        given["task.segmentation_loss.class_weights"] = class_weights(counts)
        remedy = "set " + " ".join(f"{k}={str(v).replace(' ', '')}" for k, v in given.items())
        remedy += f"; if one of them means unlabelled, {hint}"
        notes.append(Finding("note", "proposal", ", ".join(splits), message, remedy))
    return settings, notes


def _read_masks(
    data: Mapping[str, Any], splits: Iterable[str]
) -> tuple[Counter[int], Counter[tuple[int, ...]]]:
    """Pixels of each id and of each colour in the mask files; files with faults are left out."""
    ids, colors = Counter[int](), Counter[tuple[int, ...]]()
    for split in splits:
        try:
            dataset = build.make_dataset(data, split)
        except DataError:  # becomes a finding when the split is read
            continue
        files = [dataset.files(i) for i in range(len(dataset))]
        paths = [each.labels for each in files if each is not None and each.labels]
        for path in tracked(paths, len(paths), title=f"reading masks of {split}"):
            try:
                values = io.label_values(path)
            except DataError:
                continue
            colors.update({k: n for k, n in values.items() if len(k) > 1})
            ids.update({k[0]: n for k, n in values.items() if len(k) == 1})
            if len(colors) > IGNORE_INDEX:
                raise DataError(
                    f"{path}: the masks hold more than {IGNORE_INDEX} colours: these are photos, "
                    "or were resized by interpolation or saved as JPEG: save class ids as PNG"
                )
    return ids, colors


def class_settings(ids: Iterable[int]) -> dict[str, Any]:
    """The settings that make classes of the ids in mask files."""
    found = sorted(ids)
    # far above the others: a value for what is unlabelled
    high = [i for i in found if i >= max(200, 2 * len(found))]
    low = [i for i in found if i not in high]
    if low in ([], [0]):  # a mask of 0 and 255
        return {"label_map": found}
    if low[0] == 1 or 2 * len(low) <= low[-1]:  # 0, if any, and gaps have no class
        return {"label_map": low}
    return {"num_classes": low[-1] + 1, "ignore_index": sorted({*high, IGNORE_INDEX})}


def class_weights(counts: Sequence[int]) -> list[float]:
    """(Share of the pixels)^-0.25 divided by the mean; 1 for classes without a pixel."""
    weights = np.array([count or np.nan for count in counts], float) ** -0.25
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()
