"""The output folder: which inputs are finished, and writing of their files.

Files are replaced only in sub-folders that were empty at first, whose names predictions.json keeps.
predictions.jsonl, or the journal of a shard, gets a line for each finished input after its files
are written. A killed run may leave files without a line; the next run writes them again.

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
from dpt.predict.records import (
    JOURNALS,
    RECORDS_FILE,
    SETTINGS_FILE,
    InputRecord,
    PredictionSettings,
)
from dpt.predict.shards import Shard, held, shards_of
from dpt.validation import PlainMapping


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        inputs: all inputs, which are never replaced.
        settings: what determines the files' contents.
        folders: names of the sub-folders that can be written.
        overwrite: predict finished inputs again, whatever the earlier settings.
        shard: the part of the inputs that this process predicts, beside others; None: all.
    """

    def __init__(
        self,
        path: Path,
        *,
        inputs: Iterable[InputFile],
        settings: PredictionSettings,
        folders: Iterable[str],
        overwrite: bool = False,
        shard: Shard | None = None,
    ) -> None:
        self.path, self.shard = path, shard
        own = RECORDS_FILE if shard is None else f"{JOURNALS}/{shard.file_name}.jsonl"
        self._journal = path / own
        self._lock = threading.Lock()
        if path.exists() and not path.is_dir():
            raise _refusal(path, "is a file, not a folder")
        for file in (path / SETTINGS_FILE, path / JOURNALS, path / RECORDS_FILE, self._journal):
            if file.is_symlink():
                raise _refusal(file, "is a link")
        names = {*folders, RECORDS_FILE}
        # before the settings, which another worker writes before its first file
        occupied = [name for name in sorted(names) if _is_occupied(path / name)]
        is_new = not os.path.lexists(path / SETTINGS_FILE)
        written = set() if is_new else _written_before(path, settings, overwrite=overwrite)
        for name in occupied:
            if name not in written:  # e.g. a data set's labels
                raise _refusal(path / name, "exists and was not written by dpt predict")
        self._settings = replace(settings, written=tuple(sorted(written | names)))
        self._overwrite = overwrite
        self._earlier: dict[str, InputRecord] = {}
        self._records: dict[str, InputRecord] = {}  # of the inputs that are finished
        self._root = real_path(path)
        self._inputs = {file_identity(input_file.path) for input_file in inputs} - {None}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from the inputs of this one, and reads what is finished."""
        with held(self.path, self.shard):
            if os.path.lexists(self.path / SETTINGS_FILE):
                self._earlier = InputRecord.read_all(self.path)
                self._records = {} if self._overwrite else self._earlier
            yield

    def start(self) -> None:
        """Writes the settings, and the records of the inputs that are finished."""
        writer = "" if self.shard is None else f"{self.shard.file_name}."
        path, content = self.path / SETTINGS_FILE, self._settings.to_json()
        if self.shard is None or not path.is_file() or path.read_bytes() != content:
            write_bytes(path, content, writer=writer)
        records: Iterable[InputRecord] = self._records.values()
        if self.shard is not None:
            latest = {record.name: record for record in InputRecord.read_journal(self._journal)}
            records = [record for record in latest.values() if record.error is None]
        self._rewrite_journal(records)

    def _rewrite_journal(self, records: Iterable[InputRecord]) -> None:
        content = "".join(record.to_json() for record in records)
        write_bytes(self._journal, content.encode())

    def is_done(self, input_file: InputFile, products: Sequence[Product]) -> bool:
        """Whether all files of an input were written since it changed, and exist."""
        files = [self._file(input_file, product) for product in products]
        for file in files:
            if not self._may_replace(file):
                raise _refusal(file, "is an input, or in a folder that is a link")
        record = self._records.get(input_file.name)
        if record is None or not all(file.is_file() for file in files):
            return False
        if record.source != input_file.source:
            raise DataError(
                f"{self.path}: {input_file.name} was predicted from {record.source}, not from "
                f"{input_file.source}: choose another --out, or give --overwrite"
            )
        is_listed = {self._name(file) for file in files} <= {*record.files}
        return is_listed and record.modified == input_file.modified()

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
        state = input_file.modified()
        if earlier := self._earlier.get(input_file.name):
            remaining = [name for name in earlier.files if name not in names]
            if earlier is self._records.get(input_file.name) and earlier.modified == state:
                names += remaining
            else:
                self._remove(remaining)
        self._add(InputRecord(input_file.name, input_file.source, state, facts, names))

    def _add(self, record: InputRecord) -> None:
        with self._lock, self._journal.open("a", encoding="utf-8") as journal:
            journal.write(record.to_json())

    def add_failure(self, input_file: InputFile, error: ValueError) -> None:
        """Records why an input of a shard has no files, so that the others can be merged."""
        if self.shard is not None:
            state = input_file.modified()
            source = input_file.source
            self._add(InputRecord(input_file.name, source, state, {}, [], str(error)))

    def failures(self, inputs: Iterable[InputFile]) -> dict[InputFile, ValueError]:
        """Returns the error of each of the inputs that failed in a shard."""
        journals = [
            self.path / JOURNALS / f"{shard.file_name}.jsonl" for shard in shards_of(self.path)
        ]
        records = [record for path in journals for record in InputRecord.read_journal(path)]
        errors = {record.name: record for record in records if record.error is not None}
        return {
            file: ValueError(errors[file.name].error)
            for file in inputs
            if file.name in errors and errors[file.name].modified == file.modified()
        }

    def finish(self, products: Sequence[Product]) -> None:
        """Writes the records in the order of their names, and the files for all finished inputs.

        The journals of shards are joined and removed.
        """
        records = sorted(InputRecord.read_all(self.path).items())
        self._rewrite_journal(record for _, record in records)
        for shard in shards_of(self.path):
            for suffix in (".jsonl", ".lock"):
                (self.path / JOURNALS / f"{shard.file_name}{suffix}").unlink(missing_ok=True)
        with suppress(OSError):  # of others that hold something else
            (self.path / JOURNALS).rmdir()
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


def _is_occupied(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)


def _refusal(path: Path, fault: str) -> ValueError:
    return ValueError(f"{path}: {fault}: choose another --out")


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
