"""Objects of label tools as labels of a data set: masks, overlaps, classes and splits."""

import numpy as np
import pytest
from coco_files import write
from pycocotools import mask as coco

from dpt.data import CocoDataset, FolderDataset
from dpt.data.formats.rle import areas_of, encode_pixels, pixels_of, subtract_mask

SIZE = (48, 64)


@pytest.mark.parametrize("fraction", [0, 0.3, 0.9, 1])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (7, 1), (6, 11)])
def test_masks_as_runs_equal_masks_as_pixels(fraction, size):
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask, other = rng.random((2, *size)) < [[[fraction]], [[0.5]]]
        code = encode_pixels(mask)
        pixels = np.zeros(mask.size, bool)
        pixels[pixels_of(code)] = True
        np.testing.assert_array_equal(coco.decode(code), mask)
        np.testing.assert_array_equal(pixels.reshape(size[::-1]).T, mask)
        assert subtract_mask(code, encode_pixels(other)) == encode_pixels(mask & ~other)
        assert areas_of([code]) == mask.sum()


def same_samples(one, other):
    keys = ("image", "labels", "objects")
    for sample, expected in zip(one, other, strict=True):
        assert all(np.array_equal(sample[key], expected[key]) for key in keys)
        assert sample.get("masks") == expected.get("masks")


@pytest.mark.parametrize("kind", ["panoptic", "instances"])
def test_folder_finds_files_and_splits(tmp_path, kind):
    write(tmp_path, panoptic=kind == "panoptic", lengths=[("train", 3), ("val", 2)], size=SIZE)
    for split in ("train", "val"):
        data = FolderDataset(root=tmp_path, split=split, annotations="coco", background=False)
        path = f"annotations/{kind}_%split.json"
        expected = CocoDataset(root=tmp_path, split=split, annotations=path)
        assert data.info == expected.info
        same_samples(data, expected)
