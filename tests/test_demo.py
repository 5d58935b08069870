"""The demo: its answers, what its server refuses, and the page itself in a browser."""

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
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import dpt
from dpt.commands import demo as command
from dpt.data import read_depth, read_image, read_labels
from dpt.data.errors import DataError
from dpt.data.formats.io import read_size
from dpt.predict import Prediction, Predictor
from dpt.types import OutputSpec

pytest.importorskip("gradio")
from browser import open_browser

from dpt.demo.page import Answers, build_page
from dpt.demo.server import free_port, is_local, launch, private_folder
from dpt.demo.views import View, note

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*no_silent_downcasting"),  # Gradio's use of pandas
    pytest.mark.filterwarnings("ignore:The copy keyword"),
]

HEADS = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 5}}
MAX_BYTES = 200_000
MAX_PIXELS = 100_000


def tiny_model():
    torch.manual_seed(0)
    return dpt.create_model(
        "dpt_tiny", heads=HEADS, embed_dim=48, num_blocks=4, out_indices=[0, 1, 2, 3],
        reassemble_channels=[8, 8, 16, 16], fusion_channels=16, image_size=[64, 64],
    ).eval()  # fmt: skip


def save_photo(path, height=60, width=90):
    """Smooth, so that it is a small file; not square, so that H and W cannot be mixed up."""
    rows, columns = np.mgrid[:height, :width]
    photo = np.stack((rows * 255 // height, columns * 255 // width, rows * 0 + 90), axis=-1)
    cv2.imwrite(str(path), photo.astype(np.uint8))
    return path


def png_header(width, height):
    """A PNG that says how large it is, and holds no pixel."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def predictor():
    return Predictor(tiny_model(), device="cpu")


@pytest.fixture(scope="module")
def answers(predictor, tmp_path_factory):
    return Answers(predictor, folder=tmp_path_factory.mktemp("demo"), max_pixels=MAX_PIXELS)


# What the page is told


def test_a_photo_is_answered_with_pictures_and_files_of_its_own_size(answers, predictor, tmp_path):
    path = save_photo(tmp_path / "my photo.png")
    values = answers.image(str(path), "turbo")
    before, after = values["depth"]
    assert np.array_equal(before, read_image(path))
    assert after.shape == before.shape
    assert not np.array_equal(after, before)
    assert np.array_equal(values["segmentation"][0], before)

    expected = predictor(path)
    files = {k: Path(v.value["path"]) for k, v in values.items() if k.startswith("file_")}
    assert [f.name for f in files.values()] == [
        "my photo_depth.png", "my photo_labels.png", "my photo_depth.npy", "my photo_labels.npy",
    ]  # fmt: skip
    depth, _ = read_depth(files["file_depth"], scale=0.001)
    np.testing.assert_allclose(depth, expected.depth, atol=0.0006)  # half a millimetre, rounded
    assert "metres = value × 0.001" in values["note"]
    assert np.array_equal(np.load(files["file_depth_npy"]), expected.depth)
    assert np.array_equal(read_labels(files["file_labels"]), expected.labels)


def test_another_colour_map_paints_the_same_photo_again(answers, tmp_path):
    values = answers.image(str(save_photo(tmp_path / "photo.png")), "turbo")
    again = answers.paint(values["view"], "gray")
    assert not np.array_equal(again["depth"][1], values["depth"][1])
    assert np.array_equal(answers.paint(values["view"], "turbo")["depth"][1], values["depth"][1])
    assert again["legend_depth"] != values["legend_depth"]
    assert answers.paint(None, "gray") == {}


def test_taking_the_photo_away_empties_the_page(answers):
    values = answers.image(None, "turbo")
    assert values["depth"] is values["segmentation"] is values["view"] is None
    assert not values["file_depth"].interactive


def prediction_of(**outputs):
    """A prediction from (array, declaration) by name."""
    arrays = {name: array for name, (array, _) in outputs.items()}
    return Prediction(arrays, {name: spec for name, (_, spec) in outputs.items()})


METRIC = OutputSpec("depth", "depth", unit="m", value_range=(0.0, 10.0))
RELATIVE = OutputSpec("depth", "depth", unit="relative inverse depth")


def test_what_is_shown_is_small_and_what_is_downloaded_is_not():
    prediction = prediction_of(depth=(np.ones((30, 2560), np.float32), METRIC))
    view = View.of(np.zeros((30, 2560, 3), np.uint8), prediction)
    assert view.image.shape == (15, 1280, 3)
    assert view.prediction.depth.shape == (15, 1280)


def test_the_size_is_refused_before_anything_is_decoded(answers, tmp_path):
    """The file has no pixels: decoding it would say that it is damaged."""
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png_header(10_000, 9_000))
    assert read_size(bomb) == (9_000, 10_000)
    with pytest.raises(ValueError, match=r"bomb\.png: 10000 x 9000 = 90,000,000 pixels"):
        answers.image(str(bomb), "turbo")
    bomb.write_bytes(png_header(100_000, 100_000))
    with pytest.raises(DataError, match=r"more than \d+ pixels"):
        read_size(bomb)


@pytest.mark.parametrize("content", [b"", b"no picture", b"%!PS-Adobe-3.0 EPSF-3.0\n",
                                     png_header(40, 30)])  # fmt: skip
def test_what_is_no_picture_is_said_in_one_line_without_the_folder(answers, tmp_path, content):
    path = tmp_path / "odd.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^odd\.png: .+") as refused:
        answers.image(str(path), "turbo")
    assert str(tmp_path) not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_notes_say_unit_and_range():
    depth = np.array([[1.0, 2.0], [np.inf, 4.0]], np.float32)
    photo = np.zeros((2, 2, 3), np.uint8)
    metric, relative = (prediction_of(depth=(depth, spec)) for spec in (METRIC, RELATIVE))
    assert "<b>1.00 to 4.00 m</b>, metric" in note(metric)
    assert "no unit, larger is nearer" in note(relative)
    assert "m (near)" in View.of(photo, metric).legend("depth", "turbo")
    assert "m (near)" not in View.of(photo, relative).legend("depth", "turbo")


def test_legends_name_classes_by_share_and_escape_them():
    parts = OutputSpec("parts", "logits", 2, class_names=("road", "<script>"))
    prediction = prediction_of(parts=(np.array([[1, 1, 1, 0]], np.uint8), parts))
    legend = View.of(np.zeros((1, 4, 3), np.uint8), prediction).legend("parts", "turbo")
    assert re.findall(r"[\w&;]+ \d+\.\d%", legend) == ["&lt;script&gt; 75.0%", "road 25.0%"]
    scene = OutputSpec("scene", "logits", 2, dense=False, class_names=("a", "<i>"))
    whole = note(prediction_of(scene=(np.array([0.2, 0.8]), scene)))
    assert "&lt;i&gt;" in whole
    assert "80.0%" in whole
    assert note(Prediction({}, {})) == ""


# What the server lets in


class Client:
    """The page's own requests, without the page."""

    def __init__(self, address):
        self.address = address

    def request(self, path, data=None, headers=()):
        request = urllib.request.Request(self.address + path, data, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def announce(self, path, headers):
        """The answer to a request of which nothing but the headers is sent."""
        place = urllib.parse.urlsplit(self.address + path)
        connection = http.client.HTTPConnection(place.netloc, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest("POST", place.path)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            return connection.getresponse().status

    def upload(self, content, name="a.png"):
        border = uuid.uuid4().hex
        head = (
            f'--{border}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        )
        body = head.encode() + content + f"\r\n--{border}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
        return self.request("gradio_api/upload", body, kind)

    def answer(self, **file):
        """The event of a dropped photo, sent with ``file`` as its description."""
        session = uuid.uuid4().hex
        photo = {"meta": {"_type": "gradio.FileData"}, **file}
        event = {"data": [photo, "turbo"], "fn_index": 0, "session_hash": session}
        kind = {"Content-Type": "application/json"}
        status, body = self.request("gradio_api/queue/join", json.dumps(event).encode(), kind)
        assert status == 200, body
        _, stream = self.request(f"gradio_api/queue/data?session_hash={session}")
        events = [json.loads(line[6:]) for line in stream.decode().split("\n\n") if line]
        self.said = [event["log"] for event in events if event["msg"] == "log"]
        return next(event for event in events if event["msg"] == "process_completed")


@pytest.fixture(scope="module")
def client(predictor):
    with private_folder() as folder:
        answers = Answers(predictor, folder=folder, max_pixels=MAX_PIXELS)
        page = build_page(answers, model="tiny", limits="small")
        port = free_port("127.0.0.1", 0)
        address = launch(page, host="127.0.0.1", port=port, max_bytes=MAX_BYTES)
        try:
            client = Client(address)
            client.folder = folder
            yield client
        finally:
            page.close(verbose=False)


def test_an_uploaded_photo_is_answered_inside_the_private_folder(client, tmp_path):
    status, body = client.upload(save_photo(tmp_path / "photo.png").read_bytes())
    assert status == 200
    (path,) = json.loads(body)
    assert Path(path).is_relative_to(client.folder)
    done = client.answer(path=path, orig_name="a.png")
    assert done["success"], done
    served = set(re.findall(r'"path": "([^"]+)"', json.dumps(done["output"])))
    assert len(served) >= 3 + 3  # the photo beside depth and classes; three files
    for file in served:
        assert Path(file).is_relative_to(client.folder)
        assert client.request(f"gradio_api/file={urllib.request.quote(file)}")[0] == 200


def test_a_photo_that_cannot_be_used_empties_the_page_and_says_why(client):
    _, body = client.upload(b"no picture", name="a&b.png")
    done = client.answer(path=json.loads(body)[0], orig_name="a&b.png")
    assert done["success"]
    assert '"path"' not in json.dumps(done["output"])
    (said,) = client.said
    assert said.startswith("a&amp;b.png: not a picture")


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../../../../etc/passwd", "pyproject.toml", str(Path(__file__).resolve()),
     "http://127.0.0.1:1/x", "https://example.com/x.png", "HTTP://example.com/x.png"],
)  # fmt: skip
def test_files_and_addresses_outside_are_not_served(client, path):
    for prefix in ("gradio_api/file=", "file=", "gradio_api/proxy="):
        assert 400 <= client.request(prefix + path)[0] < 500, prefix
    assert client.answer(path=path, url=path, orig_name="a.png")["success"] is False


def test_pictures_inside_a_request_are_not_decoded(client):
    address = "data:image/png;base64,iVBORw0KGgo="
    for file in ({"path": None}, {"path": ""}, {"path": address}):
        assert client.answer(url=address, orig_name="a.png", **file)["success"] is False


def test_large_uploads_are_refused_whoever_counts_them(client):
    assert client.upload(bytes(MAX_BYTES + 1000))[0] == 413  # Gradio, of the file
    length = {"Content-Length": str(MAX_BYTES + 100_000)}
    assert client.announce("gradio_api/queue/join", length) == 413
    assert client.announce("gradio_api/upload", {"Transfer-Encoding": "chunked"}) == 411


def test_the_private_folder_is_gone_afterwards():
    before = dict(os.environ)
    with private_folder() as folder:
        (folder / "upload.png").write_bytes(b"x")
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
    assert not folder.exists()
    assert dict(os.environ) == before


# The command


def test_it_listens_on_this_computer_alone_by_default(monkeypatch):
    served = {}
    monkeypatch.setattr("dpt.demo.server.serve", lambda *args, **options: served.update(options))
    command.run(["model"])
    assert is_local(served["host"])
    assert served["max_pixels"] == 50_000_000
    assert served["max_bytes"] == 30_000_000
    command.run(["model", "--host", "0.0.0.0", "--max-mb", "0.5"])
    assert not is_local(served["host"])
    assert served["max_bytes"] == 500_000


def test_which_hosts_are_local():
    assert all(map(is_local, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.1.2", "example.com", "localhost.com")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "--max-pixels", "0"], "--max-pixels 0: must be"),
        (["model", "--max-mb", "-1"], "--max-mb -1: must be more than 0"),
        (["no-such-model", "--port", "0"], "no-such-model"),
        (["model", "--port", "70000"], "cannot listen on --host 127.0.0.1 --port 70000"),
        (["model", "--host", "198.51.100.7"], "cannot listen on --host 198.51.100.7"),
    ],
)
def test_mistakes_are_said_before_anything_is_served(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)) as said:
        command.run(arguments)
    assert "\n" not in str(said.value)


def test_a_port_in_use_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port} .*in use"):
            free_port("127.0.0.1", port)


def test_without_gradio_one_line_says_what_to_install():
    code = (
        "import sys; sys.modules['gradio'] = None; sys.argv = ['dpt', 'demo', 'model']; "
        "from dpt.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'error: the demo needs a package: pip install "dense-prediction-transformers[demo]"'
    ]


# The page in a browser


@pytest.fixture
def server(tmp_path):
    """``python -m dpt demo`` in a process of its own, and where it keeps its files."""
    tiny_model().save_pretrained(tmp_path / "model")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "dpt", "demo", str(tmp_path / "model"), "--port", "0",
         "--max-pixels", str(MAX_PIXELS), "--device", "cpu"],
        stdout=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        process.address = re.match(r"http://127\.0\.0\.1:\d+/", line)[0]
        yield process, temporary
    finally:
        process.kill()
        process.wait()


