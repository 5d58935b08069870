"""Models on the Hugging Face hub, by the name ``user/name``, and their cards.

A card is a ``README.md`` beside saved weights. Its front matter is what
``huggingface_hub.ModelCardData`` writes. What is not known is left out.
"""

import hashlib
import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import huggingface_hub

from dpt import __version__
from dpt.files import DataError, parse_yaml, read_text, reason, write_bytes
from dpt.model_config import ModelConfig
from dpt.nn import Network
from dpt.process import log
from dpt.types.outputs import OutputSpec
from dpt.weights.files import WEIGHT_SUFFIXES, writing
from dpt.weights.licences import Family, family_of

CARD_FILE = "README.md"
LIBRARY = "dense-prediction-transformers"
_MAX_CARD = 1 << 20  # bytes
_LABELLING = {"miou", "pixel_accuracy", "mean_accuracy", "pq", "sq", "rq", "ap"}
"""Scores of segmentation, which a model with depth may have too."""


def is_hub_name(text: str) -> bool:
    """Returns whether a text has the form ``user/name``."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None


def locate(path: str | Path, revision: str | None = None) -> Path:
    """Returns a local file or folder, or the downloaded folder of ``user/name``.

    See :func:`from_hub` for ``revision``.
    """
    local = Path(path).expanduser()
    if revision is not None and local.exists():
        raise ValueError(f"{path}: is not on the hub, so revision={revision!r} cannot be chosen")
    if is_hub_name(str(path)) and not local.exists() and local.suffix not in WEIGHT_SUFFIXES:
        return from_hub(str(path), revision)
    return local


def from_hub(name: str, revision: str | None = None) -> Path:
    """Downloads ``user/name`` at a branch, tag or commit, and returns the folder.

    Raises:
        ValueError: there is no such repository, no permission or no network.
    """
    try:
        for weights in ("*.safetensors", "*.bin"):
            download = huggingface_hub.snapshot_download
            folder = Path(download(name, revision=revision, allow_patterns=["*.json", weights]))
            if any(folder.glob(weights)):
                break
    except Exception as error:  # of many libraries
        fault = f"no such file here, and it cannot be fetched from the hub ({reason(error)})"
        remedy = "check the name and the network, or give a local folder or file"
        raise ValueError(f"{name}: {fault}: {remedy}") from error
    return folder


def has_hub_file(name: str, file: str) -> bool:
    """Whether a file of ``user/name`` is in the cache, or the hub offers it within 3 s."""
    if isinstance(huggingface_hub.try_to_load_from_cache(name, file), str):
        return True
    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file), timeout=3.0)
    except Exception:  # of many libraries: no network, no such file, offline mode
        return False
    return True


def license_of(name: str) -> tuple[bool, str | None]:
    """Returns whether the hub has a model ``user/name``, and the licence that its card states."""
    try:
        card = huggingface_hub.HfApi().model_info(name, timeout=10).card_data
    except Exception:  # of many libraries: no network, no such model, not a name
        return False, None
    return True, card.license if card else None


# --- Cards


class Score(NamedTuple):
    """A score and the ends of its 95 % interval, if they are known."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Scores:
    """Scores of a model.

    Attributes:
        data, split: the name of the data set, and of the part that was scored.
        rows: finite scores. Those of one class have a slash in the name, as ``iou/road``.
        notes: how they were computed, by name.
    """

    data: str
    split: str
    rows: list[Score]
    notes: dict[str, str]

    def results(self, tasks: list[str]) -> list[Any]:
        """Returns the scores of all classes together, as the hub stores them.

        ``tasks`` are those of the model, by the hub's names.
        """
        first, labelling = (tasks or ["other"])[0], "image-segmentation"
        results = []
        for name, value, *_ in self.rows:
            task = labelling if name in _LABELLING and labelling in tasks else first
            result = huggingface_hub.EvalResult(
                task, self.data, self.data, name, value, metric_name=name, dataset_split=self.split
            )
            results += [] if "/" in name else [result]
        return results


class InitialWeights(NamedTuple):
    """From what training started, and what is known of it: its name on the hub, its licence."""

    name: str
    hub_name: str | None
    license: str | None

    @property
    def family(self) -> Family | None:
        """What its authors state."""
        return family_of(self.name)


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
        from dpt.html import render_markdown  # imports OpenCV, which loading a model does not need

        specs = model.outputs.values()
        tasks = list(dict.fromkeys(filter(None, map(pipeline_tag, specs))))
        body = render_markdown(
            "model_card.md",
            card=self,
            argument=shlex.quote(self.name),
            config=config,
            specs=list(specs),
            parameters=sum(p.numel() for p in model.parameters()),
            library=LIBRARY,
            version=__version__,
        )
        training, weights = self.training, self.training and self.training.weights
        results = self.scores.results(tasks) if self.scores else None
        data = huggingface_hub.ModelCardData(
            license=self.license,
            library_name=LIBRARY,
            pipeline_tag=tasks[0] if tasks else None,
            tags=["dpt", *tasks[1:]],
            datasets=training.data.split(", ") if training else None,
            base_model=weights.hub_name if weights else None,
            model_name=self.name if results else None,
            eval_results=results,
        )
        text = f"---\n{data.to_yaml().strip()}\n---\n\n{body}"
        return f"{text}<!-- Written by dpt, and replaced unless it is edited: {_digest(text)} -->\n"


def pipeline_tag(spec: OutputSpec) -> str | None:
    """Returns the hub's name of the task that an output belongs to; None if it has none."""
    if spec.kind == "logits":
        return "image-segmentation" if spec.dense else "image-classification"
    return {"depth": "depth-estimation", "masks": "image-segmentation"}.get(spec.kind)


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
        stated = values.get("license") if isinstance(values, dict) else None
        return stated if isinstance(stated, str) else None
    return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


# --- Publishing


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Uploads the files of a model to ``user/name`` in one commit, and returns its address.

    A card on the hub that a person wrote or edited is kept, with a warning.

    Raises:
        ValueError: the upload failed, or ``private`` and a public repository.
    """
    api = huggingface_hub.HfApi()
    kept: list[str] = []
    try:
        if not api.repo_exists(name):
            api.create_repo(name, private=private or None)
        elif private and not api.model_info(name).private:
            raise DataError(f"{name}: is public on the hub: make it private there")
        elif _has_own_card(api, name):
            log.warning("%s: keeps its README.md, which dpt did not write; remove it there", name)
            kept.append(CARD_FILE)
        commit = api.upload_folder(repo_id=name, folder_path=folder, ignore_patterns=kept)
        return commit.commit_url
    except DataError:
        raise
    except Exception as error:  # of many libraries
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        remedy = "check hf auth login or HF_TOKEN, the name and the network"
        raise ValueError(f"{name}: nothing was committed ({reason(cause)}): {remedy}") from error


def _has_own_card(api: Any, name: str) -> bool:
    """Returns whether a repository has a card with a text that dpt did not write."""
    if not api.file_exists(name, CARD_FILE):
        return False
    card = read_card(Path(api.hf_hub_download(name, CARD_FILE)).parent)
    text = re.sub(r"\A---\n.*?\n---\s*", "", card, flags=re.DOTALL)
    return bool(text) and not is_generated(card)
