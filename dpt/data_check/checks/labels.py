"""Class masks and image-level labels: ids, class shares, shifted and interpolated ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dpt.data.errors import few
from dpt.data_check.check import Finding, Record, Scan, Severity, check, plural, quick_check
from dpt.types import IGNORE_INDEX

_FEW_TRIPLES = 200  # fewer say nothing
_ORDERED = 0.75  # share of ordered triples in interpolated masks; by chance a third


def class_counts(scan: Scan) -> Counter[int]:
    """Pixels of each class over a split, ``IGNORE_INDEX`` for those without one."""
    total: Counter[int] = Counter()
    for _, labels in scan.masks:
        total.update(labels.counts)
    return total


@quick_check
def ids_from_one(scan: Scan) -> Iterator[Finding]:
    """Ids that seem to count from 1, with or without an id 0 that means "other"."""
    if shift := _shift(scan):
        rule, count = scan.dataset.label_rule, scan.dataset.info.num_classes
        remedy = f"set data.label_map=1-{count} (id 1 becomes the first class, 0 is ignored)"
        remedy += ", and give data.label_colors a row for id 0" if rule and rule.colors else ""
        yield scan.finding(shift[0], "off_by_one", shift[1], remedy, *_wrong(scan))


@check
def ids_outside(scan: Scan) -> Iterator[Finding]:
    """Ids that are neither a class nor ignored."""
    values = {value for _, labels in scan.masks for value in labels.outside}
    if values and _shift(scan) is None:
        records, examples = _wrong(scan)
        allowed = f"0..{scan.dataset.info.num_classes - 1}"
        message = f"{plural(len(records), 'mask')} with class ids outside {allowed}: "
        remedy = "set data.num_classes, or data.ignore_index for values that mean unlabelled"
        message += _listed(values)
        yield scan.finding("error", "label_outside", message, remedy, records, examples)


@check
def absent_classes(scan: Scan) -> Iterator[Finding]:
    """Classes without a pixel, or without an image."""
    images = Counter(r.class_id for r in scan.records if r.class_id is not None)
    by_pixel = (class_counts(scan), scan.dataset.info.class_names)
    for counts, names in (by_pixel, (images, scan.dataset.class_id_names)):
        absent = [name for i, name in enumerate(names) if not counts[i]]
        if counts and absent:
            severity: Severity = "warning" if scan.split == "train" else "note"
            message = f"{len(absent)} of {len(names)} classes never occur"
            remedy = "check data.num_classes and the split: they cannot be trained or scored"
            yield scan.finding(severity, "class_absent", message, remedy, examples=absent)


@check
def unlabelled_masks(scan: Scan) -> Iterable[Finding]:
    empty = [(record, labels.counts.keys() == {IGNORE_INDEX}) for record, labels in scan.masks]
    what, remedy = "masks without a labelled pixel", "check data.ignore_index, or remove them"
    return scan.affected(empty, "labels_all_ignored", what, remedy)


@check
def constant_masks(scan: Scan) -> Iterator[Finding]:
    """Masks that hold one class only, if most do."""
    count = scan.dataset.info.num_classes
    single = [(r, len(labels.counts.keys() - {IGNORE_INDEX}) == 1) for r, labels in scan.masks]
    if count > 1 and 2 * sum(flag for _, flag in single) > len(single):
        remedy = "check the masks"
        if count == 2 and class_counts(scan)[IGNORE_INDEX]:
            remedy += "; in masks of 0 and 255 the value 255 means unlabelled: if it is a class, "
            remedy += "set data.label_map=[0,255]"
        what = "masks hold one class only"
        yield from scan.affected(single, "labels_constant", what, remedy, "warning")


@quick_check
def interpolated_masks(scan: Scan) -> Iterator[Finding]:
    """Masks resized by interpolation: ids along borders lie between those of both sides."""
    smooth = [
        record
        for record, labels in scan.masks
        if labels.triples >= _FEW_TRIPLES and labels.ordered > _ORDERED * labels.triples
    ]
    if 10 * len(smooth) > len(scan.masks):
        message = f"{len(smooth)} of {len(scan.masks)} masks seem resized by interpolation: "
        message += "the ids along borders lie between those of both sides"
        remedy = "make them again from the originals with nearest-neighbour resizing"
        yield scan.finding("warning", "labels_interpolated", message, remedy, smooth)


def _shift(scan: Scan) -> tuple[Severity, str] | None:
    """Severity and message if ids seem to count from 1."""
    rule, counts = scan.dataset.label_rule, class_counts(scan)
    count, names = scan.dataset.info.num_classes, scan.dataset.info.class_names
    ignored = rule.ignore_index if rule else ()
    present = counts.keys() - {IGNORE_INDEX}
    outside = {value for _, labels in scan.masks for value in labels.outside}
    if count < 2 or not present or 0 in ignored or (rule and rule.ids_of_class):
        return None
    from_one = {*range(1, count + 1), *(value + 1 for value in ignored)}
    if outside and outside <= from_one and 0 not in present:
        text = f"id 0 never occurs, but {_listed(outside)} does: ids seem to count from 1"
        return "error", text
    if outside == {count} and not counts[IGNORE_INDEX]:
        return "error", (
            f"ids are 0..{count} and no pixel is unlabelled, as in ADE20K, where 0 means other and "
            f"classes count from 1 (if {count} means unlabelled instead, set "
            f"data.ignore_index={count})"
        )
    if not outside and present == set(range(1, count)):
        return "warning", f"id 0 ({names[0]}) never occurs, all others do: ids may count from 1"
    return None


def _wrong(scan: Scan) -> tuple[list[Record], list[str]]:
    """The masks with ids outside the classes, and a line about each."""
    wrong = [(record, labels.outside) for record, labels in scan.masks if labels.outside]
    return [r for r, _ in wrong], [f"{r.name}: {_listed(outside)}" for r, outside in wrong]


def _listed(values: Iterable[int]) -> str:
    return few([str(value) for value in sorted(values)], 12)
