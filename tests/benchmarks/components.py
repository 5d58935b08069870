"""PQ of a semantic model whose connected components are taken for objects.

``python tests/benchmarks/components.py RUN`` scores a run of ``task=segmentation`` on scenes.
"""

from __future__ import annotations

import sys

import cv2
import numpy as np
import torch

import dpt
from dpt.data import ScenesDataset
from dpt.metrics.segmentation import PanopticMetrics
from dpt.segments import segments_of


def main(checkpoint: str, length: int = 100) -> None:
    data = ScenesDataset(split="val", length=length)
    things = data.info.things
    metrics = PanopticMetrics(things, data.info.class_names)
    predictor = dpt.Predictor(checkpoint)
    for sample in data:
        labels = predictor(sample["image"]).labels
        assert labels is not None
        objects = np.zeros(labels.shape, np.int64)
        for k in np.flatnonzero(things):
            _, parts = cv2.connectedComponents((labels == k).astype(np.uint8))
            objects[parts > 0] = parts[parts > 0]
        found = segments_of(torch.from_numpy(labels), torch.from_numpy(objects), things).map
        truth = segments_of(
            torch.from_numpy(sample["labels"]),
            torch.from_numpy(sample["objects"].astype(np.int64)),
            things,
        )
        metrics.update(found, truth)
    for name, value in metrics.compute().items():
        print(f"{name}: {float(value):.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
