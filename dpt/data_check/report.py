"""The result of a data check: an HTML page, and text for the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from dpt import html
from dpt.data.base import Augmented
from dpt.data.view import resize_image
from dpt.data_check.checks import images_of_classes, pixels_of_classes
from dpt.data_check.measure import as_picture
from dpt.data_check.scan import SEVERITIES, Finding, Scan, has_errors, read_sample, shorten
from dpt.files import plural
from dpt.run_log import log_rows
from dpt.segments import OBJECT_IDS
from dpt.types.samples import IGNORE_INDEX, Sample
from dpt.viz import as_palette, colorize_depth, colorize_labels, colorize_segments, overlay

Picture = tuple[str, np.ndarray]  # a caption and a uint8 RGB picture

_CELL = 256  # width of a cell in a row of pictures, in pixels
_MAX_ROWS = 40  # of a table in the terminal
_EPOCHS = 4  # augmented versions that are shown of each sample


class Table(NamedTuple):
    """A table of the report."""

    heading: str
    header: list[str]
    rows: list[list[html.Cell]]


def summary(findings: Sequence[Finding]) -> str:
    """Returns ``2 errors, 1 warning, 0 notes``."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(plural(counts[severity], severity) for severity in SEVERITIES)


def text(findings: Sequence[Finding]) -> str:
    """Returns the findings with a few examples each, as lines for a terminal."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity}: {finding.code} ({finding.split}): {finding.line}")
        lines += [f"    {example}" for example in _few(finding.examples, 3)]
    return "\n".join(lines)


def log_tables(scans: Sequence[Scan]) -> None:
    """Logs the tables of the page."""
    for heading, header, rows in _tables(scans):
        cells = [[html.number(cell) for cell in row] for row in rows[:_MAX_ROWS]]
        left = f", {len(cells)} of {len(rows)} rows (all: report.html)" if rows[_MAX_ROWS:] else ""
        log_rows(heading + left, header, cells)


def write_check_report(
    path: Path, title: str, findings: Sequence[Finding], scans: Sequence[Scan], augmented: Augmented
) -> None:
    """Writes the page; ``augmented`` is the data set of the first scan, as training gets it."""
    by_split = {scan.split: scan for scan in scans}
    entries = []
    for finding in findings:
        shown = _spread(finding.indices, 3)
        pictures = _sample_rows(by_split[finding.split], shown) if shown else []
        entries.append((finding, _few(finding.examples, 8), pictures))
    usable = [record.index for record in scans[0].records if not record.faults]
    indices = _spread(usable, 4)
    html.write_page(
        path,
        "data_check.html",
        title=title,
        failed=has_errors(findings),
        summary=summary(findings),
        tables=_tables(scans),
        findings=entries,
        samples=_sample_rows(scans[0], indices),
        augmented=list(_augmented_rows(augmented, scans[0], indices)),
    )


def _few(examples: Sequence[str], most: int) -> list[str]:
    rest = len(examples) - most
    return [*examples[:most], *([f"... and {rest} more in report.json"] if rest > 0 else [])]


def _spread(indices: Sequence[int], count: int) -> Sequence[int]:
    """Returns up to ``count`` of the indices, evenly spread."""
    return indices[:: max(1, len(indices) // count)][:count]


def _tables(scans: Sequence[Scan]) -> list[Table]:
    dataset = scans[0].dataset
    pixels = {scan.split: pixels_of_classes(scan) for scan in scans}
    images = {scan.split: images_of_classes(scan) for scan in scans}
    names = dict(enumerate(dataset.info.class_names)) | {IGNORE_INDEX: "(ignored)"}
    tables = [_overview(scans), _classes("pixels", pixels, names)]
    tables.append(_classes("images", images, dict(enumerate(dataset.class_id_names))))
    return [table for table in tables if table.rows]


def _overview(scans: Sequence[Scan]) -> Table:
    rows: list[list[html.Cell]] = []
    for scan in scans:
        unusable = sum(bool(record.faults) for record in scan.records)
        counts = len(scan.records), unusable, len(scan.masks), len(scan.maps)
        maps = [depth for _, depth in scan.maps]
        quantiles = [depth.quantiles for depth in maps if depth.valid] or [(np.nan,) * 3]
        invalid = 100 * mean(1 - depth.valid for depth in maps) if maps else None
        rows.append([scan.split, *counts, invalid, *np.mean(quantiles, axis=0).tolist()])
    header = ["split", "samples", "unusable", "with mask", "with depth", "invalid, %"]
    unit = "metres" if scans[0].dataset.info.has_metres else "multiples of the nearest depth"
    heading = f"Samples (depth: pixels, and means of the maps' quantiles, in {unit})"
    return Table(heading, [*header, "1 %", "median", "99 %"], rows)


def _classes(unit: str, counts: dict[str, Counter[int]], names: dict[int, str]) -> Table:
    """Returns the fractions of the classes in each split that has them."""
    counts = {split: counter for split, counter in counts.items() if counter}
    rows: list[list[html.Cell]] = [
        [name, *(100 * counter[i] / counter.total() for counter in counts.values())]
        for i, name in names.items()
    ]
    header = ["class", *(f"{split}, % of {unit}" for split in counts)]
    return Table(f"Classes by {unit}", header, rows if counts else [])


def _sample_rows(scan: Scan, indices: Iterable[int]) -> list[Picture]:
    """Returns image, labels and depth of samples as they are on disk."""
    samples = [read_sample(scan.dataset, index).sample for index in indices]
    layers = [(_name(scan, sample), list(_layers(sample, scan).values())) for sample in samples]
    return [(name, _row(pictures)) for name, pictures in layers if pictures]


def _augmented_rows(augmented: Augmented, scan: Scan, indices: Iterable[int]) -> Iterator[Picture]:
    """Yields the image and its augmented versions in the first epochs, and depth in other rows."""
    for index in indices:
        original = scan.dataset[index]
        layers = [_layers(augmented[epoch, index], scan) for epoch in range(_EPOCHS)]
        for shown in layers:
            if "labels" in shown:
                shown["image"] = overlay(shown["image"], shown.pop("labels"), 0.55)
        for key in layers[0]:
            pictures = [as_picture(original["image"]), *(shown[key] for shown in layers)]
            yield _name(scan, original), _row(pictures)


def _name(scan: Scan, sample: Sample) -> str:
    return shorten(scan.dataset, sample.get("name") or f"sample {sample.get('index', '?')}")


def _layers(sample: Sample, scan: Scan) -> dict[str, np.ndarray]:
    """Returns image, labels and depth of a sample as pictures, if it has them."""
    info = scan.dataset.info
    palette = as_palette(info.palette, info.num_classes, info.class_names)
    pictures: dict[str, np.ndarray] = {}
    if "image" in sample:
        pictures["image"] = as_picture(sample["image"])
    if "labels" in sample:
        pictures["labels"] = colorize_labels(sample["labels"], palette)
    if "objects" in sample:
        codes = sample["labels"].astype(int) * OBJECT_IDS + sample["objects"]
        codes[sample["labels"] == IGNORE_INDEX] = -1
        pictures["labels"] = colorize_segments(codes, palette, info.things)
    if "depth" in sample:
        pictures["depth"] = colorize_depth(sample["depth"], sample["valid"])
    return pictures


def _row(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Returns pictures side by side, with the height that makes the first one ``_CELL`` wide."""
    rows = max(1, round(_CELL * pictures[0].shape[0] / pictures[0].shape[1]))
    cells = []
    for picture in pictures:
        columns = max(1, round(rows * picture.shape[1] / picture.shape[0]))
        cell = resize_image(picture, (rows, columns), rule="area")
        cells.append(np.pad(cell, ((0, 0), (0, 4), (0, 0)), constant_values=255))
    return np.concatenate(cells, axis=1)
