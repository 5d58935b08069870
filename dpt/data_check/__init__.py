"""``dpt data check``: finds faults of a data set before training.

``scan`` measures every sample once (``measure``, ``registration``), ``checks`` makes findings of
the measurements, and ``report`` writes them.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import inf
from typing import cast

from dpt.config.build import make_objectives, make_train_loader
from dpt.config.schema import CheckConfig, DataConfig
from dpt.data import DataError
from dpt.data.base import Augmented, Dataset, require_same_classes
from dpt.data_check import report
from dpt.data_check.checks import CHECKS, QUICK_CHECKS
from dpt.data_check.scan import SEVERITIES, Finding, Scan, has_errors, read_records, record_of
from dpt.files import write_bytes
from dpt.html import require_free
from dpt.process import log

__all__ = ["Finding", "check_data", "examine", "has_errors", "quick_findings"]


def check_data(config: CheckConfig, *, seconds: float = inf) -> list[Finding]:
    """Checks splits of a data set and writes ``report.html`` and ``report.json``.

    Args:
        seconds: the limit of reading; a few samples of each split are read in any case.

    Returns:
        The findings, errors first.
    """
    started = time.monotonic()
    folder = config.folder
    require_free(folder, "data_check.html", ["report.json"])
    findings, scans = examine(config.data, splits=config.split, limit=config.limit, seconds=seconds)
    targets = _targets(config, scans, findings)
    entries = [{k: v for k, v in asdict(f).items() if k != "indices"} for f in findings]
    write_bytes(folder / "report.json", f"{json.dumps(entries, indent=2)}\n".encode())
    if scans:
        title = f"Data check of {config.data.values.get('root', config.data.kind)}"
        loader = make_train_loader(config, scans[0].dataset, targets)
        augmented = cast(Augmented, loader.dataset)
        report.write_check_report(folder / "report.html", title, findings, scans, augmented)
        report.log_tables(scans)
    log.info("%s", report.text(findings))
    count = sum(len(scan.records) for scan in scans)
    total = sum(len(scan.dataset) for scan in scans)
    seconds = time.monotonic() - started
    log.info("%d of %d samples in %.1f s: %s", count, total, seconds, report.summary(findings))
    log.info("report: %s", folder / ("report.html" if scans else "report.json"))
    return findings


def _targets(
    config: CheckConfig, scans: Sequence[Scan], findings: list[Finding]
) -> tuple[str, ...]:
    """Returns what a sample holds, or what the task that was named needs; a task that does not fit
    the data is a finding."""
    if not scans:
        return ()
    # train.yaml has a task in any case, which says nothing about the data
    if {"task", "experiment"} & config.typed_keys:
        try:
            objectives = make_objectives(config.task, scans[0].dataset)
            return tuple(o.target for o in objectives.values() if o.target)
        except ValueError as error:
            findings.insert(0, Finding("error", "task", scans[0].split, str(error)))
    return scans[0].dataset.info.targets


def examine(
    data: DataConfig, *, splits: Sequence[str], limit: int | None = None, seconds: float = inf
) -> tuple[list[Finding], list[Scan]]:
    """Returns the findings of all checks of the splits, errors first, and the splits that could be
    read.

    Reads ``limit`` evenly spaced samples of each split, or all if it is None, as far as they can be
    read in ``seconds``.
    """
    # unpaired files are findings, and must not stop the others from being read
    missing = str(data.values.get("missing", "raise"))
    lenient = {"missing": "skip" if missing == "raise" else missing, "cache": False}
    data = data.changed(**{key: lenient[key] for key in lenient.keys() & data.values.keys()})
    workers, seconds = data.loader.num_workers, seconds / len(splits)
    findings: list[Finding] = []
    scans: list[Scan] = []
    for split in splits:
        try:
            dataset = data.make(split).without_repeats()
        except DataError as error:
            findings.append(Finding("error", "no_split", split, str(error)))
            continue
        if scans:
            dataset.adopt_classes(scans[0].dataset.info.class_names)
        records = read_records(
            dataset, title=f"reading {split}", num_workers=workers, limit=limit, seconds=seconds
        )
        scan = Scan(split, dataset, records, missing, tuple(scans))
        findings += _judge(scan)
        scans.append(scan)
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)), scans


def _judge(scan: Scan) -> list[Finding]:
    """Returns the findings of all checks of a split."""
    findings = [finding for check in CHECKS for finding in check(scan)]
    if not has_errors(findings):
        try:  # stops at the first fault, so it is of use only where no check has found one
            require_same_classes(scan.first.dataset, scan.dataset)
            scan.dataset.validate()
        except DataError as error:
            findings.append(scan.finding("error", "refused", str(error)))
    return findings


def quick_findings(dataset: Dataset, limit: int) -> list[str]:
    """Returns a line for each warning of the quick checks, which read ``limit`` samples, and logs
    the notes."""
    records = [record_of(dataset, i, complete=False) for i in dataset.some_indices(limit)]
    scan = Scan("", dataset, records)
    findings = [finding for check in QUICK_CHECKS for finding in check(scan)]
    for finding in findings:
        if finding.severity == "note":
            log.info("%s", finding.line)
    return [finding.line for finding in findings if finding.severity != "note"]
