"""The demo: a page that predicts uploaded images, served by Python's own HTTP server.

The server answers five fixed addresses and opens no file that a visitor names: an upload is decoded
from a temporary folder, results are kept in memory.
"""

from __future__ import annotations

import base64
import json
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import cv2
import numpy as np

from dpt.demo.views import legend, note, open_image
from dpt.model import DPT
from dpt.predict import Prediction, Predictor
from dpt.predict.outputs import Style, all_products, is_paintable, paint
from dpt.viz import COLORMAPS
from dpt.viz.panel import shrink

PAGE = Path(__file__).with_name("page.html")
VIEW_WIDTH = 1280
"""Largest width of the pictures shown, in pixels. Downloads have the image's own size."""
KEPT_RESULTS = 4
"""Number of predictions kept for other colours and downloads, the latest ones."""
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class RefusedError(Exception):
    """A request that is not served, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Demo:
    """The answers of the server.

    Args:
        predictor: of the model.
        name: of the model, for the page.
        max_pixels, max_bytes: of an uploaded image.
    """

    def __init__(self, predictor: Predictor, *, name: str, max_pixels: int, max_bytes: int) -> None:
        self.predictor = predictor
        self.name = name
        self.max_pixels, self.max_bytes = max_pixels, max_bytes
        self.outputs = predictor.outputs
        products = all_products(self.outputs)
        self.downloads = {f"{p.folder}{p.suffix}": p for p in products["png"] + products["npy"]}
        self._results: OrderedDict[str, tuple[np.ndarray, Prediction]] = OrderedDict()
        self._lock = threading.Lock()

    def settings(self) -> dict[str, Any]:
        """What the page shows before the first image."""
        return {
            "title": " and ".join(self.outputs).capitalize(),
            "model": self.name,
            "limits": f"JPEG, PNG, WebP, BMP, TIFF or PPM, up to {self.max_bytes / 1e6:g} MB and "
            f"{self.max_pixels / 1e6:g} megapixels",
            "max_bytes": self.max_bytes,
            "colormaps": list(COLORMAPS),
            "has_depth": any(spec.kind == "depth" for spec in self.outputs.values()),
        }

    def predict(self, data: bytes, colormap: str) -> dict[str, Any]:
        """The page's content for an uploaded image.

        Raises:
            ValueError: it is too large, or not a complete image.
        """
        with tempfile.TemporaryDirectory(prefix="dpt-demo-") as folder:
            path = Path(folder, "image")
            path.write_bytes(data)
            image = open_image(path, max_pixels=self.max_pixels)
        key = secrets.token_urlsafe(16)
        with self._lock:  # one image at a time
            self._results[key] = image, self.predictor(image)
            while len(self._results) > KEPT_RESULTS:
                self._results.popitem(last=False)
        return self.paint(key, colormap)

    def paint(self, key: str, colormap: str) -> dict[str, Any]:
        """The page's content for an earlier image."""
        image, prediction = self._find(key)
        return {
            "key": key,
            "image": _data_url(image, "jpeg"),
            "note": note(prediction),
            "outputs": [
                {
                    "name": name,
                    "picture": _data_url(paint(name, prediction, image, Style(colormap)), "png"),
                    "legend": legend(name, prediction, colormap),
                }
                for name, spec in self.outputs.items()
                if is_paintable(spec)
            ],
            "files": [{"name": n, "url": f"file?key={key}&name={n}"} for n in self.downloads],
        }

    def file(self, key: str, name: str) -> bytes:
        """A file for download, at the image's own size."""
        if name not in self.downloads:
            raise RefusedError(404, f"there is no file {name}")
        return self.downloads[name].encode(self._find(key)[1], None, Style())

    def _find(self, key: str) -> tuple[np.ndarray, Prediction]:
        found = self._results.get(key)
        if found is None:
            raise RefusedError(404, "this result is no longer kept: upload the image again")
        return found


def _data_url(picture: np.ndarray, kind: str) -> str:
    data = cv2.imencode(f".{kind}", cv2.cvtColor(shrink(picture, VIEW_WIDTH), cv2.COLOR_RGB2BGR))[1]
    return f"data:image/{kind};base64,{base64.b64encode(data.tobytes()).decode()}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    demo: Demo
    timeout = 60  # seconds without a byte

    def _respond(self, address: str, query: dict[str, str]) -> Any:
        """The answer: bytes, or data for JSON."""
        key, colormap = query.get("key", ""), query.get("colormap", COLORMAPS[0])
        if colormap not in COLORMAPS:
            raise ValueError(f"colormap={colormap}: choose from {', '.join(COLORMAPS)}")
        if address == "GET /":
            return PAGE.read_bytes()
        if address == "GET /settings":
            return self.demo.settings()
        if address == "GET /paint":
            return self.demo.paint(key, colormap)
        if address == "GET /file":
            return self.demo.file(key, query.get("name", ""))
        if address != "POST /predict":
            raise RefusedError(404, "there is nothing at this address")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RefusedError(411, "the request does not state its length")
        if int(length) > self.demo.max_bytes:
            raise RefusedError(413, f"more than {self.demo.max_bytes / 1e6:g} MB")
        return self.demo.predict(self.rfile.read(int(length)), colormap)

    def do_GET(self) -> None:
        url, status = urlsplit(self.path), 200
        try:
            body = self._respond(f"{self.command} {url.path}", dict(parse_qsl(url.query)))
        except RefusedError as error:
            status, body = error.status, {"error": str(error)}
        except ValueError as error:
            status, body = 400, {"error": str(error)}
        kind = "text/html; charset=utf-8" if url.path == "/" else "application/octet-stream"
        if not isinstance(body, bytes):
            kind, body = "application/json", json.dumps(body).encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", POLICY),
            ("X-Content-Type-Options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  (a name of the base class)

    def log_message(self, *_: Any) -> None:
        """Requests are not logged."""


def make_server(demo: Demo, *, host: str, port: int) -> ThreadingHTTPServer:
    """A server that listens, to be started by ``serve_forever``; port 0 uses a free one.

    Raises:
        ValueError: the port is in use, or the host is not an address of this computer.
    """

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        return Server((host, port), type("DemoHandler", (Handler,), {"demo": demo}))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"cannot listen on --host {host} --port {port} ({reason}): choose others, such as "
            "--host 127.0.0.1 --port 0"
        ) from None


def is_local(host: str) -> bool:
    """Whether only this computer can connect to the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    checkpoint: str | Path,
    *,
    host: str,
    port: int,
    max_pixels: int,
    max_bytes: int,
    device: str | None,
) -> None:
    """Serves the page until Ctrl-C or SIGTERM.

    Raises:
        ValueError: the checkpoint, address or port cannot be used.
    """
    model = DPT.from_pretrained(checkpoint)
    demo = Demo(
        Predictor(model, device=device),
        name=f"{model.config.name} ({Path(checkpoint).name})",
        max_pixels=max_pixels,
        max_bytes=max_bytes,
    )
    server = make_server(demo, host=host, port=port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    if not is_local(host):
        print(
            f"warning: --host {host}: anyone who can reach this computer can use the page: it has "
            "no password",
            file=sys.stderr,
        )
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{server.server_port}/  (stop with Ctrl-C)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
