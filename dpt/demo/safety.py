"""Gradio, kept to what a private page needs: no address is fetched, no large body is read.

The only file that imports Gradio's package first: what it reads from the environment is set here.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

# Otherwise Gradio reports its use, and asks for its newest version, on every start.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
try:
    import gradio as gr
except ImportError:
    raise ValueError(
        'the demo needs a package: pip install "dense-prediction-transformers[demo]"'
    ) from None

__all__ = ["Gate", "gr", "only_uploads"]

_FORM = 64 * 1024
"""Bytes of a request around the file that it carries."""


def only_uploads(image: Any) -> Any:
    """Makes a ``gr.Image`` hand over the path of an uploaded file, undecoded, and nothing else.

    On its own it decodes whatever it is given before any function of ours could look at the size,
    also pictures inside the request (``data:`` addresses), and fetches web addresses. It is changed
    and not derived from, since Gradio writes a file beside the source of every class derived.
    """
    take = image.async_move_resource_to_block_cache

    async def take_file(path: Any) -> str | None:
        if path is not None and str(path).lower().startswith(("http:", "https:", "data:")):
            raise gr.Error("upload a file: addresses are not fetched", print_exception=False)
        return await take(path)

    def path_of(payload: Any) -> str | None:
        if payload is None:
            return None
        if not payload.path:
            raise gr.Error("upload a file", print_exception=False)
        return payload.path

    image.async_move_resource_to_block_cache = take_file
    image.preprocess = path_of
    return image


class Gate:
    """ASGI middleware that turns away what the page never sends.

    - bodies beyond the limit or of unknown length: Gradio bounds uploads alone
    - web addresses under ``/file=`` and ``/proxy=``, which Gradio would fetch for the asker
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
        """The status to answer with, or None to let the request in."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers:
            return 411
        if not length.isdigit() or int(length) > self.max_bytes + _FORM:
            return 413
        return 403 if "=http" in scope["path"].lower() else None
