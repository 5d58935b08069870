"""Reading and writing videos, a frame at a time; cameras and streams."""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import cv2
import numpy as np

from dpt.files import COPY_AGAIN, DataError, check_pixels, open_file, printable, without_passwords

VIDEO_SUFFIXES = (".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v")
# Containers only: FFmpeg's other formats are lists of further files and addresses, which it opens.
_CONTAINERS = "format_whitelist;mov,avi,matroska,mpegts,mpeg,flv,asf|protocol_whitelist;file"
_OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
os.environ.setdefault(_OPTIONS, _CONTAINERS)
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # else it logs each damaged block
# No lists of further addresses (HLS, DASH) either; a redirection leads to these protocols alone.
_STREAMS = (
    "format_whitelist;rtsp,mpjpeg,mjpeg,mpegts,flv,mov,matroska"
    "|protocol_whitelist;rtsp,rtp,udp,http,https,tcp,tls|rtsp_flags;prefer_tcp"
)
_WHOLE = 0.9
"""A video with a smaller fraction of its announced frames is damaged; headers are approximate."""


def _require_utf8(path: str | Path) -> None:
    """Raises DataError for a name in another encoding, for which OpenCV would end the process."""
    if printable(path) != str(path):
        raise DataError(f"{path}: names of videos must be UTF-8: rename it")


class VideoReader:
    """The frames of a video, uint8 (H, W, 3) RGB, turned upright by its rotation tag.

    Iterating raises a DataError after the last frame if the file ends too early. OpenCV scales
    frames of another size to that of the first one.

    Attributes:
        fps: frames per second; 25 if the file does not say.
        announced: number of frames in the header; 0 if it does not say.
    """

    def __init__(self, path: str | Path) -> None:
        _require_utf8(path)
        self.path = Path(path)
        with open_file(self.path):  # a regular file
            # FFmpeg alone: OpenCV would go on to cameras and numbered sequences of pictures
            self._capture = cv2.VideoCapture(str(self.path.absolute()), cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise DataError(f"{path}: not a video that can be decoded, or damaged: {COPY_AGAIN}")
        height = self._capture.get(cv2.CAP_PROP_FRAME_HEIGHT)
        check_pixels(path, int(height), int(self._capture.get(cv2.CAP_PROP_FRAME_WIDTH)))
        fps = self._capture.get(cv2.CAP_PROP_FPS)
        self.fps = fps if 0.01 <= fps <= 1000 else 25.0
        self.announced = max(0, int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)))

    def __iter__(self) -> Iterator[np.ndarray]:
        count, shape = 0, None
        try:
            while True:
                is_read, frame = self._capture.read()
                if not is_read:
                    break
                count += 1
                shape = shape or frame.shape
                if frame.shape != shape:
                    raise DataError(f"{self.path}: frame {count} has another size: convert it")
                yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB, dst=frame)
        finally:
            self._capture.release()
        if count == 0 or count < _WHOLE * self.announced:
            raise DataError(f"{self.path}: only {count} of {self.announced} frames: {COPY_AGAIN}")


class LiveReader:
    """The newest frames of a camera or a stream, uint8 (H, W, 3) RGB.

    A thread decodes every frame and keeps the last one. Frames that come while the caller is busy
    are dropped, and the memory is bounded. A stream ends after 30 s without a frame.

    Args:
        source: the number of a camera, or an address of rtsp or http. FFmpeg opens it and follows
            redirections, so it must come from the user, never from a file.

    Attributes:
        name: of the source, without passwords, for messages.
        count: number of frames that came.

    Raises:
        DataError: there is no such camera, or no stream at the address.
    """

    def __init__(self, source: str) -> None:
        is_camera = source.isdecimal()
        self.name = f"camera {source}" if is_camera else without_passwords(source)
        # else each back end prints why it has no such camera
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
        before, os.environ[_OPTIONS] = os.environ[_OPTIONS], _STREAMS
        place, way = (int(source[:9]), cv2.CAP_ANY) if is_camera else (source, cv2.CAP_FFMPEG)
        self._capture = cv2.VideoCapture(place, way)
        os.environ[_OPTIONS] = before
        if not self._capture.isOpened():
            raise DataError(f"{self.name}: cannot be opened: give a camera's number, rtsp or http")
        self.count = 0
        self._newest: deque[np.ndarray] = deque(maxlen=1)
        self._is_wanted = True
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[np.ndarray]:
        while self._thread.is_alive() or self._newest:
            if self._newest:
                yield self._newest.pop()
            time.sleep(0.002)

    def close(self) -> None:
        """Ends the thread: at the end of the process it would crash; one that waits does not."""
        self._is_wanted = False
        self._thread.join(timeout=1.0)

    def _read(self) -> None:
        while self._is_wanted and (read := self._capture.read())[0]:
            self._newest.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
            self.count += 1
        self._capture.release()


class VideoWriter:
    """An MP4 of uint8 (H, W, 3) RGB frames, all of the first one's size.

    The codec (MPEG-4 part 2) stores an even number of rows and columns: OpenCV drops the last one
    of an odd number.
    """

    def __init__(self, path: Path, *, fps: float) -> None:
        _require_utf8(path)
        self.path = path
        self.fps = round(fps, min(3, int(np.log10(65535 / fps))))  # 16 bits in MPEG-4 part 2
        self.count = 0
        self._writer: cv2.VideoWriter | None = None

    def write(self, frame: np.ndarray) -> None:
        if self._writer is None:
            code = cv2.VideoWriter.fourcc(*"mp4v")
            size = (frame.shape[1], frame.shape[0])
            self._writer = cv2.VideoWriter(str(self.path), code, self.fps, size)
            if not self._writer.isOpened():
                raise DataError(f"a video of {size[0]}x{size[1]} pixels cannot be written")
        self._writer.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
        self.count += 1

    def close(self) -> None:
        """Ends the file; OSError if it lacks frames, since OpenCV does not report a full disk."""
        if self._writer is None:
            return
        self._writer.release()
        self._writer = None
        check = cv2.VideoCapture(str(self.path))
        stored = int(check.get(cv2.CAP_PROP_FRAME_COUNT)) if check.isOpened() else 0
        check.release()
        if stored != self.count:
            raise OSError(errno.EIO, "frames are missing; is the disk full?", self.path)
