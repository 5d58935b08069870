"""Writes a checkpoint in another format; fails if the format cannot hold it."""

from dpt.commands import command_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    from dpt.weights.formats import WRITABLE, convert

    parser = command_parser("convert", __doc__, checkpoint="SRC")
    parser.add_argument("dst", metavar="DST", help="the new folder or file to write")
    parser.add_argument("--to", required=True, choices=WRITABLE, help="the format to write")
    options = parser.parse_args(arguments)
    say(str(convert(options.checkpoint, options.dst, to=options.to)))
