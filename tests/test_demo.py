"""The demo: its answers, what its server refuses, and the page itself in a browser."""

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import zlib

import cv2
import numpy as np
import pytest
from photos import save_photo, tiny
from servers import running

from dpt.commands import models
from dpt.data import read_depth, read_labels
from dpt.demo import MAX_BYTES, Demo, is_local, make_server
from dpt.predict import Predictor

HEADS = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 5}}


def png_header(width, height):
    """A PNG that says how large it is, and holds no pixel."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checked = struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return b"\x89PNG\r\n\x1a\n" + checked


@pytest.fixture(scope="module")
def predictor():
    return Predictor(tiny(HEADS), device="cpu")


@pytest.fixture
def demo(predictor):
    return Demo(predictor, name="<b>tiny")


@pytest.fixture
def photo(tmp_path):
    return save_photo(tmp_path / "photo.png", 60, 90)


def decoded(address):
    data = base64.b64decode(address.partition(",")[2])
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)


def values_of(output):
    values = np.frombuffer(base64.b64decode(output["values"]), "<f4")
    return values.reshape(output["height"], output["width"])


# What the page shows


def test_demo_page_names_the_outputs_and_the_model(demo):
    facts = demo.answer("GET /model.json", {}, bytes)
    assert facts["title"] == "Depth and segmentation"
    assert (facts["backend"], facts["name"]) == ("server", "<b>tiny")  # which the page escapes
    content = {name: path.read_text() for name, path in demo.files.items()}
    assert content["/"].startswith("<!doctype html>")
    addresses = {a for text in content.values() for a in re.findall(r"https?://[^\s<]+", text)}
    assert addresses == {"http://localhost:8000"}  # nothing is fetched from elsewhere


def test_demo_answers_with_maps_and_files_of_the_images_size(demo, photo, tmp_path):
    answer = demo.predict(photo.read_bytes())
    expected = demo.predictor(photo)
    assert decoded(answer["image"]).shape == (60, 90, 3)
    depth, segmentation = answer["outputs"]
    assert (depth["name"], depth["unit"], depth["is_inverse_depth"]) == ("depth", "m", False)
    assert np.array_equal(values_of(depth), expected.depth)
    assert np.array_equal(values_of(segmentation), expected.labels)
    assert len(segmentation["palette"]) == 5
    assert "depth as 16-bit PNG: depth = value × 0.001 + 0" in answer["note"].splitlines()

    names = [file["name"] for file in answer["files"]]
    assert names == ["depth.png", "labels.png", "depth_npy.npy", "labels_npy.npy"]
    for file in answer["files"]:
        key = re.search(r"key=([^&]+)", file["url"])[1]
        (tmp_path / file["name"]).write_bytes(demo.file(key, file["name"]))
    depth, _ = read_depth(tmp_path / "depth.png", scale=0.001)
    np.testing.assert_allclose(depth, expected.depth, atol=0.0006)  # half a millimetre, rounded
    assert np.array_equal(np.load(tmp_path / "depth_npy.npy"), expected.depth)
    assert np.array_equal(read_labels(tmp_path / "labels.png"), expected.labels)


def test_demo_shows_every_nth_pixel_of_large_maps(demo, photo, monkeypatch):
    monkeypatch.setattr("dpt.demo.VIEW_PIXELS", 60 * 90 // 4)
    depth, _ = demo.predict(photo.read_bytes())["outputs"]
    assert np.array_equal(values_of(depth), demo.predictor(photo).depth[::2, ::2])


@pytest.mark.parametrize(
    "content",
    [png_header(100_000, 100_000), png_header(40, 30), b"", b"no picture", b"%!PS-Adobe-3.0\n"],
)
def test_demo_refuses_bad_images_in_one_line(demo, content):
    with pytest.raises(ValueError, match=r"^image: ") as refused:
        demo.predict(content)
    assert "\n" not in str(refused.value)


def test_demo_limits_the_number_of_pixels(demo, photo, monkeypatch):
    monkeypatch.setattr("dpt.demo.MAX_PIXELS", 1000)
    with pytest.raises(ValueError, match="image: 90 x 60: more than 1,000 pixels"):
        demo.predict(photo.read_bytes())


# What the server lets in


class Client:
    """The page's own requests, without the page."""

    def __init__(self, address):
        self.address = address

    def request(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="Host" in headers)
            if body is not None:
                headers = {"Content-Length": str(len(body)), **headers}
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def client(predictor):
    server = make_server(Demo(predictor, name="tiny"), host="127.0.0.1", port=0)
    with running(server):
        yield Client(server.server_address)


