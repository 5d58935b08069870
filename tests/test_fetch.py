"""Downloads from a local server that resumes, refuses, interrupts and sends wrong data."""

import base64
import hashlib
import re
import shutil
import time
from http.server import ThreadingHTTPServer

import numpy as np
import pytest
from servers import Quiet, running

from dpt import fetch as download
from dpt.data import DataError
from dpt.fetch import ATTEMPTS, fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content`` at any path.

    Attributes:
        cuts: after how many bytes each of the next answers breaks off.
        statuses: what the next requests are answered with instead.
        ranges: whether Range is understood.
        requests: the Range of the requests so far.
        authorizations: their Authorization.
        redirect: an address that all requests are sent on to.
        drip: what is sent byte by byte, ``headers`` or ``content``.
    """

    daemon_threads = True
    content, ranges, with_length, redirect, drip = CONTENT, True, True, "", ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.requests: list[str | None] = []
        self.authorizations: list[str | None] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file.zip"


class Handler(Quiet):
    server: Server

    def do_GET(self) -> None:  # noqa: N802  (the name that is called)
        server, wanted = self.server, self.headers["Range"]
        server.requests.append(wanted)
        server.authorizations.append(self.headers["Authorization"])
        content, start, status, headers = server.content, 0, 200, {}
        if server.redirect:
            status, headers = 302, {"Location": server.redirect}
        elif server.statuses:
            status = server.statuses.pop(0)
        elif server.ranges and wanted:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            status = 206 if start < len(content) else 416
        content = content[start:] if status in (200, 206) else b""
        if server.with_length:
            headers["Content-Length"] = str(len(content))
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        if server.drip == "headers":
            self.send_slowly(b"X" * 200)
        self.end_headers()
        if content and server.cuts:
            content = content[: server.cuts.pop(0)]
        if server.drip == "content":
            self.send_slowly(content[:200])
        else:
            self.wfile.write(content)

    def send_slowly(self, content: bytes) -> None:
        for value in content:
            self.wfile.write(bytes([value]))
            time.sleep(0.02)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.001)
    server = Server()
    with running(server):
        yield server


def get(server, folder, **options):
    return fetch(server.url, folder / "file.zip", **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetch_verifies_and_does_not_fetch_again(server, tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/file.zip.part").symlink_to(tmp_path / "mine")  # is not written through
    target = get(server, tmp_path / "new", checksum=SHA256, size=len(CONTENT))
    assert target.read_bytes() == CONTENT
    assert (tmp_path / "mine").read_bytes() == b"mine"
    for name in ("sha256", "sha1", "md5"):
        checksum = f"{name}:{hashlib.new(name, CONTENT).hexdigest().upper()}"
        assert get(server, tmp_path / "new", checksum=checksum) == target
    assert server.requests == [None]
    assert names(tmp_path / "new") == ["file.zip"]
    with pytest.raises(DataError, match=r"crc32:12: .*sha256, sha1, md5"):
        get(server, tmp_path / "new", checksum="crc32:12")
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"file\.zip: its sha256"):
        get(server, tmp_path / "new", checksum=SHA256)
    assert target.read_bytes() == b"mine"


def test_password_is_sent_to_its_host_alone(server, tmp_path):
    address = server.url.replace("127.0.0.1", "na%40me:wo:rd@127.0.0.1")
    fetch(address, tmp_path / "a")
    expected = "Basic " + base64.b64encode(b"na@me:wo:rd").decode()
    assert server.authorizations == [expected]
    other = Server()
    with running(other):
        server.redirect = other.url
        assert fetch(address, tmp_path / "b").read_bytes() == CONTENT
        assert server.authorizations == [expected] * 2
        assert other.authorizations == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_fetch_resumes_within_one_call(server, tmp_path, ranges):
    server.ranges = ranges
    server.cuts = [300_000, 1, 200_000] if ranges else [300_000]
    assert get(server, tmp_path, checksum=SHA256).read_bytes() == CONTENT
    if ranges:
        assert server.requests == [None, "bytes=300000-", "bytes=300001-", "bytes=500001-"]
    assert names(tmp_path) == ["file.zip"]


def test_resumes_in_a_later_call(server, tmp_path):
    server.cuts = [300_000] + [0] * (ATTEMPTS - 1)
    with pytest.raises(DataError, match=r"file\.zip: .*300000 of 1000000 bytes"):
        get(server, tmp_path, checksum=SHA256)
    assert names(tmp_path) == ["file.zip.part"]
    server.requests.clear()
    assert get(server, tmp_path, checksum=SHA256).read_bytes() == CONTENT
    assert server.requests == ["bytes=300000-"]


def test_without_a_checksum_every_request_is_for_the_whole_file(server, tmp_path):
    server.cuts = [300_000] + [0] * ATTEMPTS
    with pytest.raises(DataError):
        get(server, tmp_path)
    server.content = CONTENT[::-1]
    server.cuts = [300_000]
    assert get(server, tmp_path).read_bytes() == CONTENT[::-1]
    assert set(server.requests) == {None}


def test_server_that_does_not_state_the_length(server, tmp_path):
    server.with_length = False
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.cuts = [10]
    with pytest.raises(DataError, match="has 10 bytes, expected 1000000"):
        get(server, tmp_path / "other", size=len(CONTENT))
    assert names(tmp_path / "other") == []


def test_error_statuses(server, tmp_path):
    server.statuses = [404]
    with pytest.raises(DataError, match=r"file\.zip: .*404"):
        get(server, tmp_path)
    assert len(server.requests) == 1
    assert names(tmp_path) == []
    server.statuses = [503, 429]
    assert get(server, tmp_path).read_bytes() == CONTENT
    server.statuses = [503] * 20
    with pytest.raises(DataError, match=r"file\.zip: .*503"):
        get(server, tmp_path / "other")
    assert len(server.requests) == 4 + ATTEMPTS


@pytest.mark.parametrize("part", ["headers", "content"])
def test_server_that_sends_byte_by_byte_is_given_up(server, tmp_path, monkeypatch, part):
    monkeypatch.setattr(download, "TIMEOUT", 0.1)
    server.drip = part
    start = time.monotonic()
    with pytest.raises(DataError, match=r"file\.zip: (TimeoutError|fewer than \d+ bytes)"):
        get(server, tmp_path, checksum=SHA256)
    assert time.monotonic() - start < 10
    assert len(server.requests) == ATTEMPTS


@pytest.mark.parametrize("address", ["file:///etc/passwd", "data:,x", "FTP://127.0.0.1:1/x"])
def test_redirection_to_something_else_is_refused(server, tmp_path, address):
    server.redirect = address
    expected = r"(file\.zip: the server answers 302|ftp.* leads to it).*by hand"
    with pytest.raises(DataError, match=expected):
        get(server, tmp_path)
    assert len(server.requests) == 1
    assert names(tmp_path) == []


def test_no_more_is_taken_than_expected(server, tmp_path, monkeypatch):
    server.with_length = False
    for limit in ({"size": 1000}, {"limit": 1000}, {"size": 1000, "checksum": SHA256}):
        with pytest.raises(DataError, match="has more than 1000 bytes"):
            get(server, tmp_path, **limit)
        assert names(tmp_path) == []
    assert get(server, tmp_path / "a", limit=len(CONTENT)).read_bytes() == CONTENT
    url = (tmp_path / "a" / "file.zip").as_uri()
    with pytest.raises(DataError, match="has more than 1000 bytes"):
        fetch(url, tmp_path / "c" / "file.zip", limit=1000)
    free = shutil.disk_usage(tmp_path)._replace(free=500_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(DataError, match=r"file\.zip\.part: has more than 450000 bytes"):
        get(server, tmp_path / "b")
    assert names(tmp_path / "b") == []
