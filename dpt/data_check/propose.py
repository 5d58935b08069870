"""Settings of a folder that its configuration leaves out: proposed from what the files hold."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dpt.config.data import make_dataset
from dpt.data import DataError
from dpt.data.formats import io
from dpt.data_check.findings import Finding
from dpt.data_check.layouts.class_files import MAX_VALUES
from dpt.data_check.layouts.masks import (
    Values,
    class_settings,
    class_weights,
    ids_of_colors,
    part_of,
)
from dpt.run_log import tracked
from dpt.types import IGNORE_INDEX
from dpt.validation import Plain, PlainMapping

_CLASSES = ("num_classes", "label_map", "class_names")
_METRES = 100.0  # valid depth while data.max_depth is unknown


def propose(data: PlainMapping, splits: Sequence[str]) -> tuple[Plain, list[Finding]]:
    """Returns settings that a folder lacks, and a note that lists them. Reads its masks for the
    classes."""
    settings: Plain = {}
    task = hint = ""
    if data.get("depth") and data.get("max_depth", _METRES) is None:
        settings["max_depth"] = _METRES
    if data.get("labels") and not any(data.get(key, True) for key in _CLASSES):
        values, paths = _read_masks({**data, **settings, "num_classes": 1}, splits)
        if not values:  # reading the split says what is wrong with its masks
            return {**settings, "num_classes": 1}, []
        classes, class_values = class_settings(values, paths, part_of(data))
        settings |= classes
        weights = class_weights([values[value] for value in class_values])
        task = f" task.segmentation_loss.class_weights={weights}"
        hint = "; if one of the ids means unlabelled, name it in data.ignore_index and check again"
    if not settings:
        return {}, []
    message = "the configuration lacks settings; these follow from the files"
    arguments = " ".join(f"data.{key}={value}" for key, value in settings.items())
    remedy = f"set {arguments}{task}".replace(", ", ",") + hint
    return settings, [Finding("note", "proposal", ", ".join(splits), message, remedy)]


def _read_masks(data: PlainMapping, splits: Sequence[str]) -> tuple[Values, list[Path]]:
    """Returns the values in the masks that can be read, and these files."""
    values, paths = Values(), list[Path]()
    for split in splits:
        try:
            dataset = make_dataset({**data, "unlabelled": None}, split)
        except DataError:  # becomes a finding when the split is read, as do damaged files
            continue
        rule = dataset.label_rule
        assert rule is not None
        samples = [dataset.files(index) for index in range(len(dataset))]
        masks = [files.labels for files in samples if files and files.labels]
        for path in tracked(masks, len(masks), title=f"reading masks of {split}"):
            with suppress(DataError):
                values.update(io.label_values(path, colors=rule.colors, part=dataset.part))
                paths.append(path)
            if sum(len(value) == 1 for value in values) > MAX_VALUES:
                remedy = "save class ids as PNG without interpolation, or set data.label_map"
                raise DataError(f"{path}: masks of more than {MAX_VALUES} ids: {remedy}")
        for ignored in {*rule.ignore_index} - {IGNORE_INDEX}:
            values.pop((ignored,), None)
    return ids_of_colors(values), paths
