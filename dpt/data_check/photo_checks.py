"""Photos: copies of one another, empty or turned ones, their sizes, and labels beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dpt.data_check.findings import Finding, plural
from dpt.data_check.measure import THUMBNAIL, Photo
from dpt.data_check.registration import MAP_KINDS, MapKind, Move, find_move
from dpt.data_check.scan import Record, Scan

_NEAR = 0.97  # correlation of thumbnails: frames of a video, crops and recompressed copies
_COMPARED = 20_000  # photos of a split that are compared for near copies


def check_duplicates(scans: Sequence[Scan]) -> Iterator[Finding]:
    """Photos whose decoded pixels are the same, within a split and across splits."""
    earlier: dict[bytes, str] = {}
    for scan in scans:
        places: dict[bytes, list[Record]] = defaultdict(list)
        for record, photo in _telling(scan):
            places[photo.digest].append(record)
        within = [records for records in places.values() if len(records) > 1]
        across = [(earlier[key], records[0]) for key, records in places.items() if key in earlier]
        if within:
            yield Finding(
                severity="warning",
                code="duplicate",
                split=scan.split,
                message=f"{plural(len(within), 'photo')} occurring more than once",
                remedy="remove the copies: they count twice",
                examples=tuple(" = ".join(r.name for r in records) for records in within),
                indices=tuple(r.index for records in within for r in records),
            )
        if across:
            yield Finding(
                severity="error",
                code="duplicate_across_splits",
                split=scan.split,
                message=f"{plural(len(across), 'photo')} occurring in another split too",
                remedy="remove them from one: scores on photos that were trained on say nothing",
                examples=tuple(f"{name} = {record.name}" for name, record in across),
                indices=tuple(record.index for _, record in across),
            )
        earlier |= {key: records[0].name for key, records in places.items()}


def check_near_duplicates(scans: Sequence[Scan]) -> Iterator[Finding]:
    """Photos that look like another one: neighbouring frames, crops, recompressed copies."""
    thumbnails = [_thumbnails(scan) for scan in scans]
    for number, scan in enumerate(scans):
        records, ours = thumbnails[number]
        for other, (candidates, theirs) in zip(scans[: number + 1], thumbnails, strict=False):
            same = other is scan
            twins = {
                record.name: candidates[twin].name
                for record, twin in zip(records, _twins(ours, theirs, itself=same), strict=True)
                if twin >= 0 and not _copies(record, candidates[twin])
            }
            if twins:
                yield Finding(
                    severity="note",
                    code="near_duplicate" if same else "near_duplicate_across_splits",
                    split=scan.split,
                    message=f"{len(twins)} of {plural(len(records), 'photo')} look nearly like "
                    f"{'another one' if same else 'one of ' + other.split}",
                    remedy="frames of one video are worth far fewer independent photos"
                    if same
                    else "scores on them say little about new places; split by scene or drive",
                    examples=tuple(f"{name} ~ {twin}" for name, twin in twins.items()),
                )


def check_photos(scan: Scan) -> Iterator[Finding]:
    """Photos that are empty, grey, or stored turned."""
    photos = [(record, record.photo) for record in scan.records if record.photo]

    def those(test: Callable[[Photo], bool]) -> list[Record]:
        return [record for record, photo in photos if test(photo)]

    empty = those(lambda p: p.is_empty)
    grey = those(lambda p: p.grey and not p.is_empty)
    turned = those(lambda p: p.orientation != 1)
    if empty:
        yield Finding(
            severity="warning",
            code="photo_empty",
            split=scan.split,
            message=f"{plural(len(empty), 'photo')} nearly black, white or of one colour",
            remedy="look at them, and remove those that show nothing",
            examples=_names_of(empty),
            indices=_indices(empty),
        )
    if grey:
        yield Finding(
            severity="note",
            code="photo_grey",
            split=scan.split,
            message=f"{len(grey)} of {plural(len(photos), 'photo')} without colour",
            remedy="a model that shall see both kinds gains from augment.grayscale"
            if len(grey) < len(photos)
            else "nothing is wrong with that if those to come are grey too",
            examples=_names_of(grey),
            indices=_indices(grey) if len(grey) < len(photos) else (),
        )
    if turned:
        yield Finding(
            severity="warning",
            code="exif_orientation",
            split=scan.split,
            message=f"{plural(len(turned), 'photo')} with an EXIF orientation, which is not "
            "applied: training sees the pixels as they are stored",
            remedy="save them upright (exiftran -a, or mogrify -auto-orient)",
            examples=_names_of(turned),
            indices=_indices(turned),
        )


def check_sizes(scan: Scan, *, image_size: tuple[int, int]) -> Iterator[Finding]:
    """Several sizes, photos smaller than the training crop, and unlike aspects."""
    sizes = Counter(record.photo.size for record in scan.records if record.photo)
    if len(sizes) > 1:
        aspects = sorted(width / height for height, width in sizes)
        yield Finding(
            severity="note",
            code="several_sizes",
            split=scan.split,
            message=f"{len(sizes)} sizes, aspects from {aspects[0]:.2f} to {aspects[-1]:.2f}",
            remedy="training crops them all to data.image_size",
        )
    small = [
        record
        for record in scan.records
        if record.photo and any(a < b for a, b in zip(record.photo.size, image_size, strict=True))
    ]
    if small:
        height, width = image_size
        yield Finding(
            severity="note",
            code="smaller_than_crop",
            split=scan.split,
            message=f"{len(small)} of {plural(len(scan.records), 'photo')} smaller than "
            f"data.image_size=[{height},{width}]",
            remedy="they are enlarged; choose a smaller data.image_size to avoid it",
            examples=_names_of(small),
        )


def moves(scan: Scan) -> dict[MapKind, Move]:
    """What would lay labels or depth over their photos, for those that do not lie there."""
    found = {k: find_move(r.edge_scores.get(k) for r in scan.records) for k in MAP_KINDS}
    return {kind: move for kind, move in found.items() if move is not None}


def check_registration(scan: Scan) -> Iterator[Finding]:
    """Masks and depth maps whose edges fit the photos' edges better elsewhere."""
    for kind, move in moves(scan).items():
        size = next(record.photo.size for record in scan.records if record.photo)
        dx, dy = move.pixels(size)
        yield Finding(
            severity="warning",
            code=f"{kind}_misregistered",
            split=scan.split,
            message=f"edges of the {'masks' if kind == 'labels' else 'depth maps'} fit those of "
            f"the photos best after scaling by {move.scale:g} about the centre and moving by "
            f"({dx}, {dy}) pixels (score {move.score:.2f}, as it is {move.score_unmoved:.2f}, over "
            f"{plural(move.images, 'image')})",
            remedy="check whether photos and labels come from one camera and were cropped alike",
            indices=tuple(record.index for record in scan.records if kind in record.edge_scores),
        )


