"""Parts of images with labels, pasted on images without labels (``augment.strong``)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from dpt.types import IGNORE_INDEX, Batch, Mixed, PasteSource, PasteTarget, Sample

_PASTED: tuple[Literal["image", "labels", "depth", "valid", "normals"], ...]
_PASTED = ("image", "labels", "depth", "valid", "normals")


def draw_part(sample: Sample, random: np.random.Generator) -> np.ndarray:
    """Draws the pixels of an image with labels that :func:`paste_parts` takes, bool (H, W).

    They have half of the classes (ClassMix, Olsson et al. 2021). Without classes there are none, or
    a rectangle of 2 % to 40 % of the image with an aspect ratio of 0.3 to 3.3 (CutMix, by
    UniMatch's numbers).
    """
    if "labels" in sample:
        classes = np.setdiff1d(sample["labels"], [IGNORE_INDEX])
        return np.isin(sample["labels"], random.permutation(classes)[: (len(classes) + 1) // 2])
    height, width = sample["image"].shape[:2]
    part = np.zeros((height, width), bool)
    if random.random() < 0.5:
        return part
    area, ratio = random.uniform(0.02, 0.4), np.exp(random.uniform(-1.2, 1.2))
    h = min(height, max(1, round(height * np.sqrt(area * ratio))))
    w = min(width, max(1, round(width * np.sqrt(area / ratio))))
    top, left = random.integers(height - h + 1), random.integers(width - w + 1)
    part[top : top + h, left : left + w] = True
    return part


def paste_parts(batch: Batch, samples: Sequence[Sample]) -> Batch:
    """Pastes a part of an image with labels, and of its maps, on each image without labels.

    Images with labels are used in turn. The maps of ``batch`` are changed in place.

    Returns:
        The batch with ``mixed``, if it has an image without labels; otherwise as it was.
    """
    mixing = [sample.get("mixing") for sample in samples]
    targets = {k: m for k, m in enumerate(mixing) if isinstance(m, PasteTarget)}
    sources = [(k, m.part) for k, m in enumerate(mixing) if isinstance(m, PasteSource)]
    if not targets:
        return batch
    weak = batch["image"].clone()
    kept = torch.zeros(len(samples), *weak.shape[-2:], dtype=torch.bool)
    for turn, (k, target) in enumerate(targets.items()):
        weak[k] = torch.from_numpy(target.weak).permute(2, 0, 1)
        kept[k] = torch.from_numpy(target.padding)
        if sources:
            source, pixels = sources[turn % len(sources)]
            part = torch.from_numpy(pixels)
            kept[k] |= part
            for key in _PASTED:
                if key in batch:
                    batch[key][k] = torch.where(part, batch[key][source], batch[key][k])
    unlabelled = torch.tensor([k in targets for k in range(len(samples))])
    batch["mixed"] = Mixed(weak, unlabelled, kept)
    return batch
