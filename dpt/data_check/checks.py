"""The checks of a split's measurements; ``CHECKS`` lists them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import exp, log
from statistics import median

import numpy as np

from dpt.data.formats import io
from dpt.data_check.measure import Photo
from dpt.data_check.registration import (
    AGREEING,
    MANY_IMAGES,
    MAP_KINDS,
    MapKind,
    Misalignment,
    find_misalignment,
    fit_table,
)
from dpt.data_check.scan import Finding, Record, Scan, Severity, has_errors
from dpt.files import few
from dpt.types import IGNORE_INDEX

_REFUSALS = {
    "unreadable": ("cannot be read", "do what is said of each file, or remove it"),
    "size_mismatch": (
        "have a label map of another size than the photo",
        "pair the right files, or resize them to one size (labels and depth by nearest)",
    ),
}
UNITS = {  # by metres for each unit
    0.001: "millimetres",
    1.0: "metres",
    0.01: "centimetres",
    1 / 256: "KITTI's 1/256 m",
    0.0002: "TUM's 1/5000 m",
}
_TOO_NEAR = 0.02  # metres: cameras do not focus nearer
_NEAR = 0.25  # metres: an implausible typical depth
_MANY_BEYOND = 0.1  # share of the measured pixels
_MORE_BITS = "save depth as 16-bit PNG, TIFF or .npy; do not train on pictures made for viewing"
_SEVERAL_MAPS = 4
_TOPS = {1, 10, 100, 255, 1000, 1023, 4095, 10_000, 32_767, 65_535}
"""The largest values of maps that were scaled to their own range."""
_DIFFERENT = 0.2  # share of pixels by which class shares differ
_SURE_MASKS = 5  # class shares of fewer masks may differ by chance
_FAR_OFF = 5.0  # ratio of a map's typical depth to that of the others
_NOUNS = {"labels": "masks", "depth": "depth maps"}
_AS_THEY_ARE = "as they are"
_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {  # mistakes to try on maps (N, h, w)
    _AS_THEY_ARE: lambda maps: maps,
    "flipped left to right": lambda maps: maps[:, :, ::-1],
    "flipped upside down": lambda maps: maps[:, ::-1],
    "turned by 180 degrees": lambda maps: maps[:, ::-1, ::-1],
    "given to the previous sample": lambda maps: np.roll(maps, -1, axis=0),
    "given to the next sample": lambda maps: np.roll(maps, 1, axis=0),
}
# values of fit_table, in standard deviations: 2 to 8 for right pairs of CamVid and 7-Scenes
_NO_FIT, _FIT, _CLEARLY_BETTER, _NOT_BY_CHANCE = 1.0, 2.0, 2.5, 3.5
_BETTER = 1.2  # ratio of two fits


def plural(count: int, noun: str) -> str:
    """``1 photo``, ``3 photos``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- files and photos ---------------------------------------------------------------------------


def refused_samples(scan: Scan) -> Iterator[Finding]:
    """Samples that cannot be used, each with its reason; class ids have their own check."""
    for code, (what, remedy) in _REFUSALS.items():
        faults = [(r, text) for r in scan.records for found, text in r.faults if found == code]
        records = list(dict.fromkeys(record for record, _ in faults))
        if faults:
            message = f"{len(records)} of {len(scan.records)} samples {what}"
            examples = [text for _, text in faults]
            yield scan.finding("error", code, message, remedy, records, examples)


def damaged_files(scan: Scan) -> Iterator[Finding]:
    """Files that differ from their checksums, if the whole split was read."""
    complete = len(scan.records) == len(scan.dataset)
    if complete and (lines := scan.dataset.damaged_files()):
        message = f"{plural(len(lines), 'file')} with a wrong checksum"
        yield scan.finding("error", "damaged", message, "copy them again", examples=lines)


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


def duplicates(scan: Scan) -> Iterator[Finding]:
    """Photos whose decoded pixels equal those of another, in this split or an earlier one."""
    copies: dict[bytes, list[Record]] = defaultdict(list)
    for record, photo in _distinct(scan):
        copies[photo.digest].append(record)
    within = [records for records in copies.values() if len(records) > 1]
    if within:
        message = f"{plural(len(within), 'photo')} with identical copies in this split"
        remedy = "remove the copies: each counts as a sample of its own"
        examples = [" = ".join(record.name for record in records) for records in within]
        yield scan.finding("warning", "duplicate", message, remedy, chain(*within), examples)
    earlier = {p.digest: record.name for other in scan.earlier for record, p in _distinct(other)}
    across = {key: records[0] for key, records in copies.items() if key in earlier}
    if across:
        message = f"{plural(len(across), 'photo')} also in another split"
        remedy = "remove them from one split: scores on training photos are meaningless"
        examples = [f"{earlier[key]} = {record.name}" for key, record in across.items()]
        code = "duplicate_across_splits"
        yield scan.finding("error", code, message, remedy, across.values(), examples)


