"""Servers on this machine, such as a folder behind an address, as a hub is."""

import http.server
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Answers inside the block, and then closes the server."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which ``folder`` can be read inside the block."""
    handler = partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_port}"
