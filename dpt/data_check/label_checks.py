"""Class masks and image-level labels: ids, shares, and ids that seem shifted or interpolated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from dpt.data_check.findings import Finding, Severity, plural
from dpt.data_check.measure import Labels
from dpt.data_check.scan import Scan
from dpt.types import IGNORE_INDEX

_MANY_IGNORED = 0.5
_SLIM_FEW = 200  # borders one pixel wide; fewer say nothing
_BETWEEN = 0.75  # share of them whose id lies between its neighbours'; a third is chance
_BINARY = "; in masks of 0 and 255 the latter means unlabelled: if it is a class, set "
_BINARY += "data.label_map=[0,255]"


def class_counts(scan: Scan) -> Counter[int]:
    """Pixels of each class, ``IGNORE_INDEX`` for those without one, over a split."""
    total: Counter[int] = Counter()
    for record in scan.records:
        if record.labels:
            total.update(record.labels.counts)
    return total


def check_ids(scan: Scan) -> Iterator[Finding]:
    """Ids outside the classes, and ids that seem to be one too high."""
    wrong = [(r, r.labels.outside) for r in scan.records if r.labels and r.labels.outside]
    values = sorted({value for _, outside in wrong for value in outside})
    count = scan.facts.info.num_classes
    examples = tuple(f"{r.name}: {_listed(sorted(outside))}" for r, outside in wrong)
    indices = tuple(record.index for record, _ in wrong)
    if shift := _find_shift(scan, outside=set(values)):
        yield replace(shift, examples=examples, indices=indices)
    elif wrong:
        yield Finding(
            severity="error",
            code="label_outside",
            split=scan.split,
            message=f"{plural(len(wrong), 'mask')} with class ids outside 0..{count - 1}: "
            f"{_listed(values)}",
            remedy="set data.num_classes, or data.ignore_index for values that mean unlabelled",
            examples=examples,
            indices=indices,
        )


def _find_shift(scan: Scan, *, outside: set[int]) -> Finding | None:
    """Ids that count from 1, and id 0 that means "other", as in ADE20K."""
    rule, counts = scan.facts.labels, class_counts(scan)
    ignored = rule.ignore_index if rule else ()
    count = scan.facts.info.num_classes
    present = {i for i in counts if i != IGNORE_INDEX}
    if count < 2 or not present or 0 in ignored or (rule and rule.ids_of_class):
        return None
    from_one = {*range(1, count + 1), *(value + 1 for value in ignored)}
    severity: Severity = "error"
    if outside and outside <= from_one and 0 not in present:
        message = (
            f"id 0 never occurs, but {_listed(sorted(outside))} does: ids seem to count from 1"
        )
    elif outside == {count} and not counts[IGNORE_INDEX]:
        message = (
            f"ids are 0..{count} and nothing is unlabelled: this looks like ADE20K, where 0 means "
            f"other and classes count from 1 (else {count} means unlabelled: set "
            f"data.ignore_index={count})"
        )
    elif not outside and present == set(range(1, count)):
        severity = "warning"
        name = scan.facts.info.class_names[0]
        message = f"id 0 ({name}) never occurs, all others do: ids may count from 1"
    else:
        return None
    return Finding(
        severity=severity,
        code="off_by_one",
        split=scan.split,
        message=message,
        remedy=f"set data.label_map=1-{count} (1 becomes the first class, 0 is ignored)"
        + (", and give data.label_colors a row for id 0" if rule and rule.colors else ""),
    )


def check_classes(scan: Scan) -> Iterator[Finding]:
    """Classes that never occur, and masks of which little or nothing is labelled."""
    masks = [record for record in scan.records if record.labels]
    if not masks:
        return
    counts, names = class_counts(scan), scan.facts.info.class_names
    absent = [name for i, name in enumerate(names) if not counts[i]]
    if absent:
        yield _absent_classes(scan, absent, len(names))
    empty = [r for r in masks if r.labels and set(r.labels.counts) == {IGNORE_INDEX}]
    if empty:
        yield Finding(
            severity="error" if 2 * len(empty) > len(masks) else "warning",
            code="labels_all_ignored",
            split=scan.split,
            message=f"{len(empty)} of {plural(len(masks), 'mask')} without a labelled pixel",
            remedy="check data.ignore_index, or remove them",
            examples=tuple(record.name for record in empty),
            indices=tuple(record.index for record in empty),
        )
    share = counts[IGNORE_INDEX] / max(1, counts.total())
    if share > _MANY_IGNORED:
        yield Finding(
            severity="note",
            code="mostly_ignored",
            split=scan.split,
            message=f"{share:.0%} of all label pixels carry no class",
            remedy="check data.ignore_index if the masks are meant to be dense",
        )
    single = [r for r in masks if r.labels and len(set(r.labels.counts) - {IGNORE_INDEX}) == 1]
    if len(names) > 1 and 2 * len(single) > len(masks):
        yield Finding(
            severity="warning",
            code="labels_constant",
            split=scan.split,
            message=f"{len(single)} of {plural(len(masks), 'mask')} hold one class only",
            remedy="look at them: masks of objects are rarely so"
            + (_BINARY if len(names) == 2 and counts[IGNORE_INDEX] else ""),
            examples=tuple(record.name for record in single),
            indices=tuple(record.index for record in single),
        )


def check_borders(scan: Scan) -> Iterator[Finding]:
    """Masks that were resized smoothly: ids along borders lie between those of both sides."""

    def is_smooth(labels: Labels) -> bool:
        return labels.slim >= _SLIM_FEW and labels.between > _BETWEEN * labels.slim

    masks = [record for record in scan.records if record.labels]
    smooth = [record for record in masks if record.labels and is_smooth(record.labels)]
    if 10 * len(smooth) > len(masks):
        yield Finding(
            severity="warning",
            code="labels_interpolated",
            split=scan.split,
            message=f"{len(smooth)} of {plural(len(masks), 'mask')} have ids along their borders "
            "that lie between those of both sides: they look resized by interpolation",
            remedy="make them again from the originals, resized by nearest neighbour",
            examples=tuple(record.name for record in smooth),
            indices=tuple(record.index for record in smooth),
        )


def check_image_labels(scan: Scan) -> Iterator[Finding]:
    """Classes of whole images that never occur, and numbers that are all the same."""
    ids: Counter[int] = Counter(r.class_id for r in scan.records if r.class_id is not None)
    names = scan.facts.class_id_names
    absent = [name for i, name in enumerate(names) if not ids[i]]
    if ids and absent:
        yield _absent_classes(scan, absent, len(names))
    values = {record.value for record in scan.records if record.value is not None}
    if len(values) == 1 and len(scan.records) > 1:
        yield Finding(
            severity="error",
            code="value_constant",
            split=scan.split,
            message=f"every image has the value {values.pop():g}",
            remedy="check data.value_column",
        )


def _absent_classes(scan: Scan, absent: list[str], count: int) -> Finding:
    return Finding(
        severity="warning" if scan.split == "train" else "note",
        code="class_absent",
        split=scan.split,
        message=f"{len(absent)} of {count} classes never occur",
        remedy="nothing can be learned or scored about them: check data.num_classes and the split",
        examples=tuple(absent),
    )


def _listed(values: list[int], most: int = 12) -> str:
    text = ", ".join(str(value) for value in values[:most])
    return text + (f", ... ({len(values)} values)" if len(values) > most else "")
