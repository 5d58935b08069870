"""Parts of an evaluation, which processes on any machines score, and joining them.

A part is the ``run_dir`` of ``dpt evaluate ... shard=K/N``. It holds ``config.yaml``, pictures, and
the scores of its images in ``part.safetensors``.
"""

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import safetensors.numpy
from pydantic import TypeAdapter

from dpt.atomic import replacing
from dpt.config.resumed_config import run_in
from dpt.data import Dataset
from dpt.data.formats.io import read_image
from dpt.evaluation.passes import WEIGHTS_NOTE
from dpt.evaluation.scoring import PICTURE_WIDTH, ImageScore, PanelPicture, Scorer
from dpt.files import DataError, decoding, few, parse_as, plural
from dpt.metrics.protocols import Note
from dpt.predict.shards import Shard
from dpt.validation import Plain
from dpt.viz import shrink

log = logging.getLogger("dpt")

PART_FILE = "part.safetensors"
_KEYS = ("checkpoint", "split", "protocol", "runtime", "image_size", "blocks", "seed")
"""Settings that all parts have in common, beside ``data`` and the precision."""


@dataclass(frozen=True)
class PartImage:
    """A scored image; its metric states are tensors of the file."""

    index: int
    name: str
    is_finite: bool


@dataclass(frozen=True)
class WorstPicture:
    """The description of a picture, which is a tensor of the file."""

    objective: str
    caption: str
    rank: tuple[float, int]


@dataclass(frozen=True)
class PartFacts:
    """The header of a part's file."""

    shard: str
    images: list[PartImage]
    worst: list[WorstPicture]
    notes: dict[str, Note]


_FACTS = TypeAdapter(PartFacts)


@dataclass(frozen=True)
class Part:
    """A part that is finished."""

    folder: Path
    shard: Shard
    facts: PartFacts

    @property
    def file(self) -> Path:
        return self.folder / PART_FILE

    @property
    def config(self) -> Plain:
        """The configuration of the evaluation."""
        return run_in(self.folder)

    def settings(self) -> Plain:
        """Returns what must be equal in all parts, by key."""
        config = self.config
        data = {f"data.{k}": v for k, v in config["data"].items() if k != "num_workers"}
        keys = {key: config.get(key) for key in _KEYS}
        precision = {"trainer.precision": config["trainer"].get("precision")}
        return keys | precision | data | {"weights": self.facts.notes.get(WEIGHTS_NOTE)}

    @classmethod
    def read(cls, file: Path) -> "Part":
        """Reads the header of a part's file."""
        with decoding(file, "a part of dpt evaluate"), safetensors.safe_open(file, "np") as content:
            text = content.metadata()["part"]
        remedy = "score this part again"
        facts = parse_as(_FACTS, text.encode(), file, what="a part of dpt evaluate", remedy=remedy)
        shard = Shard.parse(facts.shard)
        if shard is None:
            raise DataError(f"{file}: shard {facts.shard} is not K/N: {remedy}")
        return cls(file.parent, shard, facts)


def _unicode(name: str) -> str:
    """Returns a name of a file for JSON, with escapes in place of bytes that are not UTF-8."""
    return name.encode(errors="backslashreplace").decode()


def write_part(folder: Path, scorer: Scorer, shard: Shard) -> Path:
    """Writes the scores of one part; returns the file."""
    indices = sorted(scorer.images)
    images = [scorer.images[index] for index in indices]
    tensors: dict[str, np.ndarray] = {}
    for key, objective in scorer.objectives.items():
        packed = objective.metrics.pack([image.states[key] for image in images])
        tensors |= {f"states/{key}/{name}": array for name, array in packed.items()}
    ranked = [(key, picture) for key in scorer.worst for picture in scorer.worst[key]]
    tensors |= {f"worst/{k}": picture.rgb for k, (_, picture) in enumerate(ranked)}
    facts = PartFacts(
        shard=str(shard),
        images=[
            PartImage(index, _unicode(image.name), image.is_finite)
            for index, image in zip(indices, images, strict=True)
        ],
        worst=[
            WorstPicture(key, _unicode(picture.caption), picture.rank) for key, picture in ranked
        ],
        notes=scorer.notes,
    )
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    with replacing(folder / PART_FILE) as temporary:
        metadata = {"part": json.dumps(asdict(facts))}
        safetensors.numpy.save_file(contiguous, temporary, metadata=metadata)
    return folder / PART_FILE


def holds_part(folder: Path, shard: Shard) -> bool:
    """Returns whether a folder holds this part, which may be damaged, to be scored again."""
    file = folder / PART_FILE
    try:
        return file.is_file() and Part.read(file).shard == shard
    except DataError:
        return True