def shared_groups(scan: Scan) -> Iterator[Finding]:
    """Groups of photos, such as one drive, that are in this split and an earlier one."""
    for other in scan.earlier:
        shared = sorted(set(scan.dataset.groups) & set(other.dataset.groups))
        if shared:
            message = f"{plural(len(shared), 'group')} of photos also in {other.split}"
            remedy = "scores do not hold for new places: set data.folds, or divide by data.group_by"
            yield scan.finding("warning", "groups_across_splits", message, remedy, examples=shared)


def _distinct(scan: Scan) -> list[tuple[Record, Photo]]:
    """Photos that are not empty, each file once, since a mix of data sets repeats photos."""
    return list({r.name: (r, photo) for r, photo in scan.photos if not photo.is_empty}.values())


def unusual_photos(scan: Scan) -> Iterator[Finding]:
    """Photos that are empty, need rotation for display or, in train, are smaller than the crop."""
    empty = [(record, photo.is_empty) for record, photo in scan.photos]
    what = "photos nearly black, white or of one colour"
    remedy = "view them, and remove those that are useless"
    yield from scan.affected(empty, "photo_empty", what, remedy, "warning")
    rotated = [(record, p.orientation != 1) for record, p in scan.photos]
    what = "photos with an EXIF orientation"
    remedy = "set data.exif=apply if labels fit what viewers show, ignore if the stored pixels"
    has_maps = {"labels", "depth"} & {*scan.dataset.info.targets}
    severity: Severity = "warning" if has_maps and scan.dataset.exif is None else "note"
    remedy = remedy if scan.dataset.exif is None else f"data.exif={scan.dataset.exif} is set"
    yield from scan.affected(rotated, "exif_orientation", what, remedy, severity)
    height, width = scan.image_size if scan.split == "train" else (0, 0)
    small = [(r, p.size[0] < height or p.size[1] < width) for r, p in scan.photos]
    what = f"photos smaller than data.image_size=[{height},{width}]"
    remedy = "training upsamples them; set a smaller data.image_size to avoid that"
    yield from scan.affected(small, "smaller_than_crop", what, remedy, "note")


def registration(scan: Scan) -> Iterator[Finding]:
    """Maps whose edges fit another photo, or another place of their own photo, better."""
    for kind in MAP_KINDS:
        move = find_misalignment(record.edge_scores.get(kind) for record in scan.records)
        wrong = list(_pairing(scan, kind, move))
        yield from wrong
        if move and not any(finding.code == f"{kind}_unpaired" for finding in wrong):
            dx, dy = move.pixels(scan.photos[0][1].size)
            message = (
                f"edges of the {_NOUNS[kind]} fit those of the photos best after scaling by "
                f"{move.scale:g} about the centre and moving by ({dx}, {dy}) pixels (score "
                f"{move.score:.2f}; without the change {move.score_unmoved:.2f}; over "
                f"{move.images} images)"
            )
            remedy = "check that photos and labels come from one camera and were cropped alike"
            records = [record for record in scan.records if kind in record.edge_scores]
            yield scan.finding("warning", f"{kind}_misregistered", message, remedy, records, ())


