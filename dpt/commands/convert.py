"""``dpt convert``: a checkpoint in another project's format."""

import argparse

from dpt.commands import CHECKPOINT
from dpt.process import say


def run(arguments: list[str]) -> None:
    from dpt.weights.formats import WRITABLE, convert

    parser = argparse.ArgumentParser(
        prog="dpt convert",
        description="Writes a checkpoint in another format; fails if the format cannot hold it.",
    )
    parser.add_argument("src", metavar="SRC", help=CHECKPOINT)
    parser.add_argument("dst", metavar="DST", help="the new folder or file to write")
    parser.add_argument("--to", required=True, choices=WRITABLE, help="the format to write")
    options = parser.parse_args(arguments)
    say(str(convert(options.src, options.dst, to=options.to)))
