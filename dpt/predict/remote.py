"""Inputs at remote addresses: listed once, and each fetched when it is predicted."""

import atexit
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec

from dpt.data.datasets.download import fetch
from dpt.files import MAX_BYTES, MAX_FILES, DataError, reason
from dpt.predict.inputs import SUFFIXES, InputFile, names_of
from dpt.validation import PlainMapping

_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")


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
        remedy = "check the address and the permissions"
        return fetch(self.address, self.path, limit=MAX_BYTES, remedy=remedy, quiet=True)

    def release(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)


def find_remote(inputs: Sequence[str]) -> list[InputFile]:
    """Returns the images and videos at addresses of fsspec, such as ``s3://bucket/photos``.

    As :func:`dpt.predict.inputs.find_inputs`, without hidden files.

    Raises:
        DataError: an address cannot be listed or holds no image, or some inputs are local paths.
    """
    infos: dict[Path, PlainMapping] = {}
    folders: list[Path] = []
    systems = set()
    for address in inputs:
        if "://" not in address:
            fault = "is a local path beside remote addresses"
            raise DataError(f"{address}: {fault}: predict them one after another")
        try:
            system, root = fsspec.core.url_to_fs(address)
            listed = system.find(root, detail=True)
        except Exception as error:  # every file system has its own exceptions
            raise DataError(f"{address}: cannot be listed ({reason(error)})") from None
        systems.add(address.partition("://")[0])
        folders += [] if [*listed] == [root.rstrip("/")] else [Path(root)]
        images = {
            Path(path): info
            for path, info in listed.items()
            if path.lower().endswith(SUFFIXES)
            and not any(part[0] == "." for part in Path(path[len(root) :].strip("/")).parts)
        }
        if not images or len(images) > MAX_FILES:
            fault = "more than can be listed" if images else f"no image ({', '.join(SUFFIXES)})"
            raise DataError(f"{address}: {fault}: check the address")
        infos |= images
    if len(systems) > 1:
        kinds = " and ".join(sorted(systems))
        raise DataError(
            f"{', '.join(inputs)}: addresses of {kinds}: predict them one after another"
        )
    copies = Path(tempfile.mkdtemp(prefix="dpt-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    return [
        RemoteFile(
            path=copies / f"{number}" / path.name,  # as files of intrinsics name it
            name=name.as_posix(),
            address=f"{min(systems)}://{path.as_posix()}",
            stamp=_stamp(infos[path]),
        )
        for number, (path, name) in enumerate(names_of(sorted(infos), folders).items())
    ]


def _stamp(info: PlainMapping) -> tuple[str, int]:
    """Returns what tells a replaced file from the one before it."""
    return next((str(info[key]) for key in _STAMPS if key in info), ""), int(info.get("size") or 0)
