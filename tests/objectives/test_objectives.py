"""What each head learns and how it is scored."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpt.data import collate_eval, collate_train
from dpt.losses import ScaleShiftInvariantLoss, SILogLoss
from dpt.model import create_model
from dpt.objectives import (
    ClassificationObjective,
    DepthObjective,
    InstanceObjective,
    PanopticObjective,
    RegressionObjective,
    SegmentationObjective,
)
from dpt.objectives.depth import default_loss
from dpt.types.outputs import HeadOutput, Masks, QueryOutput
from dpt.types.samples import NO_CLASS

# ------------------------------------------------------------------------------ depth


def depth_batch(sizes=((6, 8), (9, 5))):
    """Evaluation labels: maps in a list, each at its own size."""
    random = torch.Generator().manual_seed(0)
    depth = [torch.rand(size, generator=random) * 5 + 1 for size in sizes]
    return {"depth": depth, "valid": [d > 1.5 for d in depth]}


def scores(objective, outputs, batch):
    objective.metrics.reset()
    objective.update(outputs, batch)
    return objective.compute()


def test_depth_is_scored_at_the_labels_own_size():
    batch = depth_batch()
    constant = HeadOutput(torch.full((2, 4, 4), 3.0))
    expected = sum(
        float(((3 - d[v]).abs() / d[v]).mean())
        for d, v in zip(batch["depth"], batch["valid"], strict=True)
    )
    result = scores(DepthObjective(max_depth=10.0), constant, batch)
    assert result["abs_rel"] == pytest.approx(expected / 2, rel=1e-5)


@pytest.mark.parametrize(("kind", "counted"), [("metric", [1]), ("relative", [0, 1, 2])])
def test_depth_that_a_metric_head_cannot_reach_is_not_trained_on(kind, counted):
    """At zoom 0.75 a depth of 9 m becomes 12 m."""

    class Distance(torch.nn.Module):
        def forward(self, prediction, target, valid):
            return ((prediction - target).abs() * valid).sum()

    objective = DepthObjective(kind=kind, max_depth=10.0, min_depth=0.5, loss=Distance())
    depth = torch.tensor([[[0.4, 5.0, 12.0]]])
    outputs = HeadOutput(torch.zeros_like(depth, requires_grad=True))
    batch = {"depth": depth, "valid": depth > 0}
    for loss in (
        objective.losses(outputs, batch)["loss_depth"],
        objective.distil(outputs, depth, temperature=1.0),
    ):
        (gradient,) = torch.autograd.grad(loss, outputs.prediction)
        assert gradient.flatten().nonzero().flatten().tolist() == counted


def test_depth_losses_follow_the_kind_and_the_weight():
    assert isinstance(default_loss(depth="metric"), SILogLoss)
    assert isinstance(default_loss(depth="relative"), ScaleShiftInvariantLoss)
    assert isinstance(DepthObjective(max_depth=5.0, kind="relative").loss, ScaleShiftInvariantLoss)
    depth = torch.rand(2, 8, 8) + 1
    batch = {"depth": depth, "valid": depth > 0}
    outputs = HeadOutput(torch.rand(2, 8, 8) + 1)
    one = DepthObjective(max_depth=5.0).losses(outputs, batch)["loss_depth"]
    half = DepthObjective(max_depth=5.0, weight=0.5).losses(outputs, batch)["loss_depth"]
    assert half == pytest.approx(float(one) / 2)


# ------------------------------------------------------------------------------ segmentation


def one_hot(labels, classes=3):
    return torch.nn.functional.one_hot(labels, classes).permute(0, 3, 1, 2).float()


def test_segmentation_is_scored_at_the_labels_own_size():
    outputs = HeadOutput(one_hot(torch.tensor([[[0, 1], [0, 1]], [[2, 2], [2, 2]]])))
    labels = [
        torch.tensor([0, 0, 0, 1, 1, 1]).repeat(5, 1).to(torch.uint8),
        torch.full((3, 7), 2, dtype=torch.uint8),
    ]
    result = scores(SegmentationObjective(num_classes=3), outputs, {"labels": labels})
    assert result["miou"] == 1


def test_the_auxiliary_loss_is_a_fifth():
    labels = torch.randint(3, (2, 8, 8))
    logits = torch.randn(2, 3, 8, 8)
    outputs = HeadOutput(logits, auxiliary=logits)
    objective = SegmentationObjective(num_classes=3, weight=2.0)
    terms = objective.losses(outputs, {"labels": labels})
    assert terms["loss_auxiliary"] == pytest.approx(0.2 * float(terms["loss_segmentation"]))
    terms = objective.losses(HeadOutput(logits), {"labels": labels})
    assert set(terms) == {"loss_segmentation"}


# ------------------------------------------------------------------------------ whole images


def test_classification():
    objective = ClassificationObjective(num_classes=3)
    logits = torch.tensor([[5.0, 0, 0], [0, 5.0, 0], [0, 5.0, 0]])
    batch = {"class_id": torch.tensor([0, 2, NO_CLASS])}
    assert scores(objective, HeadOutput(logits), batch)["accuracy"] == 0.5
    logits = logits.requires_grad_()
    objective.losses(HeadOutput(logits), batch)["loss_classification"].backward()
    assert logits.grad[2].abs().sum() == 0
    assert logits.grad[1].abs().sum() > 0


def test_regression():
    objective = RegressionObjective(weight=2.0)
    values = torch.tensor([1.0, 2.0, 7.0], requires_grad=True)
    batch = {"value": torch.tensor([1.0, 4.0, float("nan")])}
    assert scores(objective, HeadOutput(values.detach()), batch)["mae"] == 1.0
    loss = objective.losses(HeadOutput(values), batch)["loss_regression"]
    assert float(loss.detach()) == pytest.approx(2 * (0 + 4) / 3)
    loss.backward()
    assert values.grad.isfinite().all()
    assert values.grad[2] == 0


# ------------------------------------------------------------------------------ masks


@pytest.mark.parametrize("kind", [PanopticObjective, InstanceObjective])
@pytest.mark.parametrize("missing", [("labels", "objects"), ("objects",)], ids=str)
def test_images_without_objects_count_nowhere(kind, missing):
    """Unlike images on which there is nothing."""
    objective = kind(num_classes=2, things=(True, False))
    labels = np.zeros((8, 8), np.uint8)
    labels[4:] = 1
    full = {
        "image": np.zeros((8, 8, 3), np.uint8),
        "labels": labels,
        "objects": np.uint16(labels == 0),
    }
    bare = {key: value for key, value in full.items() if key not in missing}
    masks = torch.full((2, 2, 8, 8), -9.0)
    masks[:, 0, :4], masks[:, 1, 4:] = 9.0, 9.0
    masks[1] = masks[1].flip(-2)  # all wrong
    logits = torch.tensor([[9.0, 0, 0], [0, 9.0, 0]]) * torch.tensor([1.0, 1.1])[:, None, None]
    outputs = HeadOutput(Masks(masks, logits))
    key = {"panoptic": "pq", "instance": "ap"}[objective.head]
    result = scores(objective, outputs, collate_eval([full, bare], ("objects",)))
    assert result[key] == pytest.approx(1)
    empty = {**full, "labels": labels * 0 + 1, "objects": np.zeros((8, 8), np.uint16)}
    assert scores(objective, outputs, collate_eval([full, empty], ("objects",)))[key] < 1
    layers = Masks(*(t[:, None].clone().requires_grad_() for t in (masks, logits)))
    trained = QueryOutput(Masks(masks, logits), layers=layers)
    terms = objective.losses(trained, collate_train([full, bare], ("objects",)))
    sum(terms.values()).backward()
    for output in layers:
        assert output.grad[1].count_nonzero() == 0 < output.grad[0].count_nonzero()


def test_regression_starts_from_the_training_values():
    class Table(list):
        files = list.__getitem__

    data = Table(SimpleNamespace(value=value) for value in (1990.0, 2010.0, None))
    settings = RegressionObjective.from_data(data, {})
    assert settings == {"mean": 2000.0, "std": 10.0}
    head = create_model("dpt_tiny", heads={"regression": settings}).eval()
    assert head(torch.zeros(1, 3, 32, 32))["regression"].item() == pytest.approx(2000, abs=10)
    objective = RegressionObjective(std=settings["std"])
    batch = {"value": torch.tensor([1990.0])}
    assert objective.losses(HeadOutput(torch.tensor([2010.0])), batch) == {
        "loss_regression": torch.tensor(4.0)
    }
