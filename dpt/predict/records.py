"""What ``dpt predict`` writes down about its files: predictions.json, predictions.jsonl, journals.

Both files may come from a stranger. Settings that name a folder that ``dpt predict`` does not write
are ignored.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from dpt.files import parse_json, read_bytes
from dpt.nn import HEADS
from dpt.validation import Plain, PlainMapping, validate

T = TypeVar("T")

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
JOURNALS = "shards"  # folder of the journals of workers
POINT_FORMATS = ("ply", "glb")
RASTER = "tif"
"""The format of images that are predicted by windows."""
FORMATS = ("png", "npy", "exr", "exr16", "color", "overlay", "json", *POINT_FORMATS, RASTER)
_MAX_SETTINGS = 1 << 20  # bytes; class names take the most


@dataclass(frozen=True)
class PredictionSettings:
    """What all files of an output folder have in common, the content of ``predictions.json``."""

    weights: str = ""  # fingerprint of the model, which also determines ``classes``
    checkpoint: str = ""  # as it was named
    options: PlainMapping = field(default_factory=dict)  # that change the files
    unit: str | None = None  # of depth
    classes: Mapping[str, list[str]] = field(default_factory=dict)  # names by folder of the files
    written: tuple[str, ...] = ()  # names in the output folder that may be replaced

    def difference(self, earlier: "PredictionSettings") -> str:
        """Returns what makes files with the earlier settings differ; empty if nothing does."""
        if self.weights != earlier.weights:
            return f"another checkpoint ({earlier.checkpoint})"
        old, new = ({"unit": s.unit, **s.options} for s in (earlier, self))
        changed = [name for name in new if old.get(name) != new[name]]
        if not changed:
            return ""
        return f"{changed[0]}={old.get(changed[0])}, and now it is {new[changed[0]]}"

    def to_json(self) -> bytes:
        """Returns the content of the file."""
        return f"{json.dumps(asdict(self), indent=2)}\n".encode()

    @classmethod
    def read(cls, folder: Path) -> "PredictionSettings | None":
        """Returns what ``dpt predict`` wrote into the folder; None for other folders."""
        path = folder / SETTINGS_FILE
        if not path.is_file():
            return None
        with suppress(ValueError):
            content = parse_json(read_bytes(path, limit=_MAX_SETTINGS), path)
            settings: PredictionSettings = validate(cls, content, str(path))
            # the settings of other programs have no ``written``
            if settings.written and {*settings.written} <= {*written_folders(), RECORDS_FILE}:
                return settings
        return None


@dataclass(frozen=True)
class InputRecord:
    """The finished files of one input, a line of ``predictions.jsonl``."""

    name: str
    source: str  # path of the input
    modified: object  # its time and size, see :meth:`dpt.predict.sources.InputFile.modified`
    facts: PlainMapping  # how to read 16-bit depth, by folder, camera, outputs for the whole image
    files: list[str]  # below the output folder
    error: str | None = None  # why it has no files; in journals alone

    def to_json(self) -> str:
        """Returns the line."""
        entry = {"name": self.name, "source": self.source, "modified": self.modified}
        error = {} if self.error is None else {"error": self.error}
        return json.dumps({**entry, **self.facts, **error, "files": self.files}) + "\n"

    @classmethod
    def read_all(cls, folder: Path, *, failed: bool = False) -> dict[str, "InputRecord"]:
        """Returns the folder's latest records of finished inputs by name, also those of shards; or
        of those that ``failed``."""
        return {
            record.name: record
            for path in record_files(folder)
            for record in cls.read_journal(path)
            if (record.error is not None) == failed
        }

    @classmethod
    def read_journal(cls, path: Path) -> list["InputRecord"]:
        """Returns the records of one file, without lines that a crash cut short."""
        records: list[InputRecord] = []
        for line in read_bytes(path).splitlines() if path.is_file() else ():
            try:
                facts: Plain = dict(parse_json(line, path))
                name, source = str(facts.pop("name")), str(facts.pop("source"))
                files = [str(file) for file in facts.pop("files")]
            except (ValueError, KeyError, TypeError):
                continue
            error = None if files else facts.pop("error", None)
            records.append(cls(name, source, facts.pop("modified", None), facts, files, error))
        return records


def record_files(folder: Path) -> list[Path]:
    """Returns the files with records: of finished runs, then the journals, the latest one last."""
    journals = [path for path in (folder / JOURNALS).glob("*.jsonl") if path.is_file()]
    journals.sort(key=lambda path: path.stat().st_mtime_ns)
    return [path for path in (folder / RECORDS_FILE, *journals) if path.is_file()]


def written_folders() -> set[str]:
    """Returns the names of all sub-folders that ``dpt predict`` writes for any model, see
    :func:`dpt.predict.writers.all_kinds`."""
    names = ("depth", "depth_sky", "depth_confidence", "labels", *HEADS)
    endings = ("", *(f"_{name}" for name in FORMATS[1:]))
    return {"overlay", *(f"{name}{ending}" for name in names for ending in endings)}


# --- parts of the inputs for several workers ----------------------------------------------------


@dataclass(frozen=True)
class InputShard:
    """The inputs of one of ``count`` workers on any machines; ``number`` is in 1..count.

    A worker writes the files of its own inputs and appends to its own journal below ``shards/`` in
    the output folder. The only worker, or ``dpt predict --merge``, joins the journals.
    """

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def file_name(self) -> str:
        """The name of the shard's files, without suffix."""
        return f"{self.number}-of-{self.count}"

    @property
    def journal(self) -> str:
        """The path of its journal in the output folder."""
        return f"{JOURNALS}/{self.file_name}.jsonl"

    @property
    def lock(self) -> str:
        """The path of the file that its worker locks, in the output folder."""
        return f"{JOURNALS}/{self.file_name}.lock"

    def select(self, items: Sequence[T]) -> list[T]:
        """Returns every ``count``-th item: large items that follow one another are divided."""
        return list(items[self.number - 1 :: self.count])

    @classmethod
    def parse(cls, text: str) -> "InputShard | None":
        """Returns the shard that ``3/16`` or ``3-of-16`` names; None for other texts."""
        match = re.fullmatch(r"([1-9]\d{0,8})(?:/|-of-)([1-9]\d{0,8})", text)
        shard = cls(int(match[1]), int(match[2])) if match else None
        return shard if shard and shard.number <= shard.count else None


WHOLE = InputShard()
"""All inputs."""


def shards_of(folder: Path) -> list[InputShard]:
    """Returns the shards that have a journal in an output folder."""
    shards = [InputShard.parse(path.stem) for path in (folder / JOURNALS).glob("*.jsonl")]
    return sorted(
        (shard for shard in shards if shard is not None),
        key=lambda shard: (shard.count, shard.number),
    )
