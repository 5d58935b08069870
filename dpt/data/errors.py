"""Errors in the data: one line that names the file and the remedy."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpt.files import printable


class DataError(ValueError):
    """A mistake in the data or in its configuration: one line with the file and the remedy.

    A DataLoader re-raises a worker's exception as ``type(error)("Caught ... Original Traceback
    ...")``; the message is cut back to the original one.
    """

    def __init__(self, message: str) -> None:
        if message.startswith(f"Caught {type(self).__name__} in ") and "Traceback" in message:
            own_name = f"{type(self).__module__}.{type(self).__qualname__}: "
            message = message.rpartition(own_name)[2].strip()
        super().__init__(printable(message))


def data_root(root: str | Path) -> Path:
    """The folder of a data set; DataError if it does not exist."""
    path = Path(root).expanduser()
    if not path.is_dir():
        raise missing_path(path, what="folder", remedy="check data.root")
    return path


def missing_path(path: Path, *, what: str, remedy: str) -> DataError:
    """The error for a path that does not exist; it lists similar names that do."""
    if path.is_symlink():
        return DataError(f"{what} {path} is a link to {path.readlink()}, which is not there")
    parent = path
    while not parent.is_dir() and parent != parent.parent:
        wanted, parent = parent.name, parent.parent
    if parent == path:
        return DataError(f"{what} {path} is a folder: {remedy}")
    names = sorted(p.name for p in parent.iterdir() if not p.name.startswith("."))
    close = difflib.get_close_matches(wanted, names, n=5, cutoff=0.5)
    found = few([*close, *(name for name in names if name not in close)], 10) or "nothing"
    return DataError(f"{what} {path} does not exist; {parent} holds {found}: {remedy}")


def require(name: str, purpose: str, *, extra: str) -> Any:
    """The optional package ``name``; DataError names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        install = f"pip install 'dense-prediction-transformers[{extra}]'"
        raise DataError(f"{purpose} needs {name}: {install}") from None


def few(names: Sequence[str], count: int = 3) -> str:
    """The first ``count`` names, for a message."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")
