"""Which files are predicted, and under what names: on this machine, or at addresses."""

import atexit
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import fsspec

from dpt.data.formats.io import IMAGE_SUFFIXES, UNREAD_SUFFIXES
from dpt.data.formats.video import VIDEO_SUFFIXES
from dpt.fetch import fetch
from dpt.files import MAX_BYTES, MAX_FILES, DataError, missing_path, reason, require_address
from dpt.predict.records import MAX_SETTINGS, SETTINGS_FILE, PredictionSettings
from dpt.validation import PlainMapping

log = logging.getLogger("dpt")

SUFFIXES = (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES)
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
_REMEDY = "check the address and the permissions"


@dataclass(frozen=True)
class InputFile:
    """An image or video to predict."""

    path: Path  # absolute
    name: str  # of the output files: a relative path with ``/``, without suffix and ``..``

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES

    @property
    def source(self) -> str:
        """The path or address in records and messages."""
        return str(self.path)

    @property
    def is_remote(self) -> bool:
        """Whether :meth:`fetch` copies the file."""
        return False

    def modified(self) -> list[object]:
        """Returns time in nanoseconds and size in bytes, which tell a replaced file from the file
        before it; empty if the file is gone."""
        with suppress(OSError):  # reading it names the fault
            status = self.path.stat()
            return [status.st_mtime_ns, status.st_size]
        return []

    def fetch(self) -> Path:
        """Returns the path of the file on this machine; copies a remote file there."""
        return self.path

    def release(self) -> None:
        """Removes the local copy of a remote file."""


@dataclass(frozen=True)
class RemoteFile(InputFile):
    """An input at an address; ``path`` is where its local copy lies while it is predicted."""

    address: str = ""
    stamp: tuple[str, int] = ("", 0)
    """The store's version or time of the file, and its size in bytes."""

    @property
    def source(self) -> str:
        return self.address

    @property
    def is_remote(self) -> bool:
        return True

    def modified(self) -> list[object]:
        return [*self.stamp]

    def fetch(self) -> Path:
        return fetch(self.address, self.path, limit=MAX_BYTES, remedy=_REMEDY, quiet=True)

    def release(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)


def find_inputs(inputs: Sequence[str | Path], *, out: Path) -> list[InputFile]:
    """Returns the images and videos that the inputs name, sorted within each folder, each once.

    Folders are searched recursively, without hidden files, ``out``, and what ``dpt predict`` wrote
    earlier. Names are paths relative to the deepest folder that contains all input folders, so that
    sub-folders are kept; an input file elsewhere has its own name. If two files then have one name,
    all are relative to the deepest folder that contains all inputs. Files that differ only in their
    suffix keep it. Arrays (``.npy``) are images of bands in folders without pictures.
    """
    files: dict[Path, None] = {}
    unread: set[Path] = set()
    paths, out = [_absolute(path) for path in inputs], _absolute(out)
    for path in paths:
        if path == out and path.is_dir():
            raise DataError(f"{path}: is an input and --out: choose another --out")
        if not os.path.lexists(path):
            raise missing_path(path, what="input", remedy="check the path")
        if path.is_dir():
            readable = _readable(path, out, unread)
            files.update(dict.fromkeys(readable))
        else:
            files[path] = None
    if unread:
        log.warning(_left_out(unread))
    folders = [path for path in paths if path.is_dir()]
    return [
        InputFile(path, name.as_posix()) for path, name in names_of(list(files), folders).items()
    ]


def _readable(folder: Path, out: Path, unread: set[Path]) -> list[Path]:
    """Returns the images and videos of a folder; adds pictures that are not read to ``unread``."""
    walked = list(_walk(folder, out))
    arrays = [file for file in walked if file.suffix.lower() == ".npy"]
    readable = [file for file in walked if file.suffix.lower() in SUFFIXES]
    unread.update({*walked}.difference(arrays, readable))
    if not (readable or arrays):
        fault = f"{folder}: no image or video in this folder or below ({', '.join(SUFFIXES)})"
        exception = ", except what dpt predict wrote" if PredictionSettings.read(folder) else ""
        raise DataError(f"{fault}{exception}{f'; {_left_out(unread)}' if unread else ''}")
    return readable or arrays


def names_of(files: Sequence[Path], folders: Sequence[Path]) -> dict[Path, Path]:
    """Returns the name of each file, see :func:`find_inputs`; ``folders`` are those that are
    inputs."""
    root = Path(os.path.commonpath(folders) if folders else "")
    relative = {p: p.relative_to(root) if p.is_relative_to(root) else Path(p.name) for p in files}
    if len(set(relative.values())) < len(relative):
        root = Path(os.path.commonpath(files))
        relative = {path: path.relative_to(root) for path in files}
    count = Counter(name.with_suffix("") for name in relative.values())
    names = {
        path: name if count[name.with_suffix("")] > 1 else name.with_suffix("")
        for path, name in relative.items()
    }
    name, repetitions = Counter(names.values()).most_common(1)[0]
    if repetitions > 1:
        raise DataError(f"two inputs have the same output name, {name}: predict them separately")
    return names


