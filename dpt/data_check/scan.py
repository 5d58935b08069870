"""Reads a whole split in parallel and keeps a few measurements of every sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from dpt.data.base import Dataset, Files
from dpt.data.formats import io, pictures
from dpt.data.formats.depth_encoding import DepthRule
from dpt.data.formats.labels import LabelRule
from dpt.data.loading import read_in_order
from dpt.data_check import measure, registration
from dpt.files import DataError, printable
from dpt.run_log import tracked
from dpt.types import IGNORE_INDEX, Sample

ALIGNED = 32  # samples of a split, evenly spaced, from which registration is estimated
_FREQUENT = 64  # ignored ids of a mask that are counted
COMPARED = 1024  # largest number of samples whose maps are compared with other samples' photos
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem of one split, however many files have it.

    An ``error`` stops training or makes its result wrong, a ``warning`` is probably a mistake, a
    ``note`` is information.
    """

    severity: Severity
    code: str  # a short fixed name, for tests and scripts
    split: str
    message: str  # one line: what was found
    remedy: str = ""  # one line: what to do about it
    examples: tuple[str, ...] = ()  # the affected files, or a line about each of them
    indices: tuple[int, ...] = ()  # affected samples, of which the report shows some

    @property
    def line(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


Fault = tuple[str, str]
"""Why a sample cannot be used: a code and a message."""


@dataclass(slots=True, eq=False)
class Record:
    """Measurements of one sample. A part that it lacks, or that was not wanted, is None."""

    index: int
    name: str
    faults: Sequence[Fault] = ()
    photo: measure.Photo | None = None
    labels: measure.Labels | None = None
    depth: measure.Depth | None = None
    objects: measure.Objects | None = None
    object_faults: Sequence[str] = ()
    class_id: int | None = None
    edge_scores: dict[registration.MapKind, np.ndarray] = field(default_factory=dict)
    edges: dict[registration.MapKind, np.ndarray] = field(default_factory=dict)  # of photo and map


@dataclass(frozen=True, eq=False)
class Scan:
    split: str
    dataset: Dataset
    records: Sequence[Record]
    image_size: tuple[int, int] = (0, 0)  # (H, W) of training crops
    missing: str = "raise"  # or "skip": what training does with photos without labels
    earlier: tuple[Scan, ...] = ()  # the splits that were read before

    @property
    def first(self) -> Scan:
        """The split that was read first, usually train."""
        return self.earlier[0] if self.earlier else self

    @property
    def photos(self) -> list[tuple[Record, measure.Photo]]:
        return [(record, record.photo) for record in self.records if record.photo]

    @property
    def masks(self) -> list[tuple[Record, measure.Labels]]:
        return [(record, record.labels) for record in self.records if record.labels]

    @property
    def class_masks(self) -> list[tuple[Record, measure.Labels]]:
        """The masks, unless objects are all that they hold."""
        return [] if self.dataset.info.has_only_things else self.masks

    @property
    def maps(self) -> list[tuple[Record, measure.Depth]]:
        return [(record, record.depth) for record in self.records if record.depth]

    @property
    def depth_rule(self) -> DepthRule | None:
        """How depth files become metres; None if unknown or not proportional to it."""
        rule = self.dataset.depth_rule
        return rule if rule is not None and rule.decode is None else None

    def finding(
        self,
        severity: Severity,
        code: str,
        message: str,
        remedy: str = "",
        records: Iterable[Record] = (),
        examples: Iterable[object] | None = None,
    ) -> Finding:
        """A finding about ``records``; ``examples`` replace their names."""
        records = list(records)
        lines = [record.name for record in records] if examples is None else examples
        names = tuple(shorten(self.dataset, str(line)) for line in lines)
        indices = tuple(record.index for record in records)
        message = shorten(self.dataset, message)
        return Finding(severity, code, self.split, message, remedy, names, indices)

    def affected(
        self,
        flags: Sequence[tuple[Record, bool]],
        code: str,
        what: str,
        remedy: str,
        severity: Severity | None = None,
        above: float = 0.0,
    ) -> Iterable[Finding]:
        """A finding ``COUNT of TOTAL what`` if more than the fraction ``above`` of ``flags`` is
        true.

        Without a ``severity`` it is an error if more than half of them are, else a warning.
        """
        records = [record for record, flag in flags if flag]
        if len(records) > above * len(flags):
            severity = severity or ("error" if 2 * len(records) > len(flags) else "warning")
            message = f"{len(records)} of {len(flags)} {what}"
            yield self.finding(severity, code, message, remedy, records)


def shorten(dataset: Dataset, text: str) -> str:
    """A name or message without the folder that all files share."""
    start = rf"(?<![\w/.]){re.escape(str(dataset.root))}/"  # not amid another path
    return re.sub(start, "", text) if dataset.root else text


def read_records(
    dataset: Dataset, *, title: str, num_workers: int, limit: int | None = None
) -> list[Record]:
    """Reads every sample once, or ``limit`` evenly spaced ones, in ``num_workers`` processes, and
    shows the progress."""
    every = range(len(dataset)) if limit is None else dataset.some_indices(limit)
    count = len(every)
    aligned = {every[i] for i in np.linspace(0, count - 1, min(count, ALIGNED)).astype(int)}
    compared = {*every[:: 1 + count // COMPARED]}
    read_one = partial(record_of, dataset, aligned=aligned, compared=compared)
    records = read_in_order(read_one, every, num_workers=num_workers)
    return list(tracked(records, count, title=title))


def record_of(
    dataset: Dataset,
    index: int,
    *,
    complete: bool = True,
    aligned: Container[int] = (),
    compared: Container[int] = (),
) -> Record:
    """The record of a sample; never raises. ``complete`` also measures the photo and, if ``index``
    is in ``aligned`` or ``compared``, the registration of labels and depth."""
    reading = read(dataset, index)
    sample = reading.sample
    name = shorten(dataset, sample.get("name", f"sample {index}"))
    record = Record(index, name, reading.faults, class_id=sample.get("class_id"))
    if complete and "image" in sample:
        files = dataset.files(index)
        orientation = pictures.exif_orientation(files.image) if files else 1
        record.photo = measure.measure_photo(sample["image"], orientation=orientation)
    if "labels" in sample:
        record.labels = measure.measure_labels(
            sample["labels"], outside=reading.outside, unlabelled=reading.unlabelled
        )
    if "objects" in sample:
        things = dataset.info.things
        record.objects = measure.measure_objects(sample["labels"], sample["objects"], things)
        record.object_faults = dataset.object_faults(index) if complete else ()
    if "depth" in sample:
        rule, raw = dataset.depth_rule, reading.depth
        record.depth = measure.measure_depth(sample["depth"], sample["valid"], raw=raw, rule=rule)
    if complete and not reading.faults:
        for kind in [kind for kind in registration.MAP_KINDS if kind in sample]:
            edges = registration.edge_map(sample, kind)
            if np.count_nonzero(edges) < registration.FEW_EDGES:
                continue
            if index in compared:
                record.edges[kind] = registration.edge_densities(sample["image"], edges)
            if index in aligned:
                record.edge_scores[kind] = registration.edge_scores(sample["image"], edges)
    return record


@dataclass(slots=True)
class Reading:
    """A sample and what its files hold."""

    sample: Sample  # complete if there are no faults; else the parts that can be read
    faults: list[Fault] = field(default_factory=list)
    outside: dict[int, int] = field(default_factory=dict)  # pixels of ids that are no class
    unlabelled: dict[int, float] = field(default_factory=dict)  # fractions of ignored values
    depth: np.ndarray | None = None  # values of the depth file, unless unknown or encoded


def read(dataset: Dataset, index: int) -> Reading:
    """Reads a sample as training does; if that fails, reads its files one by one to say why."""
    files, rule = dataset.files(index), dataset.depth_rule
    try:
        sample = dataset[index]
        dataset.check(sample)
    except Exception as error:
        if files is None:
            return Reading(Sample(index=index, name=f"sample {index}"), [_unreadable(error)])
        return _read_files(dataset, index, files, _unreadable(error))
    reading = Reading(sample)
    labels, ids = sample.get("labels"), dataset.label_rule
    if files and files.labels and ids and labels is not None and (labels == IGNORE_INDEX).any():
        with suppress(DataError):  # a file that holds more than the map of this sample
            raw = ids.read(files.labels, dataset.parts)
            values, counts = np.unique(raw[ids(raw, source="") == IGNORE_INDEX], return_counts=True)
            often = np.argsort(-counts)[:_FREQUENT]
            shares = (counts[often] / raw.size).tolist()
            reading.unlabelled = dict(zip(values[often].tolist(), shares, strict=True))
    if files is not None and files.depth is not None and rule and rule.decode is None:
        key, page = dataset.depth_key, dataset.parts.page
        reading.depth = io.read_raw_depth(files.depth, key=key, page=page)
    return reading


def _read_files(dataset: Dataset, index: int, files: Files, refusal: Fault) -> Reading:
    """The parts of a refused sample that can be read, and why it is refused."""
    reading = Reading(Sample(index=index, name=printable(files.image)))
    sample, labels, depth = reading.sample, dataset.label_rule, dataset.depth_rule
    parts = dataset.parts
    readers: dict[str, Callable[[], np.ndarray]] = {
        "image": partial(io.read_image, files.image, parts=parts)
    }
    if files.labels is not None and labels is not None:
        readers["labels"] = partial(labels.read, files.labels, parts)
    if files.depth is not None and depth is not None:
        key, page = dataset.depth_key, parts.page
        readers["depth"] = partial(io.read_raw_depth, files.depth, key=key, page=page)
    raw: dict[str, np.ndarray] = {}
    for kind, reader in readers.items():
        try:
            raw[kind] = reader()
        except Exception as error:
            reading.faults.append(_unreadable(error))
    if "image" in raw:
        sample["image"] = raw["image"]
    if "labels" in raw and labels is not None:
        sample["labels"], reading.outside = _split_labels(raw["labels"], labels)
    if "depth" in raw and depth is not None:
        sample["depth"], sample["valid"] = depth(raw["depth"])
        reading.depth = raw["depth"] if depth.decode is None else None
    if len({values.shape[:2] for values in raw.values()}) > 1:
        reading.faults.append(("size_mismatch", refusal[1]))
    elif reading.outside:
        reading.faults.append(("label_outside", refusal[1]))
    elif not reading.faults:
        reading.faults.append(refusal)
    return reading


def _split_labels(raw: np.ndarray, rule: LabelRule) -> tuple[np.ndarray, dict[int, int]]:
    """The classes of a label file, and the pixels of every value that the rule would refuse."""
    wrong = rule.is_outside(raw)
    values, counts = np.unique(raw[wrong], return_counts=True)
    labels = rule(np.where(wrong, 0, raw), source="")
    outside = dict(zip(values.tolist(), counts.tolist(), strict=True))
    return np.where(wrong, np.uint8(IGNORE_INDEX), labels), outside


def _unreadable(error: Exception) -> Fault:
    """An error as one line, with its type unless it is one that the readers raise."""
    text = " ".join(str(error).split())
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return "unreadable", name + text
