"""Unpacks zip and tar archives that one need not trust.

Only plain files and folders are ever made, so no link can lead a later member astray. The stdlib's
``filter="data"`` guards tar files alike, but lets links inside the target pass, and ``zipfile``
bends bad names into good ones without a word; here both formats go through one door, and a member
that tries to leave is refused by its name.
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
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from dpt.data.base import DataError

MAX_RATIO = 100
"""Unpacked bytes for each byte of an archive. Pictures do not shrink ninety-nine per cent."""
_ALWAYS_ALLOWED = 1 << 30
_BLOCK = 4096  # what an empty file costs
_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError,
           NotImplementedError)  # fmt: skip


class _Member(NamedTuple):
    name: str
    kind: str  # file, folder, or what it is instead
    size: int
    open: Callable[[], IO[bytes]]


def extract(
    archive: str | Path, folder: str | Path, *, unpack: Mapping[str, str] | None = None
) -> int:
    """Unpacks an archive, all of it or nothing.

    Everything goes to a hidden folder first and is moved into place when the last member is
    whole; a hidden mark beside it then says so, see :func:`is_unpacked`.

    Args:
        archive: zip, or tar with or without gzip, bzip2 or xz.
        folder: where to.
        unpack: which folders of the archive go where below ``folder``; members of no such folder
            are left out. ``{"VOCdevkit/VOC2012": "."}`` drops two levels. None takes everything.

    Returns:
        The number of files.

    Raises:
        DataError: a damaged archive, a member that is no plain file or leaves the folder, or more
            data than the disk has room for or than an honest archive of its size holds.
    """
    archive, folder = Path(archive), Path(folder)
    rules = {PurePosixPath(k).parts: PurePosixPath(v) for k, v in (unpack or {"": ""}).items()}
    staging = folder / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        count = _unpack(archive, staging, rules)
        if count == 0:
            raise DataError(
                f"{archive}: holds no file of {', '.join(unpack or {})}: it is another archive "
                f"than expected, with {', '.join(_tops(archive)) or 'nothing'}"
            )
        for path in sorted(staging.rglob("*")):
            if path.is_file():
                place = folder / path.relative_to(staging)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, place)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    mark = _mark(archive, folder)
    mark.with_suffix(".tmp").write_text(str(archive.stat().st_size))
    os.replace(mark.with_suffix(".tmp"), mark)
    return count


def is_unpacked(archive: str | Path, folder: str | Path) -> bool:
    """Whether ``extract`` once finished with this archive; it need not be there any more."""
    archive, mark = Path(archive), _mark(Path(archive), Path(folder))
    if not mark.is_file():
        return False
    return not archive.exists() or mark.read_text() == str(archive.stat().st_size)


def _mark(archive: Path, folder: Path) -> Path:
    return folder / f".{archive.name}.unpacked"


def _unpack(archive: Path, staging: Path, rules: Mapping[tuple[str, ...], PurePosixPath]) -> int:
    limit = max(_ALWAYS_ALLOWED, MAX_RATIO * archive.stat().st_size)
    free = shutil.disk_usage(staging).free
    count = total = 0
    for member in _members(archive):
        place = _place(archive, member, rules)
        if place is None or member.kind == "folder":
            continue
        total += max(member.size, _BLOCK)
        if total > limit:
            raise DataError(
                f"{archive}: unpacks to more than {MAX_RATIO} times its size (at {member.name}): "
                "no data set does that; the archive is not to be trusted"
            )
        if total > free:
            raise DataError(
                f"{archive}: unpacks to more than the {free / 1e9:.1f} GB that are free: make "
                "room, or set data.root to another disk"
            )
        path = staging / place
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(archive, member, path)
        count += 1
    return count


def _write(archive: Path, member: _Member, path: Path) -> None:
    with path.open("wb") as target:
        try:
            with member.open() as source:
                shutil.copyfileobj(source, target, 1 << 20)
        except _DAMAGE as error:
            raise _damaged(archive, f"{member.name}: {error}") from None
        except OSError as error:  # without a number: a compressed stream that makes no sense
            if error.errno is None:
                raise _damaged(archive, f"{member.name}: {error}") from None
            raise DataError(f"{path}: cannot be written ({error.strerror}): make room") from None
        if target.tell() != member.size:
            raise _damaged(archive, f"{member.name}: {target.tell()} of {member.size} bytes")


def _place(
    archive: Path, member: _Member, rules: Mapping[tuple[str, ...], PurePosixPath]
) -> PurePosixPath | None:
    """Where a member goes, relative to the target; None where no rule takes it."""
    name = member.name
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or ":" in name[:2]:
        raise DataError(f"{archive}: member {name!r} would leave the folder: nothing was unpacked")
    if member.kind not in ("file", "folder"):
        raise DataError(
            f"{archive}: member {name!r} is a {member.kind}; only plain files are unpacked: "
            "nothing was unpacked"
        )
    for start, target in rules.items():
        if parts[: len(start)] == start:
            return target.joinpath(*parts[len(start) :])
    return None


def _members(archive: Path) -> Iterator[_Member]:
    try:
        with archive.open("rb") as file:  # is_zipfile takes a tar with a zip at its end for a zip
            is_zip = file.read(2) == b"PK"
        yield from _zip_members(archive) if is_zip else _tar_members(archive)
    except (*_DAMAGE, OSError) as error:
        # tarfile lists every compression that it tried, line by line
        tried = isinstance(error, tarfile.ReadError) and "\n" in str(error)
        reason = "neither a zip nor a tar archive, or cut" if tried else str(error)
        raise _damaged(archive, reason) from None


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                kind = "file behind a password"
            elif info.is_dir():
                kind = "folder"
            else:  # many tools leave the mode out
                kind = "file" if mode in (0, stat.S_IFREG) else "link or device"
            # orig_filename: what the archive says, before zipfile bends it
            yield _Member(info.orig_filename, kind, info.file_size, partial(file.open, info))


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as file:
        for info in file:
            kind = "file" if info.isreg() else "folder" if info.isdir() else "link or device"
            # None is for what is no file, and that is never opened
            opens = partial(file.extractfile, info)
            yield _Member(info.name, kind, info.size, opens)  # type: ignore[arg-type]
        # Cut between two members, a tar looks complete but for its last block, of zeros
        if file.fileobj is not None and file.fileobj.tell() < file.offset + tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends without an end mark")


def _tops(archive: Path) -> list[str]:
    """The first folders or files of an archive, for a message."""
    names = {"".join(PurePosixPath(m.name).parts[:1]) for m in _members(archive)}
    return sorted(names - {""})[:5]


def _damaged(archive: Path, why: str) -> DataError:
    return DataError(f"{archive}: cannot be unpacked ({why}): remove it and download it again")
