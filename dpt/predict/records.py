"""What ``dpt predict`` writes down about its files: predictions.json, predictions.jsonl, journals.

Both files may come from a stranger. Settings that name a folder that ``dpt predict`` does not write
are ignored.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from dpt import atomic
from dpt.files import parse_json, read_bytes
from dpt.nn import HEADS
from dpt.validation import Plain, PlainMapping, validate

T = TypeVar("T")

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
JOURNALS = "shards"  # folder of the journals of workers
LABEL_TOOLS = ("coco", "yolo", "labelme", "voc")
POINT_FORMATS = ("ply", "glb")
RASTER = "tif"
"""The format of images that are predicted by windows."""
FORMATS = ("png", "npy", "color", "overlay", "json", *LABEL_TOOLS, *POINT_FORMATS, RASTER)
_MAX_SETTINGS = 1 << 20  # bytes; class names take the most


@dataclass(frozen=True)
class PredictionSettings:
    """What all files of an output folder have in common, the content of ``predictions.json``."""

    weights: str = ""  # fingerprint of the model, which also determines ``classes``
    checkpoint: str = ""  # as it was named
    colormap: str = ""
    precision: str = ""
    runtime: str | None = None  # as it was named
    flip: bool = False
    tile: int | None = None
    sky: str = "invalid"
    camera: str = ""  # the option that states it
    min_confidence: float = 0.0  # of points
    prompt: str | None = None  # the file of sparse depth, and a hash of its content
    unit: str | None = None  # of depth
    classes: Mapping[str, list[str]] = field(default_factory=dict)  # names by folder of the files
    written: tuple[str, ...] = ()  # names in the output folder that may be replaced

    def difference(self, earlier: "PredictionSettings") -> str:
        """Returns what makes files with the earlier settings differ; empty if nothing does."""
        if self.weights != earlier.weights:
            return f"another checkpoint ({earlier.checkpoint})"
        old, new = asdict(earlier), asdict(self)
        names = [k for k in new if k not in ("weights", "checkpoint", "classes", "written")]
        changed = [name for name in names if old[name] != new[name]]
        return f"{changed[0]}={old[changed[0]]}, and now it is {new[changed[0]]}" if changed else ""

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
    modified: object  # the input's time and size, see :meth:`dpt.predict.inputs.InputFile.modified`
    facts: PlainMapping  # how to read 16-bit depth, by folder, camera, outputs for the whole image
    files: list[str]  # below the output folder
    error: str | None = None  # why it has no files; in journals of shards alone

    def to_json(self) -> str:
        """Returns the line."""
        entry = {"name": self.name, "source": self.source, "modified": self.modified}
        error = {} if self.error is None else {"error": self.error}
        return json.dumps({**entry, **self.facts, **error, "files": self.files}) + "\n"

    @classmethod
    def read_all(cls, folder: Path) -> dict[str, "InputRecord"]:
        """Returns the folder's records of finished inputs by name, also those of shards."""
        paths = [folder / RECORDS_FILE, *sorted((folder / JOURNALS).glob("*.jsonl"))]
        return {
            record.name: record
            for path in paths
            for record in cls.read_journal(path)
            if record.error is None
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


def written_folders() -> set[str]:
    """Returns the names of all sub-folders that ``dpt predict`` writes for any model, see
    :func:`dpt.predict.writers.all_kinds`."""
    names = ("depth", "depth_sky", "depth_confidence", "labels", *HEADS)
    endings = ("", *(f"_{name}" for name in FORMATS[1:]))
    return {"overlay", *(f"{name}{ending}" for name in names for ending in endings)}


# --- parts of the inputs for several workers ----------------------------------------------------

LAUNCHERS = {
    "slurm": ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    "torchrun": ("RANK", "WORLD_SIZE"),
    "kubernetes": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
}
"""The variables of what starts workers: number of this one, number of all, and the first number,
which is 0 without a variable."""


@dataclass(frozen=True)
class InputShard:
    """The inputs of one of ``count`` workers on any machines; ``number`` is in 1..count.

    A worker writes the files of its own inputs and appends to its own journal below ``shards/`` in
    the output folder. ``dpt predict --merge`` joins the journals.
    """

    number: int
    count: int

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

    def select(self, items: Sequence[T]) -> list[T]:
        """Returns every ``count``-th item: large items that follow one another are divided."""
        return list(items[self.number - 1 :: self.count])

    @classmethod
    def parse(cls, text: str) -> "InputShard | None":
        """Returns the shard that ``3/16`` or ``3-of-16`` names; None for other texts."""
        match = re.fullmatch(r"([1-9]\d{0,8})(?:/|-of-)([1-9]\d{0,8})", text)
        shard = cls(int(match[1]), int(match[2])) if match else None
        return shard if shard and shard.number <= shard.count else None

    @classmethod
    def chosen(cls, text: str, environment: Mapping[str, str] = os.environ) -> "InputShard":
        """Returns the shard of ``--shard text``: K/N, a launcher's name, or ``auto`` for the only
        launcher whose variables are set."""
        started = [name for name, keys in LAUNCHERS.items() if keys[0] in environment]
        name = started[0] if text == "auto" and len(started) == 1 else text
        shard = cls.parse(_of_launcher(name, environment) if name in started else text)
        if shard is None:
            variables = [key for keys in LAUNCHERS.values() for key in keys if key in environment]
            stated = ", ".join(f"{key}={environment[key]}" for key in variables)
            choices = ", ".join((*LAUNCHERS, "auto"))
            fault = f"--shard {text}: found {stated or 'no variables of a launcher'}"
            raise ValueError(f"{fault}: write K/N with K in 1..N, or one of {choices}")
        return shard


def _of_launcher(name: str, environment: Mapping[str, str]) -> str:
    """Returns K/N by the variables of a launcher; empty if they are no numbers."""
    values = [environment.get(key, "0") for key in LAUNCHERS[name]]
    if not all(re.fullmatch(r"\d{1,9}", value) for value in values):
        return ""
    number, count, first = map(int, [*values, "0"][:3])
    return f"{number - first + 1}/{count}"


def shards_of(folder: Path) -> list[InputShard]:
    """Returns the shards that have a journal in an output folder."""
    shards = [InputShard.parse(path.stem) for path in (folder / JOURNALS).glob("*.jsonl")]
    return sorted(
        (shard for shard in shards if shard is not None),
        key=lambda shard: (shard.count, shard.number),
    )


@contextmanager
def held(folder: Path, shard: InputShard | None) -> Iterator[None]:
    """Keeps other processes from working on the same inputs of an output folder.

    Raises:
        DataError: a live process works on ``shard`` or on one of another division. Without
            ``shard``, on any.
    """
    others = [s for s in shards_of(folder) if shard is None or s.count != shard.count]
    with ExitStack() as stack:
        for other in [*others, *([] if shard is None else [shard])]:
            path = folder / JOURNALS / f"{other.file_name}.lock"
            fault = f"another process predicts shard {other}"
            lock = stack.enter_context(atomic.locked(path, fault=fault, seconds=0))
            if other != shard:
                lock.release()
        yield
