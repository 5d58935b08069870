"""Unpacks zip and tar archives from sources that need not be trusted.

The standard library keeps members inside the folder: tarfile's data filter refuses names that
leave it, ``zipfile`` removes ``..`` and leading slashes. This module adds the choice of folders,
refuses links and devices, limits the unpacked size and leaves nothing behind after an error.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from dpt import atomic
from dpt.data.errors import DataError

MAX_RATIO = 100
"""Largest unpacked size of an archive, relative to its own size."""
_ALWAYS_ALLOWED = 1 << 30
_BLOCK = 4096  # bytes on disk of an empty file
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError,
           RuntimeError)  # fmt: skip


def extract(
    archive: str | Path, folder: str | Path, *, unpack: Mapping[str, str] | None = None
) -> int:
    """Unpacks an archive completely or not at all.

    Members are unpacked to a hidden folder and moved at the end. A hidden marker file then records
    it, see :func:`is_unpacked`.

    Args:
        archive: zip, or tar without compression or with gzip, bzip2 or xz.
        folder: where to unpack to; created.
        unpack: maps folders of the archive to folders below ``folder``; other members are left
            out. ``{"VOCdevkit/VOC2012": "."}`` drops two levels. None unpacks everything.

    Returns:
        The number of files.

    Raises:
        DataError: the archive is damaged or holds none of the folders; a member is a link or a
            device or leaves the folder; or the unpacked data is too large.
    """
    archive, folder = Path(archive), Path(folder)
    unpack = unpack or {".": "."}
    rules = {PurePosixPath(k).parts: PurePosixPath(v) for k, v in unpack.items()}
    staging = folder / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    allowed = max(_ALWAYS_ALLOWED, MAX_RATIO * archive.stat().st_size)
    limit = min(allowed, shutil.disk_usage(folder).free)
    total, other = 0, set[str]()
    try:
        for name, size, is_plain, write in _members(archive, staging):
            parts = PurePosixPath(name).parts
            source = next((rule for rule in rules if parts[: len(rule)] == rule), None)
            if source is None:
                other.update(parts[:1])
                continue
            if not is_plain:
                raise DataError(f"{archive}: member {name!r} is a link or device: not unpacked")
            total += max(size, _BLOCK)
            if total > limit:
                raise DataError(
                    f"{archive}: unpacks to more than {limit / 1e9:.1f} GB (at {name}), the free "
                    f"space or {MAX_RATIO} times its size: free some space, or do not trust it"
                )
            write(str(rules[source].joinpath(*parts[len(source) :])))
        files = [path for path in staging.rglob("*") if path.is_file()]
        if not files:
            raise DataError(
                f"{archive}: holds no file of {', '.join(unpack)}, only "
                f"{', '.join(sorted(other)[:5]) or 'nothing'}: check that it is the right archive"
            )
        for path in files:
            target = folder / path.relative_to(staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{archive}: cannot be unpacked: {error}") from None
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{archive}: cannot be unpacked ({reason}): remove it and download it again"
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    atomic.write_bytes(_marker(archive, folder), str(archive.stat().st_size).encode())
    return len(files)


def is_unpacked(archive: str | Path, folder: str | Path) -> bool:
    """Whether :func:`extract` has unpacked this archive; it may have been removed since."""
    archive, marker = Path(archive), _marker(Path(archive), Path(folder))
    if not marker.is_file():
        return False
    return not archive.exists() or marker.read_text() == str(archive.stat().st_size)


def _marker(archive: Path, folder: Path) -> Path:
    return folder / f".{archive.name}.unpacked"


def _members(
    archive: Path, folder: Path
) -> Iterator[tuple[str, int, bool, Callable[[str], object]]]:
    """Name and size of each file, whether it is a plain one, and what writes it to ``folder``."""
    with archive.open("rb") as file:  # zipfile.is_zipfile accepts a tar that contains a zip
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as zip_file:
            for info in zip_file.infolist():

                def unzip(name: str, info: zipfile.ZipInfo = info) -> None:
                    info.filename = name
                    zip_file.extract(info, folder)

                mode = stat.S_IFMT(info.external_attr >> 16)  # 0 where the writer did not set it
                if not info.is_dir():
                    yield info.filename, info.file_size, mode in (0, stat.S_IFREG), unzip
        return
    with tarfile.open(archive) as tar:
        for member in tar:

            def untar(name: str, member: tarfile.TarInfo = member) -> None:
                tar.extract(member.replace(name=name), folder, filter="data")

            if not member.isdir():
                yield member.name, member.size, member.isreg(), untar
