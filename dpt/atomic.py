"""Atomic writing, and locks: after a crash a file is complete, or absent or as it was before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from dpt.files import DataError


@contextmanager
def replacing(path: Path, *, writer: str = "") -> Iterator[Path]:
    """Yields a temporary file name next to ``path``; after the block the file replaces ``path``.

    The temporary name is ``.part.`` + ``writer`` + ``path.name``; processes that may write one file
    at the same time need different writers. It keeps the suffix, because some writers
    derive the format from it. A temporary file of a killed process is removed first. If the block
    raises, the temporary file is removed. Missing folders are created. Symbolic links are
    replaced, never followed. Permissions are those of the umask, whatever the writer sets.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".part.{writer}{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        if temporary.stat().st_mode != mode:  # safetensors writes 0600
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk, a limit of a file
            error.filename = str(path)
        raise


def write_bytes(path: Path, data: bytes, *, writer: str = "") -> None:
    """Writes ``data`` to ``path`` atomically, see :func:`replacing`."""
    with replacing(path, writer=writer) as temporary:
        temporary.write_bytes(data)


@contextmanager
def locked(path: Path, *, fault: str = "", seconds: float = -1) -> Iterator[FileLock]:
    """Holds a lock file, which no other process can hold meanwhile.

    Args:
        fault: what the error says if another process still holds it after ``seconds``.
        seconds: to wait; for ever below 0.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise DataError(f"{path}: {fault}: wait until it has ended, or stop it") from None
    try:
        yield lock
    finally:
        lock.release()
