"""Serving the page from this computer, without leaving files behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dpt.demo.page import CSS, Answers, build_page, gr
from dpt.model import DPT
from dpt.predict import Predictor

SESSIONS = 16
"""Number of browser tabs whose last image is kept, to be painted in other colours."""
_FORM = 64 * 1024
"""Bytes of a request beside the file in it."""


class Gate:
    """ASGI middleware that refuses requests that the page never sends.

    - bodies beyond the limit or of unknown length: Gradio only limits uploads
    - web addresses under ``/file=`` and ``/proxy=``, which Gradio would fetch
    """

    def __init__(self, app: Callable[..., Awaitable[None]], *, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status = self.refusal(scope) if scope["type"] == "http" else None
        if status is None:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"refused by the demo\n"})

    def refusal(self, scope: Any) -> int | None:
        """The HTTP status of a refusal, or None to accept the request."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers:
            return 411
        if not length.isdigit() or int(length) > self.max_bytes + _FORM:
            return 413
        return 403 if "=http" in scope["path"].lower() else None


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

    Args:
        checkpoint: in any known format.
        host: the address to listen on.
        port: 0 uses a free one.
        max_pixels, max_bytes: of an uploaded image.
        device: None uses a GPU if there is one.

    Raises:
        ValueError: the checkpoint, address or port cannot be used.
    """
    port = free_port(host, port)
    model = DPT.from_pretrained(checkpoint)
    predictor = Predictor(model, device=device)
    with private_folder() as folder:
        page = build_page(
            Answers(predictor, folder=folder, max_pixels=max_pixels),
            model=f"{model.spec['name']} ({Path(checkpoint).name})",
            limits=f"up to {max_bytes / 1e6:g} MB and {max_pixels / 1e6:g} megapixels",
        )
        try:
            with sigterm_as_interrupt():
                address = launch(page, host=host, port=port, max_bytes=max_bytes)
                if not is_local(host):
                    print(
                        f"warning: --host {host}: anyone who can reach this computer can use the "
                        "page: it has no password",
                        file=sys.stderr,
                    )
                print(f"{address}  (stop with Ctrl-C)", flush=True)
                threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)


def launch(page: gr.Blocks, *, host: str, port: int, max_bytes: int) -> str:
    """Starts the server in other threads; returns the page's address."""
    _, address, _ = page.launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=port,
        prevent_thread_lock=True,
        quiet=True,
        inbrowser=False,
        share=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        run_history=False,
        enable_monitoring=False,
        num_workers=0,
        footer_links=[],
        max_file_size=max_bytes,
        state_session_capacity=SESSIONS,
        app_kwargs={
            "middleware": [(Gate, (), {"max_bytes": max_bytes})],
            "docs_url": None,
            "redoc_url": None,
        },
        # system fonts: the page fetches nothing from elsewhere
        theme=gr.themes.Default(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css=CSS,
    )
    return address


def is_local(host: str) -> bool:
    """Whether only this computer can connect to the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port(host: str, port: int) -> int:
    """``port``, or any free one for 0.

    Raises:
        ValueError: the port is in use, or the host is not an address of this computer.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address[0], port))
            return int(probe.getsockname()[1])
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"cannot listen on --host {host} --port {port} ({reason}): choose others, such "
            "as --host 127.0.0.1 --port 0"
        ) from None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder for uploads and results, also Gradio's; removed at the end."""
    with tempfile.TemporaryDirectory(prefix="dpt-demo-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        settings = {
            "GRADIO_TEMP_DIR": str(folder),
            "GRADIO_EXAMPLES_CACHE": str(folder / "examples"),  # else ./.gradio, which it serves
            "NO_PROXY": f"localhost,127.0.0.1,::1,{os.environ.get('NO_PROXY', '')}",
        }
        before = {key: os.environ.get(key) for key in settings}
        os.environ.update(settings)
        try:
            yield folder
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that ``finally`` clauses run."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
