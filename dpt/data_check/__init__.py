"""``dpt data check``: finds faults of a data set before training.

``propose`` finds settings that a folder lacks, ``detect``, ``pairs`` and ``masks`` those of an
unknown folder (``dpt fit``); ``scan`` reads every sample in parallel into a few measurements
(``measure``, ``registration``); the functions in ``checks`` judge them; ``report`` writes the
findings.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from dpt.atomic import write_bytes
from dpt.config import build
from dpt.config.overrides import keys_of
from dpt.config.run_keys import Seed
from dpt.data import DataError
from dpt.data.base import Dataset, require_same_classes
from dpt.data_check import report
from dpt.data_check.checks import CHECKS, QUICK_CHECKS
from dpt.data_check.propose import propose
from dpt.data_check.scan import SEVERITIES, Finding, Scan, has_errors, read_records, record_of
from dpt.html import require_free
from dpt.validation import Count, validate

__all__ = ["check_data", "examine", "quick_findings"]

log = logging.getLogger("dpt")


def check_data(cfg: Mapping[str, Any]) -> None:
    """Checks splits of a data set and writes ``report.html`` and ``report.json``.

    ``cfg`` is plain data (``conf/data_check.yaml``). Errors end the process with code 1.
    """
    started = time.monotonic()
    folder, data = Path(cfg["run_dir"]), cfg["data"]
    splits = [cfg["split"]] if isinstance(cfg["split"], str) else cfg["split"]
    if not splits:
        raise ValueError("split=[]: name one or several, as in split=[train,val]")
    limit = validate(Count | None, cfg["limit"], "limit")
    seed = validate(Seed, cfg["seed"], "seed")
    require_free(folder, "data_check.html", ["report.json"])
    findings, scans = examine(data, splits=validate(list[str], splits, "split"), limit=limit)
    targets = scans[0].dataset.info.targets if scans else ()
    # train.yaml has a task in any case, which says nothing about the data
    if scans and {"task", "experiment"} & keys_of(cfg["overrides"]):
        try:
            objectives = build.make_objectives(cfg["task"], scans[0].dataset)
            targets = tuple(o.target for o in objectives.values() if o.target)
        except ValueError as error:
            findings = [Finding("error", "task", scans[0].split, str(error)), *findings]
    entries = [asdict(finding) for finding in findings]
    for entry in entries:
        del entry["indices"]
    write_bytes(folder / "report.json", f"{json.dumps(entries, indent=2)}\n".encode())
    if scans:
        dataset, settings = scans[0].dataset, build.loader_settings(data)
        loader = build.train_loader(dataset, settings, cfg["augment"], seed, targets)
        title = f"Data check of {data.get('root', data['_target_'])}"
        page = folder / "report.html"
        report.write_page(page, title, findings, scans, cast(Any, loader.dataset))
        report.log_tables(scans)
    log.info("%s", report.text(findings))
    count, total = sum(len(s.records) for s in scans), sum(len(s.dataset) for s in scans)
    found, seconds = report.summary(findings), time.monotonic() - started
    log.info("%d of %d samples read in %.1f s: %s", count, total, seconds, found)
    log.info("report: %s", folder / ("report.html" if scans else "report.json"))
    if has_errors(findings):
        raise SystemExit(1)


def examine(
    data: Mapping[str, Any], *, splits: Sequence[str], limit: int | None = None
) -> tuple[list[Finding], list[Scan]]:
    """The findings of all checks of the splits, errors first, and the splits that could be read.

    With ``limit``, only that many samples of each split are read, evenly spaced.
    """
    settings = build.loader_settings(data)
    # unpaired files are findings, and must not stop the others from being read
    missing = data.get("missing", "raise")
    lenient = {"missing": "skip" if missing == "raise" else missing, "cache": False}
    lenient_data = {**data, **{key: value for key, value in lenient.items() if key in data}}
    proposed, findings = propose(lenient_data, splits)
    scans: list[Scan] = []
    for split in splits:
        try:
            dataset = build.make_dataset({**lenient_data, **proposed}, split).without_repeats()
        except DataError as error:
            findings.append(Finding("error", "no_split", split, str(error)))
            continue
        if scans:
            dataset.adopt_classes(scans[0].dataset.info.class_names)
        records = read_records(
            dataset, title=f"reading {split}", num_workers=settings.num_workers, limit=limit
        )
        done = Scan(split, dataset, records, settings.image_size, missing, tuple(scans))
        found = [finding for function in CHECKS for finding in function(done)]
        if not has_errors(found):
            try:  # stops at the first fault, so it is of use only where no check has found one
                require_same_classes(done.first.dataset, dataset)
                dataset.validate()
            except DataError as error:
                found.append(done.finding("error", "refused", str(error)))
        findings += found
        scans.append(done)
    return sorted(findings, key=lambda f: SEVERITIES.index(f.severity)), scans


def quick_findings(dataset: Dataset, limit: int) -> list[str]:
    """A line for each warning of the quick checks, which read ``limit`` samples; logs the notes."""
    records = [record_of(dataset, i, complete=False) for i in dataset.some_indices(limit)]
    few = Scan("", dataset, records)
    found = [finding for function in QUICK_CHECKS for finding in function(few)]
    for finding in found:
        if finding.severity == "note":
            log.info("%s", finding.line)
    return [finding.line for finding in found if finding.severity != "note"]
