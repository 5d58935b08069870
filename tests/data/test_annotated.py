"""Objects of label tools as labels of a data set: masks, overlaps, classes and splits."""

import numpy as np
import pytest
from pycocotools import mask as coco

from dpt.data.formats.rle import areas_of, pixels_of, subtract_mask


def encoded(mask):
    return coco.encode(np.asfortranarray(mask.astype(np.uint8)))


@pytest.mark.parametrize("fraction", [0, 0.3, 0.9, 1])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (6, 11)])
def test_masks_as_runs_equal_masks_as_pixels(fraction, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask, other = rng.random((2, *size)) < [[[fraction]], [[0.5]]]
        pixels = np.zeros(mask.size, bool)
        pixels[pixels_of(encoded(mask))] = True
        np.testing.assert_array_equal(pixels.reshape(size[::-1]).T, mask)
        assert subtract_mask(encoded(mask), encoded(other)) == encoded(mask & ~other)
        assert areas_of([encoded(mask)]) == mask.sum()
