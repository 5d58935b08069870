"""``dpt data check``: reads a data set before anyone trains on it, and says what is wrong.

Every sample is read in parallel into a few numbers (``scan``, ``reading``, ``measure``,
``registration``), which pure functions judge (``*_checks``, called by ``examination``); ``page``
and ``pictures`` show what they found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dpt.config import build
from dpt.config.objects import convert
from dpt.data_check.examination import Examination, examine, quick_findings
from dpt.data_check.findings import Finding, count_line, has_errors, write_findings
from dpt.data_check.page import Row, terminal_table, write_page
from dpt.data_check.photo_checks import moves
from dpt.data_check.pictures import augmented_rows, example_rows, move_rows

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
    folder, data = Path(cfg["run_dir"]), cfg["data"]
    splits = [cfg["split"]] if isinstance(cfg["split"], str) else cfg["split"]
    done = examine(data, splits=convert(splits, list[str], "split"))
    write_findings(folder / "report.json", done.findings)
    samples, augmented = _samples(done, cfg)
    write_page(
        folder / "report.html",
        title=f"Data check of {data.get('root', data['_target_'])}",
        findings=[(finding, _pictures(finding, done)) for finding in done.findings],
        scans=list(done.scans.values()),
        samples=samples,
        augmented=augmented,
    )
    if done.findings:
        log.info("%s", terminal_table(done.findings))
    count = sum(len(scan.records) for scan in done.scans.values())
    seconds = time.monotonic() - started
    log.info("%d samples read in %.1f s: %s", count, seconds, count_line(done.findings))
    log.info("report: %s", folder / "report.html")
    if has_errors(done.findings):
        raise SystemExit(1)
    return done.findings


def _pictures(finding: Finding, done: Examination) -> list[Row]:
    """Some of the samples that a finding is about."""
    if not finding.indices:
        return []
    scan, dataset = done.scans[finding.split], done.datasets[finding.split]
    indices = _some(finding.indices, _OF_A_FINDING)
    if finding.code.endswith("_misregistered"):
        kind, move = next((k, m) for k, m in moves(scan).items() if finding.code.startswith(k))
        return list(move_rows(dataset, scan.facts, indices, kind=kind, move=move))
    return list(example_rows(dataset, scan.facts, indices))


def _samples(done: Examination, cfg: Mapping[str, Any]) -> tuple[list[Row], list[Row]]:
    """A few samples of the first split: as they are read, and as training gets them."""
    if not done.scans:
        return [], []
    split, scan = next(iter(done.scans.items()))
    dataset, facts = done.datasets[split], scan.facts
    indices = _some([r.index for r in scan.records if not r.faults], _OF_THE_DATA)
    settings = build.loader_settings(cfg["data"])
    loader = build.train_loader(dataset, settings, cfg["augment"], cfg["seed"], facts.info.targets)
    augmented = augmented_rows(cast(Any, loader.dataset), facts, indices)
    return list(example_rows(dataset, facts, indices)), list(augmented)


def _some(indices: Sequence[int], count: int) -> list[int]:
    """Up to ``count`` of them, evenly spread."""
    return list(indices[:: max(1, len(indices) // count)])[:count]
