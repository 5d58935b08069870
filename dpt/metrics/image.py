"""Metrics of one class, one number or one embedding an image."""

from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from dpt.functional import sum_dtype
from dpt.metrics.base import SumMetric, require_one_shape

_TOP = 5
_RECALLS = ("image_to_text_r1", "image_to_text_r5", "text_to_image_r1", "text_to_image_r5")
_MAX_KEPT = 20_000
"""Pairs that a process keeps."""
_MAX_SCORED = 5_000
_MAX_TABLE = 2**23
"""Similarities computed at once."""
_NEIGHBOURS = 10
_TEMPERATURE = 0.07


class ClassificationMetrics(SumMetric):
    """``accuracy`` (top-1) and, with more than five classes, ``top5_accuracy``."""

    has_limits = True
    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_count("counts", 3)  # images with a class; right, and right among the first five

    def update(self, logits: Tensor, class_id: Tensor) -> None:
        """Adds images.

        Args:
            logits: float (B, C).
            class_id: integer (B,), negative (-1) where unknown.
        """
        is_known = class_id >= 0
        ranked = logits.topk(min(_TOP, self.num_classes), dim=1).indices
        hits = (ranked == class_id[:, None]) & is_known[:, None]
        counts = is_known.sum(), hits[:, 0].sum(), hits.any(1).sum()
        self.counts = self.counts + torch.stack(counts)

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1; NaN if no image had a class."""
        images, correct, correct_top5 = self.counts
        scores = {"accuracy": correct / images}
        if self.num_classes > _TOP:
            scores["top5_accuracy"] = correct_top5 / images
        return scores


class RegressionMetrics(SumMetric):
    """``mae``, ``rmse`` and ``r2`` of real values of any shape; NaN targets do not count."""

    lower_is_better = frozenset({"mae", "rmse"})
    has_limits = True
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 5)  # number of targets, Σ |error|, Σ error², Σ target, Σ target²

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Adds values.

        Args:
            prediction: float.
            target: float of the same shape and unit; NaN where unknown.
        """
        require_one_shape(prediction=prediction, target=target)
        is_known = ~target.isnan()
        target = torch.where(is_known, target, 0.0).to(self.sums.dtype)
        error = torch.where(is_known, prediction.to(target.dtype) - target, 0.0)
        terms = (is_known.to(error.dtype), error.abs(), error.square(), target, target.square())
        self.sums = self.sums + torch.stack([term.sum() for term in terms])

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars; NaN without a target, and ``r2`` NaN where all targets are equal."""
        count, absolute, squared, total, square = self.sums
        spread = square - total.square() / count
        rounding = 8 * torch.finfo(spread.dtype).eps * square
        return {
            "mae": absolute / count,
            "rmse": (squared / count).sqrt(),
            "r2": 1 - squared / torch.where(spread > rounding, spread, torch.nan),
        }

    def limits_of(self, score: str) -> tuple[float, float]:
        return (-inf, 1.0) if score == "r2" else super().limits_of(score)


class FieldOfViewMetrics(RegressionMetrics):
    """``fov_error``: mean absolute error of angles, in their unit; NaN targets do not count."""

    lower_is_better = frozenset({"fov_error"})

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars; NaN without a target."""
        return {"fov_error": super().compute()["mae"]}


def _concatenated(state: list[Tensor]) -> Tensor:
    """Returns a state of batches as one tensor, which it already is if processes exchanged it."""
    return dim_zero_cat(state) if len(state) else torch.zeros(0)


class RetrievalMetrics(SumMetric):
    """Recall of the matching text of an image and of the matching image of a text.

    ``image_to_text_r1`` and ``_r5`` are the fractions of images whose own text, or one equal to it,
    is the most similar of all and among the first five; ``text_to_image_*`` likewise. A text of
    another image with exactly the same similarity counts as half a rank. With classes there is
    ``zero_shot_accuracy``. Each process keeps its first 20,000 pairs.
    """

    by_image = False
    images: list[Tensor]
    texts: list[Tensor]
    groups: list[Tensor]
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("images", "texts", "groups"):
            self.add_state(name, [], dist_reduce_fx="cat")
        self.add_count("counts", 2)  # images with a class; right ones

    def update(self, images: Tensor, texts: Tensor, groups: Tensor) -> None:
        """Adds pairs.

        Args:
            images, texts: float (B, E), of any norm.
            groups: int64 (B,), equal for equal texts.
        """
        room = _MAX_KEPT - sum(map(len, self.groups))
        self.images.append(F.normalize(images[:room].detach(), dim=-1))
        self.texts.append(F.normalize(texts[:room].detach(), dim=-1))
        self.groups.append(groups[:room])

    def update_classes(self, logits: Tensor, class_id: Tensor) -> None:
        """Adds images with a class.

        Args:
            logits: float (B, C).
            class_id: integer (B,), negative (-1) where unknown.
        """
        hits = (logits.argmax(dim=1) == class_id).sum()
        self.counts = self.counts + torch.stack([(class_id >= 0).sum(), hits])

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1; NaN without a pair."""
        groups = _concatenated(self.groups)
        scores = dict.fromkeys(_RECALLS, torch.tensor(torch.nan))
        if len(groups):
            images, texts = _concatenated(self.images), _concatenated(self.texts)
            recalls = *_recall(images, texts, groups), *_recall(texts, images, groups)
            scores = dict(zip(_RECALLS, recalls, strict=True))
        num_classified, hits = self.counts
        if num_classified:
            scores["zero_shot_accuracy"] = hits / num_classified
        return scores


def _recall(queries: Tensor, keys: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns recall at 1 and at 5 of the keys (N, E) of the same group as each query (N, E)."""
    ranks = []
    rows_at_once = 1 + _MAX_TABLE // len(groups)
    for rows in torch.arange(len(groups), device=groups.device).split(rows_at_once):
        similarity = queries[rows] @ keys.mT
        is_match = groups[rows, None] == groups
        best = similarity.masked_fill(~is_match, -torch.inf).amax(dim=1, keepdim=True)
        wrong = similarity.masked_fill(is_match, -torch.inf)
        rank = (wrong > best).sum(dim=1) + (wrong == best).sum(dim=1) / 2
        ranks.append(rank.masked_fill(best[:, 0].isnan(), torch.inf))
    rank = torch.cat(ranks)
    return (rank < 1).double().mean(), (rank < 5).double().mean()


