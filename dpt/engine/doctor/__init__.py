"""``dpt data check``: reads a data set before anyone trains on it, and says what is wrong.

Every sample is read in parallel into a few numbers (``scan``, ``reading``, ``measure``,
``registration``), which pure functions judge (``*_checks``); ``page`` and ``pictures`` show what
they found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dpt.data import DataError
from dpt.data.base import a_few
from dpt.engine import build, html
from dpt.engine.configure import convert
from dpt.engine.doctor.depth_checks import check_depth
from dpt.engine.doctor.file_checks import check_as_training, check_files, check_pairs
from dpt.engine.doctor.findings import Finding, by_severity, count_line, has_errors, write_findings
from dpt.engine.doctor.label_checks import (
    check_borders,
    check_classes,
    check_ids,
    check_image_labels,
)
from dpt.engine.doctor.page import Row, page, terminal_table
from dpt.engine.doctor.photo_checks import (
    check_duplicates,
    check_near_duplicates,
    check_photos,
    check_registration,
    check_sizes,
    moves,
)
from dpt.engine.doctor.pictures import augmented_rows, example_rows, move_rows
from dpt.engine.doctor.scan import Scan, Scanner, scan

__all__ = ["Finding", "check", "quick_findings"]

log = logging.getLogger("dpt")

_OF_A_FINDING = 3  # pictures
_OF_THE_DATA = 4


def check(cfg: Mapping[str, Any]) -> list[Finding]:
    """Checks splits of a data set and writes ``report.html`` and ``report.json``.

    Args:
        cfg: as plain data (``conf/data_check.yaml``).

    Returns:
        The findings, if none of them is an error.

    Raises:
        SystemExit: with 1, if one is.
    """
    started = time.monotonic()
    folder = Path(cfg["run_dir"])
    settings = build.loader_settings(cfg["data"])
    splits = [cfg["split"]] if isinstance(cfg["split"], str) else cfg["split"]
    findings: list[Finding] = []
    datasets: dict[str, Any] = {}
    scans: list[Scan] = []
    for split in convert(splits, list[str], "split"):
        try:
            datasets[split] = build.make_dataset(_forgiving(cfg["data"]), split)
        except DataError as error:
            findings.append(
                Finding(severity="error", code="no_split", split=split, message=str(error))
            )
            continue
        scans.append(scan(datasets[split], split=split, num_workers=settings.num_workers))
        missing = cfg["data"].get("missing", "raise")
        findings += check_pairs(scans[-1], datasets[split], missing=missing)
        findings += _check_split(scans[-1], datasets[split], image_size=settings.image_size)
    findings += [*check_duplicates(scans), *check_near_duplicates(scans)]
    findings = by_severity(findings)

    write_findings(folder / "report.json", findings)
    samples: list[Row] = []
    augmented: list[Row] = []
    for each in scans[:1]:
        dataset, shown = datasets[each.split], _usable(each)
        loader = build.train_loader(
            dataset, settings, cfg["augment"], cfg["seed"], each.facts.info.targets
        )
        samples += example_rows(dataset, each.facts, shown)
        augmented += augmented_rows(loader.dataset, each.facts, shown)  # type: ignore[arg-type]
    by_split = {each.split: each for each in scans}
    html.write_page(
        folder / "report.html",
        title=f"Data check of {cfg['data'].get('root', cfg['data']['_target_'])}",
        parts=page(
            findings=[
                (f, _pictures(f, by_split[f.split], datasets[f.split]) if f.indices else [])
                for f in findings
            ],
            scans=scans,
            samples=samples,
            augmented=augmented,
        ),
    )
    if findings:
        log.info("%s", terminal_table(findings))
    count, seconds = sum(len(each.records) for each in scans), time.monotonic() - started
    log.info("%d samples read in %.1f s: %s", count, seconds, count_line(findings))
    log.info("report: %s", folder / "report.html")
    if has_errors(findings):
        raise SystemExit(1)
    return findings


def quick_findings(dataset: Any, limit: int) -> list[str]:
    """What a few files already tell about a data set that :func:`check` would warn of.

    Units, ids and maps only, and not what the data set's ``validate`` says itself.

    Args:
        dataset: any data set.
        limit: how many samples to read.

    Returns:
        A line for each finding.
    """
    scanner = Scanner(dataset, photos=False)
    records = [scanner[index] for index in a_few(len(dataset), limit=limit)]
    part = Scan("", scanner.facts, records)
    found = [*check_ids(part), *check_borders(part), *check_depth(part)]
    said = ("depth_all_invalid", "depth_out_of_range", "label_outside")
    return [f.line for f in found if f.severity != "note" and f.code not in said]


def _forgiving(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data's configuration, but what has no partner is left out instead of refused."""
    changes = {"missing": "skip", "cache": False}
    return {**data, **{key: value for key, value in changes.items() if key in data}}


def _check_split(scan: Scan, dataset: Any, *, image_size: tuple[int, int]) -> Iterator[Finding]:
    findings = [
        *check_files(scan),
        *check_ids(scan),
        *check_classes(scan),
        *check_borders(scan),
        *check_image_labels(scan),
        *check_depth(scan),
        *check_registration(scan),
        *check_photos(scan),
        *check_sizes(scan, image_size=image_size),
    ]
    yield from findings
    if not has_errors(findings):  # it stops at the first fault: only what no check above knows
        yield from check_as_training(scan, dataset)


def _usable(scan: Scan) -> list[int]:
    """A few samples that can be shown, evenly spread."""
    good = [record.index for record in scan.records if not record.faults]
    step = max(1, len(good) // _OF_THE_DATA)
    return good[::step][:_OF_THE_DATA]


def _pictures(finding: Finding, scan: Scan, dataset: Any) -> Sequence[Row]:
    """Some of the samples that a finding is about."""
    step = max(1, len(finding.indices) // _OF_A_FINDING)
    indices = finding.indices[::step]
    for kind, move in moves(scan).items():
        if finding.code == f"{kind}_misregistered":
            rows = move_rows(dataset, scan.facts, indices, kind=kind, move=move)
            return list(islice(rows, _OF_A_FINDING))
    return list(islice(example_rows(dataset, scan.facts, indices), _OF_A_FINDING))
