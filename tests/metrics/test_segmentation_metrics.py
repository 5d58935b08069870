"""Segmentation metrics by hand, and against torchmetrics."""

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from dpt.metrics import SegmentationMetrics, class_iou, confusion_matrix

K = 7


def example(absent=(5, 6)):
    """(prediction, labels); classes in ``absent`` occur in neither."""
    rng = np.random.default_rng(0)
    ids = [c for c in range(K) if c not in absent]
    labels = rng.choice(ids, (3, 16, 17)).astype(np.uint8)
    prediction = np.where(rng.random(labels.shape) < 0.6, labels, rng.choice(ids, labels.shape))
    labels[rng.random(labels.shape) < 0.2] = 255
    return torch.from_numpy(prediction.astype(np.int64)), torch.from_numpy(labels)


def test_confusion_matrix_by_hand():
    labels = torch.tensor([[0, 0, 1], [1, 255, 9]], dtype=torch.uint8)
    prediction = torch.tensor([[0, 1, 1], [255, 0, 0]], dtype=torch.uint8)
    matrix = confusion_matrix(prediction, labels, 2)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 1]]  # the last column: no class predicted
    assert class_iou(matrix).tolist() == [1 / 2, 1 / 3]
    assert class_iou(torch.tensor([[1, 1], [0, 1]])).tolist() == [1 / 2, 1 / 2]
    metric = SegmentationMetrics(2)
    metric.update(prediction, labels)
    scores = metric.scores()
    assert scores["pixel_accuracy"] == scores["mean_accuracy"] == 0.5


@pytest.mark.parametrize("absent", [(), (5, 6), (0,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_scores_equal_torchmetrics(absent, dtype):
    ours = SegmentationMetrics(K)
    peers = {
        "miou": MulticlassJaccardIndex(K, average="macro", ignore_index=255),
        "pixel_accuracy": MulticlassAccuracy(K, average="micro", ignore_index=255),
        "mean_accuracy": MulticlassAccuracy(K, average="macro", ignore_index=255),
    }
    for prediction, labels in zip(*example(absent), strict=True):
        ours.update(prediction.to(dtype), labels.to(dtype))
        for peer in peers.values():
            peer.update(prediction[None], labels[None].long())
    scores = ours.scores()
    for name, peer in peers.items():
        assert scores[name] == pytest.approx(peer.compute().item()), name


@pytest.mark.parametrize("num_classes", [100, 254, 255])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_ids_of_every_type_count_alike(num_classes, dtype):
    labels, prediction = torch.randint(256, (2, 3000))
    expected = torch.zeros(num_classes, num_classes + 1, dtype=torch.int64)
    for true, predicted in zip(labels.tolist(), prediction.tolist(), strict=True):
        if true < num_classes and true != 255:
            expected[true, min(predicted, num_classes)] += 1
    counts = confusion_matrix(prediction.to(dtype), labels.to(dtype), num_classes)
    assert torch.equal(counts, expected)