def _pairing(scan: Scan, kind: MapKind, move: Misalignment | None) -> Iterator[Finding]:
    """Findings if all or some maps, after ``move``, fit another photo better than their own."""
    # by name, since a mix of data sets repeats samples
    found = {r.name: (r, photo.size) for r, photo in scan.photos if kind in r.edges}
    if len(found) < MANY_IMAGES:
        return
    records, noun = [record for record, _ in found.values()], _NOUNS[kind]
    photos = np.stack([record.edges[kind][0] for record in records])
    edges = [(record.edges[kind][1], size) for record, size in found.values()]
    maps = np.stack([move.apply(each, size) if move else each for each, size in edges])
    tables = {how: fit_table(photos, change(maps)) for how, change in _CHANGES.items()}
    fits = {how: float(np.median(table.diagonal())) for how, table in tables.items()}
    best, typical = max(fits, key=lambda how: fits[how]), fits[_AS_THEY_ARE]
    table = tables[_AS_THEY_ARE]
    own, highest = table.diagonal(), table.max(axis=1)
    remedy = "check the names, or the lists, by which files are paired"
    basis = f"(by their edges, over {len(own)} samples)"
    if fits[best] > max(_FIT, _BETTER * typical):
        message = f"{noun} fit their photos best when {best} {basis}"
        yield scan.finding("error", f"{kind}_unpaired", message, remedy, records, ())
    elif typical < _NO_FIT:
        severity: Severity = "error" if np.median(highest) > _NOT_BY_CHANCE else "warning"
        message = f"{noun} fit their own photos no better than those of other samples {basis}"
        yield scan.finding(severity, f"{kind}_unpaired", message, remedy, records, ())
    elif wrong := np.flatnonzero((own < _NO_FIT) & (highest > own + _CLEARLY_BETTER)).tolist():
        message = f"{len(wrong)} of {len(own)} {noun} fit other photos than their own {basis}"
        examples = [f"{records[i].name}: fits {records[table[i].argmax()].name}" for i in wrong]
        records = [records[i] for i in wrong]
        yield scan.finding("warning", f"{kind}_swapped", message, remedy, records, examples)


# --- class masks and image-level labels ---------------------------------------------------------


def class_counts(scan: Scan) -> dict[str, tuple[Sequence[str], Counter[int]]]:
    """Class names, and counts by id: ``pixels`` of the classes in masks (``IGNORE_INDEX``: without
    a class), ``images`` of the image-level classes."""
    pixels, info = Counter[int](), scan.dataset.info
    for _, labels in scan.masks:
        pixels.update(labels.counts)
    images = Counter(r.class_id for r in scan.records if r.class_id is not None)
    return {"pixels": (info.class_names, pixels), "images": (scan.dataset.class_id_names, images)}


def ids_outside(scan: Scan) -> Iterator[Finding]:
    """Ids that are neither a class nor ignored, or classes that seem to be numbered from 1."""
    wrong = [(record, labels.outside) for record, labels in scan.masks if labels.outside]
    records = [record for record, _ in wrong]
    examples = [f"{record.name}: {_listed(values)}" for record, values in wrong]
    rule, count = scan.dataset.label_rule, scan.dataset.info.num_classes
    if shift := _shift(scan):
        remedy = f"set data.label_map=1-{count} (id 1 becomes the first class, 0 is ignored)"
        remedy += ", and give data.label_colors a row for id 0" if rule and rule.colors else ""
        yield scan.finding(shift[0], "off_by_one", shift[1], remedy, records, examples)
    elif wrong:
        message = f"{plural(len(records), 'mask')} with class ids outside 0..{count - 1}: "
        message += _listed({value for _, values in wrong for value in values})
        remedy = "set data.num_classes, or data.ignore_index for values that mean unlabelled"
        yield scan.finding("error", "label_outside", message, remedy, records, examples)


def _shift(scan: Scan) -> tuple[Severity, str] | None:
    """Severity and message if classes seem to be numbered from 1, with id 0 unused or "other"."""
    rule, (names, counts) = scan.dataset.label_rule, class_counts(scan)["pixels"]
    count, ignored = len(names), rule.ignore_index if rule else ()
    present = counts.keys() - {IGNORE_INDEX}
    outside = {value for _, labels in scan.masks for value in labels.outside}
    if rule is None or rule.ids_of_class or count < 2 or not present or 0 in ignored:
        return None
    if "label_map" not in vars(scan.dataset):  # COCO's classes are numbered by their ids
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
    present |= class_counts(scan.first)["pixels"][1].keys() - {IGNORE_INDEX}
    if not outside and present == set(range(1, count)):
        return "warning", f"id 0 ({names[0]}) never occurs, all others do: ids may count from 1"
    return None


def unlabelled(scan: Scan) -> Iterator[Finding]:
    """Values in the files that are no class, with their fractions of the pixels."""
    shares: dict[int, float] = defaultdict(float)
    for _, labels in scan.class_masks:
        ignored = labels.counts.get(IGNORE_INDEX, 0) / sum(labels.counts.values())
        for value, share in (labels.unlabelled or {IGNORE_INDEX: ignored}).items():
            shares[value] += share / len(scan.masks)
    often = sorted(shares, key=lambda value: -shares[value])
    names = {io.TRANSPARENT: "transparent pixels"}
    if shown := [f"{names.get(i, i)} ({shares[i]:.2%})" for i in often if shares[i]]:
        message = f"unlabelled in the masks: {few(shown, 12)} of the pixels"
        remedy = "if one of these values is a class, correct data.ignore_index or data.label_map"
        yield scan.finding("note", "unlabelled", message, remedy, examples=())


