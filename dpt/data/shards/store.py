"""The index of a packed split, and where its shards are read from: a folder or a remote address."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import filelock
from pydantic import Field, TypeAdapter, ValidationError

from dpt import atomic
from dpt.data.datasets.download import fetch, verify
from dpt.data.errors import DataError, data_root, missing_path
from dpt.types import DatasetInfo

GIGABYTE = 10**9
_LOCKS = 256
_STALE = 3600.0
"""Seconds without new data after which a partial shard counts as left by a killed process."""
_REMEDY = "check data.root, and that all files that dpt data pack wrote were copied there"
_CACHED = re.compile(r"[0-9a-f]{64}-(\d+)\.tar(\.part)?")


@dataclass(frozen=True)
class Shard:
    """A tar file of samples.

    Attributes:
        name: file name, in the folder of the index.
        samples: number of samples in it.
        size: in bytes.
        sha256: checksum of the file, hexadecimal.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.tar$")]
    samples: Annotated[int, Field(ge=1)]
    size: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The JSON file of a packed split.

    Attributes:
        info: that of the original data set.
        shards: in the order of the samples.
        class_id_names: names of the classes in ``class_id``.
        skipped: messages about the samples that could not be read and were left out.
        fingerprint: hash of the settings that decide what the shards contain.
        done: samples of the original data set that were packed or skipped.
    """

    info: DatasetInfo
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)] = ()
    class_id_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    fingerprint: str
    done: int = 0
    format: Literal["dpt-packed-2"] = "dpt-packed-2"

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    def write(self, path: Path) -> None:
        atomic.write_bytes(path, _INDEX.dump_json(self, indent=1))

    @classmethod
    def read(cls, path: Path, *, source: str | None = None) -> ShardIndex:
        """Reads an index file; a DataError about its content names ``source`` instead of it."""
        try:
            return _INDEX.validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DataError(
                f"{source or path}: not an index that dpt data pack wrote ({key}: {first['msg']}): "
                "pack the data again"
            ) from None


_INDEX = TypeAdapter(ShardIndex)


class ShardFolder:
    """Shards in a folder of this machine or of a mounted file system."""

    is_local = True

    def __init__(self, root: str | Path) -> None:
        self.root = data_root(root)

    def index(self, split: str) -> ShardIndex:
        path = self.root / f"{split}.json"
        if not path.is_file():
            remedy = f"check data.root, or pack the split: dpt data pack data=... split={split}"
            raise missing_path(path, what="index", remedy=remedy)
        return ShardIndex.read(path)

    def open(self, shard: Shard) -> BinaryIO:
        """The file of a shard, whose size is checked."""
        path = self.root / shard.name
        verify(path, size=shard.size, remedy="copy it again")
        return path.open("rb")


class ShardCache:
    """Shards at a remote address, of which a folder keeps the ones used last.

    All processes of a machine and any number of data sets share the folder: files are named after
    their checksums. A shard is fetched once, by the first process that needs it, and verified
    before it appears under its name. The shards that were not used for longest are removed to make
    room; a process that has one open can go on reading it.

    Args:
        url: address of the folder of the shards: ``http://``, ``https://`` or one for fsspec.
        folder: where to keep shards; created.
        limit: largest size in bytes of all shards in the folder, including those being fetched.
    """

    is_local = False

    def __init__(self, url: str, folder: str | Path, *, limit: int) -> None:
        self.url, self.folder, self.limit = url.rstrip("/"), Path(folder).expanduser(), limit

    def index(self, split: str) -> ShardIndex:
        url = f"{self.url}/{split}.json"
        with tempfile.TemporaryDirectory() as folder:
            path = fetch(url, Path(folder) / "index.json", remedy=_REMEDY, quiet=True)
            return ShardIndex.read(path, source=url)

    def open(self, shard: Shard) -> BinaryIO:
        """The file of a shard, fetched if necessary."""
        path = self.folder / f"{shard.sha256}-{shard.size}.tar"
        while True:
            with suppress(FileNotFoundError):
                os.utime(path)  # time of last use
                file = path.open("rb")
                if os.fstat(file.fileno()).st_size == shard.size:
                    return file
                file.close()  # truncated by a crash of the machine
                path.unlink()
            self._fetch(shard, path)

    def _fetch(self, shard: Shard, path: Path) -> None:
        locks = self.folder / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(locks / str(int(shard.sha256, 16) % _LOCKS)):
            if path.exists():  # another process fetched it meanwhile
                return
            with filelock.FileLock(locks / "room"):
                self._make_room(shard, path)
                path.with_name(f"{path.name}.part").touch()  # reserves the room
            url, checksum = f"{self.url}/{shard.name}", f"sha256:{shard.sha256}"
            fetch(url, path, checksum=checksum, size=shard.size, remedy=_REMEDY, quiet=True)

    def _make_room(self, shard: Shard, path: Path) -> None:
        """Removes the shards used least recently until another one fits."""
        found = []
        for file in self.folder.iterdir():
            match = _CACHED.fullmatch(file.name)
            if match is not None and file.name.removesuffix(".part") != path.name:
                with suppress(FileNotFoundError):
                    found.append((file.stat().st_mtime, int(match[1]), file))
        free = self.limit - sum(size for _, size, _ in found)
        for used, size, file in sorted(found):
            if free >= shard.size:
                return
            if file.suffix == ".tar" or time.time() - used > _STALE:
                file.unlink(missing_ok=True)
                free += size
        if free < shard.size:
            raise DataError(
                f"{self.folder}: no room for a shard of {shard.size / GIGABYTE:.3g} GB within "
                f"data.cache_gb={self.limit / GIGABYTE:g} while others are being fetched: raise it"
            )
