"""Panoptic quality: torchmetrics' on the same segments, and its rules for unlabelled pixels."""

import pytest
import torch
from torchmetrics.detection import PanopticQuality

from dpt.metrics.panoptic import PanopticMetrics
from dpt.segments import NO_SEGMENT, SegmentMap, segments_of

THINGS = (True, True, False, False)


def blocks(random, count, size=(24, 32)):
    """A map of ids in blocks of four pixels."""
    small = torch.randint(0, count, (size[0] // 8, size[1] // 8), generator=random)
    return small.repeat_interleave(8, 0).repeat_interleave(8, 1)


def images(count, seed=0):
    """Labels, objects and a prediction that is right in part."""
    random = torch.Generator().manual_seed(seed)
    for _ in range(count):
        labels, objects = blocks(random, 4), blocks(random, 3) + 1
        labels[blocks(random, 8) == 0] = 255
        wrong = torch.rand(labels.shape, generator=random) < 0.15
        found = torch.where(wrong | (labels == 255), blocks(random, 4), labels)
        own = torch.where(blocks(random, 6) == 0, blocks(random, 3) + 1, objects)
        yield labels, objects, found, own


def as_map(labels, objects):
    return segments_of(labels, objects, THINGS).map


def test_equal_to_torchmetrics():
    ours = PanopticMetrics(THINGS)
    theirs = PanopticQuality(
        things={0, 1},
        stuffs={2, 3},
        allow_unknown_preds_category=True,
        return_sq_and_rq=True,
        return_per_class=True,
    )
    for labels, objects, found, own in images(40):
        ours.update(as_map(found, own), segments_of(labels, objects, THINGS))
        pairs = [torch.stack(pair, -1)[None] for pair in ((found, own), (labels, objects))]
        theirs.update(*pairs)
    wanted, scores = theirs.compute(), ours.compute()
    for k in range(4):
        assert scores[f"pq/{k}"] == pytest.approx(float(wanted[k, 0]), abs=1e-6)
    means = wanted.mean(0)
    for k, name in enumerate(("pq", "sq", "rq")):
        assert scores[name] == pytest.approx(float(means[k]), abs=1e-6)
    assert 0.1 < scores["pq"] < 0.9


def published(found, classes, labels, objects):
    """Σ IoU, TP, FP and FN over all classes, by panopticapi's ``pq_compute``."""
    void = labels == 255
    true = [(c, o, (labels == c) & (objects == o)) for c in (0, 1) for o in (0, 1, 2)]
    true += [(c, 1, labels == c) for c in (2, 3)]
    true = [(c, o == 0, mask) for c, o, mask in true if mask.any()]  # of things, 0 is a crowd
    iou, matched, hit = 0.0, set(), set()
    for p, class_id in enumerate(classes):
        for t, (c, is_crowd, mask) in enumerate(true):
            shared = ((found == p) & mask).sum()
            value = shared / (((found == p) | mask).sum() - ((found == p) & void).sum())
            if c == class_id and not is_crowd and value > 0.5:
                iou, matched, hit = iou + float(value), matched | {p}, hit | {t}
    false_positives = 0
    for p, class_id in enumerate(classes):
        crowds = sum(mask for c, is_crowd, mask in true if is_crowd and c == class_id)
        ignored = (found == p) & (void | (crowds > 0))
        false_positives += p not in matched and ignored.sum() <= (found == p).sum() / 2
    false_negatives = sum(t not in hit and not true[t][1] for t in range(len(true)))
    return iou, len(hit), false_positives, false_negatives


def test_crowds_count_as_in_panopticapi():
    random = torch.Generator().manual_seed(0)
    seen = torch.zeros(4)
    for _ in range(60):
        labels, objects = blocks(random, 5), blocks(random, 3)
        labels[labels == 4] = 255
        objects[labels > 1] = 0
        ids, places = (blocks(random, 5) - 1).unique(return_inverse=True)
        found = places + NO_SEGMENT if ids[0] == NO_SEGMENT else places
        classes = torch.randint(0, 4, (int(found.max()) + 1,), generator=random)
        metrics = PanopticMetrics(THINGS)
        prediction = SegmentMap(found, classes, torch.ones(len(classes)))
        metrics.update(prediction, segments_of(labels, objects, THINGS))
        sums = (
            metrics.iou,
            metrics.true_positives,
            metrics.false_positives,
            metrics.false_negatives,
        )
        wanted = published(found, classes.tolist(), labels, objects)
        assert [float(s.sum()) for s in sums] == pytest.approx([float(w) for w in wanted])
        seen += torch.tensor([float(w) for w in wanted])
    assert (seen > 5).all()


def test_unlabelled_pixels():
    labels = torch.full((4, 8), 255)
    labels[:, :2] = 0
    metrics = PanopticMetrics(THINGS)
    found = torch.zeros(4, 8, dtype=torch.long)
    found[:, 4:] = 1  # another object, on unlabelled pixels alone
    prediction = SegmentMap(found, torch.tensor([0, 0]), torch.ones(2))
    metrics.update(prediction, segments_of(labels, torch.ones(4, 8).long(), THINGS))
    assert metrics.compute()["pq"] == 1.0
    assert metrics.false_positives.sum() == 0


def test_nothing_predicted_and_nothing_there():
    metrics = PanopticMetrics(THINGS, class_names=("car", "dog", "road", "sky"))
    empty = SegmentMap(torch.full((4, 4), NO_SEGMENT), torch.zeros(0).long(), torch.zeros(0))
    unlabelled = torch.full((4, 4), 255)
    metrics.update(empty, segments_of(unlabelled, unlabelled, THINGS))
    assert metrics.compute()["pq"].isnan()
    metrics.update(empty, segments_of(torch.zeros(4, 4).long(), torch.ones(4, 4).long(), THINGS))
    assert metrics.compute()["pq"] == metrics.compute()["pq/car"] == 0.0
    assert metrics.compute()["pq/sky"].isnan()


def test_sums_of_images_are_the_whole():
    """Scores of single images, intervals and two ranks rest on it."""
    whole, parts = PanopticMetrics(THINGS), []
    for labels, objects, found, own in images(6):
        one = PanopticMetrics(THINGS)
        for metric in (whole, one):
            metric.update(as_map(found, own), segments_of(labels, objects, THINGS))
        parts.append(one.vector())
    assert whole.scores_of(torch.stack(parts).sum(0)) == pytest.approx(
        {k: float(v) for k, v in whole.compute().items()}
    )
