"""Where shards come from: a folder, or an address of which a folder on this machine keeps some."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from dpt.data.base import DataError, data_root, missing_path, require
from dpt.data.datasets.download import fetch, verify
from dpt.data.formats import io
from dpt.data.shards.index import Shard, ShardIndex

GIGABYTE = 10**9
_LOCKS = 256
_ABANDONED = 3600.0
"""Seconds after which what has arrived of a shard, and grows no more, may go."""
_KEPT = re.compile(r"[0-9a-f]{64}-(\d+)\.tar(\.part)?")


class ShardStore(Protocol):
    """The shards and indices of one packed data set."""

    def index(self, split: str) -> ShardIndex: ...

    def open(self, shard: Shard) -> BinaryIO:
        """The shard's file, of the right size, to be closed by the caller."""
        ...


def make_store(root: str | Path, *, cache_dir: str | Path, cache_gb: float) -> ShardStore:
    """The store at ``root``: a folder, or an address with ``://``."""
    if "://" in str(root):
        return ShardCache(str(root), Path(cache_dir).expanduser(), limit=int(cache_gb * GIGABYTE))
    return ShardFolder(data_root(root))


class ShardFolder:
    """Shards in a folder of this machine, or of a file system that it mounts."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def index(self, split: str) -> ShardIndex:
        path = self.root / f"{split}.json"
        if not path.is_file():
            remedy = f"check data.root, or pack the split: dpt data pack data=... split={split}"
            raise missing_path(path, what="index", remedy=remedy)
        return ShardIndex.parse(io.read_text(path), source=str(path))

    def open(self, shard: Shard) -> BinaryIO:
        path = self.root / shard.name
        if not path.is_file():
            raise missing_path(path, what="shard", remedy="copy it again")
        file = path.open("rb")
        if (size := _size(file)) != shard.size:
            file.close()
            raise DataError(f"{path}: has {size} bytes, must have {shard.size}: copy it again")
        return file


class ShardCache:
    """Shards at an address; those used last are kept in a folder.

    All processes of a machine share the folder, and any number of data sets: a shard is called by
    its checksum. It is fetched once, by whoever needs it first, and verified before it appears
    under its name. Shards that were not used for longest make room for others. One that goes while
    another process reads it stays readable to that process.

    Args:
        url: of the folder of the shards: ``http://``, ``https://``, or what fsspec knows.
        folder: where shards are kept; made as needed.
        limit: bytes that all shards in the folder may take, those that are being fetched included.
    """

    def __init__(self, url: str, folder: Path, *, limit: int) -> None:
        self.url, self.folder, self.limit = url.rstrip("/"), folder, limit

    def index(self, split: str) -> ShardIndex:
        url = f"{self.url}/{split}.json"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index.json"
            _copy(url, path)
            return ShardIndex.parse(io.read_text(path), source=url)

    def open(self, shard: Shard) -> BinaryIO:
        path = self.folder / f"{shard.sha256}-{shard.size}.tar"
        while True:
            try:
                file = path.open("rb")
                os.utime(path)  # used last
            except FileNotFoundError:  # not here yet, or no longer
                self._fetch(shard, path)
                continue
            if _size(file) == shard.size:
                return file
            file.close()
            path.unlink(missing_ok=True)

    def _fetch(self, shard: Shard, path: Path) -> None:
        with self._lock(str(int(shard.sha256, 16) % _LOCKS)):
            if path.exists():  # another process was faster
                return
            with self._lock("room"):
                self._make_room(shard, path)
            checksum = f"sha256:{shard.sha256}"
            _copy(f"{self.url}/{shard.name}", path, checksum=checksum, size=shard.size)

    def _make_room(self, shard: Shard, path: Path) -> None:
        """Removes shards until this one fits, and claims its place."""
        kept = [k for k in _kept(self.folder) if k.path.name.partition(".part")[0] != path.name]
        free = self.limit - sum(item.size for item in kept)
        for item in sorted(kept, key=lambda item: item.used):
            if free >= shard.size:
                break
            if item.path.suffix == ".tar" or time.time() - item.used > _ABANDONED:
                item.path.unlink(missing_ok=True)
                free += item.size
        if free < shard.size:
            raise DataError(
                f"{self.folder}: no room for a shard of {shard.size / GIGABYTE:.3g} GB within "
                f"data.cache_gb={self.limit / GIGABYTE:g} beside those that are being fetched: "
                "raise it"
            )
        path.with_name(f"{path.name}.part").touch()

    def _lock(self, name: str) -> AbstractContextManager[Any]:
        folder = self.folder / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        filelock = require("filelock", f"{self.url}: fetching shards", extra="stream")
        return filelock.FileLock(folder / name)


class _Kept(NamedTuple):
    path: Path
    size: int  # of the whole shard, also while it arrives
    used: float  # when, in seconds since 1970


def _kept(folder: Path) -> list[_Kept]:
    found = []
    for path in folder.iterdir():
        match = _KEPT.fullmatch(path.name)
        try:
            if match is not None:
                found.append(_Kept(path, int(match[1]), path.stat().st_mtime))
        except FileNotFoundError:  # it has just been renamed or removed
            continue
    return found


def _copy(url: str, path: Path, *, checksum: str | None = None, size: int | None = None) -> None:
    """Brings a file here; what has arrived of it before is kept, and the rest is asked for."""
    if url.startswith(("http://", "https://")):
        remedy = "check data.root, and that all that dpt data pack wrote was copied there"
        fetch(url, path, checksum=checksum, size=size, remedy=remedy, quiet=True)
        return
    part = path.with_name(f"{path.name}.part")
    fsspec = require("fsspec", f"{url}: reading it", extra="stream")
    try:
        with fsspec.open(url, "rb") as source, part.open("ab") as target:
            source.seek(target.tell())
            shutil.copyfileobj(source, target, 1 << 20)
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"{url}: cannot be read ({error}): check data.root") from None
    try:
        verify(part, checksum=checksum, size=size, remedy="it was removed; run again")
    except DataError:
        part.unlink()
        raise
    os.replace(part, path)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