def test_server_answers_uploads(client, photo):
    status, body = client.request("POST", "/predict", photo.read_bytes())
    assert status == 200
    for file in json.loads(body)["files"]:
        status, body = client.request("GET", f"/{file['url']}")
        assert status == 200
        assert body
    assert client.request("GET", "/")[1].startswith(b"<!doctype html>")
    assert json.loads(client.request("GET", "/model.json")[1])["backend"] == "server"
    status, body = client.request("POST", "/predict", b"no picture")
    assert (status, json.loads(body)["error"].partition(":")[0]) == (400, "image")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../../../etc/passwd",
        "/file?key=x&name=../../etc/passwd",
        "/file?key=x&name=depth.png",
        "http://127.0.0.1:1/x",
        "/proxy=http://example.com",
        "/predict",
    ],
)
def test_server_opens_no_file_or_address_of_a_visitors_choice(client, path):
    status, body = client.request("GET", path)
    assert status in (400, 404)
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Length": str(MAX_BYTES + 1)}, 413),
        ({"Transfer_Encoding": "chunked"}, 413),
        ({"Content_Length": "-1"}, 413),
    ],
)
def test_server_refuses_large_uploads_before_reading_them(client, headers, status):
    assert client.request("POST", "/predict", **headers)[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "[::1]:7860", "Origin": "http://[::1]:7860"}, 200),
        ({"Host": "evil.example:7860"}, 403),  # a name that leads here: DNS rebinding
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "127.0.0.1:7860", "Origin": "http://203.0.113.5:7860"}, 403),
        ({"Host": "["}, 400),
    ],
    ids=str,
)
def test_server_refuses_other_hosts_and_sites(client, headers, status):
    answered, body = client.request("GET", "/", **headers)
    assert answered == status
    assert b"evil" not in body


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n",
    ],
)
def test_server_closes_slow_requests(demo, monkeypatch, start):
    """A visitor sends a byte now and then, which no limit on silence ends."""
    monkeypatch.setattr("dpt.demo.MAX_SECONDS", 0.2)
    server = make_server(demo, host="127.0.0.1", port=0)
    with running(server), socket.create_connection(server.server_address, timeout=60) as visitor:
        visitor.sendall(start)
        visitor.settimeout(0.05)
        for _ in range(600):
            with contextlib.suppress(TimeoutError):
                try:
                    visitor.sendall(b"x")
                    if not visitor.recv(1000):
                        return
                except ConnectionError:
                    return
    pytest.fail("the server still reads")


def test_server_limits_connections(client, monkeypatch):
    monkeypatch.setattr("dpt.demo.MAX_CONNECTIONS", 0)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        client.request("GET", "/")
    monkeypatch.undo()
    assert client.request("GET", "/")[0] == 200


# The command


def test_demo_command_listens_on_this_computer_by_default(monkeypatch, tmp_path):
    def listen(demo, *, host, port):
        assert is_local(host)
        raise ValueError(f"at {port}")

    monkeypatch.setattr("dpt.demo.make_server", listen)
    tiny(HEADS).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="at 7860"):
        models.demo([str(tmp_path)])


def test_is_local_only_for_addresses_of_this_computer():
    assert all(map(is_local, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.1.2", "example.com", "localhost.com")))


@pytest.mark.slow
def test_demo_command_serves_until_it_is_stopped(tmp_path, photo):
    tiny(HEADS).save_pretrained(tmp_path / "model")
    command = ["dpt", "demo", str(tmp_path / "model"), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())[1])
        client = Client(("127.0.0.1", port))
        assert client.request("POST", "/predict", photo.read_bytes())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
