"""One sample, as much of it as can be read: a broken file must not stop the others' check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data.base import Dataset, Files, check_sample
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelRule
from dpt.types import IGNORE_INDEX, DatasetInfo, Sample


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a sample cannot be used."""

    code: str
    message: str


@dataclass(frozen=True)
class Facts:
    """What a data set says about itself, and about its files where it has any.

    Attributes:
        info: of the data set.
        class_id_names: names of the image-level classes.
        depth: how the numbers of depth files become metres; None if that is not known.
        labels: how the ids of label files become classes; None if that is not known.
        root: folder that names are shortened by.
    """

    info: DatasetInfo
    class_id_names: tuple[str, ...] = ()
    depth: DepthRule | None = None
    labels: LabelRule | None = None
    root: str = ""

    @classmethod
    def of(cls, dataset: Dataset) -> Facts:
        # numbers in another encoding are of no unit: the metres are judged instead
        depth = dataset.depth_rule
        return cls(
            info=dataset.info,
            class_id_names=dataset.class_id_names,
            depth=depth if depth is not None and depth.encoding == "linear" else None,
            labels=dataset.label_rule,
            root=str(dataset.root or ""),
        )

    def short(self, text: str) -> str:
        """A name or message without the folder that all files share."""
        return text.replace(f"{self.root}/", "") if self.root else text


@dataclass(slots=True)
class Reading:
    """A sample, what is wrong with it, and what its files hold.

    Attributes:
        sample: whole if ``faults`` is empty; else what could be read.
        faults: why it cannot be used.
        outside: pixels of each value of the label file that is neither a class nor ignored.
        raw_depth: the numbers of the depth file; None where they are not known or encoded.
        photo: the photo's file, where it is known.
    """

    sample: Sample
    faults: tuple[Fault, ...] = ()
    outside: dict[int, int] | None = None
    raw_depth: np.ndarray | None = None
    photo: Path | None = None


def read(dataset: Dataset, index: int, facts: Facts) -> Reading:
    """Reads a sample as training does; if that fails, its files one by one to say why."""
    files = dataset.files(index)
    try:
        sample = dataset[index]
        check_sample(sample)
    except Exception as error:
        fault = Fault("unreadable", _line(error))
        if files is None:
            return Reading(Sample(index=index, name=f"sample {index}"), (fault,))
        return _read_parts(dataset, files, facts, Reading(_named(index, files), (fault,)))
    reading = Reading(sample, photo=files.image if files else _path(sample.get("name", "")))
    if files is not None and files.depth is not None and facts.depth is not None:
        key = dataset.depth_key
        reading.raw_depth = _attempt(partial(io.read_raw_depth, files.depth, key=key), [])
    return reading


def _read_parts(dataset: Dataset, files: Files, facts: Facts, reading: Reading) -> Reading:
    """What can be read of a sample that is refused, and why it is refused."""
    (refusal,) = reading.faults
    sample, messages = reading.sample, list[str]()
    reading.photo = files.image
    image = _attempt(partial(io.read_image, files.image), messages)
    if image is not None:
        sample["image"] = image
    path = files.labels
    if path is not None and (labels := facts.labels) is not None:
        raw = _attempt(partial(io.read_labels, path, colors=labels.colors), messages)
        if raw is not None:
            sample["labels"], reading.outside = _sort_out(raw, labels)
    path = files.depth
    if path is not None and (depth := dataset.depth_rule) is not None:
        raw = _attempt(partial(io.read_raw_depth, path, key=dataset.depth_key), messages)
        if raw is not None:
            sample["depth"], sample["valid"] = depth(raw)
            reading.raw_depth = raw if facts.depth is not None else None
    sizes = {value.shape[:2] for value in sample.values() if isinstance(value, np.ndarray)}
    reading.faults = tuple(Fault("unreadable", message) for message in messages)
    if len(sizes) > 1:
        reading.faults += (Fault("size_mismatch", refusal.message),)
    elif reading.outside:
        reading.faults += (Fault("label_outside", refusal.message),)
    elif not messages:
        reading.faults = (refusal,)
    return reading


def _sort_out(raw: np.ndarray, rule: LabelRule) -> tuple[np.ndarray, dict[int, int]]:
    """The classes as the rule makes them, and the pixels of every value that it would refuse."""
    values, counts = np.unique(raw, return_counts=True)
    allowed = {*range(rule.num_classes), *rule.ignore_index}
    outside = {
        int(value): int(count)
        for value, count in zip(values, counts, strict=True)
        if rule.ids_of_class is None and int(value) not in allowed
    }
    wrong = np.isin(raw, [*outside])
    labels = rule(np.where(wrong, 0, raw), source="")
    return np.where(wrong, np.uint8(IGNORE_INDEX), labels), outside


def _named(index: int, files: Files) -> Sample:
    return Sample(index=index, name=str(files.image))


def _attempt(function: Callable[[], Any], messages: list[str]) -> Any:
    """The function's result; None where it fails, with the reason added to ``messages``."""
    try:
        return function()
    except Exception as error:
        messages.append(_line(error))
        return None


def _line(error: Exception) -> str:
    """An error as one line; its type is named where it is none that the readers raise."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _path(name: str) -> Path | None:
    path = Path(name)
    return path if path.suffix and path.is_file() else None
