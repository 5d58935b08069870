"""Measures every sample of a split once, in parallel: a ``Record`` each, of which the checks make
a ``Finding`` for each problem.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Literal, TypeVar

import numpy as np

from dpt.data.base import Dataset, Files
from dpt.data.formats import io
from dpt.data.formats.rules import DepthRule
from dpt.data.loading import read_in_order
from dpt.data_check import measure
from dpt.files import DataError, printable, reason
from dpt.run_log import tracked
from dpt.types.samples import IGNORE_INDEX, Sample

T = TypeVar("T")
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


_ALIGNED = 32  # samples of a split, evenly spaced, from which registration is estimated
_COMPARED = 1024  # largest number of samples whose maps are compared with other samples' images
_MAX_IGNORED = 64  # ignored ids of a mask that are counted


Fault = tuple[str, str]
"""Why a sample cannot be used: ``unreadable``, ``size_mismatch`` or ``label_outside``, a line."""


@dataclass(slots=True, eq=False)
class Record:
    """Measurements of one sample. A part that it lacks, or that was not wanted, is None."""

    index: int
    name: str
    faults: Sequence[Fault] = ()
    image: measure.ImageStats | None = None
    labels: measure.LabelStats | None = None
    depth: measure.DepthStats | None = None
    objects: measure.ObjectStats | None = None
    empty_objects: Sequence[str] = ()  # those without a pixel
    class_id: int | None = None
    edge_scores: dict[measure.MapKind, np.ndarray] = field(default_factory=dict)
    edges: dict[measure.MapKind, np.ndarray] = field(default_factory=dict)  # of image and map


@dataclass(frozen=True, eq=False)
class Scan:
    """The measurements of a split."""

    split: str
    dataset: Dataset
    records: Sequence[Record]
    missing: str = "raise"  # or "skip": what training does with images without labels
    earlier: tuple["Scan", ...] = ()  # the splits that were read before

    @property
    def first(self) -> "Scan":
        """The split that was read first, usually train."""
        return self.earlier[0] if self.earlier else self

    @property
    def images(self) -> list[tuple[Record, measure.ImageStats]]:
        return [(record, record.image) for record in self.records if record.image]

    @property
    def masks(self) -> list[tuple[Record, measure.LabelStats]]:
        return [(record, record.labels) for record in self.records if record.labels]

    @property
    def class_masks(self) -> list[tuple[Record, measure.LabelStats]]:
        """The masks, unless objects are all that they hold."""
        return [] if self.dataset.info.has_only_things else self.masks

    @property
    def maps(self) -> list[tuple[Record, measure.DepthStats]]:
        return [(record, record.depth) for record in self.records if record.depth]

    @property
    def objects(self) -> list[tuple[Record, measure.ObjectStats]]:
        return [(record, record.objects) for record in self.records if record.objects]

    @property
    def depth_rule(self) -> DepthRule | None:
        """How depth files become metres; None if unknown or not proportional to it."""
        rule = self.dataset.depth_rule
        return rule if rule is not None and rule.is_proportional else None

    def finding(
        self,
        severity: Severity,
        code: str,
        message: str,
        remedy: str = "",
        records: Iterable[Record] = (),
        examples: Iterable[str] | None = None,
    ) -> Finding:
        """Returns a finding about ``records``; ``examples`` replace their names."""
        records = list(records)
        lines = [record.name for record in records] if examples is None else examples
        names = tuple(shorten(self.dataset, line) for line in lines)
        indices = tuple(record.index for record in records)
        message = shorten(self.dataset, message)
        return Finding(severity, code, self.split, message, remedy, names, indices)

    def count(
        self,
        code: str,
        pairs: Sequence[tuple[Record, T]],
        is_affected: Callable[[T], bool],
        what: str,
        remedy: str,
        severity: Severity | None = "warning",
        *,
        above: float = 0.0,
    ) -> list[Finding]:
        """Returns the finding ``COUNT of TOTAL what`` if more than the fraction ``above`` of the
        records is affected, as their measurements say.

        The severity None is error if more than half of them are, otherwise warning.
        """
        records = [record for record, stats in pairs if is_affected(stats)]
        if len(records) <= above * len(pairs):
            return []
        severity = severity or ("error" if 2 * len(records) > len(pairs) else "warning")
        message = f"{len(records)} of {len(pairs)} {what}"
        return [self.finding(severity, code, message, remedy, records)]


def shorten(dataset: Dataset, text: str) -> str:
    """Returns a name or message without the folder that all files share."""
    start = rf"(?<![\w/.]){re.escape(str(dataset.root))}/"  # not amid another path
    return re.sub(start, "", text) if dataset.root else text


def read_records(
    data: Dataset, *, title: str, num_workers: int, limit: int | None = None, seconds: float = inf
) -> list[Record]:
    """Measures every sample, or ``limit`` evenly spaced ones, in ``num_workers`` processes, and
    shows the progress.

    Args:
        seconds: the limit of reading, of which a few samples are read in any case. With a limit
            the samples are read in a random order.
    """
    deadline = time.monotonic() + seconds
    indices = [*range(len(data))] if limit is None else data.some_indices(limit)
    count = len(indices)
    aligned = {indices[i] for i in np.linspace(0, count - 1, min(count, _ALIGNED)).astype(int)}
    compared = {*indices[:: 1 + count // _COMPARED]}
    if seconds < inf:  # reading may end anywhere
        np.random.default_rng(0).shuffle(indices)
    read_one = partial(record_of, data, aligned=aligned, compared=compared)
    records: list[Record] = []
    measured = read_in_order(read_one, indices, num_workers=num_workers)
    try:
        for record in tracked(measured, count, title=title):
            records.append(record)
            if time.monotonic() > deadline and len(records) >= measure.MANY_IMAGES:
                break
    except RuntimeError:  # a process has ended, by a damaged file or for lack of memory
        if num_workers == 0:
            raise
        return read_records(data, title=title, num_workers=0, limit=limit, seconds=seconds)
    return sorted(records, key=lambda record: record.index)


def record_of(
    dataset: Dataset,
    index: int,
    *,
    complete: bool = True,
    aligned: Container[int] = (),
    compared: Container[int] = (),
) -> Record:
    """Measures a sample; never raises.

    Args:
        complete: measure the image, too.
        aligned, compared: indices of which the registration of labels and depth is measured.
    """
    reading = read_sample(dataset, index)
    sample = reading.sample
    name = shorten(dataset, sample.get("name", f"sample {index}"))
    record = Record(index, name, reading.faults, class_id=sample.get("class_id"))
    if "labels" in sample:
        record.labels = measure.measure_labels(
            sample["labels"], outside=reading.outside, unlabelled=reading.unlabelled
        )
    if "objects" in sample:
        things = dataset.info.things
        record.objects = measure.measure_objects(sample["labels"], sample["objects"], things)
        record.empty_objects = sample.get("empty_objects", ())
    if "depth" in sample:
        record.depth = measure.measure_depth(
            sample["depth"], sample["valid"], raw=reading.raw_depth, rule=dataset.depth_rule
        )
    if not complete or "image" not in sample:
        return record
    picture = measure.as_picture(sample["image"])
    record.image = measure.measure_image(sample["image"], picture)
    for kind in measure.MAP_KINDS:
        edges = None if reading.faults else measure.edge_map(sample, kind)
        if edges is not None and index in compared:
            record.edges[kind] = measure.edge_densities(picture, edges)
        if edges is not None and index in aligned:
            record.edge_scores[kind] = measure.edge_scores(picture, edges)
    return record


@dataclass(slots=True)
class Reading:
    """A sample and what its files hold."""

    sample: Sample  # complete if there are no faults, or the parts that can be read
    faults: list[Fault] = field(default_factory=list)
    outside: dict[int, int] = field(default_factory=dict)  # pixels of ids that are no class
    unlabelled: dict[int, float] = field(default_factory=dict)  # fractions of ignored values
    raw_depth: np.ndarray | None = None  # values of the file, unless unknown or encoded


def read_sample(dataset: Dataset, index: int) -> Reading:
    """Reads a sample as training does; if that fails, reads its files one by one to say why."""
    files = dataset.files(index)
    try:
        sample = dataset[index]
        dataset.check(sample)
    except Exception as error:
        sample = Sample(index=index, name=printable(files.image) if files else f"sample {index}")
        fault = _unreadable(error)
        return _read_files(dataset, files, sample, fault) if files else Reading(sample, [fault])
    reading = Reading(sample)
    if files:
        reading.unlabelled = _ignored_values(dataset, files, sample)
        if files.depth and dataset.depth_rule and dataset.depth_rule.is_proportional:
            reading.raw_depth = io.read_raw_depth(files.depth, key=dataset.depth_key)
    return reading


def _ignored_values(dataset: Dataset, files: Files, sample: Sample) -> dict[int, float]:
    """Returns the fraction of each value of a label file that is no class."""
    rule, labels = dataset.label_rule, sample.get("labels")
    if files.labels is None or rule is None or labels is None or IGNORE_INDEX not in labels:
        return {}
    try:
        raw = io.read_ids(files.labels, rule, dataset.part)
    except DataError:  # a file that holds more than the map of this sample
        return {}
    pixels = _pixels_of_values(raw[rule(raw, source="") == IGNORE_INDEX])
    pixels[io.WITHOUT_DATA] += int(np.count_nonzero(labels == IGNORE_INDEX)) - pixels.total()
    return {value: n / raw.size for value, n in pixels.most_common(_MAX_IGNORED) if n > 0}


def _pixels_of_values(values: np.ndarray) -> Counter[int]:
    present, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(present.tolist(), counts.tolist(), strict=True)))


def _read_files(dataset: Dataset, files: Files, sample: Sample, refusal: Fault) -> Reading:
    """Reads the parts of a refused sample that can be read, and finds out why it is refused."""
    reading = Reading(sample)
    label_rule, depth_rule = dataset.label_rule, dataset.depth_rule
    sizes: list[tuple[int, ...]] = []
    with _collecting(reading.faults):
        sample["image"] = io.read_image(files.image, part=dataset.part)
        sizes.append(sample["image"].shape[:2])
    with _collecting(reading.faults):
        if files.labels and label_rule:
            raw = io.read_ids(files.labels, label_rule, dataset.part)
            sizes.append(raw.shape)
            is_outside = label_rule.is_outside(raw)
            reading.outside = _pixels_of_values(raw[is_outside])
            labels = label_rule(np.where(is_outside, 0, raw), source="")
            sample["labels"] = np.where(is_outside, np.uint8(IGNORE_INDEX), labels)
    with _collecting(reading.faults):
        if files.depth and depth_rule:
            raw = io.read_raw_depth(files.depth, key=dataset.depth_key)
            sizes.append(raw.shape)
            sample["depth"], sample["valid"] = depth_rule(raw)
            reading.raw_depth = raw if depth_rule.is_proportional else None
    if not all(dataset.fits(size, sizes[0]) for size in sizes):
        reading.faults.append(("size_mismatch", refusal[1]))
    elif reading.outside:
        reading.faults.append(("label_outside", refusal[1]))
    elif not reading.faults:
        reading.faults.append(refusal)
    return reading


@contextmanager
def _collecting(faults: list[Fault]) -> Iterator[None]:
    """Appends an error to ``faults``."""
    try:
        yield
    except Exception as error:
        faults.append(_unreadable(error))


def _unreadable(error: Exception) -> Fault:
    """Returns an error as one line, with its type unless it is one that the readers raise."""
    text = str(error) if isinstance(error, ValueError) else reason(error)
    return "unreadable", " ".join(text.split())
