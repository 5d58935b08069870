"""Writes a zip file of arrays and of their scores by every rule of scoring, to test other code on.

The file is the same, byte for byte, on every machine; its README.md explains it.
"""

import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from hashlib import sha256
from pathlib import Path

from dpt.atomic import write_bytes
from dpt.process import say


def run(arguments: list[str]) -> None:
    """Runs the command."""
    parser = ArgumentParser(
        prog="dpt referee-arrays", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.zip", help="a new file")
    out = parser.parse_args(arguments).out
    if out.suffix.lower() != ".zip":
        raise ValueError(f"{out}: the arrays are a zip file: name it so")
    if os.path.lexists(out):
        raise ValueError(f"{out}: exists already; give a new file")

    from dpt.metrics.archive import archive

    data = archive()
    write_bytes(out, data)
    say(f"{out}: SHA-256 {sha256(data).hexdigest()}")
