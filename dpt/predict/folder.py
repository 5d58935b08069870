"""The output folder: its settings, which inputs are finished, and writing of their files.

``predictions.json`` holds the settings of all files, and the names of the sub-folders that were
empty at first: files are replaced in these folders only. ``predictions.jsonl`` gets a line for each
finished input after its files are written. A killed run may leave files without a line; the next
run writes them again.

Both files may be a stranger's. A file is written or removed only if its real path is below such a
folder, the folder has a name of :func:`dpt.predict.inputs.product_folders`, and it is no input.
"""

import errno
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dpt.atomic import replacing, write_bytes
from dpt.files import DataError, file_identity, parse_json, read_bytes, real_path
from dpt.predict.inputs import RECORDS_FILE, SETTINGS_FILE, Source, read_settings
from dpt.predict.outputs import Product


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        sources: all inputs, which are never replaced.
        settings: plain data that determine the files' contents.
        folders: names of the sub-folders that can be written.
        overwrite: predict finished inputs again, whatever the earlier settings.
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
        settings_file, written = path / SETTINGS_FILE, set[str]()
        for file in (settings_file, self._journal):
            if file.is_symlink():
                raise ValueError(f"{file}: is a link: remove it, or choose another --out")
        self._earlier: dict[str, dict[str, Any]] = {}
        self._settings = json.loads(json.dumps(settings))  # as it will be read back
        if os.path.lexists(settings_file):
            written = _check_settings(settings_file, self._settings, overwrite=overwrite)
            self._earlier = {record["name"]: record for record in read_records(path)}
        self._records = {} if overwrite else self._earlier  # of the inputs that are finished
        names = {*folders, RECORDS_FILE}
        for place in (path / name for name in sorted(names - written)):  # e.g. a data set's labels
            if any(place.iterdir()) if place.is_dir() else os.path.lexists(place):
                raise ValueError(
                    f"{place}: exists and was not written by dpt predict: choose another --out"
                )
        self._settings["written"] = sorted(written | names)
        self._root = real_path(path)
        self._inputs = {file_identity(source.path) for source in sources} - {None}

    def start(self) -> None:
        """Writes the settings, and the records of the inputs that are finished."""
        settings = json.dumps(self._settings, indent=2) + "\n"
        write_bytes(self.path / SETTINGS_FILE, settings.encode())
        records = "".join(json.dumps(record) + "\n" for record in self._records.values())
        write_bytes(self._journal, records.encode())

    def is_done(self, source: Source, products: Sequence[Product]) -> bool:
        """Whether all files of an input were written since it changed, and exist."""
        places = [self._file(source, p) for p in products]
        for place in places:
            if not self._may_replace(place):
                raise ValueError(
                    f"{place}: is an input, or in a folder that is a link, and is not replaced: "
                    "choose another --out"
                )
        earlier = self._records.get(source.name)
        if earlier is None or not all(place.is_file() for place in places):
            return False
        if earlier["source"] != str(source.path):
            raise DataError(
                f"{self.path}: {source.name} was predicted from {earlier['source']}, not from "
                f"{source.path}: choose another --out, or give --overwrite"
            )
        is_listed = {self._name(place) for place in places} <= {*earlier["files"]}
        return is_listed and earlier.get("modified") == _modified(source)

    @contextmanager
    def files(
        self, source: Source, products: Sequence[Product], facts: Mapping[str, Any]
    ) -> Iterator[dict[Product, Path]]:
        """Temporary paths for an input's files, which get their names at the end of the block.

        Its earlier files of other products stay where they show the same image and were made with
        the same settings; else they are removed.

        ``facts`` is plain data for the record; the block may add to it.
        """
        places = {p: self._file(source, p) for p in products}
        with ExitStack() as stack:
            try:
                paths = {p: stack.enter_context(replacing(f)) for p, f in places.items()}
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise ValueError(f"{source.path}: its name is too long: shorten it") from None
            yield paths
        names = [self._name(file) for file in places.values()]
        record = {"name": source.name, "source": str(source.path), "modified": _modified(source)}
        earlier = self._earlier.get(source.name, {"files": []})
        others = [name for name in earlier["files"] if name not in names]
        is_finished = earlier is self._records.get(source.name)
        if is_finished and earlier.get("modified") == record["modified"]:
            names += others
        else:
            self._remove(others)
        record |= {**facts, "files": names}
        with self._lock, self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _file(self, source: Source, product: Product) -> Path:
        return self.path / product.folder / f"{source.name}{product.suffix}"

    def _may_replace(self, file: Path) -> bool:
        """Whether no link leads to the file's folder, and it is no input."""
        folder = self._root / file.parent.relative_to(self.path)
        return real_path(file.parent) == folder and file_identity(file) not in self._inputs

    def _name(self, file: Path) -> str:
        """What records call a file."""
        return file.relative_to(self.path).as_posix()

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files that a record names, in the folders that ``dpt predict`` wrote."""
        folders = tuple(f"{folder}/" for folder in self._settings["written"])
        for file in (self.path / name for name in names if name.startswith(folders)):
            if os.path.isfile(file) and self._may_replace(file):
                file.unlink()


def _modified(source: Source) -> list[int]:
    """Time in nanoseconds and size in bytes, which tell a replaced input from its predecessor;
    empty if the file is gone."""
    with suppress(OSError):  # reading it names the fault
        status = source.path.stat()
        return [status.st_mtime_ns, status.st_size]
    return []


def _check_settings(path: Path, wanted: Mapping[str, Any], *, overwrite: bool) -> set[str]:
    """The names of what ``dpt predict`` has written in the folder."""
    stored = read_settings(path.parent)
    if not stored:
        raise ValueError(f"{path}: was not written by dpt predict: choose another --out")
    determined = "checkpoint", "classes"  # by ``weights``
    changed = [k for k in wanted if k not in determined and stored.get(k) != wanted[k]]
    if changed and not overwrite:
        difference = f"{changed[0]}={stored.get(changed[0])}, and now it is {wanted[changed[0]]}"
        if changed[0] == "weights":
            difference = f"another checkpoint ({stored.get('checkpoint')})"
        raise DataError(
            f"{path.parent}: was written with {difference}: choose another --out, or give "
            "--overwrite to predict everything again"
        )
    return set(stored["written"])


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of the inputs that are finished, without lines that a crash cut short."""
    records, path = [], folder / RECORDS_FILE
    for line in read_bytes(path).splitlines() if path.is_file() else ():
        try:
            record = parse_json(line, path)
            texts = {k: str(record[k]) for k in ("name", "source")}
            records.append(record | texts | {"files": list(map(str, record["files"]))})
        except (ValueError, KeyError, TypeError):
            continue
    return records
