"""What ``dpt predict`` writes down about its files: predictions.json and predictions.jsonl.

Both files may come from a stranger. Settings that name a folder that ``dpt predict`` does not write
are ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dpt.files import parse_json, read_bytes
from dpt.nn import HEADS
from dpt.validation import Plain, PlainMapping, validate

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
JOURNALS = "shards"  # folder of the journals of workers, see dpt.predict.shards
MAX_SETTINGS = 1 << 20  # bytes; class names take the most


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
        try:
            return cls.parse(read_bytes(path, limit=MAX_SETTINGS), path)
        except ValueError:
            return None

    @classmethod
    def parse(cls, content: bytes, source: str | Path) -> "PredictionSettings | None":
        """Returns the settings that ``dpt predict`` wrote; None for other contents."""
        try:
            settings: PredictionSettings = validate(cls, parse_json(content, source), str(source))
        except ValueError:
            return None
        # the settings of other programs have no ``written``
        is_ours = settings.written and {*settings.written} <= {*product_folders(), RECORDS_FILE}
        return settings if is_ours else None


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


def product_folders() -> set[str]:
    """Returns the names of all sub-folders that ``dpt predict`` writes for any model, see
    :func:`dpt.predict.products.all_products`."""
    names = ("depth", "depth_sky", "depth_confidence", "labels", *HEADS)
    formats = (
        "",
        "_npy",
        "_color",
        "_overlay",
        "_json",
        "_tif",
        "_coco",
        "_yolo",
        "_labelme",
        "_voc",
        "_ply",
        "_glb",
    )
    return {"overlay", *(f"{name}{ending}" for name in names for ending in formats)}
