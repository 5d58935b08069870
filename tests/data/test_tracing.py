"""Polygons along the edges of pixels: they have exactly the pixels of the mask."""

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco

from dpt.data.formats.rle import (
    encode_parts,
    encode_pixels,
    encode_rings,
    one_ring,
    subtract_mask,
    trace,
)


def noise(seed):
    """Returns noise: one-pixel objects and holes, contacts at corners, objects at the border."""
    random = np.random.default_rng(seed)
    return random.random(random.integers(1, 30, 2)) < random.random()


def blobs(seed):
    values = np.random.default_rng(seed).random((60, 80)).astype(np.float32)
    return cv2.GaussianBlur(values, (0, 0), 1.5) > 0.5


def rings_around_rings():
    """Returns an object with a hole with an object with a hole."""
    mask = np.zeros((11, 13), bool)
    for inset in range(5):
        mask[inset : 11 - inset, inset : 13 - inset] = inset % 2 == 0
    return mask


MASKS = {
    **{f"noise{seed}": noise(seed) for seed in range(60)},
    **{f"blobs{seed}": blobs(seed) for seed in range(5)},
    "rings": rings_around_rings(),
    "whole": np.ones((4, 5), bool),
    "pixel": np.eye(1, 6, 5, dtype=bool),
    "diagonal": np.eye(5, dtype=bool),
    "other diagonal": np.eye(5, dtype=bool)[:, ::-1],
    "checkers": np.indices((7, 8)).sum(axis=0) % 2 == 0,
    "checkers with a margin": np.pad(np.indices((6, 6)).sum(axis=0) % 2 == 0, 2),
}


def encoded(rings, mask):
    return encode_rings([ring.ravel() for ring in rings], mask.shape)


def pixels(part, mask):
    code = encoded([part.outer], mask)
    return subtract_mask(code, encoded(part.holes, mask)) if part.holes else code


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_traced_polygons_have_the_pixels_of_the_mask(mask):
    parts = trace(mask)
    count, components = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)
    assert len(parts) == count - 1
    found = [pixels(part, mask) for part in parts]
    assert found == encode_parts(mask)
    assert {coco.decode(code).tobytes() for code in found} == {
        (components == k).astype(np.uint8).tobytes() for k in range(1, count)
    }
    if parts:
        ring = one_ring(parts)
        assert encoded([ring], mask) == encode_pixels(mask)
        as_bridged = [one_ring([part]) for part in parts]  # their union, as COCO has it
        assert encoded(as_bridged, mask) == encode_pixels(mask)


def test_trace_gives_the_corners_of_a_frame():
    mask = np.zeros((6, 7), bool)
    mask[1:5, 2:7] = True
    mask[2:4, 3:5] = False
    (part,) = trace(mask)
    assert part.outer.tolist() == [[2, 1], [2, 5], [7, 5], [7, 1]]
    assert [ring.tolist() for ring in part.holes] == [[[3, 2], [5, 2], [5, 4], [3, 4]]]
    ring = one_ring([part]).tolist()
    assert ring == [[2, 1], [3, 2], [5, 2], [5, 4], [3, 4], [3, 2], [2, 1], [2, 5], [7, 5], [7, 1]]
