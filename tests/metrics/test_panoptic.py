"""Panoptic quality; that it equals panopticapi's, ``tests/test_benchmarks.py`` says."""

import torch

from dpt.metrics.segmentation import PanopticMetrics
from dpt.segments import NO_SEGMENT, SegmentMap, segments_of

THINGS = (True, True, False, False)


def test_segments_on_unlabelled_pixels_do_not_count():
    labels = torch.full((4, 8), 255)
    labels[:, :2] = 0
    metrics = PanopticMetrics(THINGS)
    ids = torch.zeros(4, 8, dtype=torch.long)
    ids[:, 4:] = 1  # another object, on unlabelled pixels alone
    prediction = SegmentMap(ids, torch.tensor([0, 0]), torch.ones(2))
    metrics.update(prediction, segments_of(labels, torch.ones(4, 8).long(), THINGS))
    assert metrics.scores()["pq"] == 1.0
    assert metrics.counts[1].sum() == 0  # false positives


def test_things_and_stuff_have_scores_of_their_own():
    labels = torch.tensor([[0, 0, 2, 2]]).repeat(4, 1)
    objects = (labels == 0).long()
    prediction = segments_of(torch.where(labels == 2, 3, labels), objects, THINGS).map
    metrics = PanopticMetrics(THINGS)
    metrics.update(prediction, segments_of(labels, objects, THINGS))
    scores = metrics.scores()
    assert (scores["pq_things"], scores["pq_stuff"], scores["pq"]) == (1.0, 0.0, 1 / 3)


def test_empty_predictions_and_ground_truth():
    metrics = PanopticMetrics(THINGS, class_names=("car", "dog", "road", "sky"))
    empty = SegmentMap(torch.full((4, 4), NO_SEGMENT), torch.zeros(0).long(), torch.zeros(0))
    unlabelled = torch.full((4, 4), 255)
    metrics.update(empty, segments_of(unlabelled, unlabelled, THINGS))
    assert metrics.compute()["pq"].isnan()
    metrics.update(empty, segments_of(torch.zeros(4, 4).long(), torch.ones(4, 4).long(), THINGS))
    assert metrics.compute()["pq"] == metrics.compute()["pq/car"] == 0.0
    assert metrics.compute()["pq/sky"].isnan()
