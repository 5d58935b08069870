"""Fetches a file over HTTP: goes on where it stopped, and never leaves a wrong file behind.

``torch.hub.download_url_to_file`` and pooch verify what they fetch but begin again after every cut,
which files of several gigabytes do not survive on many lines.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
from rich.progress import TransferSpeedColumn as SpeedColumn

from dpt.data.base import DataError

ATTEMPTS = 6
"""Tries in a row that bring nothing new before a download is given up."""
_BLOCK = 1 << 18
_ALGORITHMS = ("sha256", "sha1", "md5")


def fetch(
    url: str,
    target: str | Path,
    *,
    checksum: str | None = None,
    size: int | None = None,
    timeout: float = 30.0,
    pause: float = 1.0,
    remedy: str | None = None,
    quiet: bool = False,
) -> Path:
    """Downloads ``url`` to ``target``; an existing target is only verified.

    What has arrived is kept in ``target`` + ``.part``: another try, in this call or a later one,
    asks for the rest (HTTP Range, guarded by If-Range, so that a file that changed meanwhile is
    fetched anew). The target appears in one step, complete and verified.

    Args:
        url: http or https.
        target: the file to write; its folder is made.
        checksum: ``ALGORITHM:HEX`` with sha256, sha1 or md5. Without it the length alone is
            checked.
        size: of the file in bytes, where it is known.
        timeout: seconds without a byte that count as a cut connection.
        pause: seconds before the second try; they double with each further one.
        remedy: what to do where the server does not give the file; None: fetch it by hand.
        quiet: no progress bar, for what is fetched in passing.

    Raises:
        DataError: one line that says what failed and what to do.
    """
    target = Path(target)
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url}: only http and https addresses are fetched")
    if target.exists():
        verify(target, checksum=checksum, size=size, remedy="remove it and download it again")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    columns = ("{task.description}", BarColumn(), DownloadColumn(), SpeedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(file=sys.stderr), disable=quiet) as progress:
        bar = progress.add_task(target.name, total=size)

        def show(done: int, total: int | None) -> None:
            progress.update(bar, completed=done, total=total)

        vouched = checksum is not None
        refused = remedy or f"fetch the file by hand and save it as {target}"
        _Transfer(url, part, size, timeout, vouched, refused, show).run(pause)
    try:
        again = f"it was removed; run again, or see whether {url} has changed"
        verify(part, checksum=checksum, size=size, remedy=again)
    except DataError:
        _remove(part)  # or every later try would find it complete
        raise
    os.replace(part, target)
    _validator_file(part).unlink(missing_ok=True)
    return target


def verify(
    path: Path, *, checksum: str | None = None, size: int | None = None, remedy: str
) -> None:
    """Raises DataError, with ``remedy``, unless a file has the size and checksum given."""
    found = path.stat().st_size
    if size is not None and found != size:
        raise DataError(f"{path}: has {found} bytes, must have {size}: {remedy}")
    if checksum is None:
        return
    algorithm, _, wanted = checksum.partition(":")
    if algorithm not in _ALGORITHMS or not wanted:
        raise DataError(f"checksum {checksum}: write ALGORITHM:HEX with {', '.join(_ALGORITHMS)}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, algorithm).hexdigest()
    if digest != wanted.lower():
        raise DataError(f"{path}: its {algorithm} is {digest}, must be {wanted}: {remedy}")


class _CutError(Exception):
    """A try that another one may go on from."""


@dataclass(frozen=True)
class _Transfer:
    """The way of one file from ``url`` to ``part``.

    Attributes:
        vouched: a checksum will tell whether what was there before and what comes now are of one
            file; else the server's word is needed (ETag or Last-Modified).
        remedy: what to do where the server refuses.
    """

    url: str
    part: Path
    size: int | None
    timeout: float
    vouched: bool
    remedy: str
    show: Callable[[int, int | None], None]

    def run(self, pause: float) -> None:
        """Tries until ``part`` is complete."""
        furthest, idle = _length(self.part), 0
        while True:
            try:
                self._try()
                return
            except _CutError as error:
                idle = 0 if _length(self.part) > furthest else idle + 1
                furthest = max(furthest, _length(self.part))
                if idle >= ATTEMPTS:
                    raise DataError(
                        f"{self.url}: {error}, {_length(self.part)} bytes have arrived: check the "
                        "network and run the same command again; it goes on from there"
                    ) from None
            time.sleep(pause * 2**idle)

    def _try(self) -> None:
        """One request; raises _CutError where another may help."""
        start, known = _length(self.part), _validator_file(self.part)
        headers = {"User-Agent": "dpt", "Accept-Encoding": "identity"}
        validator = known.read_text() if known.exists() else ""
        if start and (validator or self.vouched):
            headers["Range"] = f"bytes={start}-"
            if validator:
                headers["If-Range"] = validator
        try:
            with urlopen(Request(self.url, headers=headers), timeout=self.timeout) as response:
                self._receive(response, start, validator)
        except HTTPError as error:
            self._refused(error, start)
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
            raise _CutError(text) from None

    def _receive(self, response: http.client.HTTPResponse, start: int, validator: str) -> None:
        """Appends the answer to ``part``, or begins it anew."""
        if response.status == 206:
            found = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers["Content-Range"] or "")
            if found is None or int(found[1]) != start:
                _remove(self.part)
                raise _CutError("the server sent another part than asked for")
            total: int | None = int(found[2])
        else:
            start, validator = 0, _validator(response.headers)
            length = response.headers["Content-Length"]
            total = int(length) if length else None
        if self.size is not None and total is not None and total != self.size:
            raise DataError(
                f"{self.url}: the server has {total} bytes, expected {self.size}: the file was "
                "replaced at its source; look for its new description"
            )
        _check_space(self.part, (total or self.size or 0) - start)
        done = start
        with self._open(start, validator) as file:
            self.show(done, total)
            while block := response.read1(_BLOCK):
                try:
                    file.write(block)
                    file.flush()
                except OSError as error:
                    raise self._not_written(error) from None
                done += len(block)
                self.show(done, total)
        if total is not None and done != total:
            raise _CutError(f"the connection was cut at {done} of {total} bytes")

    def _refused(self, error: HTTPError, start: int) -> None:
        """What an error status means; returns where ``part`` is complete already."""
        if error.code == 416:
            whole = re.match(r"bytes \*/(\d+)", error.headers["Content-Range"] or "")
            if whole is not None and int(whole[1]) == start:
                return
            _remove(self.part)
            raise _CutError("the file at the source has changed")
        reason = f"the server answers {error.code} {error.reason}"
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _CutError(reason)
        raise DataError(f"{self.url}: {reason}: {self.remedy}")

    def _open(self, start: int, validator: str) -> IO[bytes]:
        """``part``, to be written from byte ``start`` on."""
        try:
            _validator_file(self.part).write_text(validator)
            file = self.part.open("r+b" if start else "wb")
            file.seek(start)
            return file
        except OSError as error:
            raise self._not_written(error) from None

    def _not_written(self, error: OSError) -> DataError:
        return DataError(
            f"{self.part}: cannot be written ({error.strerror}): make room, or check the rights, "
            "and run the same command again; it goes on from there"
        )


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise DataError(
            f"{part.parent}: {needed / 1e9:.1f} GB are to come, {free / 1e9:.1f} GB are free: "
            "make room, or set data.root to another disk"
        )


def _validator(headers: http.client.HTTPMessage) -> str:
    """What If-Range may hold: a strong ETag, else the date of the last change."""
    etag = headers["ETag"] or ""
    return etag if etag.startswith('"') else headers["Last-Modified"] or ""


def _validator_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _remove(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)
