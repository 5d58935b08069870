"""``dpt demo``: a web page for one checkpoint."""

from __future__ import annotations

import argparse

MOST_PIXELS = 178_000_000
"""Pillow refuses larger images as decompression bombs."""


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dpt demo",
        description="Serves a web page: upload an image, see the predictions beside it, "
        "download them.",
    )
    add = parser.add_argument
    add("checkpoint", help="a file or folder in any known format")
    add("--host", default="127.0.0.1",
        help="address to listen on (default: this computer only; 0.0.0.0: anyone)")  # fmt: skip
    add("--port", type=int, default=7860, help="0 uses a free one (default: 7860)")
    add("--max-pixels", type=int, default=50_000_000, metavar="N",
        help="of an image, checked before it is decoded (default: %(default)s)")  # fmt: skip
    add("--max-mb", type=float, default=30, metavar="MB", help="of a file (default: 30)")
    add("--device", help="default: a GPU if there is one")
    options = parser.parse_args(arguments)
    if not 1 <= options.max_pixels <= MOST_PIXELS:
        raise ValueError(f"--max-pixels {options.max_pixels}: must be 1 to {MOST_PIXELS}")
    if not options.max_mb > 0:
        raise ValueError(f"--max-mb {options.max_mb:g}: must be more than 0")

    from dpt.demo.server import serve

    serve(
        options.checkpoint,
        host=options.host,
        port=options.port,
        max_pixels=options.max_pixels,
        max_bytes=int(options.max_mb * 1e6),
        device=options.device,
    )
