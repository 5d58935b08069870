"""Average precision; that it equals pycocotools', ``tests/test_benchmarks.py`` says."""

from math import isnan

import numpy as np
import pytest
import torch
from benchmarks.originals import NAMES, add_objects, random_objects

from dpt.metrics import confidence_intervals
from dpt.metrics.instances import InstanceMetrics, connected_areas, encode_masks
from dpt.types.samples import ObjectMask

SIZE = (40, 48)


def box(top, left, height, width):
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[top : top + height, left : left + width] = True
    return mask


def true(mask, class_id=0, *, crowd=False, area=None):
    (code,) = encode_masks(mask[None])
    return ObjectMask(class_id, code, crowd, area or float(mask.sum()))


def scored(predicted, objects, names=("a",)):
    """The scores of one image; ``predicted`` are masks with class and score."""
    metric = InstanceMetrics(names)
    masks = torch.stack([box(0, 0, 0, 0), *(mask for mask, *_ in predicted)])[1:]
    classes = torch.tensor([c for _, c, _ in predicted], dtype=torch.long)
    scores = torch.tensor([score for *_, score in predicted], dtype=torch.float64)
    metric.update(masks, classes, scores, objects)
    return metric.scores()


def test_connected_areas_are_objects_of_their_mean_probability():
    probabilities = torch.zeros(3, *SIZE)
    probabilities[2] = 0.3  # stuff
    probabilities[0, box(2, 3, 5, 6)] = 0.9
    probabilities[0, box(20, 3, 5, 6)] = 0.5
    probabilities[1, box(10, 30, 4, 4)] = 0.7
    masks, classes, scores = connected_areas(probabilities, (True, True, False))
    assert classes.tolist() == [0, 0, 1]
    assert scores.tolist() == pytest.approx([0.9, 0.5, 0.7])
    assert torch.equal(masks[0], box(2, 3, 5, 6))
    none, *_ = connected_areas(probabilities, (False, False, False))
    assert none.shape == (0, *SIZE)


def test_overlapping_objects_are_found():
    masks = [box(0, 0, 20, 20), box(5, 5, 20, 20), box(8, 8, 6, 6), box(0, 0, 40, 48)]
    scores = scored([(mask, 0, 0.9) for mask in masks], [true(mask) for mask in masks])
    assert scores["ap"] == scores["recall"] == scores["ap_small"] == 1


@pytest.mark.parametrize(("part", "whole"), [(13, 20), (7, 10), (18, 20), (19, 20), (1, 2)])
def test_iou_of_exactly_a_threshold_matches(part, whole):
    scores = scored([(box(0, 0, 2, part), 0, 1.0)], [true(box(0, 0, 2, whole))])
    assert scores["recall"] == pytest.approx((round(20 * part / whole) - 9) / 10)


def test_predictions_are_ranked_by_close_scores():
    right, wrong = box(0, 0, 9, 9), box(20, 20, 9, 9)
    assert scored([(wrong, 0, 0.9996), (right, 0, 0.9999)], [true(right)])["ap"] == 1
    assert scored([(wrong, 0, 0.9999), (right, 0, 0.9996)], [true(right)])["ap"] == 0.5
    assert scored([(wrong, 0, 1 - 1e-12), (right, 0, 1.0)], [true(right)])["ap"] == 1


def test_scores_without_objects():
    names, mask = ("a", "b"), box(0, 0, 9, 9)
    assert isnan(scored([], [], names)["ap"])
    assert isnan(scored([(mask, 0, 0.5)], [true(mask, crowd=True)], names)["ap"])
    scores = scored([], [true(mask, 1)], names)
    assert scores["ap"] == scores["ap/b"] == scores["recall"] == scores["ap_small"] == 0
    assert isnan(scores["ap/a"])
    assert isnan(scores["ap_large"])


def test_area_of_the_annotation_decides_the_range():
    mask = box(0, 0, 9, 9)
    scores = scored([(mask, 0, 0.5)], [true(mask, area=2000.0)])
    assert scores["ap_medium"] == 1
    assert isnan(scores["ap_small"])


def test_images_score_alike_in_any_order():
    """As rows are gathered: those of one process after those of the other, with equal scores."""
    random = np.random.default_rng(1)
    images = [random_objects(random) for _ in range(9)]
    whole, shared = InstanceMetrics(NAMES), InstanceMetrics(NAMES)
    for k, image in enumerate(images):
        add_objects(whole, image, k)
    for k in (*range(0, 9, 2), *range(1, 9, 2)):
        add_objects(shared, images[k], k)
    assert shared.scores() == pytest.approx(whole.scores(), abs=0, nan_ok=True)


def test_states_of_images_score_as_all_at_once():
    random = np.random.default_rng(2)
    images = [random_objects(random) for _ in range(8)]
    metric, states = InstanceMetrics(NAMES), []
    for k, image in enumerate(images):
        metric.reset()
        add_objects(metric, image, k)
        states.append(metric.state())
    times = np.array([2, 0, 1, 1, 3, 0, 1, 0])
    metric.reset()
    for k, image in enumerate(images):
        for _ in range(times[k]):
            add_objects(metric, image, k)
    scores = metric.resampler(states)(times)
    assert scores == pytest.approx(metric.scores(), abs=1e-12, nan_ok=True)
    low, high = confidence_intervals(metric, states)["ap"]
    assert low < metric.resampler(states)(np.ones(8))["ap"] < high
