"""Average precision: pycocotools' on the same masks, with crowds."""

import contextlib
import io

import numpy as np
import pytest
import torch
from pycocotools import mask as codes
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from dpt.metrics.instances import InstanceMetrics

SIZE = (40, 48)


def image(random, objects=6, classes=3):
    """True boxes of which some are crowds, and predictions that hit them more or less."""

    def box(y, x, h, w):
        mask = np.zeros(SIZE, bool)
        mask[max(y, 0) : y + h, max(x, 0) : x + w] = True
        return mask

    places = random.integers((0, 0, 6, 6), (28, 36, 16, 16), (objects, 4))
    true = np.stack([box(*p) for p in places])
    ids, crowd = random.integers(0, classes, objects), random.random(objects) < 0.2
    shifted = places[random.integers(0, objects, 9)] + random.integers(-2, 3, (9, 4))
    shifted[:, 2:] = np.maximum(shifted[:, 2:], 3)
    found = np.stack([box(*p) for p in shifted])
    return true, ids, crowd, found, random.integers(0, classes, 9)


def test_equal_to_pycocotools():

    random = np.random.default_rng(0)
    ours = InstanceMetrics(["a", "b", "c"])
    images, annotations, results = [], [], []
    scores = random.permutation(1000)[:180] / 1000  # all different: equal ones have no order
    for k in range(20):
        true, ids, crowd, found, found_ids = image(random)
        own = scores[9 * k : 9 * k + 9]
        ours.update(
            torch.from_numpy(found), torch.from_numpy(found_ids), torch.from_numpy(own),
            torch.from_numpy(true), torch.from_numpy(ids), torch.from_numpy(crowd),
        )  # fmt: skip
        images.append({"id": k, "height": SIZE[0], "width": SIZE[1]})
        for mask, c, is_crowd in zip(true, ids, crowd, strict=True):
            code = codes.encode(np.asfortranarray(mask.astype(np.uint8)))
            annotations.append(
                {"id": len(annotations) + 1, "image_id": k, "category_id": int(c) + 1,
                 "iscrowd": int(is_crowd), "area": int(mask.sum()), "segmentation": code,
                 "bbox": [0, 0, 1, 1]}
            )  # fmt: skip
        for mask, c, score in zip(found, found_ids, own, strict=True):
            code = codes.encode(np.asfortranarray(mask.astype(np.uint8)))
            results.append(
                {"image_id": k, "category_id": int(c) + 1, "score": score, "segmentation": code}
            )
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        categories = [{"id": i, "name": str(i)} for i in (1, 2, 3)]
        truth.dataset = {"images": images, "annotations": annotations, "categories": categories}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    found = ours.compute()
    for name, place in (("ap", 0), ("ap50", 1), ("ap75", 2), ("recall", 8)):
        assert float(found[name]) == pytest.approx(evaluation.stats[place], abs=1e-9), name
    assert 0.02 < found["ap"] < found["ap50"] < 0.9


def test_no_object_at_all():
    metrics = InstanceMetrics(["a", "b"])
    nothing = torch.zeros(0, *SIZE, dtype=torch.bool), torch.zeros(0).long()
    metrics.update(*nothing, torch.zeros(0), *nothing, torch.zeros(0).bool())
    assert metrics.compute()["ap"].isnan()
    mask = torch.ones(1, *SIZE, dtype=torch.bool)
    metrics.update(*nothing, torch.zeros(0), mask, torch.tensor([1]), torch.tensor([False]))
    scores = metrics.compute()
    assert scores["ap"] == scores["ap/b"] == scores["recall"] == 0
    assert scores["ap/a"].isnan()
    metrics.reset()
    both = (mask, torch.tensor([1]), torch.tensor([0.5]), mask, torch.tensor([1]))
    metrics.update(*both, torch.tensor([False]))
    assert metrics.compute()["ap"] == 1
