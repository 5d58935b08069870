"""Reads the splits of a data set and has every check judge what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpt.config import build
from dpt.data import DataError
from dpt.data_check.depth_checks import check_depth
from dpt.data_check.file_checks import check_as_training, check_files, check_pairs
from dpt.data_check.findings import Finding, has_errors
from dpt.data_check.label_checks import (
    check_borders,
    check_classes,
    check_ids,
    check_image_labels,
)
from dpt.data_check.photo_checks import (
    check_duplicates,
    check_near_duplicates,
    check_photos,
    check_registration,
    check_sizes,
)
from dpt.data_check.scan import Scan, Scanner, scan


@dataclass(frozen=True)
class Examination:
    """Findings, errors first, and by split what was read and the data set it was read from."""

    findings: list[Finding]
    scans: dict[str, Scan]
    datasets: dict[str, Any]


def examine(data: Mapping[str, Any], *, splits: Sequence[str]) -> Examination:
    """Reads every sample of the splits and judges what was read; nothing is written.

    Args:
        data: the configuration of a data set (a file of ``conf/data``), as plain data.
        splits: their names.
    """
    settings = build.loader_settings(data)
    done = Examination([], {}, {})
    for split in splits:
        try:
            dataset = build.make_dataset(_forgiving(data), split)
        except DataError as error:
            refusal = Finding(severity="error", code="no_split", split=split, message=str(error))
            done.findings.append(refusal)
            continue
        read = scan(dataset, split=split, num_workers=settings.num_workers)
        done.datasets[split], done.scans[split] = dataset, read
        done.findings.extend(check_pairs(read, dataset, missing=data.get("missing", "raise")))
        done.findings.extend(_check_split(read, dataset, image_size=settings.image_size))
    together = list(done.scans.values())
    done.findings.extend([*check_duplicates(together), *check_near_duplicates(together)])
    done.findings.sort(key=Finding.rank)
    return done


def quick_findings(dataset: Any, limit: int) -> list[str]:
    """What a few files already tell about a data set that :func:`examine` would warn of.

    Units, ids and maps only, and not what the data set's ``validate`` says itself.

    Args:
        dataset: any data set.
        limit: how many samples to read.

    Returns:
        A line for each finding.
    """
    scanner = Scanner(dataset, photos=False)
    few = Scan("", scanner.facts, [scanner[i] for i in dataset.some_indices(limit=limit)])
    findings = [*check_ids(few), *check_borders(few), *check_depth(few)]
    said = ("label_outside", "depth_all_invalid", "depth_out_of_range")
    return [f.line for f in findings if f.severity != "note" and f.code not in said]


def _forgiving(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data's configuration, but what has no partner is left out instead of refused."""
    changes = {"missing": "skip", "cache": False}
    return {**data, **{key: value for key, value in changes.items() if key in data}}


def _check_split(read: Scan, dataset: Any, *, image_size: tuple[int, int]) -> Iterator[Finding]:
    findings = [
        *check_files(read),
        *check_ids(read),
        *check_classes(read),
        *check_borders(read),
        *check_image_labels(read),
        *check_depth(read),
        *check_registration(read),
        *check_photos(read),
        *check_sizes(read, image_size=image_size),
    ]
    yield from findings
    if not has_errors(findings):  # it stops at the first fault: only what no check above knows
        yield from check_as_training(read, dataset)
