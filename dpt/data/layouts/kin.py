"""Images that are the same, or look the same: copies of files, and near copies by a hash."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from dpt.data.formats.pictures import read_size, read_thumbnail
from dpt.data.layouts.base import Folder, in_threads
from dpt.data.splits import natural_key, original_name
from dpt.files import DataError, open_file

_MAX_PIXELS = 500_000_000  # of all images that are compared: some seconds
_MAX_IMAGES = 20_000
_MAX_BITS = 3  # of 64 in which the hashes of near copies differ
_MAX_LEVELS = 6.0  # by which their thumbnails differ on average, of 255


def copies_of(root: Path, images: Sequence[str]) -> dict[str, str]:
    """Returns the original of each image file whose bytes are those of an earlier one."""
    sizes = {path: os.path.getsize(root / path) for path in images}
    counts = Counter(sizes.values())
    originals: dict[bytes, str] = {}
    copies = {}
    for path in sorted(images, key=natural_key):
        if counts[sizes[path]] > 1:
            with open_file(root / path) as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            original = originals.setdefault(digest, path)
            if original != path:
                copies[path] = original
    return copies


def thumbnails_of(folder: Folder, images: Sequence[str]) -> np.ndarray | None:
    """Returns grey thumbnails, float32 (N, 8, 9), NaN where an image cannot be read; None for large
    sets, which is noted."""
    paths = [folder.root / name for name in images]
    pixels = 0
    with suppress(DataError):
        height, width = read_size(paths[0])
        is_fast = paths[0].suffix.lower() in (".jpg", ".jpeg")  # decoded at an eighth
        pixels = height * width * len(paths) // (16 if is_fast else 1)
    if pixels > _MAX_PIXELS or len(paths) > _MAX_IMAGES:
        folder.note(f"near copies: not searched for, as the {len(paths)} images are many")
        return None
    return np.stack([*in_threads(_thumbnail, paths)])


def kin_of(
    images: Sequence[str], thumbnails: np.ndarray | None, indices: Sequence[int]
) -> list[int]:
    """Returns the other images that look like one of ``indices``: with the same original, or nearly
    the same difference hash and thumbnail."""
    names = {original_name(images[k]) for k in indices}
    others = {*range(len(images))}.difference(indices)
    kin = {k for k in others if original_name(images[k]) in names}
    if thumbnails is None:
        return sorted(kin)
    bits = thumbnails[:, :, 1:] > thumbnails[:, :, :-1]
    codes = np.packbits(bits.reshape(len(bits), -1), axis=1).view(np.uint64)[:, 0]
    chosen = np.array(indices)
    chosen = chosen[codes[chosen] != 0]  # 0: of one colour, or not read
    for k in others - kin:
        near = chosen[np.bitwise_count(codes[chosen] ^ codes[k]) <= _MAX_BITS]
        levels = np.abs(thumbnails[near] - thumbnails[k]).mean(axis=(1, 2))
        if len(near) and levels.min() <= _MAX_LEVELS:
            kin.add(k)
    return sorted(kin)


def _thumbnail(path: Path) -> np.ndarray:
    try:
        return read_thumbnail(path, (8, 9)).astype(np.float32)
    except DataError:
        return np.full((8, 9), np.nan, np.float32)
