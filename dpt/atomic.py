"""Files that are whole or not there, also after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write to, which takes its place at the end of the block.

    Its name is always the same, so that what a killed process left is overwritten by the next one,
    and ends as ``path`` does: some writers choose a format by it. An exception removes it. Folders
    are made as needed. No link is followed: one that lies at either name is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".part.{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """A file of these bytes."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
