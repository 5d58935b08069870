"""Downloads that resume after an interruption and verify what they fetched.

Own code, because pooch and ``torch.hub.download_url_to_file`` start again after an interruption.
"""

import base64
import hashlib
import http.client
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib import request
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

import fsspec

from dpt.files import DataError, checked_address
from dpt.run_log import tracked

ATTEMPTS = 6
"""Requests in a row without another megabyte before a download is given up."""
PAUSE = 1.0
"""Seconds before the second request; doubled after each further failure."""
TIMEOUT = 30.0
"""Seconds without data after which a connection counts as interrupted."""
SLOWEST = 4096
"""Bytes a second: a connection that gives fewer for ``TIMEOUT`` seconds counts as interrupted."""
_MEGABYTE = 1 << 20
_ALGORITHMS = ("sha256", "sha1", "md5")


def fetch(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    size: int | None = None,
    limit: int | None = None,
    remedy: str | None = None,
    quiet: bool = False,
) -> Path:
    """Downloads ``url`` to ``target``; an existing target is only verified.

    The data is written to ``target`` + ``.part`` and renamed when it is complete and verified. With
    a checksum, an interrupted transfer resumes (HTTP Range), in a later call too.

    Args:
        url: http, https (``https://name:password@host`` for a server that asks for one), or an
            address for fsspec such as ``s3://``.
        target: the file to write; its folder is created.
        checksum: ``ALGORITHM:HEX`` with sha256, sha1 or md5. None checks the length only.
        size: size of the file in bytes, if known.
        limit: largest size that is accepted, by default ``size``; at most 90 % of the free space.
        remedy: what to do if the server refuses; None suggests fetching the file by hand.

    Raises:
        DataError: the transfer failed, or the file is not the expected one.
    """
    if target.exists():
        verify(target, checksum=checksum, size=size, remedy="remove it and download it again")
        return target
    url = checked_address(url)
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    if part.is_symlink():  # it would be written through
        part.unlink()
    remedy = remedy or f"fetch the file by hand and save it as {target}"
    is_complete = False
    try:
        with part.open("ab" if checksum else "wb") as file:
            room = file.tell() + int(0.9 * shutil.disk_usage(part.parent).free)
            transfer = _Transfer(url, file, min(limit or size or room, room), remedy, quiet)
            if url.startswith("http"):
                transfer.over_http(resume=checksum is not None)
            else:
                transfer.over_fsspec()
        is_complete = True
        fault = f"it was removed; run again, or check whether {url} has changed"
        verify(part, checksum=checksum, size=size, remedy=fault)
    except DataError:
        if is_complete or part.stat().st_size == 0:
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
    actual = path.stat().st_size
    if size is not None and actual != size:
        raise DataError(f"{path}: has {actual} bytes, expected {size}: {remedy}")
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    if algorithm not in _ALGORITHMS or not expected:
        raise DataError(f"checksum {checksum}: write ALGORITHM:HEX with {', '.join(_ALGORITHMS)}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).hexdigest()
    if digest != expected.lower():
        raise DataError(f"{path}: its {algorithm} is {digest}, expected {expected}: {remedy}")


@dataclass(frozen=True)
class _Transfer:
    """Appends the rest of what lies at ``url`` to ``file``, up to ``limit`` bytes in all."""

    url: str
    file: BinaryIO
    limit: int
    remedy: str
    is_quiet: bool

    def over_fsspec(self) -> None:
        try:
            with fsspec.open(self.url, "rb") as source:
                source.seek(self.file.tell())
                for _ in self._append(source.read):
                    pass
        except DataError:
            raise
        except Exception as error:  # every file system has its own exceptions
            raise DataError(f"{self.url}: cannot be read ({error}): {self.remedy}") from None

    def over_http(self, *, resume: bool) -> None:
        """Sends requests until the file is complete."""
        furthest, failures = self.file.tell(), 0
        while reason := self._request():
            done = self.file.tell()
            failures += 1
            if done >= furthest + _MEGABYTE:
                furthest, failures = done, 1
            if failures == ATTEMPTS:
                remedy = "check the network and run the same command again"
                raise DataError(f"{self.url}: {reason} ({done} bytes received): {remedy}")
            if not resume:
                self._clear()
            time.sleep(PAUSE * 2 ** (failures - 1))

    def _request(self) -> str:
        """Appends the answer to one request.

        Returns:
            What interrupted the transfer; empty if the file is complete.
        """
        try:
            with _answer(_http_request(self.url, self.file.tell())) as response:
                if response.status != 206:  # the server sends the whole file
                    self._clear()
                length = response.length or 0  # 0 if it is not stated
                total = self.file.tell() + length
                megabytes = self._append(response.read1, length)
                if length and not self.is_quiet:
                    title = f"{Path(self.file.name).stem} (MB)"
                    megabytes = tracked(megabytes, -(-length // _MEGABYTE), title=title)
                for _ in megabytes:
                    pass
        except HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if error.code == 416:  # nothing lies after what the file holds
                return ""
            if error.code in (408, 425, 429) or error.code >= 500:
                return reason
            raise DataError(f"{self.url}: {reason}: {self.remedy}") from None
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        done = self.file.tell()
        is_cut = length and done != total
        return f"the connection ended at {done} of {total} bytes" if is_cut else ""

    def _append(self, read: Callable[[int], bytes], length: int = 0) -> Iterator[None]:
        """Appends what ``read`` returns, and yields after each megabyte.

        Args:
            length: the number of bytes that are expected, 0 if it is unknown.

        Raises:
            TimeoutError: the data come slowly.
        """
        size, start, total = 0, time.monotonic(), self.file.tell() + length
        while block := read(_MEGABYTE):
            self.file.write(block)
            if max(total, self.file.tell()) > self.limit:
                self._clear()
                limits = f"{self.limit} bytes, the size expected or 90 % of the free space"
                raise DataError(f"{self.file.name}: has more than {limits}: check the address")
            size += len(block)
            if time.monotonic() - start > TIMEOUT + size / SLOWEST:
                raise TimeoutError(f"fewer than {SLOWEST} bytes a second")
            if size >= _MEGABYTE:
                yield
                size, start = 0, time.monotonic()

    def _clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()


class _NoFtp(request.FTPHandler):
    """Refuses redirections to FTP, which urllib follows; those to other schemes it refuses."""

    def ftp_open(self, req: request.Request) -> NoReturn:
        raise DataError(f"{req.full_url}: a web server leads to it: fetch the file by hand")


def _http_request(url: str, start: int) -> request.Request:
    """Returns a request for the bytes of a file from ``start`` on."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    headers = {"User-Agent": "dpt", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    asked = request.Request(url.replace(user + at, "", 1), headers=headers)
    if user:  # urllib does not know name:password@host; a redirection is not told the password
        token = base64.b64encode(unquote(user).encode()).decode()
        asked.add_unredirected_header("Authorization", f"Basic {token}")
    return asked


def web_stamp(url: str) -> str:
    """Returns what tells a replaced file of a web server from the file before it: its time and
    size, or its ETag; empty if the server states none of them."""
    asked = _http_request(url, 0)
    asked.method = "HEAD"
    with suppress(DataError, OSError, http.client.HTTPException), _answer(asked) as answer:
        names = (
            ("Last-Modified", "Content-Length") if answer.headers["Last-Modified"] else ("ETag",)
        )
        return " ".join(answer.headers[name] or "" for name in names)
    return ""


def _answer(asked: request.Request) -> http.client.HTTPResponse:
    """Returns the answer to a request, after its headers.

    TIMEOUT alone would allow them to come byte by byte, so they are read in a thread, which is left
    to itself after twice that time.
    """
    answer: Future[http.client.HTTPResponse] = Future()

    def ask() -> None:
        try:
            answer.set_result(request.build_opener(_NoFtp).open(asked, timeout=TIMEOUT))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return answer.result(timeout=2 * TIMEOUT)
