"""Photos: duplicates, empty, grey or rotated ones, their sizes, and labels registered to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain

import numpy as np

from dpt.data_check.check import Finding, Record, Scan, check, plural
from dpt.data_check.measure import THUMBNAIL, Photo
from dpt.data_check.registration import MAP_KINDS, MapKind, Move, find_move

_NEAR = 0.97  # correlation of thumbnails: video frames, crops and recompressed copies
_COMPARED = 20_000  # photos of a split that are searched for near duplicates


@check
def duplicates(scan: Scan) -> Iterator[Finding]:
    """Photos whose decoded pixels are equal, within the split and in earlier ones."""
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


@check
def near_duplicates(scan: Scan) -> Iterator[Finding]:
    """Photos nearly equal to another one: neighbouring frames, crops, recompressed copies."""
    photos, rows = _thumbnails(scan)
    for other in (*scan.earlier, scan):
        others, other_rows = _thumbnails(other)
        matches = _matches(rows, other_rows, same=other is scan)
        pairs = [
            f"{record.name} ~ {others[match][0].name}"
            for (record, photo), match in zip(photos, matches, strict=True)
            if match >= 0 and photo.digest != others[match][1].digest  # else see `duplicates`
        ]
        if pairs:
            code, place = "near_duplicate", "this split"
            if other is not scan:
                code, place = "near_duplicate_across_splits", f"the split {other.split}"
            message = f"{len(pairs)} of {len(photos)} photos are nearly equal to another of {place}"
            remedy = "count video frames as far fewer photos, and split the data by scene or drive"
            yield scan.finding("note", code, message, remedy, examples=pairs)


@check
def unusual_photos(scan: Scan) -> Iterator[Finding]:
    """Photos that are empty, without colour, or to be rotated for display."""
    empty = [(record, photo.is_empty) for record, photo in scan.photos]
    what = "photos nearly black, white or of one colour"
    remedy = "view them, and remove those of no use"
    yield from scan.affected(empty, "photo_empty", what, remedy, "warning")
    grey = [(record, p.grey and not p.is_empty) for record, p in scan.photos]
    remedy = "set augment.grayscale if the model will see photos with and without colour"
    yield from scan.affected(grey, "photo_grey", "photos without colour", remedy, "note")
    rotated = [(record, p.orientation != 1) for record, p in scan.photos]
    what = "photos with an EXIF orientation; training ignores it and uses the pixels as stored"
    remedy = "save them upright (exiftran -a, or mogrify -auto-orient)"
    yield from scan.affected(rotated, "exif_orientation", what, remedy, "warning")


@check
def photo_sizes(scan: Scan) -> Iterator[Finding]:
    """Several sizes, and photos smaller than the training crop."""
    sizes = {photo.size for _, photo in scan.photos}
    if len(sizes) > 1:
        aspects = sorted(width / height for height, width in sizes)
        message = f"{len(sizes)} sizes, with aspects from {aspects[0]:.2f} to {aspects[-1]:.2f}"
        remedy = "nothing is needed: training crops all photos to data.image_size"
        yield scan.finding("note", "several_sizes", message, remedy)
    height, width = scan.image_size
    small = [(r, p.size[0] < height or p.size[1] < width) for r, p in scan.photos]
    what = f"photos smaller than data.image_size=[{height},{width}]"
    remedy = "training upsamples them; set a smaller data.image_size to avoid that"
    yield from scan.affected(small, "smaller_than_crop", what, remedy, "note")


@check
def registration(scan: Scan) -> Iterator[Finding]:
    """Masks and depth maps whose edges fit the photos' edges better at another place."""
    for kind, move in moves(scan).items():
        dx, dy = move.pixels(scan.photos[0][1].size)
        message = (
            f"edges of the {'masks' if kind == 'labels' else 'depth maps'} fit those of the photos "
            f"best after scaling by {move.scale:g} about the centre and moving by ({dx}, {dy}) "
            f"pixels (score {move.score:.2f}; without the change {move.score_unmoved:.2f}; over "
            f"{move.images} images)"
        )
        remedy = "check that photos and labels come from one camera and were cropped alike"
        records = [record for record in scan.records if kind in record.edge_scores]
        yield scan.finding("warning", f"{kind}_misregistered", message, remedy, records, ())


def moves(scan: Scan) -> dict[MapKind, Move]:
    """The move that would register labels or depth with the photos, for those that need one."""
    found = {k: find_move(r.edge_scores.get(k) for r in scan.records) for k in MAP_KINDS}
    return {kind: move for kind, move in found.items() if move is not None}


def _distinct(scan: Scan) -> list[tuple[Record, Photo]]:
    """Photos that are not empty, each file once: a mix repeats the photos of its sets."""
    return list({r.name: (r, photo) for r, photo in scan.photos if not photo.is_empty}.values())


def _thumbnails(scan: Scan) -> tuple[list[tuple[Record, Photo]], np.ndarray]:
    """Photos, and their thumbnails as float32 (n, 256) of zero mean and unit length."""
    photos = _distinct(scan)[:_COMPARED]
    data = b"".join(photo.thumbnail for _, photo in photos)
    rows = np.frombuffer(data, np.uint8).reshape(len(photos), THUMBNAIL**2).astype(np.float32)
    rows -= rows.mean(axis=1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6
    return photos, rows


def _matches(ours: np.ndarray, theirs: np.ndarray, *, same: bool) -> np.ndarray:
    """For each row of ``ours`` the most similar row of ``theirs`` (not itself), or -1."""
    found = np.full(len(ours), -1)
    for start in range(0, len(ours) if len(theirs) else 0, 1024):
        rows = np.arange(start, min(start + 1024, len(ours)))
        similarity = ours[rows] @ theirs.T
        if same:
            similarity[np.arange(len(rows)), rows] = -1
        found[rows] = np.where(similarity.max(axis=1) > _NEAR, similarity.argmax(axis=1), -1)
    return found