def _listed(values: Iterable[int]) -> str:
    return few([str(value) for value in sorted(values)], 12)


def absent_classes(scan: Scan) -> Iterator[Finding]:
    """Classes without a pixel, or without an image."""
    for names, counts in class_counts(scan).values():
        absent = [name for i, name in enumerate(names) if not counts[i]]
        if counts and absent:
            severity: Severity = "warning" if scan.split == "train" else "note"
            message = f"{len(absent)} of {len(names)} classes never occur"
            remedy = "check data.num_classes and the split: they cannot be trained or scored"
            yield scan.finding(severity, "class_absent", message, remedy, examples=absent)


def too_many_classes(scan: Scan) -> Iterator[Finding]:
    """A third of the classes or more, the last ones, without a pixel in the samples read."""
    names, counts = class_counts(scan)["pixels"]
    used = 1 + max(counts.keys() - {IGNORE_INDEX}, default=len(names))
    if len(names) > 2 and 3 * used <= 2 * len(names):
        message = f"ids of {len(names)} classes end at {used - 1} in {len(scan.masks)} masks"
        remedy = f"set data.num_classes={used} if there are no others (dpt data check reads all)"
        yield scan.finding("warning", "classes_unused", message, remedy)


def palettes(scan: Scan) -> Iterator[Finding]:
    """Palettes of masks in which colours have other indices, while indices are the ids."""
    rule, parts = scan.dataset.label_rule, scan.dataset.parts
    files = [scan.dataset.files(record.index) for record, _ in scan.masks]
    paths = [each.labels for each in files if each and each.labels]
    if rule and rule.color_distance is None and io.palettes_disagree(paths, parts, rule.colors):
        message = "palettes of masks, or data.label_colors, have a colour at different indices"
        remedy = "set data.label_colors and data.color_distance=0 if colours are the classes"
        yield scan.finding("warning", "palettes_disagree", message, remedy)


def class_shift(scan: Scan) -> Iterator[Finding]:
    """Class shares that resemble those of the first split only if all ids are shifted by 1."""
    ids, splits = range(scan.dataset.info.num_classes), (scan.first, scan)
    found = [class_counts(each)["pixels"][1] for each in splits]
    counts = [np.array([pixels[i] for i in ids]) for pixels in found]
    usual, shares = (each / max(1, each.sum()) for each in counts)
    # share of the pixels whose class would have to change
    as_it_is, *shifted = (np.abs(shares - np.roll(usual, step)).sum() / 2 for step in (0, 1, -1))
    # a shift of two classes is only an exchange of their shares
    if len(ids) > 2 and as_it_is > _DIFFERENT and min(shifted) < as_it_is / 2:
        message = f"ids moved by 1 would give the class shares of {scan.first.split}"
        remedy = "check that ids count from the same number in every split"
        is_sure = min(len(each.masks) for each in splits) >= _SURE_MASKS
        yield scan.finding("error" if is_sure else "warning", "class_shift", message, remedy)


def empty_masks(scan: Scan) -> Iterable[Finding]:
    """Masks without a labelled pixel."""
    empty = [(record, not labels.classes) for record, labels in scan.class_masks]
    what, remedy = "masks without a labelled pixel", "check data.ignore_index, or remove them"
    return scan.affected(empty, "labels_all_ignored", what, remedy)


def unusual_masks(scan: Scan) -> Iterator[Finding]:
    """Masks of one class only, if most are, or resized by interpolation, if a tenth is."""
    names, counts = class_counts(scan)["pixels"]
    if len(names) > 1:
        single = [(record, len(labels.classes) == 1) for record, labels in scan.class_masks]
        what, remedy = "masks hold one class only", "check the masks"
        if len(names) == 2 and counts[IGNORE_INDEX]:
            remedy += "; in masks of 0 and 255 the value 255 means unlabelled: if it is a class, "
            remedy += "set data.label_map=[0,255]"
        yield from scan.affected(single, "labels_constant", what, remedy, "warning", 0.5)
    smooth = [(record, labels.is_interpolated) for record, labels in scan.masks]
    what = "masks seem resized by interpolation: ids along borders lie between both sides' ids"
    remedy = "make them again from the originals with nearest-neighbour resizing"
    yield from scan.affected(smooth, "labels_interpolated", what, remedy, "warning", 0.1)


