"""Videos frame by frame."""

import socket

import numpy as np
import pytest

from dpt.data import DataError
from dpt.data.formats.video import VideoReader, VideoWriter


def write(path, frames):
    writer = VideoWriter(path, fps=8.0)
    for frame in frames:
        writer.write(frame)
    writer.close()
    return path


def test_frames_come_back_in_order_and_colour(tmp_path):
    flat = [np.full((48, 64, 3), (20 * k, 200, 255 - 20 * k), np.uint8) for k in range(10)]
    video = VideoReader(write(tmp_path / "clip.mp4", flat))
    assert (video.fps, video.announced) == (8.0, 10)
    frames = list(video)
    assert len(frames) == 10
    for frame, wanted in zip(frames, flat, strict=True):
        assert np.abs(frame.astype(int) - wanted).mean() < 6  # MPEG-4 is lossy


def test_no_video(tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    for name in ("text.mp4", "gone.mp4"):
        with pytest.raises(DataError, match=name):
            VideoReader(tmp_path / name)


def test_lost_end_is_noticed(tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (30, 48, 64, 3), np.uint8)
    path = write(tmp_path / "clip.mp4", noise)
    data = path.read_bytes()
    cut = tmp_path / "cut.mp4"  # the header lies at the end: moved up front, it promises too much
    start = data.rfind(b"moov") - 4
    cut.write_bytes(data[:start][: start // 2] + b"\0" * (start - start // 2) + data[start:])
    with pytest.raises(DataError, match=r"cut\.mp4: .*of 30 frames"):
        list(VideoReader(cut))


def test_lists_of_other_files_and_addresses_are_no_videos(tmp_path, monkeypatch):
    clip = write(tmp_path / "clip.mp4", [np.zeros((48, 64, 3), np.uint8)] * 3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/clip.ts"
        lists = [f"#EXTM3U\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n" for target in (clip, address)]
        for text in (*lists, f"ffconcat version 1.0\nfile {clip.name}\n"):
            (tmp_path / "list.mp4").write_text(text)
            with pytest.raises(DataError, match=r"list\.mp4"):
                VideoReader(tmp_path / "list.mp4")
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has asked
            server.accept()
