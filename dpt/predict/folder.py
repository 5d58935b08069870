"""The output folder: which inputs are finished, and writing of their files.

Files are replaced only in sub-folders that were empty at first, whose names predictions.json keeps.
The journal of a shard, of which an undivided run is one, gets a line for each finished input after
its files are written; predictions.jsonl joins the journals. A killed run may leave files without a
line; the next run writes them again.

A file is written or removed only if the sub-folder has a name of
:func:`dpt.predict.records.written_folders`, the file is no input, and no link leads out of the
sub-folder.
"""

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dpt.files import DataError, file_identity, locked, real_path, replacing, write_bytes
from dpt.predict import records
from dpt.predict.sources import InputFile
from dpt.predict.writers import FileKind
from dpt.validation import PlainMapping


class OutputFolder:
    """A folder of predictions, all made with the same settings.

    Args:
        path: of the folder.
        inputs: all inputs, which are never replaced.
        settings: what determines the files' contents.
        folders: names of the sub-folders that can be written.
        overwrite: predict finished inputs again, whatever the earlier settings.
        shard: the inputs that this process predicts, by default all.

    Raises:
        ValueError: the folder holds something else where files would be written, or predictions
            with other settings, without ``overwrite``.
    """

    def __init__(
        self,
        path: Path,
        *,
        inputs: Iterable[InputFile],
        settings: records.PredictionSettings,
        folders: Iterable[str],
        overwrite: bool = False,
        shard: records.InputShard = records.WHOLE,
    ) -> None:
        self.path, self.shard = path, shard
        self._root = real_path(path)
        self._all_inputs = [*inputs]
        identities = {file_identity(input_file.path) for input_file in self._all_inputs}
        self._inputs = identities - {None}
        self._journal = path / shard.journal
        self._lock = threading.Lock()
        links = (records.SETTINGS_FILE, records.JOURNALS, records.RECORDS_FILE, shard.journal)
        names = {*folders, records.RECORDS_FILE}
        # before the settings, which another worker writes before its first file
        occupied = [path / name for name in sorted(names) if _is_occupied(path / name)]
        written = self._written_before(settings, overwrite=overwrite)
        faults = {path: "is a file, not a folder"} if path.exists() and not path.is_dir() else {}
        faults |= {path / name: "is a link" for name in links if (path / name).is_symlink()}
        for other in (other for other in occupied if other.name not in written):
            faults[other] = "exists and was not written by dpt predict"  # e.g. a data set's labels
        if faults:
            raise _refusal(*next(iter(faults.items())))
        self._settings = replace(settings, written=tuple(sorted(written | names)))
        self._overwrite = overwrite
        self._earlier: dict[str, records.InputRecord] = {}
        self._records: dict[str, records.InputRecord] = {}  # of the inputs that are finished

    def _written_before(self, settings: records.PredictionSettings, *, overwrite: bool) -> set[str]:
        """Returns the names of what ``dpt predict`` has written in the folder."""
        if not os.path.lexists(self.path / records.SETTINGS_FILE):
            return set()
        earlier = records.PredictionSettings.read(self.path)
        if earlier is None:
            raise _refusal(self.path / records.SETTINGS_FILE, "was not written by dpt predict")
        difference = settings.difference(earlier)
        if difference and not overwrite:
            remedy = "choose another --out, or give --overwrite to predict everything again"
            raise DataError(f"{self.path}: was written with {difference}: {remedy}")
        return {*earlier.written}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from the inputs of this one, and reads what is finished."""
        others = [s for s in records.shards_of(self.path) if s.count != self.shard.count]
        with ExitStack() as stack:
            for shard in (*others, self.shard):
                fault = f"another process predicts shard {shard}"
                lock = stack.enter_context(locked(self.path / shard.lock, fault=fault, seconds=0))
                if shard != self.shard:
                    lock.release()
            if os.path.lexists(self.path / records.SETTINGS_FILE):
                self._earlier = records.InputRecord.read_all(self.path)
                self._records = {} if self._overwrite else self._earlier
            yield

    def start(self) -> None:
        """Writes the settings, and the journal with the inputs that are finished."""
        if self._overwrite:  # the records may be those of other settings
            for path in records.record_files(self.path):
                path.unlink()
        path, content = self.path / records.SETTINGS_FILE, self._settings.to_json()
        if not path.is_file() or path.read_bytes() != content:
            write_bytes(path, content, writer=f"{self.shard.file_name}.")
        journal = records.InputRecord.read_journal(self._journal)
        _write_records(self._journal, (r for r in journal if r == self._records.get(r.name)))

    def is_done(
        self,
        input_file: InputFile,
        kinds: Sequence[FileKind],
        sequences: Sequence[FileKind] = (),
    ) -> bool:
        """Whether all files of an input, and of each frame of it, were written since it changed,
        and exist."""
        record = self._records.get(input_file.name)
        names = [kind.path(input_file) for kind in kinds]
        names += self._frame_names(input_file, sequences, record.files if record else [])
        for name in names:
            if not self._may_replace(name):
                raise _refusal(self.path / name, "is an input, or in a folder that is a link")
        if record is None or not all(os.path.isfile(self.path / name) for name in names):
            return False
        if record.source != input_file.source:
            fault = f"{input_file.name} was predicted from {record.source}, not {input_file.source}"
            raise DataError(f"{self.path}: {fault}: choose another --out, or give --overwrite")
        return {*names} <= {*record.files} and record.modified == input_file.modified()

    def _frame_names(
        self, input_file: InputFile, sequences: Sequence[FileKind], files: Sequence[str]
    ) -> list[str]:
        """Returns those of an input's ``files`` that are frames; the first one if there is none."""
        names = []
        for kind in sequences:
            if any(other.name.startswith(f"{input_file.name}/") for other in self._all_inputs):
                fault = f"{input_file.source}: its frames would be among files of other inputs"
                raise DataError(f"{fault}: predict it into another --out")
            folder = kind.frames(input_file)
            names += [n for n in files if n.startswith(folder)] or [f"{folder}000000{kind.suffix}"]
        return names

    def _may_replace(self, name: str) -> bool:
        """Whether no link leads to the file's folder, and the file is no input."""
        parent = (self.path / name).parent
        is_inside = real_path(parent) == self._root / parent.relative_to(self.path)
        return is_inside and file_identity(self.path / name) not in self._inputs

    @contextmanager
    def files(
        self,
        input_file: InputFile,
        kinds: Sequence[FileKind],
        facts: PlainMapping,
        frames: Sequence[str] = (),
    ) -> Iterator[dict[FileKind, Path]]:
        """Yields temporary paths for an input's files, which get their names after the block.

        Earlier files of other kinds stay if they show the same image and were made with the same
        settings. All others are removed.

        ``facts`` is for the record, and so are the names of ``frames``; the block may add to both.
        """
        names = [kind.path(input_file) for kind in kinds]
        with ExitStack() as stack:
            try:
                paths = [stack.enter_context(replacing(self.path / name)) for name in names]
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                raise ValueError(f"{input_file.path}: its name is too long: shorten it") from None
            yield dict(zip(kinds, paths, strict=True))
        names += frames
        state = input_file.modified()
        if earlier := self._earlier.get(input_file.name):
            remaining = [name for name in earlier.files if name not in names]
            if earlier is self._records.get(input_file.name) and earlier.modified == state:
                names += remaining
            else:
                self._remove(remaining)
        self._add(records.InputRecord(input_file.name, input_file.source, state, facts, names))

    def write_frame(self, name: str, content: bytes) -> None:
        """Writes the file of one frame, ``name`` below the folder."""
        if not self._may_replace(name):
            raise _refusal(self.path / name, "is an input, or in a folder that is a link")
        write_bytes(self.path / name, content)

    def _add(self, record: records.InputRecord) -> None:
        with self._lock, self._journal.open("a", encoding="utf-8") as journal:
            journal.write(record.to_json())

    def add_failure(self, input_file: InputFile, error: ValueError) -> None:
        """Records why an input has no files, so that the others can be merged."""
        name, state = input_file.name, input_file.modified()
        self._add(records.InputRecord(name, input_file.source, state, {}, [], str(error)))

    def failures(self, inputs: Iterable[InputFile]) -> dict[InputFile, ValueError]:
        """Returns the error of each of the inputs that failed in a shard."""
        errors = records.InputRecord.read_all(self.path, failed=True)
        return {
            file: ValueError(errors[file.name].error)
            for file in inputs
            if file.name in errors and errors[file.name].modified == file.modified()
        }

    def finish(self) -> None:
        """Joins the journals, and writes the records in the order of their names."""
        finished = sorted(records.InputRecord.read_all(self.path).items())
        _write_records(self.path / records.RECORDS_FILE, (record for _, record in finished))
        for shard in records.shards_of(self.path):
            for name in (shard.journal, shard.lock):
                (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # of others that hold something else
            (self.path / records.JOURNALS).rmdir()

    def _remove(self, names: Iterable[str]) -> None:
        """Removes files that a record names, in the sub-folders that ``dpt predict`` wrote."""
        folders = tuple(f"{folder}/" for folder in self._settings.written)
        for name in names:
            path = self.path / name
            if name.startswith(folders) and os.path.isfile(path) and self._may_replace(name):
                path.unlink()


def _write_records(path: Path, finished: Iterable[records.InputRecord]) -> None:
    write_bytes(path, "".join(record.to_json() for record in finished).encode())


def _is_occupied(path: Path) -> bool:
    """Whether there is such a file, or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)


def _refusal(place: Path, fault: str) -> ValueError:
    """Returns the error for a place that must not be written to."""
    return ValueError(f"{place}: {fault}: choose another --out")
