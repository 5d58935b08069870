"""The output folder: which inputs are finished, and writing of their files.

Files are replaced only in sub-folders that were empty at first, whose names predictions.json keeps.
predictions.jsonl gets a line for each finished input after its files are written. A killed run may
leave files without a line; the next run writes them again.

A file is written or removed only if its real path is below such a sub-folder, the sub-folder has a
name of :func:`dpt.predict.records.product_folders`, and the file is no input.
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dpt.atomic import replacing, write_bytes
from dpt.files import DataError, file_identity, real_path
from dpt.predict.inputs import InputFile
from dpt.predict.product import Product
from dpt.predict.records import RECORDS_FILE, SETTINGS_FILE, InputRecord, PredictionSettings
from dpt.validation import PlainMapping


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        inputs: all inputs, which are never replaced.
        settings: what determines the files' contents.
        folders: names of the sub-folders that can be written.
        overwrite: predict finished inputs again, whatever the earlier settings.
    """

    def __init__(
        self,
        path: Path,
        *,
        inputs: Iterable[InputFile],
        settings: PredictionSettings,
        folders: Iterable[str],
        overwrite: bool = False,
    ) -> None:
        self.path = path
        self._journal = path / RECORDS_FILE
        self._lock = threading.Lock()
        if path.exists() and not path.is_dir():
            raise _refusal(path, "is a file, not a folder")
        for file in (path / SETTINGS_FILE, self._journal):
            if file.is_symlink():
                raise _refusal(file, "is a link")
        self._earlier: dict[str, InputRecord] = {}
        written: set[str] = set()
        if os.path.lexists(path / SETTINGS_FILE):
            written = _written_before(path, settings, overwrite=overwrite)
            self._earlier = InputRecord.read_all(path)
        self._records = {} if overwrite else self._earlier  # of the inputs that are finished
        names = {*folders, RECORDS_FILE}
        for file in (path / name for name in sorted(names - written)):  # e.g. a data set's labels
            if any(file.iterdir()) if file.is_dir() else os.path.lexists(file):
                raise _refusal(file, "exists and was not written by dpt predict")
        self._settings = replace(settings, written=tuple(sorted(written | names)))
        self._root = real_path(path)
        self._inputs = {file_identity(input_file.path) for input_file in inputs} - {None}

    def start(self) -> None:
        """Writes the settings, and the records of the inputs that are finished."""
        write_bytes(self.path / SETTINGS_FILE, self._settings.to_json())
        lines = [record.to_json() for record in self._records.values()]
        write_bytes(self._journal, "".join(lines).encode())

    def is_done(self, input_file: InputFile, products: Sequence[Product]) -> bool:
        """Whether all files of an input were written since it changed, and exist."""
        files = [self._file(input_file, product) for product in products]
        for file in files:
            if not self._may_replace(file):
                raise _refusal(file, "is an input, or in a folder that is a link")
        record = self._records.get(input_file.name)
        if record is None or not all(file.is_file() for file in files):
            return False
        if record.source != str(input_file.path):
            raise DataError(
                f"{self.path}: {input_file.name} was predicted from {record.source}, not from "
                f"{input_file.path}: choose another --out, or give --overwrite"
            )
        is_listed = {self._name(file) for file in files} <= {*record.files}
        return is_listed and record.modified == modified(input_file.path)

    @contextmanager
    def files(
        self, input_file: InputFile, products: Sequence[Product], facts: PlainMapping
    ) -> Iterator[dict[Product, Path]]:
        """Yields temporary paths for an input's files, which get their names after the block.

        Earlier files of other products stay if they show the same image and were made with the same
        settings. All others are removed.

        ``facts`` is for the record; the block may add to it.
        """
        files = {product: self._file(input_file, product) for product in products}
        with ExitStack() as stack:
            try:
                paths = {p: stack.enter_context(replacing(file)) for p, file in files.items()}
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise ValueError(f"{input_file.path}: its name is too long: shorten it") from None
            yield paths
        names = [self._name(file) for file in files.values()]
        state = modified(input_file.path)
        if earlier := self._earlier.get(input_file.name):
            remaining = [name for name in earlier.files if name not in names]
            if earlier is self._records.get(input_file.name) and earlier.modified == state:
                names += remaining
            else:
                self._remove(remaining)
        record = InputRecord(input_file.name, str(input_file.path), state, facts, names)
        with self._lock, self._journal.open("a", encoding="utf-8") as journal:
            journal.write(record.to_json())

    def write_common_files(self, products: Sequence[Product]) -> None:
        """Writes the files for all inputs that are finished."""
        records = sorted(InputRecord.read_all(self.path).items())
        for product in products:
            names = [
                name
                for name, record in records
                if product.path(InputFile(Path(record.source), name)) in record.files
            ]
            for name, content in product.common_files(self.path, names).items():
                if not self._may_replace(self.path / name):
                    raise _refusal(self.path / name, "is an input, or in a folder that is a link")
                write_bytes(self.path / name, content)

    def _file(self, input_file: InputFile, product: Product) -> Path:
        return self.path / product.path(input_file)

    def _may_replace(self, file: Path) -> bool:
        """Whether no link leads to the file's folder, and the file is no input."""
        folder = self._root / file.parent.relative_to(self.path)
        return real_path(file.parent) == folder and file_identity(file) not in self._inputs

    def _name(self, file: Path) -> str:
        """Returns the name of a file in records."""
        return file.relative_to(self.path).as_posix()

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files that a record names, in the sub-folders that ``dpt predict`` wrote."""
        folders = tuple(f"{folder}/" for folder in self._settings.written)
        for file in (self.path / name for name in names if name.startswith(folders)):
            if os.path.isfile(file) and self._may_replace(file):
                file.unlink()


def _refusal(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path}: {fault}: choose another --out")


def modified(path: Path) -> list[int]:
    """Returns time in nanoseconds and size in bytes, which tell a replaced file from the file
    before it; empty if the file is gone."""
    with suppress(OSError):  # reading it names the fault
        status = path.stat()
        return [status.st_mtime_ns, status.st_size]
    return []


def _written_before(path: Path, settings: PredictionSettings, *, overwrite: bool) -> set[str]:
    """Returns the names of what ``dpt predict`` has written in the folder.

    Raises:
        ValueError: something else wrote the folder, or the settings differ without ``overwrite``.
    """
    earlier = PredictionSettings.read(path)
    if earlier is None:
        raise _refusal(path / SETTINGS_FILE, "was not written by dpt predict")
    difference = settings.difference(earlier)
    if difference and not overwrite:
        raise DataError(
            f"{path}: was written with {difference}: choose another --out, or give "
            "--overwrite to predict everything again"
        )
    return {*earlier.written}
