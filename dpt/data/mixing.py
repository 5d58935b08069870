"""Parts of images with labels, pasted on images without labels (``augment.strong``)."""

import numpy as np

from dpt.types import IGNORE_INDEX, Sample


def part_to_paste(sample: Sample, random: np.random.Generator) -> np.ndarray:
    """A part of an image with labels, bool (H, W), for :func:`dpt.data.collate_train`.

    It has half of the classes (ClassMix, Olsson et al. 2021). Without classes it is empty, or a
    rectangle of 2 % to 40 % of the image with an aspect ratio of 0.3 to 3.3 (CutMix, by UniMatch's
    numbers).
    """
    if "labels" in sample:
        classes = np.setdiff1d(sample["labels"], [IGNORE_INDEX])
        return np.isin(sample["labels"], random.permutation(classes)[: (len(classes) + 1) // 2])
    height, width = sample["depth"].shape
    part = np.zeros((height, width), bool)
    if random.random() < 0.5:
        return part
    share, ratio = random.uniform(0.02, 0.4), np.exp(random.uniform(-1.2, 1.2))
    h = min(height, max(1, round(height * np.sqrt(share * ratio))))
    w = min(width, max(1, round(width * np.sqrt(share / ratio))))
    top, left = random.integers(height - h + 1), random.integers(width - w + 1)
    part[top : top + h, left : left + w] = True
    return part
