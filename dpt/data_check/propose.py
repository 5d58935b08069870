"""Settings of a folder that its configuration leaves out: proposed from what the files hold."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpt.config import build
from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check import masks
from dpt.data_check.scan import Finding
from dpt.run_log import tracked
from dpt.types import IGNORE_INDEX

_CLASSES = ("num_classes", "label_map", "class_names")
_METRES = 100.0  # valid depth while data.max_depth is unknown


def propose(data: Mapping[str, Any], splits: Sequence[str]) -> tuple[dict[str, Any], list[Finding]]:
    """Settings that a folder lacks, and a note that lists them. Reads its masks for the classes."""
    settings: dict[str, Any] = {}
    hint = ""
    if data.get("depth") and data.get("max_depth", _METRES) is None:
        settings["max_depth"] = _METRES
    if data.get("labels") and not any(data.get(key, True) for key in _CLASSES):
        values, paths = _read_masks({**data, **settings, "num_classes": 1}, splits)
        if not values:  # reading the split says what is wrong with its masks
            return {**settings, "num_classes": 1}, []
        classes, keys = masks.class_settings(values, paths, masks.parts_of(data))
        settings |= classes
        weights = masks.class_weights([values[key] for key in keys])
        hint = f" task.segmentation_loss.class_weights={weights}".replace(", ", ",")
        hint += "; if one of the ids means unlabelled, name it in data.ignore_index and check again"
    if not settings:
        return {}, []
    message = "the configuration lacks settings; these follow from the files"
    pasted = " ".join(f"data.{key}={value}" for key, value in settings.items()).replace(", ", ",")
    remedy = f"set {pasted}{hint}"
    return settings, [Finding("note", "proposal", ", ".join(splits), message, remedy)]


def _read_masks(data: Mapping[str, Any], splits: Sequence[str]) -> tuple[masks.Values, list[Path]]:
    """The values in the masks that can be read, and these files."""
    values, paths = masks.Values(), list[Path]()
    for split in splits:
        try:
            dataset = build.make_dataset({**data, "unlabelled": None}, split)
        except DataError:  # becomes a finding when the split is read, as do damaged files
            continue
        rule = dataset.label_rule
        assert rule is not None
        samples = [dataset.files(index) for index in range(len(dataset))]
        labels = [files.labels for files in samples if files and files.labels]
        for path in tracked(labels, len(labels), title=f"reading masks of {split}"):
            with suppress(DataError):
                values.update(io.label_values(path, colors=rule.colors, parts=dataset.parts))
                paths.append(path)
            if len({key for key in values if len(key) == 1}) > masks.MOST_VALUES:
                raise DataError(
                    f"{path}: the masks hold more than {masks.MOST_VALUES} ids: save class ids as "
                    "PNG without interpolation, or choose some of them by data.label_map"
                )
        for i in {*rule.ignore_index} - {IGNORE_INDEX}:
            values.pop((i,), None)
    return masks.ids_of_colors(values), paths
