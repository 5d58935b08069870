"""Serving the page from this computer, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from dpt.demo.page import CSS, Answers, build_page
from dpt.demo.safety import Gate, gr
from dpt.model import DPT
from dpt.predict.predictor import Predictor

SESSIONS = 16
"""Browser tabs whose last photo is kept, to be painted in other colours."""


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
        checkpoint: of any known format.
        host: the address to listen on.
        port: 0 takes a free one.
        max_pixels, max_bytes: of an uploaded photo.
        device: None takes a GPU where there is one.

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
                    warning = (
                        "anyone who reaches this computer can use the page: it has no password"
                    )
                    print(f"warning: --host {host}: {warning}", file=sys.stderr)
                print(f"{address}  (Ctrl-C ends it)", flush=True)
                threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)


def launch(page: gr.Blocks, *, host: str, port: int, max_bytes: int) -> str:
    """Starts the server in threads of its own; returns the page's address."""
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
        # fonts of the reader's own machine: the page fetches nothing from elsewhere
        theme=gr.themes.Default(
            font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css=CSS,
    )
    return address


def is_local(host: str) -> bool:
    """Whether only this computer can reach what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def free_port(host: str, port: int) -> int:
    """``port``, or any free one for 0.

    Raises:
        ValueError: it is taken, or the host is not this computer's.
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
            f"cannot listen on --host {host} --port {port} ({reason}): choose others, as "
            "--host 127.0.0.1 --port 0"
        ) from None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder for uploads and results, Gradio's own included; gone at the end."""
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
    """SIGTERM ends the block as Ctrl-C does, so that what stands in ``finally`` is done."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
