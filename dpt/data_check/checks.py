"""The checks of a split's measurements, each a function from a ``Scan`` to findings.

``CHECKS`` lists them all, ``QUICK_CHECKS`` those that every training runs on a few samples.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from math import exp, log
from statistics import median

import numpy as np

from dpt.data.formats import io
from dpt.data.formats.rules import NEAR, TRANSPARENT, UNITS, are_normalised, likely_scale
from dpt.data_check import measure
from dpt.data_check.scan import Finding, Record, Scan, Severity, has_errors
from dpt.files import few, plural
from dpt.types.samples import IGNORE_INDEX

_MANY_SEGMENTS = 100  # the most queries that training chooses
_TOO_NEAR = 0.02  # metres: cameras do not focus nearer
_MANY_BEYOND = 0.1  # fraction of the measured pixels of a map
_MANY_FAR = 0.2  # fraction of the maps that have so many
_FAR_OFF = 5.0  # ratio of a map's typical depth to that of the others
_NOUNS: dict[measure.MapKind, str] = {"labels": "masks", "depth": "depth maps"}
_MISTAKES: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # to try on maps (N, h, w)
    "flipped left to right": lambda maps: maps[:, :, ::-1],
    "flipped upside down": lambda maps: maps[:, ::-1],
    "turned by 180 degrees": lambda maps: maps[:, ::-1, ::-1],
    "given to the previous sample": lambda maps: np.roll(maps, -1, axis=0),
    "given to the next sample": lambda maps: np.roll(maps, 1, axis=0),
}
# values of ``fit_table``, in standard deviations: 2 to 8 for right pairs of CamVid and 7-Scenes
_NO_FIT, _FIT, _CLEARLY_BETTER, _NOT_BY_CHANCE = 1.0, 2.0, 2.5, 3.5
_BETTER = 1.2  # ratio of two fits


# --- files and images ---------------------------------------------------------------------------


def refused_samples(scan: Scan) -> Iterator[Finding]:
    """Finds samples that cannot be used, each with its reason; class ids have their own check."""
    remedies = {
        "unreadable": ("cannot be read", "do what is said of each file, or remove it"),
        "size_mismatch": ("have a label map of another size", "pair the right files, or resize"),
    }
    for code, (fault, remedy) in remedies.items():
        texts = [(r, text) for r in scan.records for kind, text in r.faults if kind == code]
        records = dict.fromkeys(record for record, _ in texts)
        if records:
            message = f"{len(records)} of {len(scan.records)} samples {fault}"
            examples = [text for _, text in texts]
            yield scan.finding("error", code, message, remedy, records, examples)


def damaged_files(scan: Scan) -> Iterator[Finding]:
    """Finds files that differ from their checksums, if the whole split was read."""
    is_complete = len(scan.records) == len(scan.dataset)
    lines = scan.dataset.damaged_files() if is_complete else ()
    if lines:
        message = f"{plural(len(lines), 'file')} with a wrong checksum"
        yield scan.finding("error", "damaged", message, "copy them again", examples=lines)


def files_without_partner(scan: Scan) -> Iterator[Finding]:
    """Finds images without labels, and label files without an image."""
    images, maps = (list(map(str, paths)) for paths in scan.dataset.unpaired)
    if images:
        severity: Severity = "error" if scan.missing == "raise" else "note"
        message = f"{plural(len(images), 'image')} without labels"
        remedy = "add the files, correct the name templates, or set data.missing=skip"
        yield scan.finding(severity, "photo_without_label", message, remedy, examples=images)
    if maps:
        message = f"{plural(len(maps), 'label file')} without an image"
        remedy = "add the images, or remove the files"
        yield scan.finding("warning", "label_without_photo", message, remedy, examples=maps)


def left_out(scan: Scan) -> Iterator[Finding]:
    """Finds what the data set does not use of its label files."""
    for note in scan.dataset.notes:
        yield scan.finding("warning", "labels_left_out", note)


def duplicates(scan: Scan) -> Iterator[Finding]:
    """Finds images whose pixels equal those of another, in this split or an earlier one."""
    copies: dict[bytes, list[Record]] = defaultdict(list)
    for record, image in _distinct(scan):
        copies[image.digest].append(record)
    within = [records for records in copies.values() if len(records) > 1]
    if within:
        message = f"{plural(len(within), 'image')} with identical copies in this split"
        remedy = "remove the copies: each counts as a sample of its own"
        examples = [" = ".join(record.name for record in records) for records in within]
        affected = [*chain(*within)]
        yield scan.finding("warning", "duplicate", message, remedy, affected, examples)
    earlier = {image.digest: r.name for other in scan.earlier for r, image in _distinct(other)}
    across = {digest: copies[digest][0] for digest in copies.keys() & earlier.keys()}
    if across:
        message = f"{plural(len(across), 'image')} also in another split"
        remedy = "remove them from one split: scores on training images are meaningless"
        examples = [f"{earlier[digest]} = {record.name}" for digest, record in across.items()]
        code = "duplicate_across_splits"
        yield scan.finding("error", code, message, remedy, across.values(), examples)


def _distinct(scan: Scan) -> Iterable[tuple[Record, measure.ImageStats]]:
    """Returns images that are not empty, each file once, since a mix of data sets repeats them."""
    return {r.name: (r, image) for r, image in scan.images if not image.is_empty}.values()


def shared_groups(scan: Scan) -> Iterator[Finding]:
    """Finds groups of images, such as one drive, that are in this split and an earlier one."""
    for other in scan.earlier:
        shared = sorted(set(scan.dataset.groups) & set(other.dataset.groups))
        if shared:
            message = f"{plural(len(shared), 'group')} of images also in {other.split}"
            remedy = "scores do not hold for new places: set data.folds, or divide by data.group_by"
            yield scan.finding("warning", "groups_across_splits", message, remedy, examples=shared)


def unusual_images(scan: Scan) -> Iterable[Finding]:
    """Finds images that are nearly of one colour."""
    what = "images nearly black, white or of one colour"
    remedy = "view them, and remove those that are useless"
    return scan.count("photo_empty", scan.images, lambda image: image.is_empty, what, remedy)


def unregistered_maps(scan: Scan) -> Iterator[Finding]:
    """Finds maps whose edges fit another image, or another place of their own image, better."""
    for kind in measure.MAP_KINDS:
        records = [record for record in scan.records if kind in record.edge_scores]
        move = measure.find_misalignment(record.edge_scores[kind] for record in records)
        findings = list(_pairing(scan, kind, move))
        yield from findings
        if move and not any(finding.code == f"{kind}_unpaired" for finding in findings):
            side = max(scan.images[0][1].size)
            offset = f"({round(move.dx * side)}, {round(move.dy * side)}) pixels"
            how = f"scaling by {move.scale:g} about the centre and moving by {offset}"
            message = f"edges of the {_NOUNS[kind]} fit those of the images best after {how}"
            remedy = "check that images and labels come from one camera and were cropped alike"
            yield scan.finding("warning", f"{kind}_misregistered", message, remedy, records, ())


def _pairing(
    scan: Scan, kind: measure.MapKind, move: measure.Misalignment | None
) -> Iterator[Finding]:
    """Finds that all or some maps, after ``move``, fit another image better than their own."""
    # by name, since a mix of data sets repeats samples
    measured = {r.name: (r, image.size) for r, image in scan.images if kind in r.edges}.values()
    if len(measured) < measure.MANY_IMAGES:
        return
    records = [record for record, _ in measured]
    images, maps = np.stack([record.edges[kind] for record in records], axis=1)
    if move:
        maps = np.stack([move.apply(record.edges[kind][1], size) for record, size in measured])
    table = measure.fit_table(images, maps)
    diagonal, highest = table.diagonal(), table.max(axis=1)
    typical = float(np.median(diagonal))
    fits = {
        mistake: float(np.median(measure.fit_table(images, change(maps)).diagonal()))
        for mistake, change in _MISTAKES.items()
    }
    mistake = max(fits, key=lambda name: fits[name])
    noun, code = _NOUNS[kind], f"{kind}_unpaired"
    remedy = "check the names, or the lists, by which files are paired"
    basis = f"(by their edges, over {len(records)} samples)"
    is_swapped = (diagonal < _NO_FIT) & (highest > diagonal + _CLEARLY_BETTER)
    swapped = {records[i]: records[table[i].argmax()] for i in np.flatnonzero(is_swapped).tolist()}
    if fits[mistake] > max(_FIT, _BETTER * typical):
        message = f"{noun} fit their images best when {mistake} {basis}"
        yield scan.finding("error", code, message, remedy, records, ())
    elif typical < _NO_FIT:
        severity: Severity = "error" if np.median(highest) > _NOT_BY_CHANCE else "warning"
        message = f"{noun} fit their own images no better than those of other samples {basis}"
        yield scan.finding(severity, code, message, remedy, records, ())
    elif swapped:
        examples = [f"{record.name}: fits {other.name}" for record, other in swapped.items()]
        message = f"{len(swapped)} of {len(records)} {noun} fit other images than their own {basis}"
        yield scan.finding("warning", f"{kind}_swapped", message, remedy, swapped, examples)


# --- class masks and image-level labels ---------------------------------------------------------


def pixels_of_classes(scan: Scan) -> Counter[int]:
    """Returns the pixels of each class in masks; ``IGNORE_INDEX``: those without a class."""
    pixels = Counter[int]()
    for _, labels in scan.masks:
        pixels.update(labels.counts)
    return pixels


def images_of_classes(scan: Scan) -> Counter[int]:
    """Returns the images of each image-level class."""
    return Counter(r.class_id for r in scan.records if r.class_id is not None)


def ids_outside(scan: Scan) -> Iterator[Finding]:
    """Finds ids that are neither a class nor ignored, also as they seem to be numbered from 1."""
    affected = {record: labels.outside for record, labels in scan.masks if labels.outside}
    examples = [f"{record.name}: {_listed(values)}" for record, values in affected.items()]
    outside = {value for values in affected.values() for value in values}
    rule, count = scan.dataset.label_rule, scan.dataset.info.num_classes
    shift = f"data.label_map=1-{count} (id 1 becomes the first class, 0 is ignored)"
    shift += ", and give data.label_colors a row for id 0" if rule and rule.colors else ""
    if _count_from_one(scan, outside):
        severity: Severity = "error" if outside else "warning"
        others = f"{_listed(outside)} does" if outside else "all others do"
        message = f"id 0 never occurs, but {others}: ids seem to count from 1"
        yield scan.finding(severity, "off_by_one", message, f"set {shift}", affected, examples)
    elif outside:
        masks = plural(len(affected), "mask")
        message = f"{masks} with class ids outside 0..{count - 1}: {_listed(outside)}"
        remedy = "set data.num_classes, or data.ignore_index for values that mean unlabelled"
        remedy += f"; if ids count from 1, {shift}" if outside == {count} else ""
        yield scan.finding("error", "label_outside", message, remedy, affected, examples)


def _count_from_one(scan: Scan, outside: set[int]) -> bool:
    """Returns whether ids of masks seem to be numbered from 1."""
    rule, count = scan.dataset.label_rule, scan.dataset.info.num_classes
    present = {*pixels_of_classes(scan), *pixels_of_classes(scan.first)} - {IGNORE_INDEX}
    # label tools number the classes, and data.label_map chooses the ids: neither sets num_classes
    is_numbered = getattr(scan.dataset, "num_classes", None) is not None
    if rule is None or not (is_numbered and present) or 0 in present | {*rule.ignore_index}:
        return False
    if not outside:
        return present == {*range(1, count)}
    return outside <= {*range(1, count + 1), *(value + 1 for value in rule.ignore_index)}


def unlabelled(scan: Scan) -> Iterator[Finding]:
    """Notes the values in the files that are no class, with their fractions of the pixels."""
    fractions: dict[int, float] = defaultdict(float)
    for _, labels in scan.class_masks:
        ignored = labels.counts.get(IGNORE_INDEX, 0) / sum(labels.counts.values())
        for value, fraction in (labels.unlabelled or {IGNORE_INDEX: ignored}).items():
            fractions[value] += fraction / len(scan.masks)
    frequent = sorted(fractions, key=lambda value: -fractions[value])
    names = {TRANSPARENT: "transparent pixels", io.WITHOUT_DATA: "no data in the image"}
    shown = [f"{names.get(i, i)} ({fractions[i]:.2%})" for i in frequent if fractions[i]]
    if shown:
        message = f"unlabelled in the masks: {few(shown, 12)} of the pixels"
        remedy = "if one of these values is a class, correct data.ignore_index or data.label_map"
        yield scan.finding("note", "unlabelled", message, remedy)


def _listed(values: Iterable[int]) -> str:
    return few([str(value) for value in sorted(values)], 12)


def absent_classes(scan: Scan) -> Iterator[Finding]:
    """Finds classes without a pixel, or without an image."""
    for names, counts in (
        (scan.dataset.info.class_names, pixels_of_classes(scan)),
        (scan.dataset.class_id_names, images_of_classes(scan)),
    ):
        absent = [name for i, name in enumerate(names) if not counts[i]]
        if counts and absent:
            severity: Severity = "warning" if scan.split == "train" else "note"
            message = f"{len(absent)} of {len(names)} classes never occur"
            remedy = "check data.num_classes and the split: they cannot be trained or scored"
            yield scan.finding(severity, "class_absent", message, remedy, examples=absent)


def palettes(scan: Scan) -> Iterator[Finding]:
    """Finds palettes of masks in which colours have other indices, while indices are the ids."""
    rule, part = scan.dataset.label_rule, scan.dataset.part
    files = [scan.dataset.files(record.index) for record, _ in scan.masks]
    paths = [sample.labels for sample in files if sample and sample.labels]
    if rule and rule.color_distance is None and io.palettes_disagree(paths, part, rule.colors):
        message = "palettes of masks, or data.label_colors, have a colour at different indices"
        remedy = "set data.label_colors and data.color_distance=0 if colours are the classes"
        yield scan.finding("warning", "palettes_disagree", message, remedy)


def unusual_masks(scan: Scan) -> Iterator[Finding]:
    """Finds masks without a class, of one class only, if most are, or resized by interpolation, if
    a tenth is."""
    masks, count = scan.class_masks, scan.dataset.info.num_classes
    what, remedy = "masks without a labelled pixel", "check data.ignore_index, or remove them"
    yield from scan.count("labels_all_ignored", masks, lambda m: not m.classes, what, remedy, None)
    if count > 1:
        code, what, remedy = "labels_constant", "masks hold one class only", "check the masks"
        if count == 2 and pixels_of_classes(scan)[IGNORE_INDEX]:
            remedy += "; if 255 is a class and does not mean unlabelled, set data.label_map=[0,255]"
        yield from scan.count(code, masks, lambda m: len(m.classes) == 1, what, remedy, above=0.5)
    code = "labels_interpolated"
    what = "masks seem resized by interpolation: ids along borders lie between both sides' ids"
    remedy = "make them again from the originals with nearest-neighbour resizing"
    yield from scan.count(code, scan.masks, lambda m: m.is_interpolated, what, remedy, above=0.1)


# --- objects ------------------------------------------------------------------------------------


def objects(scan: Scan) -> Iterator[Finding]:
    """Finds objects without a class, of several classes, and without a pixel."""
    code, maps = "object_without_class", scan.objects
    what = "maps hold objects without a pixel of a class in data.things"
    remedy = "give them a class, add it to data.things, or set data.first_object"
    yield from scan.count(code, maps, lambda stats: stats.without_class > 0, what, remedy, None)
    code, remedy = "object_of_several_classes", "check that masks and ids belong together"
    what = "maps hold objects of several classes, each of which counts as an object"
    yield from scan.count(code, maps, lambda stats: stats.of_several_classes > 0, what, remedy)
    most = max((stats.segments for _, stats in maps), default=0)
    what = f"images have more than {_MANY_SEGMENTS} segments, up to {most}"
    remedy = "of these the largest are trained: raise task.num_queries, or use task=segmentation"
    yield from scan.count("many_objects", maps, lambda s: s.segments > _MANY_SEGMENTS, what, remedy)
    empty = {record: record.empty_objects for record, _ in maps if record.empty_objects}
    if empty:
        message = f"{len(empty)} of {len(maps)} samples have objects without a pixel"
        remedy = "they are left out: correct their masks, or remove them"
        examples = [f"{record.name}: object {few(names)}" for record, names in empty.items()]
        yield scan.finding("warning", "empty_objects", message, remedy, empty, examples)


# --- depth maps ---------------------------------------------------------------------------------


def _unit(scan: Scan) -> Iterator[Finding]:
    """Finds an implausible typical depth, and the unit that would make it plausible."""
    values = _typical(scan)
    if values is None or not scan.dataset.info.has_metres:
        return
    rule, max_depth = scan.depth_rule, scan.dataset.info.max_depth
    scale = rule.scale if rule else 1.0
    metres = values[0] * scale
    severity: Severity = "error"
    if max_depth is not None and metres > max_depth:
        fault = f"beyond data.max_depth={max_depth:g} m"
    elif metres < _TOO_NEAR:
        fault = "nearer than a camera can focus"
    elif metres < NEAR:
        severity, fault = "warning", f"less than {NEAR} m"
    else:
        return
    message = f"the typical depth is {metres:.4g} m, {fault}"
    remedy = "check the unit of the files, or data.disparity"
    if rule is not None:
        message += f" ({values[0]:.4g} in the files, times data.depth_scale={scale:g})"
        remedy = "check data.depth_scale and data.max_depth"
        typical, high = _typical(scan.first) or values  # so that all splits get the same hint
        better = likely_scale(typical, high, max_depth=max_depth, scale=scale)
        if better is not None:
            message += f"; these look like {UNITS[better]}"
            remedy = f"set data.depth_scale={better:.6g}"
    yield scan.finding(severity, "depth_unit", message, remedy, [r for r, _ in scan.maps[:3]])


def _typical(scan: Scan) -> tuple[float, float] | None:
    """Returns the median and the 99 % quantile of the values in the files, each the median over
    the maps."""
    quantiles = [depth.raw for _, depth in scan.maps if depth.measured]
    if not quantiles:
        return None
    return median(raw[0] for raw in quantiles), median(raw[1] for raw in quantiles)


def depth_values(scan: Scan) -> Iterator[Finding]:
    """Finds maps of a wrong unit, or else without a valid pixel or with many beyond the limit."""
    maps = scan.maps
    what = "depth maps stored with 8 bits, which is 255 levels at most"
    remedy = "save depth as 16-bit PNG, TIFF or .npy; do not train on pictures made for viewing"
    yield from scan.count("depth_8bit", maps, lambda d: d.dtype == "uint8", what, remedy)
    # another scale would make most maps of 8 bits look mended
    has_8_bits = 2 * sum(depth.dtype == "uint8" for _, depth in maps) > len(maps)
    findings = [] if has_8_bits else list(_unit(scan))
    yield from findings
    if not has_errors(findings):
        what = "depth maps without a measured pixel in the valid range"
        remedy = "check data.min_depth, data.max_depth and the files, or remove them"
        yield from scan.count("depth_all_invalid", maps, lambda d: not d.valid, what, remedy, None)
        code = "depth_beyond_max"
        what = f"depth maps have over {_MANY_BEYOND:.0%} of measured pixels beyond data.max_depth"
        remedy = "raise it if they are correct; otherwise add their value to data.invalid_depth"
        yield from scan.count(
            code, maps, lambda d: d.beyond > _MANY_BEYOND, what, remedy, above=_MANY_FAR
        )


def unusual_maps(scan: Scan) -> Iterator[Finding]:
    """Finds maps of one depth, with undeclared invalid values, scaled to their own range, or whose
    lower half is farther, though images show near things below."""
    maps = scan.maps
    what, remedy = "depth maps with one depth only", "remove them, or check the files"
    yield from scan.count("depth_constant", maps, lambda d: d.is_constant, what, remedy, None)
    what = "depth maps hold the largest value of the files' type as a valid depth"
    remedy = "if it means 'not measured', add it to data.invalid_depth, as in [0,65535]"
    yield from scan.count("depth_undeclared", maps, lambda d: d.has_type_maximum, what, remedy)
    tops = [depth.top for _, depth in maps]
    if tops and are_normalised(tops):
        message = f"all depth maps end at {tops[0][0]:g}, as if each was scaled to its own range"
        remedy = "save metres, or train task.kind=relative"
        yield scan.finding("warning", "depth_normalised", message, remedy)
    what = "depth maps have larger values in the lower half, as disparity and inverse depth do"
    remedy = (
        "flip maps that are upside down, as PFM files may be; for disparity see data.disparity, "
    )
    remedy += "and data.depth_kind=inverse"
    if not scan.dataset.info.has_metres:
        what = "maps of inverse depth have smaller values in the lower half, as depth does"
        remedy = "leave data.depth_kind=inverse out if larger values are farther"
    above = measure.AGREEING if len(maps) >= measure.MANY_IMAGES else 1.0
    yield from scan.count("depth_inverse", maps, lambda d: d.grows_down, what, remedy, above=above)


def deviating_maps(scan: Scan) -> Iterable[Finding]:
    """Finds maps whose typical depth is far from that of the others."""
    logs = [(record, log(depth.raw[0])) for record, depth in scan.maps if depth.raw[0] > 0]
    if len(logs) < measure.MANY_IMAGES or not scan.dataset.info.has_metres:
        return ()
    middle = median(value for _, value in logs)
    limit = max(log(_FAR_OFF), 6 * median(abs(value - middle) for _, value in logs))
    what = f"depth maps are typically over {exp(limit):.2g} times nearer or farther than others"
    remedy = "check the unit of these files, and that they belong to this data set"
    return scan.count("depth_outlier", logs, lambda v: abs(v - middle) > limit, what, remedy)


Check = Callable[[Scan], Iterable[Finding]]
"""Returns the findings of a split; none if it lacks the data to be checked."""


QUICK_CHECKS: tuple[Check, ...] = (
    left_out,
    unlabelled,
    ids_outside,
    unusual_masks,
    palettes,
    objects,
    depth_values,
    unusual_maps,
)
"""Also run at the start of every training, on a few samples and without images."""
CHECKS: tuple[Check, ...] = (
    refused_samples,
    damaged_files,
    files_without_partner,
    duplicates,
    shared_groups,
    unusual_images,
    unregistered_maps,
    absent_classes,
    deviating_maps,
    *QUICK_CHECKS,
)
