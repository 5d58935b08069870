"""Sizes and bands of images and labels, as their files say."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dpt.data.formats import io
from dpt.data.formats.bands import FilePart, read_bands
from dpt.data.formats.pictures import exif_orientation, read_size
from dpt.data.layouts.base import Folder, Row
from dpt.files import DataError, few
from dpt.geometry import aspects_agree
from dpt.validation import Plain

Size = tuple[int, int]


def compare_sizes(folder: Folder, rows: Iterable[Row]) -> bool:
    """Returns whether some labels have another size than their image, in its proportions.

    Raises:
        DataError: the proportions differ.
    """
    resized: list[str] = []
    wrong: list[str] = []
    sizes: Counter[str] = Counter()
    for row in rows:
        size = _size(folder.root / row.image)
        sizes[f"{size[1]}x{size[0]}" if size else "unknown"] += 1
        for path in (row.labels, row.depth):
            other = _size(folder.root / path) if path else None
            if size is None or other is None or size == other:
                continue
            if size == other[::-1] and exif_orientation(folder.root / row.image) > 4:
                continue
            text = f"{path} {other[1]}x{other[0]} of {row.image} {size[1]}x{size[0]}"
            (resized if aspects_agree(other, size) else wrong).append(text)
    folder.note("sizes: " + few([f"{name} ({count})" for name, count in sizes.most_common()]))
    if wrong:
        fault = f"{len(wrong)} label files have other proportions than their image"
        remedy = "replace them, or take them out"
        raise DataError(f"{folder.root}: {fault} ({few(wrong)}): {remedy}")
    if resized:
        reason = f"{len(resized)} label files are not as large as their image ({few(resized)})"
        folder.note(f"sizes: data.resize_labels=true, as {reason}")
    return bool(resized)


def _size(path: Path) -> Size | None:
    """Returns (H, W) of a picture or an array; None of what cannot be read as one."""
    with suppress(DataError):
        return read_size(path)
    return None


def band_settings(folder: Folder, image: str) -> Plain:
    """Returns ``bands=all`` if an image can be read so, and not as 8-bit grey or RGB."""
    path = folder.root / image
    if not folder.given.keys().isdisjoint(("bands", "image_max", "page")):
        return {}
    with suppress(DataError):
        io.read_image(path)
        return {}
    with suppress(DataError):
        form = read_bands([path], FilePart(bands="all")).form
        folder.note(f"bands: data.bands=all, as {image} holds {form}; see also data.image_max")
        return {"bands": "all"}
    return {}
