"""Unpacks zip and tar archives from sources that need not be trusted."""

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from dpt.files import DataError, decoding, write_bytes

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
    staging = folder.resolve() / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        with decoding(archive, "an archive"):
            _unpack_members(archive, staging, unpack)
            paths = [path for path in staging.rglob("*") if path.is_file()]
            if not paths:
                raise DataError(f"{archive}: holds no file of {', '.join(unpack)}: check it")
            for path in paths:
                target = folder / path.relative_to(staging)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    write_bytes(_marker(archive, folder), str(archive.stat().st_size).encode())
    return len(paths)


def _unpack_members(archive: Path, staging: Path, unpack: Mapping[str, str]) -> None:
    """Writes the members that ``unpack`` names, see :func:`extract`."""
    rules = {PurePosixPath(source).parts: target for source, target in unpack.items()}
    allowed = max(_ALWAYS_ALLOWED, MAX_RATIO * archive.stat().st_size)
    limit = min(allowed, shutil.disk_usage(staging).free)
    total = 0
    for member in _members(archive):
        names = PurePosixPath(member.name).parts
        source = next((rule for rule in rules if names[: len(rule)] == rule), None)
        if source is None:
            continue
        target = staging.joinpath(rules[source], *names[len(source) :]).resolve()
        if not (member.is_plain and target.is_relative_to(staging)):
            raise DataError(f"{archive}: member {member.name!r} is a link or outside: mend it")
        total += max(member.size, _BLOCK)
        if total > limit:
            fault = f"unpacks to more than {limit / 1e9:.1f} GB (at {member.name})"
            raise DataError(f"{archive}: {fault}: free some space, or check its source")
        target.parent.mkdir(parents=True, exist_ok=True)
        content = member.open()
        assert content is not None  # a regular file
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


def is_unpacked(archive: Path, folder: Path) -> bool:
    """Returns whether :func:`extract` has unpacked this archive; it may have been removed since."""
    marker = _marker(archive, folder)
    return marker.is_file() and (
        not archive.exists() or marker.read_text() == str(archive.stat().st_size)
    )


def _marker(archive: Path, folder: Path) -> Path:
    return folder / f".{archive.name}.unpacked"


class _Member(NamedTuple):
    name: str
    size: int
    is_plain: bool  # whether it is a regular file
    open: Callable[[], IO[bytes] | None]


def _members(archive: Path) -> Iterator[_Member]:
    """Yields the members of an archive that are no folders."""
    with archive.open("rb") as file:  # zipfile.is_zipfile accepts a tar that contains a zip
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as zip_file:
            for info in zip_file.infolist():
                mode = stat.S_IFMT(info.external_attr >> 16)  # 0 where the writer did not set it
                if not info.is_dir():
                    is_plain = mode in (0, stat.S_IFREG)
                    opening = partial(zip_file.open, info)
                    yield _Member(info.filename, info.file_size, is_plain, opening)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.size < 0:  # tarfile would read the same headers for ever
                raise tarfile.ReadError(f"{member.name} has {member.size} bytes")
            if not member.isdir():
                extract_file = partial(tar.extractfile, member)
                yield _Member(member.name, member.size, member.isreg(), extract_file)
