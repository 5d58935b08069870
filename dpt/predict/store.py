"""Where an output folder lies: which of its files may be replaced, and how they get there."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpt.files import file_identity, read_bytes, real_path
from dpt.predict.inputs import InputFile


class Store:
    """The files of an output folder on this machine; names are paths below it, with ``/``.

    Nothing is written or removed through links that lead out of a sub-folder, or in place of an
    input.

    Args:
        path: of the folder.
        inputs: all inputs, which are never replaced.
    """

    def __init__(self, path: Path, inputs: Iterable[InputFile]) -> None:
        self.path = path
        self._root = real_path(path)
        self._inputs = {file_identity(input_file.path) for input_file in inputs} - {None}

    def place(self, name: str = "") -> str:
        """Returns the path or address of a file, or of the folder."""
        return str(self.path / name)

    def check(self, records: Iterable[str]) -> None:
        """Raises ValueError if the place is no folder, or one of the records is a link."""
        if self.path.exists() and not self.path.is_dir():
            raise refusal(self.place(), "is a file, not a folder")
        for name in records:
            if (self.path / name).is_symlink():
                raise refusal(self.place(name), "is a link")

    def refresh(self) -> None:
        """Looks again for what other processes wrote."""

    def is_occupied(self, name: str) -> bool:
        """Whether there is such a file, or a sub-folder that is not empty."""
        path = self.path / name
        return any(path.iterdir()) if path.is_dir() else os.path.lexists(path)

    def is_file(self, name: str) -> bool:
        """Whether there is such a file."""
        return os.path.isfile(self.path / name)

    def may_replace(self, name: str) -> bool:
        """Whether no link leads to the file's folder, and the file is no input."""
        parent = (self.path / name).parent
        is_inside = real_path(parent) == self._root / parent.relative_to(self.path)
        return is_inside and file_identity(self.path / name) not in self._inputs

    def publish(self, name: str) -> None:
        """Brings a file that is complete below ``path`` to its place."""

    def append(self, name: str, line: str) -> None:
        """Adds a line to a journal."""
        with (self.path / name).open("a", encoding="utf-8") as journal:
            journal.write(line)

    def close(self) -> None:
        """Brings the last lines of a journal to their place."""

    def read(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yields the contents of files."""
        return (read_bytes(self.path / name) for name in names)

    def remove(self, name: str) -> None:
        """Removes a file."""
        (self.path / name).unlink(missing_ok=True)


def refusal(place: str, fault: str) -> ValueError:
    """Returns the error for a place that must not be written to."""
    return ValueError(f"{place}: {fault}: choose another --out")
