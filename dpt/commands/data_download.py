"""``dpt data download data=NAME``: fetches and unpacks a data set, as far as its terms permit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dpt.config import build
from dpt.config.objects import check_arguments
from dpt.data.datasets.archive import extract, is_unpacked
from dpt.data.datasets.download import fetch, verify

log = logging.getLogger("dpt")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a data set, at its source. ``data.download.files`` lists them.

    Attributes:
        url: where it is fetched from; None if a person must, behind a login.
        name: what it is called below ``data.root``; None takes the last part of ``url``.
        checksum: ``sha256:HEX``, ``sha1:HEX`` or ``md5:HEX``, where a source states one.
        size: in bytes, where a source states it.
        unpack: which folders of the archive go where below ``data.root``; None keeps the file
            as it is.
    """

    url: str | None = None
    name: str | None = None
    checksum: str | None = None
    size: int | None = None
    unpack: Mapping[str, str] | None = None

    @property
    def file_name(self) -> str:
        return self.name or PurePosixPath(urlsplit(self.url or "").path).name


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set comes from: ``data.download``.

    Attributes:
        page: its home.
        terms: on what terms it is given, in a few words.
        steps: what a person has to do beyond, or instead; None if nothing.
        files: what is fetched, or, where it was fetched by hand, unpacked.
    """

    page: str
    terms: str
    steps: str | None = None
    files: Sequence[SourceFile] = ()


def download(cfg: Mapping[str, Any]) -> None:
    """Completes the data set below ``data.root`` and counts its images.

    Files that are there already are verified and not fetched again; archives that were unpacked
    are not needed any more. Files behind a login are unpacked once a person has put them there.

    Args:
        cfg: as plain data (``conf/data_download.yaml``).

    Raises:
        ValueError: no known source, a failed transfer, or files that a person must fetch.
    """
    data = cfg.get("data")
    if data is None:
        raise ValueError("which data set? dpt data download data=NAME; see dpt data download -h")
    if not data.get("download"):
        raise ValueError(
            "this data has no source to download from: put your files where data/README.md says"
        )
    source = Source(**check_arguments(Source, data["download"], "data.download"))
    root = Path(data["root"]).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    log.info("%s\nterms: %s", source.page, source.terms)
    absent = [file.file_name for file in source.files if not _complete(file, root)]
    if source.steps and (absent or not source.files):
        log.info("by hand: %s", source.steps)
    if absent:
        raise ValueError(
            f"{', '.join(absent)} must be fetched by hand, from {source.page}: save in {root} and "
            "run the same command again"
        )
    for split in ("train", "val"):
        log.info("%s: %d images", split, len(build.make_dataset(data, split)))
    archives = [f.file_name for f in source.files if f.unpack and (root / f.file_name).exists()]
    if archives:
        log.info("not needed any more in %s: %s", root, ", ".join(archives))


def _complete(file: SourceFile, root: Path) -> bool:
    """Fetches and unpacks a file where that is possible, and says whether it is there."""
    path = root / file.file_name
    if file.unpack and is_unpacked(path, root):
        return True
    if file.url is not None:
        fetch(file.url, path, checksum=file.checksum, size=file.size)
    elif not path.exists():
        return False
    else:
        remedy = "remove it and fetch it again"
        verify(path, checksum=file.checksum, size=file.size, remedy=remedy)
    if file.unpack:
        count = extract(path, root, unpack=file.unpack)
        log.info("%s: %d files", path.name, count)
    return True
