"""The output folder: its settings, which inputs are finished, and writing of their files.

``predictions.json`` holds the settings of all files. ``predictions.jsonl`` gets a line for each
finished input, after its files: a killed run leaves at worst files without a line, which the next
run writes again.
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
from dpt.predict.outputs import Product

SETTINGS_FILE = "predictions.json"
RECORDS_FILE = "predictions.jsonl"
_NO_MORE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
"""Errors after which other files cannot be written either."""


class CannotWriteError(ValueError):
    """No more files can be written to the output folder: the run ends."""


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        path: the folder; created if it does not exist.
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
        settings: Mapping[str, Any],
        folders: Iterable[str],
        overwrite: bool = False,
    ) -> None:
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"--out {path}: is a file, not a folder: choose another --out")
        wanted = json.loads(json.dumps(settings))  # as it will be read back
        self._records: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._journal = path / RECORDS_FILE
        known = path / SETTINGS_FILE
        if overwrite:
            self._journal.unlink(missing_ok=True)
        elif known.is_file():
            _check_settings(known, wanted)
            self._records = _read_records(self._journal)
        else:  # files that would be overwritten, such as a data set's labels
            for taken in (path / name for name in folders):
                if taken.is_dir() and any(taken.iterdir()):
                    raise ValueError(
                        f"{taken}: exists and was not written by dpt predict (there is no "
                        f"{SETTINGS_FILE}): choose another --out, or give --overwrite"
                    )
        with self._disk_errors():
            write_bytes(known, (json.dumps(wanted, indent=2) + "\n").encode())

    def is_done(self, source: Source, products: Sequence[Product]) -> bool:
        """Whether all files of an input exist.

        Raises:
            ValueError: they exist, but were made from another file of the same name.
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
        """Temporary paths for an input's files, which get their names at the end of the block.

        ``facts`` is plain data for the record; the block may add to it.

        Raises:
            CannotWriteError: the disk is full, or the like.
            OSError: another reason, which concerns this file only.
        """
        with self._disk_errors():
            places = {p: self._file(source, p) for p in products}
            with ExitStack() as stack:
                yield {p: stack.enter_context(replacing(f)) for p, f in places.items()}
            names = [file.relative_to(self.path).as_posix() for file in places.values()]
            record = {"name": source.name, "source": str(source.path), **facts, "files": names}
            with self._lock, self._journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _file(self, source: Source, product: Product) -> Path:
        return self.path / product.folder / f"{source.name}{product.suffix}"

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """Raises errors that concern the whole folder as :class:`CannotWriteError`."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_MORE:
                raise
            raise CannotWriteError(
                f"{self.path}: cannot be written ({error.strerror}): make room or choose another "
                "--out; finished files stay, and the same command continues from there"
            ) from error


def _check_settings(path: Path, wanted: Mapping[str, Any]) -> None:
    try:
        found = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise ValueError(f"{path}: not a settings file of dpt predict: give --overwrite") from None
    for key in dict.fromkeys(("weights", *wanted, *found)):
        if key != "checkpoint" and found.get(key) != wanted.get(key):  # its name may change
            if key == "weights":
                what = f"with another checkpoint ({found.get('checkpoint')})"
            else:
                what = f"with {key}={found.get(key)}, and now it is {wanted.get(key)}"
            raise ValueError(
                f"{path.parent}: was written {what}: choose another --out, or give --overwrite to "
                "predict everything again"
            )


def _read_records(path: Path) -> dict[str, dict[str, Any]]:
    """The records of complete lines; an incomplete last line, left by a crash, is removed."""
    if not path.is_file():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        write_bytes(path, whole)
    records = {}
    for line in whole.splitlines():
        try:
            record = json.loads(line)
            records[record["name"]] = {"source": record["source"]}
        except (ValueError, KeyError, TypeError):  # damaged: the input is predicted again
            continue
    return records
