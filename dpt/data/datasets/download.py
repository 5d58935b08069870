"""Downloads that resume after an interruption and verify what they fetched.

Own code, because pooch and ``torch.hub.download_url_to_file`` start again after an interruption.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import fsspec

from dpt.data.errors import DataError
from dpt.run_log import tracked

ATTEMPTS = 6
"""Requests in a row without any new byte before a download is given up."""
PAUSE = 1.0
"""Seconds before the second request; doubled after each further failure."""
TIMEOUT = 30.0
"""Seconds without data after which a connection counts as interrupted."""
_MEGABYTE = 1 << 20
_ALGORITHMS = ("sha256", "sha1", "md5")


def fetch(
    url: str,
    target: str | Path,
    *,
    checksum: str | None = None,
    size: int | None = None,
    remedy: str | None = None,
    quiet: bool = False,
) -> Path:
    """Downloads ``url`` to ``target``; an existing target is only verified.

    The data is written to ``target`` + ``.part`` and renamed when it is complete and verified. An
    interrupted transfer resumes (HTTP Range): within a call if the server states a version of the
    file (If-Range) or a checksum is given, in a later call only with a checksum.

    Args:
        url: http, https, or an address for fsspec such as ``s3://``.
        target: the file to write; its folder is created.
        checksum: ``ALGORITHM:HEX`` with sha256, sha1 or md5. None checks the length only.
        size: size of the file in bytes, if known.
        remedy: what to do if the server refuses; None suggests fetching the file by hand.
        quiet: show no progress.

    Raises:
        DataError: the transfer failed, or the file is not the expected one.
    """
    target = Path(target)
    scheme = urlsplit(url).scheme
    if not scheme:
        raise DataError(f"{url}: not an address such as https://...")
    if target.exists():
        verify(target, checksum=checksum, size=size, remedy="remove it and download it again")
        return target
    part = target.with_name(f"{target.name}.part")
    remedy = remedy or f"fetch the file by hand and save it as {target}"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if checksum else "wb") as file:
            if scheme in ("http", "https"):
                _Transfer(url, file, size, remedy, quiet, checksum is not None).run()
            else:
                _copy(url, file, remedy)
    except DataError:
        if part.stat().st_size == 0:
            part.unlink()
        raise
    except OSError as error:
        raise DataError(
            f"{part}: cannot be written ({error.strerror}): free some space or check the "
            "permissions, and run the same command again to resume"
        ) from None
    try:
        remedy = f"it was removed; run again, or check whether {url} has changed"
        verify(part, checksum=checksum, size=size, remedy=remedy)
    except DataError:
        part.unlink()
        raise
    os.replace(part, target)
    return target


def verify(
    path: Path, *, checksum: str | None = None, size: int | None = None, remedy: str
) -> None:
    """Raises DataError, with ``remedy``, unless a file has the given size and checksum."""
    if not path.is_file():
        raise DataError(f"{path}: does not exist: {remedy}")
    found = path.stat().st_size
    if size is not None and found != size:
        raise DataError(f"{path}: has {found} bytes, expected {size}: {remedy}")
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    if algorithm not in _ALGORITHMS or not expected:
        raise DataError(f"checksum {checksum}: write ALGORITHM:HEX with {', '.join(_ALGORITHMS)}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).hexdigest()
    if digest != expected.lower():
        raise DataError(f"{path}: its {algorithm} is {digest}, expected {expected}: {remedy}")


def _copy(url: str, file: BinaryIO, remedy: str) -> None:
    """Appends the rest of a file that fsspec can read."""
    try:
        with fsspec.open(url, "rb") as source:
            source.seek(file.tell())
            shutil.copyfileobj(source, file, _MEGABYTE)
    except Exception as error:  # every file system has its own exceptions
        raise DataError(f"{url}: cannot be read ({error}): {remedy}") from None


class _InterruptedError(Exception):
    """A failure after which another request may succeed."""


@dataclass
class _Transfer:
    """Requests for one file.

    Attributes:
        file: the partial file, opened for appending.
        has_checksum: whether a checksum will prove that all pieces belong to one file.
        validator: version of the file to which the data so far belongs, as the server stated it.
    """

    url: str
    file: BinaryIO
    size: int | None
    remedy: str
    quiet: bool
    has_checksum: bool
    validator: str = ""

    def run(self) -> None:
        """Sends requests until the file is complete."""
        furthest, failures = self.file.tell(), 0
        while True:
            try:
                self._request()
                return
            except _InterruptedError as error:
                done = self.file.tell()
                failures = 0 if done > furthest else failures + 1
                furthest = max(furthest, done)
                if failures >= ATTEMPTS:
                    raise DataError(
                        f"{self.url}: {error} ({done} bytes received): check the network and run "
                        "the same command again"
                    ) from None
            time.sleep(PAUSE * 2**failures)

    def _request(self) -> None:
        if not (self.validator or self.has_checksum):
            self._clear()
        start = self.file.seek(0, os.SEEK_END)
        headers = {"User-Agent": "dpt", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if self.validator:
                headers["If-Range"] = self.validator
        try:
            with urlopen(Request(self.url, headers=headers), timeout=TIMEOUT) as response:
                self._receive(response, start)
        except HTTPError as error:
            if error.code == 416:  # nothing lies after ``start``
                if error.headers["Content-Range"] == f"bytes */{start}":
                    return
                self._clear()
                raise _InterruptedError("the file has changed on the server") from None
            reason = f"the server answers {error.code} {error.reason}"
            if error.code in (408, 425, 429) or error.code >= 500:
                raise _InterruptedError(reason) from None
            raise DataError(f"{self.url}: {reason}: {self.remedy}") from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            cause = getattr(error, "reason", error)
            text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            raise _InterruptedError(text) from None

    def _receive(self, response: http.client.HTTPResponse, start: int) -> None:
        """Appends a response, or starts again if the server sends the whole file."""
        if response.status == 206:
            content_range = response.headers["Content-Range"] or ""
            match = re.match(rf"bytes {start}-\d+/(\d+)", content_range)
            if match is None:
                self._clear()
                raise _InterruptedError(f"the server sent {content_range}, not from byte {start}")
            total = int(match[1])
        else:
            self._clear()
            etag = response.headers["ETag"] or ""  # If-Range takes strong ones (without W/) only
            self.validator = etag if etag[:1] == '"' else response.headers["Last-Modified"] or ""
            total = int(response.headers["Content-Length"] or 0)
        if self.size and total and total != self.size:
            raise DataError(
                f"{self.url}: the server has {total} bytes, expected {self.size}: the file was "
                "replaced; look for its new description"
            )
        folder = Path(self.file.name).parent
        needed = (total or self.size or 0) - self.file.tell()
        if needed > (free := shutil.disk_usage(folder).free):
            raise DataError(
                f"{folder}: needs {needed / 1e9:.1f} GB, has {free / 1e9:.1f} GB free: free some "
                "space, or set data.root to another disk"
            )
        blocks: Iterable[bytes] = iter(partial(response.read, _MEGABYTE), b"")
        if total and not self.quiet:
            name = Path(self.file.name).stem
            blocks = tracked(blocks, -(-needed // _MEGABYTE), title=f"{name} (MB)")
        for block in blocks:
            self.file.write(block)
        if total and self.file.tell() != total:
            done = self.file.tell()
            raise _InterruptedError(f"the connection ended at {done} of {total} bytes")

    def _clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()
