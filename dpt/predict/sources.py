"""Which files are predicted, and under what names: on this machine, or at addresses."""

import atexit
import glob
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import fsspec

from dpt.data.formats import io, video
from dpt.fetch import fetch, web_stamp
from dpt.files import MAX_BYTES, DataError, checked_address, missing_path, reason, without_passwords
from dpt.predict.records import PredictionSettings
from dpt.process import log
from dpt.validation import PlainMapping

SUFFIXES = (*io.IMAGE_SUFFIXES, *video.VIDEO_SUFFIXES)
_STAMPS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "updated", "created")
_REMEDY = "check the address and the permissions"
_MAX_PAGE = 1 << 20  # bytes of a page that links to images


@dataclass(frozen=True)
class InputFile:
    """An image or video to predict; ``path`` of a remote one is where it is copied to."""

    path: Path  # absolute
    name: str  # of the output files: a relative path with ``/``, without suffix and ``..``
    address: str = ""  # of a remote file
    stamp: tuple[str, int] = ("", 0)
    """The store's version or time of a remote file, and its size in bytes."""

    @property
    def is_video(self) -> bool:
        return self.path.suffix.lower() in video.VIDEO_SUFFIXES

    @property
    def source(self) -> str:
        """The path or address in records and messages."""
        return without_passwords(self.address) or str(self.path)

    def modified(self) -> list[object]:
        """Returns time in nanoseconds (or ``stamp``) and size in bytes, which tell a replaced file
        from the file before it; empty if the file is gone."""
        if self.address:
            return [*self.stamp]
        with suppress(OSError):  # reading it names the fault
            status = self.path.stat()
            return [status.st_mtime_ns, status.st_size]
        return []

    def fetch(self) -> Path:
        """Returns the path of the file on this machine; copies a remote file there."""
        if not self.address:
            return self.path
        return fetch(self.address, self.path, limit=MAX_BYTES, remedy=_REMEDY, quiet=True)

    def release(self) -> None:
        """Removes the local copy of a remote file."""
        if self.address:
            shutil.rmtree(self.path.parent, ignore_errors=True)


def find_inputs(inputs: Sequence[str | Path], *, out: Path) -> list[InputFile]:
    """Returns the images and videos that the inputs name, sorted within each folder, each once.

    A pattern such as ``photos/*.jpg``, which Windows' shells do not expand, is expanded. Folders
    are searched recursively, without hidden files, ``out``, and what ``dpt predict`` wrote
    earlier. Names are paths relative to the deepest folder that contains all input folders, so that
    sub-folders are kept; an input file elsewhere has its own name. If two files then have one name,
    all are relative to the deepest folder that contains all inputs. Files that differ only in their
    suffix keep it. Arrays (``.npy``) are images of bands in folders without pictures.
    """
    files: dict[Path, None] = {}
    paths, out = [path for name in inputs for path in _matching(_absolute(name))], _absolute(out)
    for path in paths:
        if path == out and path.is_dir():
            raise DataError(f"{path}: is an input and --out: choose another --out")
        if not os.path.lexists(path):
            raise missing_path(path, what="input", remedy="check the path")
        files.update(dict.fromkeys(_readable(path, out) if path.is_dir() else [path]))
    names = names_of(list(files), [path for path in paths if path.is_dir()])
    return [InputFile(path, name.as_posix()) for path, name in names.items()]


def _matching(path: Path) -> list[Path]:
    """Returns a path that exists, or those that match it as a pattern; itself if there is none."""
    if os.path.lexists(path):
        return [path]
    return [Path(name) for name in sorted(glob.glob(str(path)))] or [path]


def _readable(folder: Path, out: Path) -> list[Path]:
    """Returns the images and videos of a folder; logs how many pictures are not read."""
    walked = list(_walk(folder, out))
    unread = Counter(s for s in (file.suffix.lower() for file in walked) if s in io.UNREAD_SUFFIXES)
    if unread:
        formats = ", ".join(f"{count} {suffix}" for suffix, count in sorted(unread.items()))
        log.warning("%s: left out: %s: convert them to JPEG or PNG", folder, formats)
    arrays = [file for file in walked if file.suffix.lower() == ".npy"]
    readable = [file for file in walked if file.suffix.lower() in SUFFIXES] or arrays
    if not readable:
        kinds = f"no image or video ({', '.join(SUFFIXES)}) that dpt predict did not write"
        raise DataError(f"{folder}: {kinds} in this folder or below: check the path")
    return readable


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
            if name[0] != "." and name.lower().endswith((*SUFFIXES, *io.UNREAD_SUFFIXES, ".npy")):
                yield Path(parent, name)


