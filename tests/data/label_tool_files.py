"""Small images with known objects, and their outlines, for the files of label tools."""

import numpy as np
from photos import save_photo

from dpt.data.formats import rle

SIZE = (24, 32)


def box(x0, y0, x1, y1):
    mask = np.zeros(SIZE, bool)
    mask[y0:y1, x0:x1] = True
    return mask


def ring_mask():
    return box(2, 3, 14, 15) & ~box(5, 6, 9, 11)


SCENES = {
    "a": [  # a hole, two objects that touch, and one that overlaps both
        ("tree", ring_mask()),
        ("car", box(16, 4, 21, 12)),
        ("car", box(21, 4, 27, 12)),
        ("tree", box(18, 10, 25, 20) & ~box(18, 10, 20, 12)),
    ],
    "b": [],
    "c": [("car", box(0, 0, 4, 4) | box(10, 0, 12, 24)), ("tree", box(31, 23, 32, 24))],
}
"""The objects of each image: class and pixels."""


def save_images(folder, suffix=".png"):
    for name in SCENES:
        save_photo(folder / f"{name}{suffix}", *SIZE)


def one_ring(mask):
    """The outlines of a mask as one ring, which reaches holes and parts by bridges."""
    return rle.one_ring(rle.trace(mask)).tolist()