def find_parts(folder: Path) -> list[Part]:
    """Returns the parts in the sub-folders of ``folder``.

    Raises:
        DataError: there are none, some are missing, or two were not scored with the same settings.
    """
    parts = [Part.read(file) for file in sorted(folder.glob(f"*/{PART_FILE}"))]
    if not parts:
        remedy = f"score them by dpt evaluate ... shard=K/N run_dir={folder}/K"
        raise DataError(f"merge={folder}: no sub-folder holds a {PART_FILE}: {remedy}")
    parts.sort(key=lambda part: (part.shard.count, part.shard.number))
    for one, other in pairwise(parts):
        if one.shard == other.shard or one.shard.count != other.shard.count:
            fault = f"{one.folder} is part {one.shard} and {other.folder} is part {other.shard}"
            raise DataError(f"merge={folder}: {fault}: keep one, and one number of parts")
    count = parts[0].shard.count
    missing = sorted({*range(1, count + 1)} - {part.shard.number for part in parts})
    if missing:
        shards = few([f"shard={number}/{count}" for number in missing], 8)
        raise DataError(f"merge={folder}: {len(missing)} of {count} parts are missing: {shards}")
    first = parts[0].settings()
    for part in parts[1:]:
        settings = part.settings()
        for key in first:
            if first[key] != settings.get(key):
                values = f"{first[key]}, and in {part.folder} {settings.get(key)}"
                raise DataError(f"{parts[0].folder}: {key} is {values}: score one of them again")
    return parts


def require_same_images(
    parts: list[Part],
    dataset: Dataset,
    indices_of: Callable[[Shard], list[int]],
    *,
    skips_broken: bool,
) -> None:
    """Raises DataError unless each part has the images that are its own in the data set now.

    Args:
        indices_of: gives the samples of a part.
        skips_broken: whether images that could not be read are left out; they are logged.
    """
    left_out: list[str] = []
    for part in parts:
        names = {index: _unicode(dataset.name(index)) for index in indices_of(part.shard)}
        scored = {image.index: image.name for image in part.facts.images}
        differing = [
            name
            for k, name in scored.items()
            if k not in names or name not in (names[k], str(k))  # or it has no name
        ]
        missing = [name for k, name in names.items() if k not in scored]
        if differing or (missing and not skips_broken):
            fault = f"has other images than part {part.shard} of the data as it is now"
            images = few(differing or missing)
            raise DataError(f"{part.folder}: {fault} ({images}): score this part again")
        left_out += missing
    if left_out:
        images = plural(len(left_out), "image")
        log.warning("left out: %s that could not be read: %s", images, few(left_out))


def add_parts(scorer: Scorer, parts: list[Part], folder: Path) -> None:
    """Adds the scores and pictures of all parts; ``folder`` is for the pictures' files."""
    scorer.notes = parts[0].facts.notes
    panels: dict[int, Path] = {}
    for part in parts:
        with decoding(part.file, "a part of dpt evaluate"):
            tensors = safetensors.numpy.load_file(part.file)
            images = _images(scorer, part.facts, tensors)
        worst: dict[str, list[PanelPicture]] = {}
        for k, picture in enumerate(part.facts.worst):
            row = PanelPicture(picture.caption, tensors[f"worst/{k}"], picture.rank)
            worst.setdefault(picture.objective, []).append(row)
        scorer.add_scored(images, worst)
        index_of = {f"{index:05d}": index for index in images}
        paths = [path for path in (part.folder / "panels").glob("*.png") if path.stem in index_of]
        panels |= {index_of[path.stem]: path for path in paths}
    (folder / "panels").mkdir(parents=True, exist_ok=True)
    for index, path in sorted(panels.items()):
        rgb = shrink(read_image(path), PICTURE_WIDTH)
        scorer.examples.append(PanelPicture(scorer.images[index].name or str(index), rgb))
        shutil.copyfile(path, folder / "panels" / path.name)


def _images(
    scorer: Scorer, facts: PartFacts, tensors: Mapping[str, np.ndarray]
) -> dict[int, ImageScore]:
    """Returns the images of a part with their metric states."""
    images = {row.index: ImageScore(row.name, {}, {}, row.is_finite) for row in facts.images}
    for key, objective in scorer.objectives.items():
        start = f"states/{key}/"
        packed = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        states = objective.metrics.unpack(packed)
        for image, state in zip(images.values(), states, strict=True):
            image.states[key] = state
    return images
