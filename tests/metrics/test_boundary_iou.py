"""Boundary IoU against erosions of one class after another, as the official code computes it."""

import cv2
import numpy as np
import pytest
import torch

from dpt.metrics import Protocol, SegmentationMetrics, boundary_counts

K = 5


def boundary_of(mask, ratio):
    """A mask less its erosion by d pixels; what lies outside of the picture is background."""
    height, width = mask.shape
    distance = max(1, round(ratio * np.sqrt(height**2 + width**2)))
    padded = cv2.copyMakeBorder(mask.astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_CONSTANT, value=0)
    eroded = cv2.erode(padded, np.ones((3, 3), np.uint8), iterations=distance)
    return mask & ~eroded[1:-1, 1:-1].astype(bool)


def reference(prediction, labels, ratio):
    """Boundary IoU of each class: the prediction keeps its unlabelled pixels until its boundary is
    found, and the union leaves out its boundary pixels there."""
    scores = []
    for c in range(K):
        truth, found = boundary_of(labels == c, ratio), boundary_of(prediction == c, ratio)
        both = (truth & found).sum()
        union = truth.sum() + found.sum() - both - (found & (labels == 255)).sum()
        scores.append(both / union if union else np.nan)
    return scores


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


def scores_of(prediction, labels, ratio):
    metric = SegmentationMetrics(K, boundary=ratio)
    metric.update(torch.from_numpy(prediction), torch.from_numpy(labels))
    return metric.compute()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ratio", [0.005, 0.02, 0.1])
def test_equals_the_reference(seed, ratio):
    prediction, labels = blobs(seed)
    prediction[:3, :9] = 255  # no class: wrong, not skipped
    found, expected = scores_of(prediction, labels, ratio), reference(prediction, labels, ratio)
    for c in range(K):
        assert found[f"boundary_iou/{c}"].item() == pytest.approx(expected[c], nan_ok=True)
    assert found["boundary_miou"].item() == pytest.approx(np.nanmean(expected))


def test_unlabelled_pixels_are_not_cut_out_of_the_prediction():
    """One class everywhere, and a hole in the truth: cut out of the prediction too, the hole would
    have a boundary in both."""
    labels = np.zeros((40, 40), np.uint8)
    labels[15:25, 15:25] = 255
    found = scores_of(np.zeros((40, 40), np.uint8), labels, 0.02)
    outline, ring = 4 * 39, 4 * 11
    assert found["boundary_iou/0"].item() == pytest.approx(outline / (outline + ring))


def test_a_shifted_square_by_hand():
    """20 x 20 pixels, width 1: the outlines of two 10 x 10 squares, one column apart."""
    labels = torch.zeros(20, 20, dtype=torch.uint8)
    prediction = labels.clone()
    labels[5:15, 4:14], prediction[5:15, 5:15] = 1, 1
    counts = boundary_counts(prediction, labels, 2, ratio=0.02)
    assert counts[:, 1].tolist() == [2 * 9, 4 * 9, 4 * 9]  # top and bottom meet in nine columns


def test_images_add_up_and_it_is_left_out_unless_the_protocol_names_it():
    pairs = [[torch.from_numpy(ids) for ids in blobs(seed)] for seed in range(3)]
    whole, plain = SegmentationMetrics(K, boundary=0.02), SegmentationMetrics(K)
    for pair in pairs:
        whole.update(*pair)
        plain.update(*pair)
    assert torch.equal(whole.near, sum(boundary_counts(*pair, K) for pair in pairs))
    assert whole.compute().keys() - plain.compute().keys() == {
        "boundary_miou", *(f"boundary_iou/{c}" for c in range(K)),
    }  # fmt: skip
    assert Protocol(boundary=0.02).label_notes() == {"protocol/boundary": 0.02}
    with pytest.raises(ValueError, match=r"boundary=2\.0: must be a share .* 0\.02"):
        Protocol(boundary=2.0)
