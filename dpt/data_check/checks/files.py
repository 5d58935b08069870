"""Files that cannot be read, do not fit one another or have no partner."""

from __future__ import annotations

from collections.abc import Iterator

from dpt.data_check.check import Finding, Scan, Severity, check, plural

_REFUSALS = {
    "unreadable": ("cannot be read", "copy or download them again, or remove them"),
    "size_mismatch": (
        "have a label map of another size than the photo",
        "pair the right files, or resize them to one size (labels and depth by nearest)",
    ),
}


@check
def refused_samples(scan: Scan) -> Iterator[Finding]:
    """Samples that cannot be used, each with its reason; class ids have their own check."""
    for code, (what, remedy) in _REFUSALS.items():
        faults = [(r, text) for r in scan.records for found, text in r.faults if found == code]
        records = list(dict.fromkeys(record for record, _ in faults))
        if faults:
            message = f"{len(records)} of {len(scan.records)} samples {what}"
            examples = [text for _, text in faults]
            yield scan.finding("error", code, message, remedy, records, examples)


@check
def files_without_partner(scan: Scan) -> Iterator[Finding]:
    """Photos without labels, and label files without a photo."""
    images, maps = scan.dataset.unpaired
    if images:
        severity: Severity = "error" if scan.missing == "raise" else "note"
        message = f"{plural(len(images), 'photo')} without labels"
        remedy = "add the files, correct the name templates, or set data.missing=skip"
        yield scan.finding(severity, "photo_without_label", message, remedy, examples=images)
    if maps:
        message = f"{plural(len(maps), 'label file')} without a photo"
        remedy = "add the photos, or remove the files"
        yield scan.finding("warning", "label_without_photo", message, remedy, examples=maps)


@check
def partly_labelled(scan: Scan) -> Iterator[Finding]:
    """Samples that have only some of the data set's targets."""
    usable = [record for record in scan.records if not record.faults]
    for target in [t for t in ("labels", "depth") if t in scan.dataset.info.targets]:
        missing = [(record, getattr(record, target) is None) for record in usable]
        what, remedy = f"samples without {target}", "they are used for the other targets only"
        yield from scan.affected(missing, f"no_{target}", what, remedy, "note")