def _absolute(path: str | Path) -> Path:
    """Returns the path without ``..``; links are not followed."""
    return Path(os.path.abspath(Path(path).expanduser()))


def _left_out(files: Iterable[Path]) -> str:
    """Returns which pictures are left out, and the remedy."""
    counts = Counter(file.suffix.lower() for file in files)
    kinds = ", ".join(f"{count} {suffix}" for suffix, count in sorted(counts.items()))
    return f"left out, because such formats are not read: {kinds}: convert to JPEG or PNG"


def _walk(folder: Path, out: Path) -> Iterator[Path]:
    """Yields images, videos and arrays, and pictures in formats that are not read."""
    for parent, folders, files in os.walk(folder):
        settings = PredictionSettings.read(Path(parent))
        skipped = settings.written if settings else ()
        folders[:] = sorted(
            name
            for name in folders
            if name[0] != "." and name not in skipped and Path(parent, name) != out
        )
        for name in sorted(files):
            if name[0] != "." and name.lower().endswith((*SUFFIXES, *UNREAD_SUFFIXES, ".npy")):
                yield Path(parent, name)


# --- addresses ----------------------------------------------------------------------------------


class _RemoteFolder:
    """What lies at an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        require_address(address)
        try:
            self.system, root = fsspec.core.url_to_fs(address)
            self.root = str(root).rstrip("/")
            self.system.invalidate_cache()
            found = self.system.find(self.root, detail=True)
            self.system.invalidate_cache()  # it would stay in memory
        except Exception as error:  # every file system has its own exceptions
            raise DataError(f"{address}: cannot be listed ({reason(error)}): {_REMEDY}") from None
        if len(found) > MAX_FILES:
            raise DataError(f"{address}: more than {MAX_FILES} files: give a part of them")
        # without objects that stand for empty folders
        below = {path: info for path, info in found.items() if path.startswith(f"{self.root}/")}
        self.files: dict[str, PlainMapping] = {k: v for k, v in below.items() if k[-1] != "/"}
        self.is_file = [*found] == [self.root]
        if self.is_file:
            self.files = dict(found)

    def images(self) -> dict[str, PlainMapping]:
        """Returns the images and videos by their paths, without what ``dpt predict`` wrote."""
        written = tuple(self._written())
        return {
            path: info
            for path, info in self.files.items()
            if path.lower().endswith(SUFFIXES)
            and not path.startswith(written)
            and not any(part[0] == "." for part in Path(path[len(self.root) :].strip("/")).parts)
        }

    def _written(self) -> Iterator[str]:
        """Yields the folders that ``dpt predict`` wrote."""
        for path, info in self.files.items():
            if path.endswith(f"/{SETTINGS_FILE}") and int(info.get("size") or 0) <= MAX_SETTINGS:
                settings = PredictionSettings.parse(self._read(path), path)
                parent = path.rpartition("/")[0]
                yield from (f"{parent}/{n}/" for n in (settings.written if settings else ()))

    def _read(self, path: str) -> bytes:
        try:
            with self.system.open(path, "rb") as file:
                return bytes(file.read(MAX_SETTINGS))
        except Exception as error:
            raise DataError(f"{path}: cannot be read ({reason(error)}): {_REMEDY}") from None


def find_remote(inputs: Sequence[str]) -> list[InputFile]:
    """Returns the images and videos at addresses such as ``s3://bucket/photos``.

    As :func:`find_inputs`, without hidden files.

    Raises:
        DataError: an address cannot be listed or holds no image, two names cannot be told apart,
            or the addresses are of several file systems.
    """
    if len({name.partition("://")[0] for name in inputs}) > 1:
        fault = "inputs of several file systems"
        raise DataError(f"{', '.join(inputs)}: {fault}: predict them one after another")
    infos: dict[str, PlainMapping] = {}  # by paths of the file system
    folders = [_RemoteFolder(address) for address in inputs]
    for folder in folders:
        images = folder.images()
        if not images:
            fault = f"no image ({', '.join(SUFFIXES)}) that dpt predict did not write"
            raise DataError(f"{folder.address}: {fault}: check the address")
        infos |= images
    by_path = {Path("/", path): path for path in sorted(infos)}  # absolute, as local ones
    if len(by_path) < len(infos):
        names = [path for path in sorted(infos) if by_path[Path("/", path)] != path]
        raise DataError(f"{names[0]}: another file has this name but for slashes: rename it")
    copies = Path(tempfile.mkdtemp(prefix="dpt-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    roots = [Path("/", folder.root) for folder in folders if not folder.is_file]
    return [
        RemoteFile(
            path=copies / f"{number}" / path.name,  # as files of intrinsics name it
            name=name.as_posix(),
            # the same for all ways to write a file's address
            address=str(folders[0].system.unstrip_protocol(by_path[path])),
            stamp=_stamp(infos[by_path[path]]),
        )
        for number, (path, name) in enumerate(names_of([*by_path], roots).items())
    ]


def _stamp(info: Mapping[str, object]) -> tuple[str, int]:
    """Returns what tells a replaced file from the one before it."""
    stamp = next((str(info[key]) for key in _STAMPS if key in info), "")
    return stamp, int(str(info.get("size") or 0))