def _copies(one: Record, other: Record) -> bool:
    """Whether both photos are the same pixel by pixel, which is said elsewhere."""
    return bool(one.photo and other.photo and one.photo.digest == other.photo.digest)


def _telling(scan: Scan) -> list[tuple[Record, Photo]]:
    """Photos that show something, each file once: sets that draw by weight repeat theirs."""
    found = {r.name: (r, r.photo) for r in scan.records if r.photo and not r.photo.is_empty}
    return list(found.values())


def _thumbnails(scan: Scan) -> tuple[list[Record], np.ndarray]:
    """Records that have a thumbnail, and these as float32 (n, 256) of zero mean and unit length."""
    photos = _telling(scan)[:_COMPARED]
    records = [record for record, _ in photos]
    data = b"".join(photo.thumbnail for _, photo in photos)
    rows = np.frombuffer(data, np.uint8).reshape(len(records), THUMBNAIL**2).astype(np.float32)
    if len(rows):
        rows = rows - rows.mean(axis=1, keepdims=True)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True) + 1e-6
    return records, rows


def _twins(ours: np.ndarray, theirs: np.ndarray, *, itself: bool) -> np.ndarray:
    """For each row of ``ours`` the row of ``theirs`` (not itself) that is nearly it, or -1."""
    found = np.full(len(ours), -1)
    for start in range(0, len(ours) if len(theirs) else 0, 1024):
        rows = np.arange(start, min(start + 1024, len(ours)))
        likeness = ours[rows] @ theirs.T
        if itself:
            likeness[np.arange(len(rows)), rows] = -1
        found[rows] = np.where(likeness.max(axis=1) > _NEAR, likeness.argmax(axis=1), -1)
    return found


def _names_of(records: Sequence[Record]) -> tuple[str, ...]:
    return tuple(record.name for record in records)


def _indices(records: Sequence[Record]) -> tuple[int, ...]:
    return tuple(record.index for record in records)
