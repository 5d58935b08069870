"""``dpt data download``, ``check`` and ``pack``: fetches, checks or packs a data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import dpt
from dpt.config.schema import Config, PackConfig
from dpt.data.datasets.archive import extract, is_unpacked
from dpt.data.shards.packed import pack_split
from dpt.data_check import has_errors
from dpt.fetch import fetch, verify
from dpt.files import plural
from dpt.process import log
from dpt.run import started
from dpt.validation import Settings, validate

MEGABYTE = 10**6


@dataclass(frozen=True, kw_only=True)
class DownloadFile(Settings):
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
class DownloadSource(Settings):
    """Where a data set comes from: ``data.download``."""

    page: str  # home page
    terms: str  # licence or terms of use
    steps: str | None = None  # what has to be done by hand
    files: Sequence[DownloadFile] = ()  # to fetch, or to unpack after they were fetched by hand


def download(*overrides: str) -> None:
    """Fetches and unpacks missing files below ``data.root``, and counts the images.

    Existing files are verified and not fetched again; archives that were unpacked may be removed.
    """
    with started("data download", Config, overrides) as config:
        data = config.data.values
        if not data.get("download"):
            raise ValueError(f"data={data['kind']}: no source is known: choose another data set")
        source = validate(DownloadSource, data["download"], "data.download")
        root = Path(data["root"]).expanduser()
        root.mkdir(parents=True, exist_ok=True)
        log.info("%s\nterms: %s", source.page, source.terms)
        missing = [file.file_name for file in source.files if not _complete(file, root)]
        if source.steps and (missing or not source.files):
            log.info("by hand: %s", source.steps)
        if missing:
            remedy = f"fetch {', '.join(missing)} from {source.page} by hand into {root}"
            raise ValueError(f"{remedy}, and run the same command again")
        for split in ("train", "val"):
            log.info("%s: %d images", split, len(config.data.make(split)))


def _complete(file: DownloadFile, root: Path) -> bool:
    """Fetches and unpacks a file; returns False if it has to be fetched by hand first."""
    path = root / file.file_name
    if file.unpack and is_unpacked(path, root):
        return True
    if file.url is not None:
        fetch(file.url, path, checksum=file.checksum, size=file.size)  # verifies if it exists
    elif path.exists():
        verify(path, checksum=file.checksum, size=file.size, remedy="fetch it again by hand")
    else:
        return False
    if file.unpack:
        count = extract(path, root, file.unpack)
        log.info("%s: %d files", path.name, count)
    return True


def check(*overrides: str) -> None:
    """Looks for faults in a data set; a ValueError says that some are errors."""
    if has_errors(dpt.check(*overrides)):
        raise ValueError("the data have errors, which are listed above")


def pack(*overrides: str) -> None:
    """Packs splits of a data set into the folder ``out`` (``conf/data_pack.yaml``)."""
    with started("data pack", PackConfig, overrides) as config:
        data, folder = config.data, Path(config.out).expanduser()
        if "cache" in data.values:
            data = data.changed(cache=False)  # a cache may scale images down
        for split in config.split:
            index = pack_split(
                data.make(split),
                folder,
                split=split,
                shard_size=int(config.shard_mb * MEGABYTE),
                shuffle=split == "train",  # video frames are then not neighbours
                num_workers=data.loader.num_workers,
                skip_broken=data.loader.on_error == "skip",
            )
            samples = sum(shard.samples for shard in index.shards)
            megabytes = sum(s.size for s in index.shards) / MEGABYTE
            content = f"{plural(samples, 'sample')} in {plural(len(index.shards), 'shard')}"
            log.info("%s: %s, %.1f MB", split, content, megabytes)
        log.info("train with data=packed data.root=%s", folder)
