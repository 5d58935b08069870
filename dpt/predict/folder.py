"""The output folder: its settings, which inputs are finished, and writing of their files.

``predictions.json`` holds the settings of all files. ``predictions.jsonl`` gets a line for each
finished input, after its files: a killed run leaves at worst files without a line, which the next
run writes again. ``.written.jsonl`` gets the names of an input's files before they are placed:
other files are not this command's, and are never replaced.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dpt.atomic import replacing, write_bytes
from dpt.files import parse_json, read_bytes
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
WRITTEN_FILE = ".written.jsonl"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises an error of the disk as a ValueError with the remedy."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be written ({error.strerror or error}): make room or choose another "
            "--out; finished files stay, and the same command continues from there"
        ) from error


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        path: the folder; created if it does not exist.
        sources: all inputs, which are never replaced.
        settings: plain data that determine the files' contents; a folder that was written with
            other settings is refused.
        folders: names of the sub-folders that can be written.
        overwrite: predict finished inputs again, whatever the earlier settings.

    Raises:
        ValueError: it was written with other settings, or contains files from elsewhere.
    """

    def __init__(
        self,
        path: Path,
        *,
        sources: Iterable[Source],
        settings: Mapping[str, Any],
        folders: Iterable[str],
        overwrite: bool = False,
    ) -> None:
        self.path, self._journal, self._lock = path, path / RECORDS_FILE, threading.Lock()
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path}: is a file, not a folder: choose another --out")
        self._settings = json.loads(json.dumps(settings))  # as it will be read back
        self._records: list[dict[str, Any]] = []
        if os.path.lexists(known := path / SETTINGS_FILE):
            _check_settings(known, self._settings, overwrite=overwrite)
            self._records = [] if overwrite else _read_records(self._journal)
        else:  # files from elsewhere, such as a data set's labels
            for taken in (self._journal, *(path / name for name in folders)):
                if any(taken.iterdir()) if taken.is_dir() else os.path.lexists(taken):
                    raise ValueError(
                        f"{taken}: exists and was not written by dpt predict (there is no "
                        f"{SETTINGS_FILE}): choose another --out"
                    )
        self._inputs = {source.path.resolve() for source in sources}
        self._written = {
            n for r in _read_records(path / WRITTEN_FILE) for n in map(str, r["files"])
        }
        self._sources = {record["name"]: record["source"] for record in self._records}

    def start(self) -> None:
        """Writes the settings, and the records of the inputs that are finished."""
        settings = json.dumps(self._settings, indent=2) + "\n"
        write_bytes(self.path / SETTINGS_FILE, settings.encode())
        records = "".join(json.dumps(record) + "\n" for record in self._records)
        write_bytes(self._journal, records.encode())

    def is_done(self, source: Source, products: Sequence[Product]) -> bool:
        """Whether all files of an input exist.

        Raises:
            ValueError: they exist, but were made from another file of the same name; or they would
                replace an input, or a file that this command did not write.
        """
        places = [self._file(source, p) for p in products]
        earlier = self._sources.get(source.name)
        if earlier is None or not all(place.is_file() for place in places):
            for place in filter(os.path.lexists, places):
                is_input = place.resolve() in self._inputs
                if is_input or self._name(place) not in self._written:
                    what = "is an input" if is_input else "was not written by dpt predict"
                    raise ValueError(f"{place}: {what} and is not replaced: choose another --out")
            return False
        if earlier != str(source.path):
            raise ValueError(
                f"{self.path}: {source.name} was predicted from {earlier}, not from {source.path}: "
                "choose another --out, or give --overwrite"
            )
        return True

    @contextmanager
    def files(
        self, source: Source, products: Sequence[Product], facts: Mapping[str, Any]
    ) -> Iterator[dict[Product, Path]]:
        """Temporary paths for an input's files, which get their names at the end of the block.

        ``facts`` is plain data for the record; the block may add to it.
        """
        places = {p: self._file(source, p) for p in products}
        record = {"name": source.name, "source": str(source.path)}
        files = {"files": [self._name(file) for file in places.values()]}
        with ExitStack() as stack:
            yield {p: stack.enter_context(replacing(f)) for p, f in places.items()}
            self._append(self.path / WRITTEN_FILE, record | files)
        self._append(self._journal, {**record, **facts, **files})

    def _append(self, path: Path, record: Mapping[str, Any]) -> None:
        with self._lock, path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _name(self, file: Path) -> str:
        return file.relative_to(self.path).as_posix()

    def _file(self, source: Source, product: Product) -> Path:
        return self.path / product.folder / f"{source.name}{product.suffix}"


def _check_settings(path: Path, wanted: Mapping[str, Any], *, overwrite: bool) -> None:
    try:
        found = dict(parse_json(read_bytes(path), path))
    except (OSError, ValueError, TypeError):
        found = {}
    if not found.keys() >= wanted.keys():
        raise ValueError(f"{path}: was not written by dpt predict: choose another --out")
    changed = [k for k in wanted if k != "checkpoint" and found.get(k) != wanted[k]]
    if changed and not overwrite:
        what = f"with {changed[0]}={found.get(changed[0])}, and now it is {wanted[changed[0]]}"
        if changed[0] == "weights":
            what = f"with another checkpoint ({found.get('checkpoint')})"
        raise ValueError(
            f"{path.parent}: was written {what}: choose another --out, or give --overwrite to "
            "predict everything again"
        )


_RECORD = {"name": str, "source": str, "files": list}


def _read_records(path: Path) -> list[dict[str, Any]]:
    """The records of complete lines; the input of another line is predicted again."""
    records = []
    for line in read_bytes(path).splitlines() if path.is_file() else ():
        try:
            record = parse_json(line, path)
            if all(isinstance(record[k], t) for k, t in _RECORD.items()):
                records.append(record)
        except (ValueError, KeyError, TypeError):
            continue
    return records