# --- objects ------------------------------------------------------------------------------------


def objects(scan: Scan) -> Iterator[Finding]:
    """Objects without a class, of several classes, and what the data set itself reports."""
    found = [(record, record.objects) for record in scan.records if record.objects]
    flags = [(record, each.without_class > 0) for record, each in found]
    what = "maps hold objects without a pixel of a class in data.things"
    remedy = "give them a class, add it to data.things, or set data.first_object"
    yield from scan.affected(flags, "object_without_class", what, remedy)
    flags = [(record, each.of_several_classes > 0) for record, each in found]
    what = "maps hold objects whose pixels have several classes"
    remedy = (
        "each class is taken for an object of its own: check that masks and ids belong together"
    )
    yield from scan.affected(flags, "object_of_several_classes", what, remedy, "warning")
    faulty = [record for record, _ in found if record.object_faults]
    if faulty:
        message = f"{len(faulty)} of {len(found)} samples have empty or overlapping objects"
        remedy = "empty ones are left out; where masks overlap, the smaller one is in front"
        examples = [f"{r.name}: {text}" for r in faulty for text in r.object_faults]
        yield scan.finding("warning", "object_faults", message, remedy, faulty, examples)


# --- depth maps ---------------------------------------------------------------------------------


def unit(scan: Scan) -> Iterator[Finding]:
    """An implausible typical depth, with the unit that would make it plausible."""
    if (found := _typical(scan)) is None:
        return
    rule, max_depth = scan.depth_rule, scan.dataset.info.max_depth
    scale = rule.scale if rule else 1.0
    metres = found[0] * scale
    severity: Severity = "error"
    if max_depth is not None and metres > max_depth:
        fault = f"beyond data.max_depth={max_depth:g} m"
    elif metres < _TOO_NEAR:
        fault = "nearer than a camera can focus"
    elif metres < _NEAR:
        severity, fault = "warning", f"less than {_NEAR} m"
    else:
        return
    message, remedy = f"the typical depth is {metres:.4g} m, {fault}", "check the unit of the files"
    if rule is not None:
        message += f" ({found[0]:.4g} in the files, times data.depth_scale={scale:g})"
        remedy = "check data.depth_scale and data.max_depth"
        typical, high = _typical(scan.first) or found  # so that all splits get the same hint
        better = likely_scale(typical, high, max_depth=max_depth, scale=scale)
        if 2 * sum(depth.dtype == "uint8" for _, depth in scan.maps) > len(scan.maps):
            message, remedy = f"{message}; the files have 8 bits", _MORE_BITS
        elif better is not None:
            message += f"; these look like {UNITS[better]}"
            remedy = f"set data.depth_scale={better:.6g}"
    names = [record.name for record, _ in scan.maps[:3]]
    yield scan.finding(severity, "depth_unit", message, remedy, examples=names)


def _typical(scan: Scan) -> tuple[float, float] | None:
    """Median and 99 % quantile of the values in the files, each the median over the maps."""
    measured = [depth.raw for _, depth in scan.maps if depth.measured]
    return (median(r[0] for r in measured), median(r[1] for r in measured)) if measured else None


def likely_scale(
    typical: float, high: float, *, max_depth: float | None, scale: float
) -> float | None:
    """The largest scale in ``UNITS`` but ``scale`` that makes :func:`_typical` depths plausible."""
    limit = 100.0 if max_depth is None else max_depth
    plausible = [u for u in UNITS if typical * u >= _NEAR and high * u <= limit]
    return max((u for u in plausible if abs(u / scale - 1) > 0.01), default=None)


def empty_maps(scan: Scan) -> Iterable[Finding]:
    wrong_unit = has_errors(unit(scan))
    empty = [(r, not depth.valid and not wrong_unit) for r, depth in scan.maps]
    what = "depth maps without a measured pixel in the valid range"
    remedy = "check data.min_depth, data.max_depth and the files, or remove them"
    return scan.affected(empty, "depth_all_invalid", what, remedy)


