"""The output folder: what it was made with, what in it is finished, and how files come into it.

``predictions.json`` says once how all files were made. ``predictions.jsonl`` gets a line for each
finished input, after its files: a killed run leaves at worst files without a line, which the next
one writes again.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dpt.atomic import replacing, write_bytes
from dpt.predict.inputs import Source
from dpt.predict.outputs import FOLDERS, Product

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""Errors after which no other file can be written either."""


class CannotWriteError(ValueError):
    """The output folder takes no more files: the run ends."""


class OutputFolder:
    """A folder of predictions, all made alike.

    Args:
        path: the folder; made if it is not there.
        settings: plain data that decides what the files hold; a folder that was written with other
            settings is refused.
        overwrite: forget what is finished, and the settings it was made with.

    Raises:
        ValueError: it was written with other settings, or holds files of somebody else's.
    """

    def __init__(
        self, path: str | Path, *, settings: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out {path}: is a file: name a folder")
        wanted = json.loads(json.dumps(settings))  # as it will be read back
        self._records: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._journal = self.path / RECORDS_FILE
        known = self.path / SETTINGS_FILE
        if overwrite:
            self._journal.unlink(missing_ok=True)
        elif known.is_file():
            _check_settings(known, wanted)
            self._records = _read_records(self._journal)
        else:
            self._refuse_strangers()
        with self._told_apart():
            write_bytes(known, (json.dumps(wanted, indent=2) + "\n").encode())

    def is_done(self, source: Source, products: Sequence[Product]) -> bool:
        """Whether all of its files are there.

        Raises:
            ValueError: they are there, but were made from another file of that name.
        """
        record = self._records.get(source.name)
        if record is None or not all(self._file(source, p).is_file() for p in products):
            return False
        if record["source"] != str(source.path):
            raise ValueError(
                f"{self.path}: {source.name} was predicted from {record['source']}, not from "
                f"{source.path}: choose another --out, or give --overwrite"
            )
        return True

    @contextmanager
    def files(
        self, source: Source, products: Sequence[Product], facts: Mapping[str, Any]
    ) -> Iterator[dict[Product, Path]]:
        """Paths to write an input's files to; at the end of the block all take their places.

        Args:
            source: the input.
            products: the kinds of file.
            facts: plain data for the record; what the block adds is kept.

        Raises:
            CannotWriteError: the disk is full, or the like.
            OSError: another reason, of this file alone.
        """
        with self._told_apart():
            places = {p: self._file(source, p) for p in products}
            with ExitStack() as stack:
                yield {p: stack.enter_context(self._replacing(f)) for p, f in places.items()}
            names = [file.relative_to(self.path).as_posix() for file in places.values()]
            record = {"name": source.name, "source": str(source.path), **facts, "files": names}
            with self._lock, self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _file(self, source: Source, product: Product) -> Path:
        return self.path / product.folder / f"{source.name}{product.suffix}"

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[Path]:
        """Also sees to it that no link among the folders leads elsewhere."""
        there = path.parent
        while not there.exists():
            there = there.parent
        if not there.resolve().is_relative_to(self.path.resolve()):
            raise ValueError(f"{path}: leads out of {self.path} by a link: remove the link")
        with replacing(path) as temporary:
            yield temporary

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Errors that end the run get a name and a line of their own."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_MORE:
                raise
            raise CannotWriteError(
                f"{self.path}: cannot be written to ({error.strerror}): make room or choose "
                "another --out; what is finished stays, and the same command goes on from there"
            ) from error

    def _refuse_strangers(self) -> None:
        """Files in the way that no earlier run has written, the truth of a data set perhaps."""
        for folder in FOLDERS:
            taken = self.path / folder
            if taken.is_dir() and any(taken.iterdir()):
                raise ValueError(
                    f"{taken}: is there already and was not written by dpt predict (there is no "
                    f"{SETTINGS_FILE}): choose another --out, or give --overwrite"
                )


def _check_settings(path: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(found, dict)
    except (ValueError, AssertionError):
        raise ValueError(f"{path}: not a settings file of dpt predict: give --overwrite") from None
    for key in dict.fromkeys(("weights", *wanted, *found)):
        if key != "checkpoint" and found.get(key) != wanted.get(key):  # its name may change
            if key == "weights":
                what = f"with another checkpoint ({found.get('checkpoint')})"
            else:
                what = f"with {key}={found.get(key)}, and now it is {wanted.get(key)}"
            raise ValueError(
                f"{path.parent}: was written {what}: choose another --out, or give --overwrite to "
                "predict everything anew"
            )


def _read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Whole lines; a last one that a crash has cut short is taken off the file."""
    if not path.is_file():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        write_bytes(path, whole)
    return {r["name"]: r for r in map(_record, _lines(whole)) if r}


def _lines(data: bytes) -> Iterable[str]:
    return data.decode("utf-8", "replace").splitlines()


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"name", "source"} <= set(record) else None
