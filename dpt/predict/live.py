"""What becomes of the pictures of a camera or a stream: a window, and a file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dpt import viz
from dpt.data.formats.video import VideoWriter
from dpt.files import DataError, replacing


class Window:
    """Shows pictures until q is pressed or the window is closed; ``tk`` is the module tkinter."""

    def __init__(self, tk: Any, title: str) -> None:
        self._tk, self._root = tk, tk.Tk(className="dpt")
        self._label = tk.Label(self._root, borderwidth=0)
        self._label.pack()
        self._root.title(f"{title} (q: end)")
        self._ends: list[object] = []  # events that ask for the end
        self._root.bind("q", self._ends.append)
        self._root.protocol("WM_DELETE_WINDOW", lambda: self._ends.append(None))

    def show(self, picture: np.ndarray) -> bool:
        """Shows uint8 (H, W, 3) RGB; returns False when the user wants to end."""
        picture = viz.shrink(picture, self._root.winfo_screenwidth())
        header = f"P6 {picture.shape[1]} {picture.shape[0]} 255 ".encode()
        self._image = self._tk.PhotoImage(data=header + picture.tobytes(), format="PPM")
        self._label.configure(image=self._image)  # which keeps no reference
        self._root.update()  # handles keys, too
        return not self._ends


def open_window(title: str) -> Window | None:
    """Returns a new window; None where there is no display, or no Tk."""
    with suppress(Exception):  # ImportError, or TclError
        return Window(import_module("tkinter"), title)
    return None


class LiveFile(VideoWriter):
    """A video of a constant rate that plays as fast as its pictures came."""

    _start = 0.0

    def add(self, picture: np.ndarray) -> None:
        """Fills the time since the last picture; one that comes too early is left out."""
        moment = time.monotonic()
        self._start = self._start or moment
        while self.count <= (moment - self._start) * self.fps:
            self.write(picture)


@contextmanager
def live_file(path: Path) -> Iterator[LiveFile]:
    """Yields a video, which gets its name after the block. DataError if it has no picture."""
    with replacing(path) as temporary:
        file = LiveFile(temporary, fps=25.0)
        yield file
        if not file.count:
            raise DataError(f"{path}: not written, as no frame came: check the source")
        file.close()
