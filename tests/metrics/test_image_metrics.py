"""Image-level metrics against NumPy and torchmetrics."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional import r2_score

from dpt.metrics import ClassificationMetrics, EmbeddingMetrics, RegressionMetrics


def test_classification_counts_known_images_only():
    metric = ClassificationMetrics(7)
    falling = torch.arange(7.0, 0, -1)
    metric.update(torch.stack([falling, falling, falling, -falling]), torch.tensor([0, 4, 5, -1]))
    assert metric.scores() == pytest.approx({"accuracy": 1 / 3, "top5_accuracy": 2 / 3})


def test_top5_accuracy_needs_more_than_five_classes():
    metric = ClassificationMetrics(3)
    metric.update(torch.eye(3), torch.tensor([0, 1, 0]))
    assert metric.scores() == pytest.approx({"accuracy": 2 / 3})


def test_regression_equals_numpy_and_torchmetrics():
    rng = np.random.default_rng(0)
    target = torch.from_numpy(rng.normal(50, 3, 40)).float()
    prediction = target + torch.from_numpy(rng.normal(0, 1, 40)).float()
    target[::7] = math.nan
    metric = RegressionMetrics()
    for part in (slice(0, 11), slice(11, 40)):
        metric.update(prediction[part], target[part])
    has_target = ~target.isnan()
    prediction, target = prediction[has_target].double(), target[has_target].double()
    error = (prediction - target).numpy()
    expected = {"mae": np.abs(error).mean(), "rmse": np.sqrt((error**2).mean())}
    expected["r2"] = r2_score(prediction, target).item()
    assert metric.scores() == pytest.approx(expected, rel=1e-5)


def test_r2_of_equal_targets_is_nan():
    metric = RegressionMetrics()
    metric.update(torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 0.1))
    assert math.isnan(metric.scores()["r2"])
    assert metric.scores()["mae"] == pytest.approx(1.9)


# ------------------------------------------------------------------------------ embeddings


def embedded(noise=1.0):
    random = torch.Generator().manual_seed(0)
    class_id = torch.randint(3, (60,), generator=random)
    centres = torch.randn(3, 8, generator=random)
    noise = noise * torch.randn(60, 8, generator=random)
    return centres[class_id] + noise, class_id, torch.arange(60)


def embedding_scores(*arguments):
    metric = EmbeddingMetrics()
    metric.update(*arguments)
    return {name: value.item() for name, value in metric.compute().items()}


def naive_votes(x, y):
    """Class of each row by its ten nearest others (Wu et al. 2018, section 3.4), in loops."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    classes = []
    for k, row in enumerate(x):
        cosines = [(float(row @ other), y[j]) for j, other in enumerate(x) if j != k]
        votes = np.zeros(y.max() + 1)
        for cosine, label in sorted(cosines, reverse=True)[:10]:
            votes[label] += math.exp(cosine / 0.07)
        classes.append(votes.argmax())
    return np.array(classes)


def naive_ridge(train, labels, test):
    """Classes of ``test`` by least squares with a row for the penalty of each weight."""
    mean, std = train.mean(0), train.std(0)
    train, test = (train - mean) / std, (test - mean) / std
    count, dim = train.shape
    targets = np.eye(labels.max() + 1)[labels]
    rows = np.vstack([train, math.sqrt(0.1 * count) * np.eye(dim)])
    columns = np.vstack([targets - targets.mean(0), np.zeros((dim, targets.shape[1]))])
    weight, *_ = np.linalg.lstsq(rows, columns, rcond=None)
    return (test @ weight + targets.mean(0)).argmax(1)


@pytest.mark.parametrize("noise", [0.3, 1.5, 100.0])
def test_embeddings_score_as_in_plain_numpy(noise):
    x, y, index = embedded(noise=noise)
    scores = embedding_scores(x, y, index)
    x, y = x.double().numpy(), y.numpy()
    assert scores["knn_accuracy"] == pytest.approx((naive_votes(x, y) == y).mean())
    by_class = y.argsort(kind="stable")
    x, y = x[by_class], y[by_class]
    odd = naive_ridge(x[::2], y[::2], x[1::2]) == y[1::2]
    even = naive_ridge(x[1::2], y[1::2], x[::2]) == y[::2]
    assert scores["linear_accuracy"] == pytest.approx(np.concatenate([odd, even]).mean())


def test_embeddings_score_alike_in_any_order():
    x, y, index = embedded()
    whole = embedding_scores(x, y, index)
    metric = EmbeddingMetrics()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    for part in order.split(13):
        metric.update(x[part], y[part], index[part])
    assert {k: v.item() for k, v in metric.compute().items()} == whole


def test_embeddings_without_a_class_do_not_count():
    x, y, index = embedded()
    has_class = torch.arange(60) % 3 > 0
    expected = embedding_scores(x[has_class], y[has_class], index[has_class])
    assert embedding_scores(x, torch.where(has_class, y, -1), index) == expected
    nothing = embedding_scores(x, torch.full_like(y, -1), index)
    assert all(math.isnan(value) for value in nothing.values())
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert all(math.isnan(value) for value in EmbeddingMetrics().compute().values())
