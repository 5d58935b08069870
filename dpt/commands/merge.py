"""Joins runs or checkpoints that were trained on one frozen encoder into one model, which predicts
all of their heads from one pass of the encoder, each to the bit as before.

Train each with callbacks.freeze.parts=[encoder], from the same model.weights.
"""

import os
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = ArgumentParser(
        prog="dpt merge", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    text = "two or more runs' folders, or files, folders or hub ids of any known format"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=text)
    parser.add_argument(
        "--out", required=True, type=Path, metavar="FOLDER", help="a new folder to save to"
    )
    options = parser.parse_args(arguments)

    from dpt.weights.merge import merge

    out = options.out
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out}: exists already; give a new folder")
    merged = merge(options.models)
    merged.save(out)
    say(f"{out}: {', '.join(f'{head} of {path}' for head, path in merged.sources.items())}")
