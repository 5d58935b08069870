"""``dpt data download data=NAME``: fetches and unpacks a data set, as far as its terms allow."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from dpt.config.data import make_dataset
from dpt.config.objects import check_arguments
from dpt.data.datasets.archive import extract, is_unpacked
from dpt.fetch import fetch
from dpt.files import config_dir
from dpt.validation import PlainMapping

log = logging.getLogger("dpt")


@dataclass(frozen=True, kw_only=True)
class DownloadFile:
    """One file of a data set, an entry of ``data.download.files``."""

    url: str | None = None  # None: needs a login and must be fetched by hand
    name: str | None = None  # file name below data.root; None: the last part of the URL
    checksum: str | None = None  # sha256:HEX, sha1:HEX or md5:HEX
    size: int | None = None  # bytes
    unpack: Mapping[str, str] | None = None  # folders of the archive: folders below data.root

    @property
    def file_name(self) -> str:
        return self.name or PurePosixPath(urlsplit(self.url or "").path).name


@dataclass(frozen=True, kw_only=True)
class DownloadSource:
    """Where a data set comes from: ``data.download``."""

    page: str  # home page
    terms: str  # licence or terms of use
    steps: str | None = None  # what has to be done by hand
    files: Sequence[DownloadFile] = ()  # to fetch, or to unpack after they were fetched by hand


def download(cfg: PlainMapping) -> None:
    """Fetches and unpacks missing files below ``data.root``, and counts the images.

    Existing files are verified and not fetched again; archives that were unpacked may be removed.
    ``cfg`` is plain data (``conf/data_download.yaml``).
    """
    data = cfg.get("data") or {}
    if not data.get("download"):
        files = sorted((config_dir() / "data").glob("*.yaml"))
        names = [f.stem for f in files if re.search(r"^download:(?! null)", f.read_text(), re.M)]
        raise ValueError(f"data=NAME must be a data set with a source: {', '.join(names)}")
    source = DownloadSource(**check_arguments(DownloadSource, data["download"], "data.download"))
    root = Path(data["root"]).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    log.info("%s\nterms: %s", source.page, source.terms)
    missing = [file.file_name for file in source.files if not _complete(file, root)]
    if source.steps and (missing or not source.files):
        log.info("by hand: %s", source.steps)
    if missing:
        raise ValueError(
            f"{', '.join(missing)} must be fetched by hand from {source.page}: save in {root} and "
            "run the same command again"
        )
    for split in ("train", "val"):
        log.info("%s: %d images", split, len(make_dataset(data, split)))
    archives = [f.file_name for f in source.files if f.unpack and (root / f.file_name).exists()]
    if archives:
        log.info("no longer needed in %s: %s", root, ", ".join(archives))


def _complete(file: DownloadFile, root: Path) -> bool:
    """Fetches and unpacks a file; returns False if it has to be fetched by hand first."""
    path = root / file.file_name
    if file.unpack and is_unpacked(path, root):
        return True
    if file.url is None and not path.exists():
        return False
    fetch(file.url or "", path, checksum=file.checksum, size=file.size)  # verifies if it exists
    if file.unpack:
        count = extract(path, root, file.unpack)
        log.info("%s: %d files", path.name, count)
    return True