class EmbeddingMetrics(SumMetric):
    """``knn_accuracy`` and ``linear_accuracy``: how well embeddings separate the images' classes.

    ``knn_accuracy`` is that of a vote of the ten nearest other images by the cosine, weighted by
    exp(cosine / 0.07) (Wu et al. 2018, section 3.4). ``linear_accuracy`` is that of a ridge
    regression on standardised embeddings, from every second image of each class to the others and
    the reverse.

    At most 5,000 images, evenly spaced, are scored.
    """

    by_image = False
    embeddings: list[Tensor]
    class_ids: list[Tensor]
    indices: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("embeddings", "class_ids", "indices"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, embeddings: Tensor, class_id: Tensor, index: Tensor) -> None:
        """Adds images.

        Args:
            embeddings: float (B, D).
            class_id: int64 (B,), -1 where unknown: these images do not count.
            index: int64 (B,), positions of the images in the data set.
        """
        is_known = class_id >= 0
        self.embeddings.append(embeddings[is_known].float().nan_to_num())
        self.class_ids.append(class_id[is_known])
        self.indices.append(index.to(class_id.device)[is_known])

    def compute(self) -> dict[str, Tensor]:
        """Returns scalars in 0..1; NaN if fewer than two images have a class."""
        order = _concatenated(self.indices).argsort()  # the same on any number of processes
        if len(order) < 2:
            return dict.fromkeys(("knn_accuracy", "linear_accuracy"), torch.tensor(torch.nan))
        positions = torch.linspace(0, len(order) - 1, min(len(order), _MAX_SCORED)).round().long()
        chosen = order[positions.to(order.device)]
        class_ids = _concatenated(self.class_ids)
        chosen = chosen[class_ids[chosen].argsort(stable=True)]  # both halves get every class
        x = _concatenated(self.embeddings)[chosen]
        x = x.to(sum_dtype(x.device))
        classes = class_ids[chosen].unique(return_inverse=True)[1]
        y = F.one_hot(classes).to(x.dtype)
        linear = torch.empty_like(y)
        linear[1::2] = _ridge(x[::2], y[::2], x[1::2])
        linear[::2] = _ridge(x[1::2], y[1::2], x[::2])
        return {
            "knn_accuracy": (_neighbours_vote(x, y).argmax(1) == classes).double().mean(),
            "linear_accuracy": (linear.argmax(1) == classes).double().mean(),
        }


def _neighbours_vote(x: Tensor, y: Tensor) -> Tensor:
    """Returns votes (N, C) of the nearest other embeddings (N, D) with one-hot classes (N, C)."""
    x = F.normalize(x, dim=1)
    similarity = (x @ x.mT).fill_diagonal_(-torch.inf)
    cosines, neighbours = similarity.topk(min(_NEIGHBOURS, len(x) - 1))
    votes = torch.zeros_like(y)
    for cosine, neighbour in zip(cosines.mT, neighbours.mT, strict=True):
        votes += (cosine[:, None] / _TEMPERATURE).exp() * y[neighbour]
    return votes


def _ridge(train: Tensor, y: Tensor, test: Tensor) -> Tensor:
    """Returns scores (M, C) of ``test`` (M, D) by ridge regression of ``y`` (N, C) on ``train``."""
    std, mean = torch.std_mean(train, dim=0, correction=0)
    train, test = ((x - mean) / std.clamp_min(1e-6) for x in (train, test))
    moments = train.mT @ train / len(train) + 0.1 * torch.eye(train.shape[1]).to(train)
    weight: Tensor = torch.linalg.solve(moments, train.mT @ (y - y.mean(0)) / len(train))
    return test @ weight + y.mean(0)
