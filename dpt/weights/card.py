"""The model card: a ``README.md`` beside saved weights, as the Hugging Face hub shows it.

Its front matter is what ``huggingface_hub.ModelCardData`` writes. What is not known is left out.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpt import __version__
from dpt.atomic import write_bytes
from dpt.files import DataError, parse_yaml, read_text
from dpt.html import render_markdown
from dpt.model_config import ModelConfig
from dpt.nn import Network
from dpt.types import OutputKind, OutputSpec, tensor_specs
from dpt.weights.files import writing

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

log = logging.getLogger("dpt")

CARD_FILE = "README.md"
LIBRARY = "dense-prediction-transformers"
_MAX_CARD = 1 << 20  # bytes
_SEGMENTATION = "image-segmentation"
_LABELLING = {"miou", "pixel_accuracy", "mean_accuracy", "pq", "sq", "rq", "ap"}
"""Scores of segmentation: a model may also have others."""
_MEANINGS: dict[OutputKind, str] = {
    "logits": "scores of classes",
    "depth": "depth",
    "map": "values",
    "vector": "values",
    "masks": "masks of segments, and scores of their classes",
    "fov": "horizontal field of view",
    "log_variance": "logarithm of the variance",
}
_METRIC_TYPES = {"miou": "mean_iou", "pixel_accuracy": "accuracy"}
"""Names of the hub for scores that it has under another name."""


class Score(NamedTuple):
    """A score and its 95 % interval, whose ends are NaN if unknown."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_of_class(self) -> bool:
        """Whether it is of one class, such as ``iou/road``."""
        return "/" in self.name


@dataclass(frozen=True)
class Scores:
    """Scores of a model.

    Attributes:
        data: name of the data set.
        split: of the data set.
        rows: finite scores.
        notes: how they were computed, by name.
    """

    data: str
    split: str
    rows: list[Score]
    notes: Mapping[str, str | float]

    @property
    def has_intervals(self) -> bool:
        return any(math.isfinite(score.low) for score in self.rows)

    def results(self, tasks: list[str]) -> list[EvalResult]:
        """Returns the scores that are not of single classes, as the hub stores them.

        ``tasks`` are those of the model by the hub's names.
        """
        from huggingface_hub import EvalResult

        results = []
        for score in self.rows:
            if not score.is_of_class:
                is_labelling = score.name in _LABELLING and _SEGMENTATION in tasks
                result = EvalResult(
                    task_type=_SEGMENTATION if is_labelling else (tasks or ["other"])[0],
                    dataset_type=self.data,
                    dataset_name=self.data,
                    dataset_split=self.split,
                    metric_type=_METRIC_TYPES.get(score.name, score.name),
                    metric_name=score.name,
                    metric_value=score.value,
                )
                results.append(result)
        return results


class InitialWeights(NamedTuple):
    """Where training started: a file or model, its name on the hub and its licence, if known."""

    name: str
    hub_name: str | None
    license: str | None


@dataclass(frozen=True)
class Training:
    """What a run was trained on, and how.

    Attributes:
        task, data: their names.
        page, terms: of the data, if they are published.
        command: as typed in a shell, with the last part of each absolute path.
        weights: from which training started; None for random ones.
    """

    task: str
    data: str
    page: str | None
    terms: str | None
    command: str
    weights: InitialWeights | None


@dataclass(frozen=True)
class Card:
    """What a card says beside what the model itself declares.

    Attributes:
        name: under which the model is loaded, such as ``user/name``.
        license: identifier of the licence, such as ``apache-2.0``; None if it is not stated.
    """

    name: str
    license: str | None = None
    training: Training | None = None
    scores: Scores | None = None

    def text(self, model: Network, config: ModelConfig) -> str:
        """Returns the card of a model, in Markdown."""
        specs = model.outputs.values()
        tasks = list(dict.fromkeys(filter(None, map(pipeline_tag, specs))))
        body = render_markdown(
            "model_card.md",
            card=self,
            argument=shlex.quote(self.name),
            config=config,
            specs=list(tensor_specs(model.outputs).values()),
            meanings=_MEANINGS,
            limits=_limits(list(specs), config, self),
            parameters=sum(p.numel() for p in model.parameters()),
            library=LIBRARY,
            version=__version__,
        )
        text = f"---\n{self._front_matter(tasks)}\n---\n\n{body}"
        return f"{text}<!-- Written by dpt, and replaced unless it is edited: {_digest(text)} -->\n"

    def _front_matter(self, tasks: list[str]) -> str:
        from huggingface_hub import ModelCardData

        training = self.training
        results = self.scores.results(tasks) if self.scores else None
        data = ModelCardData(
            license=self.license,
            library_name=LIBRARY,
            pipeline_tag=tasks[0] if tasks else None,
            tags=["dpt", *tasks[1:]],
            datasets=[training.data] if training else None,
            base_model=training.weights.hub_name if training and training.weights else None,
            model_name=self.name if results else None,
            eval_results=results,
        )
        return str(data.to_yaml()).strip()


def pipeline_tag(spec: OutputSpec) -> str | None:
    """Returns the hub's name of the task that an output belongs to; None if it has none."""
    if spec.kind == "logits":
        return _SEGMENTATION if spec.dense else "image-classification"
    return {"depth": "depth-estimation", "masks": _SEGMENTATION}.get(spec.kind)


def _limits(specs: list[OutputSpec], config: ModelConfig, card: Card) -> list[str]:
    """Returns a sentence for each limit that follows from what the model predicts."""
    limits = []
    for spec in specs:
        if spec.kind == "depth" and config.calibration is not None:
            limits.append(
                "Metres come from a calibration, which holds for its own camera and scene."
            )
        elif spec.kind == "depth" and spec.canonical_focal is not None:
            limits.append("Depth is in metres only if the focal length of the camera is given.")
        elif spec.has_metres:
            limits.append("Metres hold for cameras like those of the training images.")
        elif spec.kind == "depth":
            limits.append(f"Depth is not in metres: it is {spec.unit}.")
        elif spec.kind in ("logits", "masks"):
            limits.append(f"`{spec.name}` knows the classes above alone.")
    if card.scores:
        limits.append("The scores hold for images like those of the data set that they name.")
    return [*limits, "Test it on your own images before you rely on it."]


def write_card(folder: Path, text: str) -> None:
    """Writes ``README.md``, but keeps one that a person wrote or edited, with a warning."""
    path = folder / CARD_FILE
    if os.path.lexists(path) and not is_generated(read_card(folder)):
        log.warning("%s: kept, since dpt did not write it; remove it to get a new one", path)
        return
    with writing(path):
        write_bytes(path, text.encode())


def read_card(folder: Path) -> str:
    """Returns the card in a folder; empty if there is none, or if it is no text."""
    with suppress(DataError):
        return read_text(folder / CARD_FILE, limit=_MAX_CARD)
    return ""


def is_generated(card: str) -> bool:
    """Returns whether a card is as :meth:`Card.text` wrote it: its last line has its checksum."""
    text, _, last_line = card.rpartition("<!--")
    return bool(text) and f": {_digest(text)} -->" in last_line


def license_in(card: str) -> str | None:
    """Returns the licence that the front matter of a card states; None if there is none."""
    match = re.match(r"---\r?\n(.*?)\n---", card, re.DOTALL)
    with suppress(DataError):
        values = parse_yaml(match[1], CARD_FILE) if match else None
        found = values.get("license") if isinstance(values, dict) else None
        return found if isinstance(found, str) else None
    return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
