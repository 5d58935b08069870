"""The demo: a page that predicts uploaded images, served by Python's own HTTP server.

The server answers three fixed addresses and opens no file that a visitor names: uploads and results
are kept in memory. Requests for other hosts and from other sites are refused, slow ones end after a
minute.
"""

import json
import secrets
import socket
import threading
from collections import OrderedDict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from dpt.data.formats.io import read_image
from dpt.html import data_uri, render_page
from dpt.predict import Prediction, Predictor, encoding, inputs, writers
from dpt.validation import Plain
from dpt.viz import shrink

VIEW_WIDTH = 1280  # largest, of the pictures shown; downloads have the image's own size
KEPT_RESULTS = 4  # predictions kept for downloads, the latest ones
MAX_PIXELS = 50_000_000  # of an image that is predicted; dpt.files limits what is decoded
MAX_BYTES = 30_000_000  # of an uploaded file
MAX_SECONDS = 60  # for a visitor to send a request, and again to take the answer
MAX_CONNECTIONS = 16
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; connect-src 'self'; img-src data:; frame-ancestors 'none'"
)


class RefusedError(Exception):
    """A request that is not served: its HTTP status and the reason."""


class Demo:
    """The answers of the server; ``name`` is that of the model, for the page."""

    def __init__(self, predictor: Predictor, *, name: str) -> None:
        self.predictor, self.outputs = predictor, predictor.outputs
        products = writers.all_kinds(self.outputs)
        self.downloads = {f"{p.folder}{p.suffix}": p for p in products["png"] + products["npy"]}
        self._results: OrderedDict[str, Prediction] = OrderedDict()  # the latest, by their keys
        self._lock = threading.Lock()
        title = " and ".join(self.outputs).capitalize()
        limits = {"max_bytes": MAX_BYTES, "max_pixels": MAX_PIXELS}
        self.page = render_page("demo.html", title=title, model=name, **limits)

    def predict(self, data: bytes) -> Plain:
        """Returns the page's content for an uploaded image."""
        if not data:
            raise ValueError("image: the file is empty")
        rule = self.predictor.preprocessing
        with self._lock:  # one image at a time, which bounds the memory
            pixels = read_image("image", exif=True, data=data, part=inputs.part_of(rule))
            height, width, _ = pixels.shape
            if height * width > MAX_PIXELS:
                fault = f"more than {MAX_PIXELS:,} pixels: shrink it"
                raise ValueError(f"image: {width} x {height}: {fault}")
            known = inputs.known_camera("image", (height, width), None, data=data)
            prediction = self.predictor(pixels, None if known is None else known.camera)
            prediction.require_finite()
            image = rule.picture(pixels.transpose(2, 0, 1))
            key = secrets.token_urlsafe(16)
            self._results[key] = prediction
            while len(self._results) > KEPT_RESULTS:
                self._results.popitem(last=False)
            outputs = []
            for name in (name for name, spec in self.outputs.items() if spec.dense):
                picture = encoding.paint(name, encoding.Predicted(prediction, image))
                legend = encoding.paint_legend(name, encoding.Predicted(prediction), width=500)
                pictures = {"picture": _picture_uri(picture), "legend": _picture_uri(legend)}
                outputs.append({"name": name, **pictures})
            return {
                "image": _picture_uri(image),
                "note": note(prediction),
                "outputs": outputs,
                "files": [{"name": n, "url": f"file?key={key}&name={n}"} for n in self.downloads],
            }

    def file(self, key: str, name: str) -> bytes:
        """Returns a file for download, at the image's own size."""
        with self._lock:
            if name not in self.downloads or key not in self._results:
                fault = "is not there, or its result is no longer kept: upload the image again"
                raise RefusedError(404, f"file {name} {fault}")
            kind = self.downloads[name]
            return kind.encoder(kind.name, encoding.Predicted(self._results[key]))


def note(prediction: Prediction) -> str:
    """Returns the outputs for the whole image, and what a 16-bit PNG of depth holds, a line for
    each."""
    lines = writers.image_lines(prediction)
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        scale, offset = encoding.depth_coding(name, prediction)
        lines.append(f"{name} as 16-bit PNG: depth = value × {scale:.6g} + {offset:.6g}")
    return "\n".join(lines)


def _picture_uri(picture: np.ndarray) -> str:
    return data_uri(shrink(picture, VIEW_WIDTH)) if picture.size else ""  # there may be no legend


class Handler(BaseHTTPRequestHandler):
    """One request."""

    demo: Demo
    host: str
    timeout = MAX_SECONDS  # without a byte

    def handle(self) -> None:
        deadline = threading.Timer(MAX_SECONDS, self._stop_reading)  # also if bytes trickle in
        deadline.daemon = True
        deadline.start()
        with suppress(ConnectionError):  # the visitor has gone
            super().handle()
        deadline.cancel()

    def _stop_reading(self) -> None:
        with suppress(OSError):  # the visitor has gone
            self.connection.shutdown(socket.SHUT_RD)

    def _check_site(self) -> None:
        """Refuses pages of other sites, also those whose name leads here (DNS rebinding)."""
        host = self.headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname or ""
        is_known = name == self.host.lower() or address_of(name) is not None
        if not is_known or urlsplit(self.headers.get("Origin", f"//{host}")).netloc != host:
            raise RefusedError(403, "open the page by the address of this server, or give --host")

    def _respond(self, address: str, query: dict[str, str]) -> bytes | Plain:
        """Returns the answer: bytes, or data for JSON."""
        self._check_site()
        if address == "GET /":
            return self.demo.page
        if address == "GET /file":
            return self.demo.file(query.get("key", ""), query.get("name", ""))
        if address != "POST /predict":
            raise RefusedError(404, "there is nothing at this address")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BYTES:
            raise RefusedError(413, f"the length must be stated, up to {MAX_BYTES / 1e6:g} MB")
        return self.demo.predict(self.rfile.read(int(length)))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = 200
        try:
            body = self._respond(f"{self.command} {path}", dict(parse_qsl(query)))
        except RefusedError as error:
            status, body = error.args[0], {"error": error.args[1]}
        except ValueError as error:
            status, body = 400, {"error": str(error)}
        kind = "text/html; charset=utf-8" if path == "/" else "application/octet-stream"
        if not isinstance(body, bytes):
            kind, body = "application/json", json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", PAGE_POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  (a name of the base class)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def make_server(demo: Demo, *, host: str, port: int) -> ThreadingHTTPServer:
    """Returns a server that listens, to be started by ``serve_forever``; port 0 uses a free one."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def verify_request(self, *_: object) -> bool:
            return threading.active_count() < 2 * MAX_CONNECTIONS  # two threads for each

    try:
        return Server((host, port), type("DemoHandler", (Handler,), {"demo": demo, "host": host}))
    except (OSError, OverflowError) as error:
        fault = f"cannot listen on --host {host} --port {port} ({error})"
        raise ValueError(f"{fault}: choose others, such as --port 0") from None


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the IP address that a host is named by; None for other names."""
    with suppress(ValueError):
        return ip_address("127.0.0.1" if host == "localhost" else host)
    return None


def is_local(host: str) -> bool:
    """Whether only this computer can connect to the address."""
    address = address_of(host)
    return address is not None and address.is_loopback