SHOWN = """
const images = [...document.querySelectorAll(arguments[0] + ' img')];
const done = images.length >= 2 && images.every(i => i.complete && i.naturalWidth > 0);
return done && images.map(i => [i.src, i.naturalWidth, i.naturalHeight]);
"""


@pytest.mark.slow
def test_a_photo_dropped_in_a_browser(server, tmp_path):
    process, temporary = server
    photo = save_photo(tmp_path / "photo.png", 240, 320)
    large = save_photo(tmp_path / "large.png", 400, 600)
    with open_browser(tmp_path / "browser", port=free_port("127.0.0.1", 0)) as browser:
        browser.requests()  # of the tab that was there before
        browser.open(process.address)
        browser.wait("return document.querySelector('#image input[type=file]') !== null")
        assert browser.run("return document.querySelector('h1').innerText") == (
            "Depth and segmentation"
        )
        browser.type("#image input[type=file]", str(photo))
        depth = browser.wait(SHOWN, "#depth")
        classes = browser.wait(SHOWN, "#segmentation")
        assert {tuple(size) for _, *size in depth + classes} == {(320, 240)}
        assert "metric" in browser.run("return document.querySelector('#note').innerText")
        assert "%" in browser.run("return document.querySelector('#legend_segmentation').innerText")
        names = {browser.download(f"#file_{k}").name for k in ("depth", "depth_npy", "labels")}
        assert names == {"photo_depth.png", "photo_depth.npy", "photo_labels.png"}
        browser.screenshot(tmp_path / "page.png")
        page = read_image(tmp_path / "page.png")
        assert page.std() > 20  # there is something to see

        browser.click("#colormap input[value='gray']")
        old = depth[1][0]
        browser.wait(
            f"const i = document.querySelectorAll('#depth img'); return i[1].src != '{old}'"
        )

        browser.click("#image button[aria-label='Remove Image']")
        browser.wait("return document.querySelector('#image input[type=file]') !== null")
        browser.type("#image input[type=file]", str(large))
        browser.wait("return document.body.innerText.includes('240,000 pixels')")
        asked = [url for url in browser.requests() if url.startswith("http")]
        assert asked
        assert [url for url in asked if not url.startswith(process.address)] == []
        assert [e for e in browser.errors() if "favicon" not in e] == []
    assert len(list(temporary.glob("dpt-demo-*"))) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    time.sleep(0.1)
    assert list(temporary.glob("dpt-demo-*")) == []
