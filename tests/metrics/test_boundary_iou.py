"""Boundary IoU against erosions of one class after another, as Cheng et al. 2021 define it."""

import cv2
import numpy as np
import pytest
import torch

from dpt.metrics import SegmentationMetrics, boundary_counts, boundary_iou
from dpt.metrics.segmentation import near_boundary

K = 5


def boundary_of(mask, ratio):
    """A mask less its erosion by d pixels, what lies outside the picture being background."""
    height, width = mask.shape
    distance = max(1, round(ratio * np.sqrt(height**2 + width**2)))
    padded = cv2.copyMakeBorder(mask.astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    eroded = cv2.erode(padded, np.ones((3, 3), np.uint8), iterations=distance)
    return mask & ~eroded[1:-1, 1:-1].astype(bool)


def reference(prediction, labels, ratio):
    counts = np.zeros((3, K), int)
    known = labels != 255
    for c in range(K):
        truth = boundary_of((labels == c) & known, ratio)
        found = boundary_of((prediction == c) & known, ratio)
        counts[:, c] = (truth & found).sum(), truth.sum(), found.sum()
    return counts


def blobs(seed, size=(48, 64), ignored=0.05):
    """Smooth regions, a prediction that is off here and there, and patches without a label."""
    rng = np.random.default_rng(seed)

    def regions():
        return np.stack([cv2.GaussianBlur(rng.normal(size=size), (0, 0), 6) for _ in range(K)])

    scores = regions()
    labels, prediction = scores.argmax(0), (scores + 0.3 * regions()).argmax(0)
    hole = cv2.GaussianBlur(rng.normal(size=size), (0, 0), 4)
    labels[hole > np.quantile(hole, 1 - ignored)] = 255
    return prediction.astype(np.uint8), labels.astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [0.005, 0.02, 0.1])
def test_equals_the_reference(seed, ratio):
    prediction, labels = blobs(seed)
    arguments = torch.from_numpy(prediction)[None], torch.from_numpy(labels)[None]
    counts = boundary_counts(*arguments, K, ratio=ratio)
    assert counts.tolist() == reference(prediction, labels, ratio).tolist()


def test_a_shifted_square_by_hand():
    """20 x 20 pixels, width 1: the outlines of two 10 x 10 squares, one column apart."""
    labels = torch.zeros(1, 20, 20, dtype=torch.uint8)
    prediction = labels.clone()
    labels[:, 5:15, 4:14], prediction[:, 5:15, 5:15] = 1, 1
    counts = boundary_counts(prediction, labels, 2, ratio=0.02)
    outline = 4 * 9
    assert counts[1, 1] == counts[2, 1] == outline
    assert counts[0, 1] == 2 * 9  # top and bottom, nine columns each: left and right do not meet
    assert boundary_iou(counts)[1].item() == pytest.approx(18 / (36 + 36 - 18))


def test_a_wide_boundary_is_the_whole_class():
    """Then boundary IoU is IoU."""
    prediction, labels = blobs(0, ignored=0.0)
    arguments = torch.from_numpy(prediction)[None], torch.from_numpy(labels)[None]
    metric = SegmentationMetrics(K, boundary=0.99)
    metric.update(*arguments)
    found = metric.compute()
    assert found["boundary_miou"] == found["miou"]
    assert found["boundary_iou/3"] == found["iou/3"]


def test_the_picture_s_end_is_a_boundary():
    near = near_boundary(torch.zeros(1, 5, 6, dtype=torch.int32), 1)
    assert near[0, 0].all()
    assert near[0, :, 0].all()
    assert not near[0, 1:-1, 1:-1].any()


def test_predictions_of_no_class_are_wrong_not_skipped():
    prediction, labels = blobs(1)
    blank = np.where(prediction == labels, prediction, 255)
    arguments = torch.from_numpy(blank)[None], torch.from_numpy(labels)[None]
    counts = boundary_counts(*arguments, K)
    assert counts.tolist() == reference(blank, labels, 0.02).tolist()


def test_images_add_up_and_training_goes_without():
    pairs = [blobs(seed) for seed in range(3)]
    whole, plain = SegmentationMetrics(K, boundary=0.02), SegmentationMetrics(K)
    for prediction, labels in pairs:
        whole.update(torch.from_numpy(prediction), torch.from_numpy(labels))
        plain.update(torch.from_numpy(prediction), torch.from_numpy(labels))
    expected = sum(reference(*pair, 0.02) for pair in pairs)
    assert whole.boundary_pixels.tolist() == expected.tolist()
    assert whole.compute().keys() - plain.compute().keys() == {
        "boundary_miou",
        *(f"boundary_iou/{c}" for c in range(K)),
    }
    with pytest.raises(ValueError, match=r"as 0\.02"):
        SegmentationMetrics(K, boundary=2.0)