# --- addresses ----------------------------------------------------------------------------------


def find_remote(inputs: Sequence[str]) -> list[InputFile]:
    """Returns the images and videos at addresses such as ``s3://bucket/photos``.

    As :func:`find_inputs`, but what ``dpt predict`` wrote is not left out. The address of an image
    is not listed.

    Raises:
        DataError: an address cannot be listed or holds no image, or two names cannot be told
            apart.
    """
    remote: dict[Path, InputFile] = {}
    folders = []
    for address in inputs:
        root, files = _listed(checked_address(address))
        images = [name for name in sorted(files) if name.lower().endswith(SUFFIXES)]
        images = [name for name in images if "/." not in name[len(root) :]]
        store = Path("/", address.partition("://")[0].lower())  # absolute, as local paths
        paths = [store / name.lstrip("/") for name in images]
        if not images or len({*paths}) < len(paths):
            fault = "names that differ in slashes alone" if images else "no image"
            raise DataError(f"{address}: {fault} ({', '.join(SUFFIXES)}): check the address")
        if images != [root]:
            folders.append(store / root.lstrip("/"))
        for path, name in zip(paths, images, strict=True):
            remote[path] = InputFile(path, name, *files[name])
    copies = Path(tempfile.mkdtemp(prefix="dpt-"))
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    return [
        # the copy's name is the one that files of intrinsics know
        replace(remote[path], path=copies / f"{number}" / path.name, name=name.as_posix())
        for number, (path, name) in enumerate(names_of(list(remote), folders).items())
    ]


_Listing = tuple[str, dict[str, tuple[str, tuple[str, int]]]]
"""The path at an address; the addresses and stamps of the files below, by their paths."""


def _listed(address: str) -> _Listing:
    if address.startswith("http"):
        return _linked(address)
    try:
        system, root = fsspec.core.url_to_fs(address)
        root = str(root).rstrip("/")
        system.invalidate_cache()
        is_image = root.lower().endswith(SUFFIXES)
        infos = {root: system.info(root)} if is_image else system.find(root, detail=True)
        system.invalidate_cache()  # it would stay in memory
    except Exception as error:  # every file system has its own exceptions
        raise DataError(f"{address}: cannot be listed ({reason(error)}): {_REMEDY}") from None
    names = [name for name in infos if f"{name}/".startswith(f"{root}/")]
    # the same addresses for all ways to write them
    return root, {name: (str(system.unstrip_protocol(name)), _stamp(infos[name])) for name in names}


def _linked(address: str) -> _Listing:
    """Returns the image at an address of a web server, or the images that the page there links
    to."""
    root = urlsplit(address)._replace(query="", fragment="").geturl().rstrip("/")
    if root.lower().endswith(SUFFIXES):
        return root, {root: (address, (web_stamp(address), 0))}
    with tempfile.TemporaryDirectory() as folder:
        page = fetch(address, Path(folder, "page"), limit=_MAX_PAGE, remedy=_REMEDY, quiet=True)
        links = re.findall(r"""href=["']?([^"'?#<> ]+)""", page.read_text(errors="replace"))
    joined = dict.fromkeys(urljoin(f"{root}/", unescape(link)) for link in links)
    below = [address for address in joined if address.startswith(f"{root}/")]
    addresses = [address for address in below if address.lower().endswith(SUFFIXES)]
    with ThreadPoolExecutor(8) as pool:
        stamps = pool.map(web_stamp, addresses)
        return root, {a: (a, (s, 0)) for a, s in zip(addresses, stamps, strict=True)}


def _stamp(info: PlainMapping) -> tuple[str, int]:
    """Returns what tells a replaced file from the one before it."""
    stamp = next((str(info[key]) for key in _STAMPS if key in info), "")
    return stamp, int(info.get("size") or 0)
