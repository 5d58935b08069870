"""One sample, as much of it as can be read: a broken file must not stop the others' check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data import io
from dpt.data.base import check_sample
from dpt.types import IGNORE_INDEX, DatasetInfo, Sample


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a sample cannot be used."""

    code: str
    message: str


@dataclass(frozen=True)
class Facts:
    """What a data set says about itself; what lies behind its samples where it tells.

    Attributes:
        info: of the data set.
        class_id_names: names of the image-level classes.
        depth_scale: metres for each unit of the depth files; None where files are not known.
        invalid_depth: values in the depth files that are declared invalid.
        ignore_index: values in the label files that mean "unlabelled".
        root: folder that names are shortened by.
    """

    info: DatasetInfo
    class_id_names: tuple[str, ...] = ()
    depth_scale: float | None = None
    invalid_depth: tuple[float, ...] = ()
    ignore_index: tuple[int, ...] = ()
    root: str = ""

    @classmethod
    def of(cls, dataset: Any) -> Facts:
        ignored = getattr(dataset, "ignore_index", None)
        return cls(
            info=dataset.info,
            class_id_names=tuple(getattr(dataset, "class_id_names", ())),
            depth_scale=getattr(dataset, "depth_scale", None) if _has_files(dataset) else None,
            invalid_depth=tuple(getattr(dataset, "invalid_depth", ())),
            ignore_index=(ignored,) if isinstance(ignored, int) else tuple(ignored or ()),
            root=str(getattr(dataset, "root", "")),
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
        raw_depth: the numbers of the depth file, where it is known.
        photo: the photo's file, where it is known.
    """

    sample: Sample
    faults: tuple[Fault, ...] = ()
    outside: dict[int, int] | None = None
    raw_depth: np.ndarray | None = None
    photo: Path | None = None


def read(dataset: Any, index: int) -> Reading:
    """Reads a sample as training does; if that fails, its files one by one to say why."""
    files = dataset.files(index) if _has_files(dataset) else None
    try:
        sample = dataset[index]
        check_sample(sample)
    except Exception as error:
        fault = Fault("unreadable", _line(error))
        if files is None:
            return Reading(Sample(index=index, name=f"sample {index}"), (fault,))
        return _read_parts(dataset, index, files, fault)
    reading = Reading(sample, photo=files.image if files else _path(sample.get("name", "")))
    if files is not None and files.depth is not None and hasattr(dataset, "depth_scale"):
        reading.raw_depth = _attempt(lambda: io.read_raw_depth(files.depth), [])
    return reading


def _read_parts(dataset: Any, index: int, files: Any, fault: Fault) -> Reading:
    """What can be read of a sample that is refused, and why it is refused."""
    facts = Facts.of(dataset)
    sample = Sample(index=index, name=str(files.image))
    reading = Reading(sample, photo=files.image)
    messages: list[str] = []
    image = _attempt(lambda: io.read_image(files.image), messages)
    if image is not None:
        sample["image"] = image
    if files.labels is not None:
        colors = getattr(dataset, "label_colors", ())
        raw = _attempt(lambda: io.read_labels(files.labels, colors=colors), messages)
        if raw is not None:
            sample["labels"], reading.outside = _sort_out(raw, facts)
    if files.depth is not None:
        reading.raw_depth = _attempt(lambda: io.read_raw_depth(files.depth), messages)
        if reading.raw_depth is not None and facts.depth_scale is not None:
            sample["depth"], sample["valid"] = io.read_depth(
                files.depth,
                scale=facts.depth_scale,
                invalid=facts.invalid_depth,
                min_depth=facts.info.min_depth,
                max_depth=facts.info.max_depth,
            )
    maps: dict[str, Any] = {k: v for k, v in sample.items() if isinstance(v, np.ndarray)}
    reading.faults = tuple(Fault("unreadable", message) for message in messages)
    if len({array.shape[:2] for array in maps.values()}) > 1:
        reading.faults += (Fault("size_mismatch", fault.message),)
    elif reading.outside:
        reading.faults += (Fault("label_outside", fault.message),)
    elif not reading.faults:
        reading.faults = (fault,)
    return reading


def _sort_out(raw: np.ndarray, facts: Facts) -> tuple[np.ndarray, dict[int, int]]:
    """Ids as uint8, IGNORE_INDEX where there is no class, and the pixels of every wrong value."""
    values, counts = np.unique(raw, return_counts=True)
    allowed = {*range(facts.info.num_classes), *facts.ignore_index}
    outside = {
        int(v): int(n) for v, n in zip(values, counts, strict=True) if int(v) not in allowed
    }
    unlabelled = np.isin(raw, [*outside, *facts.ignore_index])
    return np.where(unlabelled, IGNORE_INDEX, raw).astype(np.uint8), outside


def _has_files(dataset: Any) -> bool:
    return callable(getattr(dataset, "files", None))


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
