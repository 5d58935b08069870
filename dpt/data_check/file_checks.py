"""Files that cannot be used: broken, of the wrong size, without a partner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dpt.data import DataError
from dpt.data_check.findings import Finding, Severity, plural
from dpt.data_check.scan import Record, Scan

_WHAT = {
    "unreadable": ("cannot be read", "copy or download them again, or remove them"),
    "size_mismatch": (
        "have a label map of another size than the photo",
        "pair the right files, or resize them to one size (labels and depth by nearest)",
    ),
}


def check_files(scan: Scan) -> Iterator[Finding]:
    """Samples that the readers refuse, each with its reason; wrong ids are judged elsewhere."""
    for code, (what, remedy) in _WHAT.items():
        broken = [r for r in scan.records if any(fault.code == code for fault in r.faults)]
        if broken:
            messages = [f.message for r in broken for f in r.faults if f.code == code]
            yield Finding(
                severity="error",
                code=code,
                split=scan.split,
                message=f"{len(broken)} of {plural(len(scan.records), 'sample')} {what}",
                remedy=remedy,
                examples=tuple(scan.facts.short(message) for message in messages),
                indices=tuple(r.index for r in broken) if code != "unreadable" else (),
            )


def check_pairs(scan: Scan, dataset: Any, *, missing: str) -> Iterator[Finding]:
    """Photos without labels, labels without a photo, and samples that carry only some labels.

    Args:
        scan: of the split.
        dataset: the data set.
        missing: what training does about photos without labels: ``raise`` or ``skip``.
    """
    unpaired = dataset.unpaired()
    severity: Severity = "error" if missing == "raise" else "note"
    if unpaired.images:
        yield Finding(
            severity=severity,
            code="photo_without_label",
            split=scan.split,
            message=f"{plural(len(unpaired.images), 'photo')} without labels",
            remedy="add the files, fix the name templates, or set data.missing=skip",
            examples=tuple(scan.facts.short(str(path)) for path in unpaired.images),
        )
    if unpaired.maps:
        yield Finding(
            severity="warning",
            code="label_without_photo",
            split=scan.split,
            message=f"{plural(len(unpaired.maps), 'label file')} without a photo",
            remedy="add the photos, or remove the files",
            examples=tuple(scan.facts.short(str(path)) for path in unpaired.maps),
        )
    has: dict[str, Callable[[Record], Any]] = {
        "labels": lambda r: r.labels,
        "depth": lambda r: r.depth,
    }
    usable = [record for record in scan.records if not record.faults]
    for target in has.keys() & set(scan.facts.info.targets):
        bare = [record for record in usable if has[target](record) is None]
        if bare:
            what = "a class mask" if target == "labels" else "a depth map"
            yield Finding(
                severity="note",
                code=f"no_{target}",
                split=scan.split,
                message=f"{len(bare)} of {plural(len(usable), 'sample')} lack {what}",
                remedy="they teach the other targets only",
                examples=tuple(record.name for record in bare),
            )


def check_as_training(scan: Scan, dataset: Any) -> Iterator[Finding]:
    """What the data set's own check, the one that every training run makes, refuses."""
    try:
        dataset.validate()
    except DataError as error:
        yield Finding(
            severity="error",
            code="refused",
            split=scan.split,
            message=scan.facts.short(str(error)),
        )
