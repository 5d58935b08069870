"""Segmentation metrics against torchmetrics and a hand-counted example."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

from dpt.metrics import SegmentationMetrics, class_iou, confusion_matrix

K = 7


def example(batch=3, absent=(5, 6), seed=0):
    """(prediction, labels); classes in ``absent`` occur in neither."""
    rng = np.random.default_rng(seed)
    ids = [c for c in range(K) if c not in absent]
    labels = rng.choice(ids, (batch, 16, 17)).astype(np.uint8)
    prediction = np.where(rng.random(labels.shape) < 0.6, labels, rng.choice(ids, labels.shape))
    labels[rng.random(labels.shape) < 0.2] = 255
    return torch.from_numpy(prediction.astype(np.int64)), torch.from_numpy(labels)


def test_confusion_by_hand():
    labels = torch.tensor([[0, 0, 1], [1, 255, 9]], dtype=torch.uint8)
    prediction = torch.tensor([[0, 1, 1], [255, 0, 0]], dtype=torch.uint8)
    matrix = confusion_matrix(prediction, labels, 2)
    assert matrix.tolist() == [[1, 1, 0], [0, 1, 1]]  # the last column: no class predicted
    assert class_iou(matrix).tolist() == [1 / 2, 1 / 3]
    metric = SegmentationMetrics(2)
    metric.update(prediction, labels)
    scores = metric.compute()
    assert scores["pixel_accuracy"].item() == 0.5
    assert scores["mean_accuracy"].item() == 0.5


def test_square_matrices_score_the_same():
    prediction, labels = example()
    matrix = confusion_matrix(prediction, labels, K)
    assert matrix[:, K].sum() == 0
    torch.testing.assert_close(class_iou(matrix[:, :K]), class_iou(matrix), equal_nan=True)


@pytest.mark.parametrize("absent", [(), (5, 6), (0,)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_equals_torchmetrics(absent, dtype):
    prediction, labels = example(absent=absent)
    ours = SegmentationMetrics(K)
    jaccard = MulticlassJaccardIndex(K, average="macro", ignore_index=255)
    accuracy = MulticlassAccuracy(K, average="micro", ignore_index=255)
    recall = MulticlassAccuracy(K, average="macro", ignore_index=255)
    for p, y in zip(prediction, labels, strict=True):
        ours.update(p.to(dtype), y.to(dtype))
        for peer in (jaccard, accuracy, recall):
            peer.update(p[None], y[None].long())
    result = ours.compute()
    assert result["miou"].item() == pytest.approx(jaccard.compute().item())
    assert result["pixel_accuracy"].item() == pytest.approx(accuracy.compute().item())
    assert result["mean_accuracy"].item() == pytest.approx(recall.compute().item())


def test_a_class_only_predicted_counts_as_zero_in_miou():
    metric = SegmentationMetrics(3, ("wall", "floor", "sky"))
    metric.update(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]))
    result = metric.compute()
    assert result["iou/wall"].item() == 0.5
    assert result["iou/floor"].item() == 0
    assert math.isnan(result["iou/sky"])
    assert result["miou"].item() == 0.25
    assert result["mean_accuracy"].item() == 0.5


def test_predicting_no_class_is_wrong_not_skipped():
    prediction, labels = example()
    honest, blank = SegmentationMetrics(K), SegmentationMetrics(K)
    honest.update(prediction, labels)
    blank.update(torch.where(prediction == labels, prediction, 255), labels)
    assert blank.compute()["pixel_accuracy"] == honest.compute()["pixel_accuracy"]
    assert blank.compute()["mean_accuracy"] == honest.compute()["mean_accuracy"]


def test_nothing_seen_is_nan():
    metric = SegmentationMetrics(2)
    metric.update(torch.zeros(2, 2, dtype=torch.uint8), torch.full((2, 2), 255))
    assert all(math.isnan(v) for v in metric.compute().values())


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="2 class_names for 3 classes"):
        SegmentationMetrics(3, ("a", "b"))
    with pytest.raises(ValueError, match="integer class ids"):
        confusion_matrix(torch.zeros(2, 2), torch.zeros(2, 2), 2)
    with pytest.raises(ValueError, match="must have one shape"):
        confusion_matrix(torch.zeros(2, 2).long(), torch.zeros(1, 2).long(), 2)


@pytest.mark.parametrize("num_classes", [100, 254, 255])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_ids_of_every_type_count_alike(num_classes, dtype):
    random = torch.Generator().manual_seed(0)
    truth, found = torch.randint(256, (2, 3000), generator=random)
    matrix = torch.zeros(num_classes, num_classes + 1, dtype=torch.int64)
    for t, p in zip(truth.tolist(), found.tolist(), strict=True):
        if t < num_classes and t != 255:
            matrix[t, min(p, num_classes)] += 1
    counted = confusion_matrix(found.to(dtype), truth.to(dtype), num_classes)
    assert torch.equal(counted, matrix)
