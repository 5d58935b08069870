"""``dpt demo``: a web page for one checkpoint."""

from __future__ import annotations

from dpt.commands import command_parser

MOST_PIXELS = 178_000_000
"""Pillow refuses larger images as decompression bombs."""


def run(arguments: list[str]) -> None:
    parser = command_parser(
        "demo", "Serves a web page: upload an image, see the predictions beside it, download them."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1",
        help="address to listen on (default: this computer only; 0.0.0.0: anyone)")  # fmt: skip
    add("--port", type=int, default=7860, help="0 uses a free one (default: 7860)")
    add("--max-pixels", type=int, default=50_000_000, metavar="N",
        help="of an image, checked before it is decoded (default: %(default)s)")  # fmt: skip
    add("--max-mb", type=float, default=30, metavar="MB", help="of a file (default: 30)")
    add("--device", help="default: a GPU if there is one")
    options = vars(parser.parse_args(arguments))
    if not 1 <= options["max_pixels"] <= MOST_PIXELS:
        raise ValueError(f"--max-pixels {options['max_pixels']}: must be 1 to {MOST_PIXELS}")
    max_bytes = int(options.pop("max_mb") * 1e6)

    from dpt.demo.server import serve

    serve(**options, max_bytes=max_bytes)
