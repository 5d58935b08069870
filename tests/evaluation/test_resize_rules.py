"""How predictions get the size of their labels: a part of the protocol."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dpt.data.base import Dataset
from dpt.evaluation.evaluate import objectives_of
from dpt.metrics import Protocol, SegmentationMetrics
from dpt.objectives import DepthObjective, PanopticObjective, SegmentationObjective
from dpt.types import DatasetInfo, OutputSpec

RULES = {
    "bilinear_aligned": {"mode": "bilinear", "align_corners": True},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bicubic": {"mode": "bicubic", "align_corners": False},
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("classes", [5, 70])
def test_a_prediction_is_resized_by_the_rule(rule, classes):
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(1, classes, 7, 9, generator=random)
    segmentation = SegmentationObjective(num_classes=classes)
    segmentation.resize = rule
    expected = F.interpolate(logits, (20, 31), **RULES[rule]).argmax(1)
    assert torch.equal(segmentation.predict(logits, (20, 31)), expected)
    depth = DepthObjective(max_depth=10.0)
    depth.resize = rule
    maps = logits[:, 0].exp()
    expected = F.interpolate(maps[:, None], (20, 31), **RULES[rule])[:, 0]
    assert torch.equal(depth.predict(maps, (20, 31)), expected)


def test_the_protocol_sets_the_rule_and_names_it():
    class Data(Dataset):
        info = DatasetInfo(targets=("depth", "labels"), class_names=("a", "b"), max_depth=10.0)

        def __len__(self):
            return 0

        def __getitem__(self, index):
            raise IndexError

    outputs = {"depth": OutputSpec("depth", "depth", unit="m"),
               "segmentation": OutputSpec("segmentation", "logits", channels=2)}  # fmt: skip
    protocol = Protocol(name="dpt", resize="bicubic")
    found = objectives_of(outputs, Data(), protocol)
    assert {o.resize for o in found.values()} == {"bicubic"}
    files = objectives_of(outputs, Data(), Protocol(name="whole"))
    assert {o.resize for o in files.values()} == {"bilinear_aligned"}
    assert protocol.view_notes()["protocol/resize"] == "bicubic"
    masks = PanopticObjective(num_classes=2, things=(True, False))  # as in Mask2Former
    assert masks.notes["protocol/resize"] == "bilinear"


@pytest.mark.slow
def test_what_a_perfect_prediction_at_192_by_256_loses_on_camvid(shared_data):
    """``pytest -s -m slow -k perfect tests/evaluation/test_resize_rules.py`` prints the figures of
    the guide. A perfect prediction is each class's share of every pixel of 192×256."""
    objectives = {rule: SegmentationObjective(num_classes=11) for rule in RULES}
    metrics = {rule: SegmentationMetrics(11) for rule in RULES}
    for path in sorted((shared_data / "camvid/masks/val").glob("*.png")):
        labels = torch.from_numpy(np.asarray(Image.open(path)).astype(np.int64))
        hot = F.one_hot(labels, 12)[..., :11].permute(2, 0, 1)[None].float()
        small = F.interpolate(hot, (192, 256), mode="area")
        truth = torch.where(labels == 11, 255, labels)
        for rule, objective in objectives.items():
            objective.resize = rule
            metrics[rule].update(objective.predict(small, labels.shape)[0], truth)
    lost = {rule: 1 - float(metric.compute()["miou"]) for rule, metric in metrics.items()}
    print({rule: round(value, 3) for rule, value in lost.items()})
    assert lost["bilinear_aligned"] > lost["bilinear"] > lost["bicubic"] > 0.01
