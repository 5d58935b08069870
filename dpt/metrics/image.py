"""Metrics of one prediction an image: a class, a number, an embedding."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from dpt.functional import sum_dtype
from dpt.metrics.base import SumMetric

_TOP = 5
_RECALLS = tuple(f"{way}_r{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5))
_MAX_PAIRS = 20_000  # that a process keeps
_MAX_SCORED = 5_000  # embeddings
_TABLE = 2**23  # similarities computed at once


class ClassificationMetrics(SumMetric):
    """``accuracy`` (top-1) and, with more than five classes, ``top5_accuracy``."""

    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.add_count("counts", 3)  # images with a class; right, and right among the first five

    def update(self, logits: Tensor, class_id: Tensor) -> None:
        """Args: logits: float (B, C); class_id: integer (B,), negative (-1) where unknown."""
        if logits.shape != (len(class_id), self.num_classes):
            raise ValueError(
                f"logits must be ({len(class_id)}, {self.num_classes}), got {tuple(logits.shape)}"
            )
        known = class_id >= 0
        ranked = logits.topk(min(_TOP, self.num_classes), dim=1).indices
        hit = (ranked == class_id[:, None]) & known[:, None]
        self.counts = self.counts + torch.stack([known.sum(), hit[:, 0].sum(), hit.any(1).sum()])

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN if no image had a class."""
        images, correct, correct_top5 = self.counts
        top5 = {"top5_accuracy": correct_top5 / images} if self.num_classes > _TOP else {}
        return {"accuracy": correct / images, **top5}