def unusual_maps(scan: Scan) -> Iterator[Finding]:
    """Maps of one depth, of 8 bits, with undeclared invalid or negative values, or beyond
    ``max_depth``."""
    constant = [(record, depth.is_constant) for record, depth in scan.maps]
    what, remedy = "depth maps with one depth only", "remove them, or check the files"
    yield from scan.affected(constant, "depth_constant", what, remedy)
    coarse = [(record, depth.dtype == "uint8") for record, depth in scan.maps]
    what = "depth maps stored with 8 bits, which is 255 levels at most"
    if not any(finding.remedy == _MORE_BITS for finding in unit(scan)):
        yield from scan.affected(coarse, "depth_8bit", what, _MORE_BITS, "warning")
    what = "depth maps hold the largest value of the files' type as a valid depth"
    last = [(record, depth.has_type_maximum) for record, depth in scan.maps]
    remedy = "if it means 'not measured', add it to data.invalid_depth, as in [0,65535]"
    yield from scan.affected(last, "depth_undeclared", what, remedy, "warning")
    if below := [(record, depth.negative) for record, depth in scan.maps if depth.negative]:
        share = sum(part for _, part in below) / len(scan.maps)
        message = f"{share:.2%} of the depth values are below 0 and count as not measured"
        remedy = "add their value to data.invalid_depth if that is right; else check the files"
        records = [record for record, _ in below]
        yield scan.finding("warning", "depth_negative", message, remedy, records)
    measured = sum(depth.measured for _, depth in scan.maps)
    beyond = sum(depth.beyond * depth.measured for _, depth in scan.maps) / max(measured, 1e-9)
    if beyond > _MANY_BEYOND and not has_errors(unit(scan)):
        limit = f"data.max_depth={scan.dataset.info.max_depth:g} m"
        message = f"{beyond:.0%} of measured pixels are beyond {limit}"
        remedy = "raise it if they are correct; otherwise add their value to data.invalid_depth"
        records = [record for record, depth in scan.maps if depth.beyond > _MANY_BEYOND]
        yield scan.finding("warning", "depth_beyond_max", message, remedy, records)


def are_normalised(tops: Sequence[tuple[float, float, float]]) -> bool:
    """Whether maps, of which :func:`top_of` is known, seem each scaled to its own range: all end at
    one round value, which few pixels have."""
    values, following, fractions = map(np.array, zip(*tops, strict=True))
    return (
        len(tops) >= _SEVERAL_MAPS
        and len({*values}) == 1
        and values[0] in _TOPS
        and bool(np.median(following) > 0.9 and np.median(fractions) < 0.01)
    )


def scaled_maps(scan: Scan) -> Iterator[Finding]:
    """Maps that were each scaled to their own range."""
    tops = [depth.top for _, depth in scan.maps]
    if tops and are_normalised(tops):
        message = f"all depth maps end at {tops[0][0]:g}, as if each was scaled to its own range"
        remedy = "save metres, or train task.kind=relative"
        yield scan.finding("warning", "depth_normalised", message, remedy)


def deviating_maps(scan: Scan) -> Iterator[Finding]:
    """Maps whose typical depth is far from that of the others."""
    logs = {record: log(depth.raw[0]) for record, depth in scan.maps if depth.raw[0] > 0}
    if len(logs) >= MANY_IMAGES:
        middle = median(logs.values())
        limit = max(log(_FAR_OFF), 6 * median(abs(each - middle) for each in logs.values()))
        far = [(record, abs(each - middle) > limit) for record, each in logs.items()]
        what = f"depth maps are typically over {exp(limit):.2g} times nearer or farther than others"
        remedy = "check the unit of these files, and that they belong to this data set"
        yield from scan.affected(far, "depth_outlier", what, remedy, "warning")


def inverse_maps(scan: Scan) -> Iterable[Finding]:
    """Most maps have a farther lower half, though photos mostly show near things below."""
    grows = [(record, depth.grows_down) for record, depth in scan.maps]
    if len(grows) < MANY_IMAGES:
        return []
    what = "depth maps have larger values in the lower half, as disparity and inverse depth do"
    remedy = "convert disparity to depth: metres = focal length x baseline / disparity"
    return scan.affected(grows, "depth_inverse", what, remedy, "warning", AGREEING)


Check = Callable[[Scan], Iterable[Finding]]
"""Yields the findings of a split; none if it lacks the data to be checked."""
QUICK_CHECKS: tuple[Check, ...] = (
    *(unlabelled, ids_outside, too_many_classes, unusual_masks, palettes),
    *(inverse_maps, scaled_maps, unit, unusual_maps),
)
"""Also run at the start of every training, on a few samples and without photos."""
CHECKS: tuple[Check, ...] = (
    *(refused_samples, damaged_files, files_without_partner, duplicates, shared_groups),
    *(unusual_photos, registration),
    *(absent_classes, class_shift, empty_masks, objects),
    *(empty_maps, deviating_maps),
    *QUICK_CHECKS,
)
