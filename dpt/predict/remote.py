"""Inputs at addresses of fsspec: listed once, and each fetched when it is predicted."""

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec

from dpt.fetch import fetch
from dpt.files import MAX_BYTES, MAX_FILES, DataError, reason, require_address
from dpt.predict.inputs import SUFFIXES, InputFile, names_of
from dpt.predict.records import MAX_SETTINGS, SETTINGS_FILE, PredictionSettings
from dpt.validation import PlainMapping

_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
_REMEDY = "check the address and the permissions"


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


class RemoteFolder:
    """What lies at an address, which need not exist.

    Raises:
        DataError: no installed package serves such addresses.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        require_address(address)
        try:
            self.system, root = fsspec.core.url_to_fs(address)
        except ImportError as error:
            raise DataError(f"{address}: {error} (with pip)") from None
        except Exception as error:  # every file system has its own exceptions
            raise DataError(f"{address}: cannot be opened ({reason(error)}): {_REMEDY}") from None
        self.root = str(root).rstrip("/")

    def address_of(self, path: str) -> str:
        """Returns the same address for all ways to write a file's address."""
        return str(self.system.unstrip_protocol(path))

    def files(self) -> dict[str, PlainMapping]:
        """Returns what the store says of each file, by paths; empty if there is none."""
        try:
            self.system.invalidate_cache()
            found = self.system.find(self.root, detail=True)
            self.system.invalidate_cache()  # it would stay in memory
        except FileNotFoundError:
            return {}
        except Exception as error:
            fault = f"cannot be listed ({reason(error)})"
            raise DataError(f"{self.address}: {fault}: {_REMEDY}") from None
        if len(found) > MAX_FILES:
            raise DataError(f"{self.address}: more than {MAX_FILES} files: give a part of them")
        return {
            path: info  # without objects that stand for empty folders
            for path, info in found.items()
            # the root as a folder: what s3fs says if another worker writes the first file meanwhile
            if (path == self.root and info.get("type") != "directory")
            or (path.startswith(f"{self.root}/") and path[-1] != "/")
        }

    def read(self, path: str, *, limit: int = MAX_BYTES) -> bytes:
        """Returns the content of a file; DataError if it has more than ``limit`` bytes."""
        try:
            with self.system.open(path, "rb") as file:
                content: bytes = file.read(limit + 1)
        except Exception as error:
            fault = f"cannot be read ({reason(error)})"
            raise DataError(f"{self.address_of(path)}: {fault}: {_REMEDY}") from None
        if len(content) > limit:
            fault = f"has more than {limit} bytes"
            raise DataError(f"{self.address_of(path)}: {fault}: check that it is the right file")
        return content


def find_remote(inputs: Sequence[str]) -> list[InputFile]:
    """Returns the images and videos at addresses of fsspec, such as ``s3://bucket/photos``.

    As :func:`dpt.predict.inputs.find_inputs`, without hidden files.

    Raises:
        DataError: an address cannot be listed or holds no image, or some inputs are local paths.
    """
    infos: dict[str, PlainMapping] = {}  # by paths of the file system
    roots: list[Path] = []
    folders: dict[str, RemoteFolder] = {}  # by file system
    for address in inputs:
        if "://" not in address:
            fault = "is a local path beside remote addresses"
            raise DataError(f"{address}: {fault}: predict them one after another")
        folder = folders[address.partition("://")[0]] = RemoteFolder(address)
        listed = folder.files()
        roots += [] if [*listed] == [folder.root] else [Path("/", folder.root)]
        images = _images_of(folder, listed)
        if not images:
            fault = f"no image ({', '.join(SUFFIXES)}) that dpt predict did not write"
            raise DataError(f"{address}: {fault}: check the address")
        infos |= images
    if len(folders) > 1:
        kinds = " and ".join(sorted(folders))
        raise DataError(
            f"{', '.join(inputs)}: addresses of {kinds}: predict them one after another"
        )
    by_path = {Path("/", path): path for path in sorted(infos)}  # absolute, as local ones
    if len(by_path) < len(infos):
        names = [path for path in sorted(infos) if by_path[Path("/", path)] != path]
        raise DataError(f"{names[0]}: another file has this name but for slashes: rename it")
    copies = Path(tempfile.mkdtemp(prefix="dpt-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    return [
        RemoteFile(
            path=copies / f"{number}" / path.name,  # as files of intrinsics name it
            name=name.as_posix(),
            address=folder.address_of(by_path[path]),
            stamp=_stamp(infos[by_path[path]]),
        )
        for number, (path, name) in enumerate(names_of([*by_path], roots).items())
    ]


def _images_of(folder: RemoteFolder, listed: Mapping[str, PlainMapping]) -> dict[str, PlainMapping]:
    """Returns the images and videos among files, without what ``dpt predict`` wrote."""
    written: list[str] = []  # folders
    for path in (path for path in listed if path.endswith(f"/{SETTINGS_FILE}")):
        parent = path.rpartition("/")[0]
        if int(listed[path].get("size") or 0) <= MAX_SETTINGS:
            content = folder.read(path, limit=MAX_SETTINGS)
            settings = PredictionSettings.parse(content, path)
            written += [f"{parent}/{name}/" for name in (settings.written if settings else ())]
    return {
        path: info
        for path, info in listed.items()
        if path.lower().endswith(SUFFIXES)
        and not path.startswith(tuple(written))
        and not any(part[0] == "." for part in Path(path[len(folder.root) :].strip("/")).parts)
    }


def _stamp(info: PlainMapping) -> tuple[str, int]:
    """Returns what tells a replaced file from the one before it."""
    return next((str(info[key]) for key in _STAMPS if key in info), ""), int(info.get("size") or 0)