class RegressionMetrics(SumMetric):
    """``mae``, ``rmse`` and ``r2`` of real values of any shape; NaN targets do not count."""

    lower_is_better = frozenset({"mae", "rmse"})
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_sum("sums", 5)  # number of targets, Σ |error|, Σ error², Σ target, Σ target²

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Args: prediction, target: float of one shape and unit; NaN in target where unknown."""
        if prediction.shape != target.shape:
            raise ValueError(
                "prediction and target must have one shape, "
                f"got {tuple(prediction.shape)} and {tuple(target.shape)}"
            )
        known = ~target.isnan()
        target = torch.where(known, target, 0.0).to(self.sums.dtype)
        error = torch.where(known, prediction.to(target.dtype) - target, 0.0)
        terms = (known.to(error.dtype), error.abs(), error.square(), target, target.square())
        self.sums = self.sums + torch.stack([term.sum() for term in terms])

    def compute(self) -> dict[str, Tensor]:
        """Scalars; NaN without a target, and ``r2`` NaN where all targets are equal."""
        count, absolute, squared, total, square = self.sums
        spread = square - total.square() / count
        rounding = 8 * torch.finfo(spread.dtype).eps * square
        return {
            "mae": absolute / count,
            "rmse": (squared / count).sqrt(),
            "r2": 1 - squared / torch.where(spread > rounding, spread, torch.nan),
        }


class RetrievalMetrics(SumMetric):
    """Recall of the matching text of an image and of the matching image of a text.

    ``image_to_text_r1`` and ``_r5`` are the shares of images with a text of their own, or one equal
    to it, as the most similar of all and among the first five; ``text_to_image_*`` likewise. A text
    of another image with exactly the same similarity counts as half a rank. With classes there is
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
        room = _MAX_PAIRS - sum(map(len, self.groups))
        self.images.append(F.normalize(images[:room].detach(), dim=-1))
        self.texts.append(F.normalize(texts[:room].detach(), dim=-1))
        self.groups.append(groups[:room])

    def update_classes(self, logits: Tensor, class_id: Tensor) -> None:
        """Args: logits: float (B, C); class_id: integer (B,), negative (-1) where unknown."""
        hits = (logits.argmax(dim=1) == class_id).sum()
        self.counts = self.counts + torch.stack([(class_id >= 0).sum(), hits])

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN without a pair."""
        scores = dict.fromkeys(_RECALLS, torch.tensor(torch.nan))
        if len(self.groups) and len(groups := dim_zero_cat(self.groups)):
            images, texts = dim_zero_cat(self.images), dim_zero_cat(self.texts)
            found = *_recall(images, texts, groups), *_recall(texts, images, groups)
            scores = dict(zip(_RECALLS, found, strict=True))
        known, right = self.counts
        return {**scores, **({"zero_shot_accuracy": right / known} if known else {})}


def _recall(queries: Tensor, keys: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Recall at 1 and at 5 of the keys (N, E) of the same group as each query (N, E)."""
    ranks = []
    for rows in torch.arange(len(groups), device=groups.device).split(1 + _TABLE // len(groups)):
        table, own = queries[rows] @ keys.mT, groups[rows, None] == groups
        best = table.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
        others = table.masked_fill(own, -torch.inf)
        rank = (others > best).sum(dim=1) + (others == best).sum(dim=1) / 2
        ranks.append(rank.masked_fill(best[:, 0].isnan(), torch.inf))
    rank = torch.cat(ranks)
    return (rank < 1).double().mean(), (rank < 5).double().mean()


class EmbeddingMetrics(SumMetric):
    """``knn_accuracy`` and ``linear_accuracy``: how well embeddings separate the images' classes.

    ``knn_accuracy`` is that of a vote of the ten nearest other images by the cosine, weighted by
    exp(cosine / 0.07) (Wu et al. 2018, section 3.4). ``linear_accuracy`` is that of a ridge
    regression on standardised embeddings, from every second image of each class to the others and
    the reverse.

    Of more than 20,000 images, a process keeps every second, fourth, ...; of all of them 5,000,
    evenly spaced, are scored.
    """

    by_image = False
    embeddings: list[Tensor]
    class_ids: list[Tensor]
    indices: list[Tensor]
    every: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("embeddings", "class_ids", "indices"):
            self.add_state(name, [], dist_reduce_fx="cat")
        self.add_state("every", torch.tensor(1), dist_reduce_fx="max")

    def update(self, embeddings: Tensor, class_id: Tensor, index: Tensor) -> None:
        """Args: embeddings: float (B, D); class_id: int64 (B,), -1 where unknown: these do not
        count; index: int64 (B,), positions of the images in the data set."""
        index = index.to(class_id.device)
        known = (class_id >= 0) & (index % self.every == 0)
        self.embeddings.append(embeddings[known].float().nan_to_num())
        self.class_ids.append(class_id[known])
        self.indices.append(index[known])
        while sum(map(len, self.indices)) > _MAX_PAIRS:
            self.every = 2 * self.every
            kept = [each % self.every == 0 for each in self.indices]
            for name in ("embeddings", "class_ids", "indices"):
                values = zip(getattr(self, name), kept, strict=True)
                setattr(self, name, [value[mask] for value, mask in values])

    def compute(self) -> dict[str, Tensor]:
        """Scalars in 0..1; NaN if fewer than two images have a class."""
        scores = dict.fromkeys(("knn_accuracy", "linear_accuracy"), torch.tensor(torch.nan))
        if not len(self.indices):
            return scores
        states = (self.embeddings, self.class_ids, self.indices)
        embeddings, class_ids, indices = (dim_zero_cat(state) for state in states)
        kept = indices % self.every == 0  # of all processes
        embeddings, class_ids, indices = embeddings[kept], class_ids[kept], indices[kept]
        if len(indices) < 2:
            return scores
        places = torch.linspace(0, len(indices) - 1, min(len(indices), _MAX_SCORED)).round()
        order = indices.argsort()[places.long().to(indices.device)]  # of any number of processes
        order = order[class_ids[order].argsort(stable=True)]  # both halves get every class
        x = embeddings[order].to(sum_dtype(embeddings.device))
        classes = class_ids[order].unique(return_inverse=True)[1]
        y = F.one_hot(classes).to(x.dtype)
        linear = torch.empty_like(y)
        for own, other in ((0, 1), (1, 0)):
            linear[other::2] = _ridge(x[own::2], y[own::2], x[other::2])
        found = (_neighbours_vote(x, y), linear)
        hits = ((values.argmax(1) == classes).double().mean() for values in found)
        return dict(zip(scores, hits, strict=True))


def _neighbours_vote(x: Tensor, y: Tensor) -> Tensor:
    """Votes (N, C) of the nearest other embeddings (N, D) with one-hot classes ``y`` (N, C)."""
    x = F.normalize(x, dim=1)
    nearest, who = (x @ x.mT).fill_diagonal_(-torch.inf).topk(min(10, len(x) - 1))
    votes = torch.zeros_like(y)
    for cosine, other in zip(nearest.mT, who.mT, strict=True):
        votes += (cosine[:, None] / 0.07).exp() * y[other]
    return votes


def _ridge(train: Tensor, y: Tensor, test: Tensor) -> Tensor:
    """Scores (M, C) of embeddings (M, D) by ridge regression of one-hot ``y`` (N, C) on (N, D)."""
    spread, mean = torch.std_mean(train, dim=0, correction=0)
    train, test = ((z - mean) / spread.clamp_min(1e-6) for z in (train, test))
    moments = train.mT @ train / len(train) + 0.1 * torch.eye(train.shape[1]).to(train)
    weight = torch.linalg.solve(moments, train.mT @ (y - y.mean(0)) / len(train))
    return test @ weight + y.mean(0)
