"""The demo: a page that predicts uploaded images, served by Python's own HTTP server.

The server answers a fixed list of addresses and opens no file that a visitor names: uploads and
results are kept in memory. Requests for other hosts and from other sites are refused, slow ones end
after a minute.
"""

import base64
import json
import math
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv6Address, ip_address
from mimetypes import MimeTypes
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from dpt.data.formats.io import read_image
from dpt.html import data_uri
from dpt.predict import Prediction, Predictor, encoding, inputs, writers
from dpt.validation import Plain
from dpt.viz import shrink
from dpt.web import MAX_BYTES, MAX_PIXELS, PAGE, output_facts, page_facts

VIEW_WIDTH = 1280  # largest, of the picture shown; downloads have the image's own size
VIEW_PIXELS = 2**20  # of larger maps every second pixel is shown, or every third, and so on
KEPT_RESULTS = 4  # predictions kept for downloads, the latest ones
MAX_SECONDS = 60  # for a visitor to send a request, and again to take the answer
MAX_CONNECTIONS = 16
PAGE_POLICY = (
    "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",  # these two allow threads in the browser
    "Cross-Origin-Embedder-Policy": "require-corp",
}
CONTENT_TYPES = MimeTypes()  # without those of the system


class RefusedError(Exception):
    """A request that is not served: its HTTP status and the reason."""


Answer = bytes | Plain


class Site:
    """The answers of the server: the files of a folder, by their addresses."""

    def __init__(self, folder: Path) -> None:
        paths = (path for path in folder.rglob("*") if path.is_file())
        self.files = {f"/{path.relative_to(folder).as_posix()}": path for path in paths}
        self.files["/"] = folder / "index.html"

    def answer(self, address: str, query: dict[str, str], read: Callable[[], bytes]) -> Answer:
        """Returns the answer to a request such as ``GET /``: bytes, or data for JSON.

        Args:
            read: returns what the request holds.

        Raises:
            RefusedError: there is nothing at the address.
            ValueError: what the request holds cannot be used.
        """
        method, _, path = address.partition(" ")
        if method != "GET" or path not in self.files:
            raise RefusedError(404, "there is nothing at this address")
        return self.files[path].read_bytes()


class Demo(Site):
    """The page with a server that predicts; ``name`` is that of the model."""

    def __init__(self, predictor: Predictor, *, name: str) -> None:
        super().__init__(PAGE)
        self.predictor, self.outputs = predictor, predictor.outputs
        products = writers.all_kinds(self.outputs)
        self.downloads = {f"{p.folder}{p.suffix}": p for p in products["png"] + products["npy"]}
        self._results: OrderedDict[str, Prediction] = OrderedDict()  # the latest, by their keys
        self._lock = threading.Lock()
        self.facts = page_facts("server", name, self.outputs)

    def answer(self, address: str, query: dict[str, str], read: Callable[[], bytes]) -> Answer:
        if address == "GET /model.json":
            return self.facts
        if address == "GET /file":
            return self.file(query.get("key", ""), query.get("name", ""))
        if address == "POST /predict":
            return self.predict(read())
        return super().answer(address, query, read)

    def predict(self, data: bytes) -> Plain:
        """Returns what the page shows of an uploaded image."""
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
            return {
                "image": data_uri(shrink(image, VIEW_WIDTH)),
                "width": width,
                "height": height,
                "fov": prediction.camera and prediction.camera.fov,
                "note": note(prediction),
                "outputs": maps_of(prediction),
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


def maps_of(prediction: Prediction) -> list[Plain]:
    """Returns the declaration and the values of each dense output, of at most ``VIEW_PIXELS``."""
    maps = []
    for name, folder in writers.folder_names(prediction.outputs).items():
        values = prediction.arrays[name]
        step = math.ceil(math.sqrt(values.shape[0] * values.shape[1] / VIEW_PIXELS))
        values = values[::step, ::step].astype("<f4")  # codes of segments are exact in it, too
        facts = output_facts(prediction.outputs[name], folder)
        facts |= {"height": values.shape[0], "width": values.shape[1]}
        maps.append(facts | {"values": base64.b64encode(values.tobytes()).decode()})
    return maps


def note(prediction: Prediction) -> str:
    """Returns the outputs for the whole image, and what a 16-bit PNG of depth holds, a line for
    each."""
    lines = writers.image_lines(prediction)
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        scale, offset = encoding.depth_coding(name, prediction)
        lines.append(f"{name} as 16-bit PNG: depth = value × {scale:.6g} + {offset:.6g}")
    return "\n".join(lines)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    site: Site
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

    def _read(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BYTES:
            raise RefusedError(413, f"the length must be stated, up to {MAX_BYTES / 1e6:g} MB")
        return self.rfile.read(int(length))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = 200
        try:
            self._check_site()
            body = self.site.answer(f"{self.command} {path}", dict(parse_qsl(query)), self._read)
        except RefusedError as error:
            status, body = error.args[0], {"error": error.args[1]}
        except ValueError as error:
            status, body = 400, {"error": str(error)}
        kind = CONTENT_TYPES.guess_type("index.html" if path == "/" else path)[0]
        if not isinstance(body, bytes):
            kind, body = "application/json", json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind or "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  (a name of the base class)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def make_server(site: Site, *, host: str, port: int) -> ThreadingHTTPServer:
    """Returns a server that listens, to be started by ``serve_forever``; port 0 uses a free one."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        def verify_request(self, *_: object) -> bool:
            return threading.active_count() < 2 * MAX_CONNECTIONS  # two threads for each

    try:
        return Server((host, port), type("DemoHandler", (Handler,), {"site": site, "host": host}))
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
