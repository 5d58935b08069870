"""Unpacks zip and tar archives from sources that need not be trusted."""

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from dpt import atomic
from dpt.files import DataError

MAX_RATIO = 100
"""Largest unpacked size of an archive, relative to its own size."""
_ALWAYS_ALLOWED = 1 << 30
_BLOCK = 4096  # bytes on disk of an empty file


def extract(archive: Path, folder: Path, unpack: Mapping[str, str]) -> int:
    """Unpacks an archive (zip or tar) completely or not at all; returns the number of files.

    Members are unpacked to a hidden folder and moved at the end. A hidden marker file then records
    it, see :func:`is_unpacked`.

    Args:
        unpack: maps folders of the archive to folders below ``folder``; other members are left
            out. ``{"VOCdevkit/VOC2012": "."}`` drops two levels, ``{".": "."}`` unpacks everything.

    Raises:
        DataError: the archive is damaged or holds none of the folders; a member is a link or a
            device or leaves the folder; or the unpacked data is too large.
    """
    rules = {PurePosixPath(k).parts: v for k, v in unpack.items()}
    staging = folder.resolve() / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    allowed = max(_ALWAYS_ALLOWED, MAX_RATIO * archive.stat().st_size)
    limit = min(allowed, shutil.disk_usage(folder).free)
    total = 0
    try:
        for name, size, is_plain, read in _members(archive):
            parts = PurePosixPath(name).parts
            source = next((rule for rule in rules if parts[: len(rule)] == rule), None)
            if source is None:
                continue
            target = staging.joinpath(rules[source], *parts[len(source) :]).resolve()
            if not (is_plain and target.is_relative_to(staging)):
                fault = "is a link or device, or leaves the folder"
                raise DataError(f"{archive}: member {name!r} {fault}: not unpacked")
            total += max(size, _BLOCK)
            if total > limit:
                raise DataError(
                    f"{archive}: unpacks to more than {limit / 1e9:.1f} GB (at {name}), the free "
                    f"space or {MAX_RATIO} times its size: free some space, or check its source"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            with read() as content, target.open("wb") as file:
                shutil.copyfileobj(content, file)
        files = [path for path in staging.rglob("*") if path.is_file()]
        if not files:
            raise DataError(
                f"{archive}: holds no file of {', '.join(unpack)}: check that it is the right one"
            )
        for path in files:
            target = folder / path.relative_to(staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    except DataError:
        raise
    except Exception as error:  # of many kinds, for damaged archives
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{archive}: cannot be unpacked ({reason}): if it is damaged, download it again"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    atomic.write_bytes(_marker(archive, folder), str(archive.stat().st_size).encode())
    return len(files)


def is_unpacked(archive: Path, folder: Path) -> bool:
    """Whether :func:`extract` has unpacked this archive; it may have been removed since."""
    marker = _marker(archive, folder)
    return marker.is_file() and (
        not archive.exists() or marker.read_text() == str(archive.stat().st_size)
    )


def _marker(archive: Path, folder: Path) -> Path:
    return folder / f".{archive.name}.unpacked"


def _members(archive: Path) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    """Yields each file's name, size, whether it is a regular file, and a function to open it."""
    with archive.open("rb") as file:  # zipfile.is_zipfile accepts a tar that contains a zip
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as zip_file:
            for info in zip_file.infolist():
                mode = stat.S_IFMT(info.external_attr >> 16)  # 0 where the writer did not set it
                if not info.is_dir():
                    is_plain = mode in (0, stat.S_IFREG)
                    yield info.filename, info.file_size, is_plain, partial(zip_file.open, info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.size < 0:  # tarfile would read the same headers for ever
                raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
            if not member.isdir():
                yield member.name, member.size, member.isreg(), partial(tar.extractfile, member)
