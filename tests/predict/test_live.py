"""``dpt predict --source``: cameras and streams, with a window and a file."""

import signal
import socketserver
import time
from functools import partial
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from photos import photo_of, tiny
from prediction_files import save_video
from servers import Quiet, running

from dpt.commands import prediction
from dpt.data.formats import video
from dpt.predict.live import live_file
from dpt.predict.pipeline import FramePainter
from dpt.process import Stopped

BEGIN = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"


class Stream(Quiet):
    """Pictures as cameras send them; other paths are a playlist, redirections and a page."""

    def do_GET(self):  # noqa: N802
        self.server.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            return self.end_headers()
        kind = "multipart/x-mixed-replace; boundary=frame" if self.path == "/live" else "text/html"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        if self.path == "/list":
            self.wfile.write(b"#EXTM3U\n#EXTINF:1,\n/live\n#EXT-X-ENDLIST\n")
        if self.path == "/page":
            self.wfile.write(b"<html>no video</html>")
        if self.path == "/live":
            for seed in range(30):
                picture = cv2.imencode(".jpg", photo_of(48, 64, seed=seed))[1].tobytes()
                self.wfile.write(BEGIN % len(picture) + picture + b"\r\n")
                time.sleep(0.01)


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    server.asked, server.handle_error = [], lambda *_: None  # the client left
    with running(server):
        yield server


@pytest.fixture
def address(server):
    return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def camera(monkeypatch):
    """camera(*frames): camera 0 gives these frames and ends."""
    real = cv2.VideoCapture

    def install(*frames):
        class Camera:
            left = iter(frames)
            isOpened = staticmethod(lambda: True)  # noqa: N815
            release = staticmethod(lambda: None)
            get = staticmethod(lambda _: 0.0)  # it states neither rate nor size

            def read(self):
                frame = next(self.left, None)
                return frame is not None, frame

        monkeypatch.setattr(cv2, "VideoCapture", lambda s, *a: Camera() if s == 0 else real(s, *a))

    return install


@pytest.fixture(autouse=True)
def _no_display(monkeypatch):
    monkeypatch.setattr(prediction, "open_window", lambda _: None)


def frames_of(path):
    reader = video.VideoReader(path)
    return reader.fps, list(reader)


@pytest.mark.parametrize("way", ["/live", "/to//live"])
def test_a_stream_becomes_a_video(predict, out, address, way):
    file = out / "clip.mp4"
    said = predict("--source", address + way, "--steady", to=file, model="joint")
    fps, frames = frames_of(file)
    assert " of 30 frames" in said
    assert fps == 25
    assert 1 <= len(frames) <= 100
    assert frames[0].shape[0] > 2 * 48  # depth above classes, with legends
    assert [*out.iterdir()] == [file]


def test_frames_are_dropped_and_not_queued(camera):
    camera(*(np.full((48, 64, 3), k, np.uint8) for k in range(10)))
    reader = video.LiveReader("0")
    reader._thread.join()
    assert [frame[0, 0, 0] for frame in reader] == [9]
    assert reader.count == 10


def test_a_file_plays_as_fast_as_the_frames_came(tmp_path, monkeypatch):
    moments = iter([100.0, 100.4, 100.41, 100.48])
    monkeypatch.setattr("dpt.predict.live.time.monotonic", lambda: next(moments))
    with live_file(tmp_path / "a.mp4") as file:
        for value in (50, 150, 200, 250):
            file.add(np.full((48, 64, 3), value, np.uint8))
    values = [round(float(frame.mean()), -1) for frame in frames_of(tmp_path / "a.mp4")[1]]
    assert values == [50] + [150] * 10 + [250] * 2


def test_the_window_ends_it(predict, out, address, monkeypatch):
    shown = []

    def show(picture):
        shown.append(picture)
        return len(shown) < 2

    monkeypatch.setattr(prediction, "open_window", lambda _: SimpleNamespace(show=show))
    said = predict("--source", f"{address}/live", to=out / "clip.mp4")
    assert "2 of " in said
    assert np.abs(frames_of(out / "clip.mp4")[1][0] - shown[0].astype(float)).mean() < 9


def test_ctrl_c_leaves_a_complete_file(predict, out, address, monkeypatch):
    paint, painted = FramePainter.paint, []

    def until_third(*arguments):
        painted.append(paint(*arguments))
        if len(painted) == 3:
            raise Stopped(signal.SIGINT)
        return painted[-1]

    monkeypatch.setattr(FramePainter, "paint", until_third)
    assert "2 of " in predict("--source", f"{address}/live", to=out / "clip.mp4")
    assert len(frames_of(out / "clip.mp4")[1]) >= 1


def test_what_is_no_source_is_one_line(run, refusal, out, server, address, tmp_path):
    with socketserver.TCPServer(("127.0.0.1", 0), None) as closed:
        gone = f"http://me:secret@127.0.0.1:{closed.server_address[1]}/live"
    save_video(tmp_path / "own.mp4", 3)
    refuse = partial(refusal, to=out / "clip.mp4")
    assert "camera 9" in refuse("--source", "9")
    assert "secret" not in refuse("--source", gone)
    for path in ("/page", "/list", f"/to/file://{tmp_path}/own.mp4"):
        assert address + path in refuse("--source", address + path)
    assert "/live" not in server.asked  # the playlist's
    assert "own.mp4" in refuse("--source", tmp_path / "own.mp4")
    for others in ([tmp_path], ["--shard", "1/2"]):
        code, _, err = run("--source", "0", *others, to=out / "clip.mp4")
        assert (code, err.splitlines()[-1][:28]) == (2, "dpt predict: error: --source")
    assert ".mp4" in refusal("--source", "0", to=out)
    assert "own.mp4" in refusal("--source", "0", to=tmp_path / "own.mp4")
    assert not out.exists() or not [*out.iterdir()]


def test_a_stream_without_frames_or_of_two_sizes_is_one_line(refusal, camera, out):
    camera()
    assert "no frame" in refusal("--source", "0", to=out / "clip.mp4")
    camera(np.zeros((48, 64, 3), np.uint8), np.zeros((64, 96, 3), np.uint8))
    assert [*out.iterdir()] == []


def test_a_source_needs_a_window_or_a_file(dpt_command, checkpoints, address):
    code, _, err = dpt_command("predict", checkpoints["metric"], "--source", f"{address}/live")
    assert (code, err.count("\n")) == (1, 1)
    assert "--out" in err


def test_steady_without_a_video_or_without_maps_is_one_line(refusal, photos, tmp_path):
    assert "--steady" in refusal(photos, "--steady")
    heads = {"panoptic": {"num_classes": 2, "num_queries": 5, "things": [True, False]}}
    tiny(heads).save_pretrained(tmp_path / "panoptic")
    clip = save_video(tmp_path / "clip.mp4", 2)
    assert "panoptic" in refusal(clip, "--steady", model=tmp_path / "panoptic")
