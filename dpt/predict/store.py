"""Which files of an output folder may be replaced."""

import os
from collections.abc import Iterable
from pathlib import Path

from dpt.files import file_identity, real_path
from dpt.predict.inputs import InputFile


class Store:
    """The files of an output folder; names are paths below it, with ``/``.

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
        """Returns the path of a file, or of the folder."""
        return str(self.path / name)

    def check(self, records: Iterable[str]) -> None:
        """Raises ValueError if the place is no folder, or one of the records is a link."""
        if self.path.exists() and not self.path.is_dir():
            raise refusal(self.place(), "is a file, not a folder")
        for name in records:
            if (self.path / name).is_symlink():
                raise refusal(self.place(name), "is a link")

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

    def remove(self, name: str) -> None:
        """Removes a file."""
        (self.path / name).unlink(missing_ok=True)


def refusal(place: str, fault: str) -> ValueError:
    """Returns the error for a place that must not be written to."""
    return ValueError(f"{place}: {fault}: choose another --out")
