"""Output folders at addresses of fsspec, such as ``s3://bucket/depth``."""

import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from dpt.files import MAX_BYTES, reason
from dpt.predict.inputs import InputFile
from dpt.predict.records import JOURNALS, MAX_SETTINGS, RECORDS_FILE, SETTINGS_FILE
from dpt.predict.remote import RemoteFolder, temporary_folder
from dpt.predict.store import Store, refusal

PAUSE = 20.0
"""Seconds after which a journal that has grown is put to its address again."""
READERS = 16
"""Files that are read at the same time."""
_RECORDS = re.compile(
    rf"{re.escape(SETTINGS_FILE)}|{re.escape(RECORDS_FILE)}|{JOURNALS}/[\w-]+\.jsonl"
)


class RemoteStore(Store):
    """The files of an output folder at an address.

    ``path`` is a temporary folder on this machine with a copy of the records. Other files are in it
    until they are put to their address.

    Raises:
        DataError: the address cannot be listed.
    """

    def __init__(self, address: str, inputs: Iterable[InputFile]) -> None:
        super().__init__(temporary_folder(), ())
        self._folder = RemoteFolder(address)
        self._sources = {input_file.source for input_file in inputs}
        self._names: set[str] = set()  # of all files at the address
        self._occupied: set[str] = set()  # names of files and sub-folders when it was listed
        self._grown = ""  # the journal with lines that are not at the address yet
        self._due = time.monotonic() + PAUSE
        self.refresh()

    def place(self, name: str = "") -> str:
        return self._folder.address_of(self._path_of(name)) if name else self._folder.address

    def _path_of(self, name: str) -> str:
        return f"{self._folder.root}/{name}"

    def check(self, records: Iterable[str]) -> None:
        if "" in self._names:
            raise refusal(self.place(), "is a file, not a folder")

    def refresh(self) -> None:
        length = len(self._folder.root)
        self._names = {path[length:].lstrip("/") for path in self._folder.files()}
        self._occupied = {name.partition("/")[0] for name in self._names}
        shutil.rmtree(self.path)
        (self.path / JOURNALS).mkdir(parents=True)
        records = sorted(filter(_RECORDS.fullmatch, self._names))
        for name, content in zip(records, self.read(records), strict=True):
            (self.path / name).write_bytes(content)

    def is_occupied(self, name: str) -> bool:
        return name in self._occupied

    def is_file(self, name: str) -> bool:
        return name in self._names

    def may_replace(self, name: str) -> bool:
        return super().may_replace(name) and self.place(name) not in self._sources

    def publish(self, name: str) -> None:
        with self._writing(name):
            self._folder.system.put_file(str(self.path / name), self._path_of(name))
        self._names.add(name)
        if name == self._grown:
            self._grown = ""
        if not _RECORDS.fullmatch(name):
            super().remove(name)

    def append(self, name: str, line: str) -> None:
        super().append(name, line)
        self._grown = name
        if time.monotonic() >= self._due:
            self.close()

    def close(self) -> None:
        if self._grown:
            start = time.monotonic()
            self.publish(self._grown)
            end = time.monotonic()
            self._due = end + max(PAUSE, 10 * (end - start))  # long journals take long

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        with ThreadPoolExecutor(READERS) as pool:
            yield from pool.map(self._content, names)

    def _content(self, name: str) -> bytes:
        limit = MAX_SETTINGS if name == SETTINGS_FILE else MAX_BYTES
        return self._folder.read(self._path_of(name), limit=limit)

    def remove(self, name: str) -> None:
        super().remove(name)
        if name in self._names:
            with self._writing(name), suppress(FileNotFoundError):
                self._folder.system.rm_file(self._path_of(name))
            self._names.discard(name)

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # every file system has its own exceptions
            raise OSError(f"{self.place(name)}: {reason(error)}") from error


def open_store(out: str, inputs: Iterable[InputFile]) -> Store:
    """Returns the output folder at a path or an address."""
    return RemoteStore(out, inputs) if "://" in out else Store(Path(out), inputs)
