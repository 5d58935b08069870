"""Commands on files of weights: ``dpt convert``, ``dpt merge`` and ``dpt push``."""

import os
from pathlib import Path

from dpt.commands import command_parser, make_parser
from dpt.process import say


def convert(arguments: list[str]) -> None:
    """Writes a checkpoint in another format; fails if the format cannot hold it."""
    from dpt.weights.formats import WRITABLE
    from dpt.weights.formats import convert as write

    parser = command_parser("convert", convert.__doc__, checkpoint="SRC")
    parser.add_argument("dst", metavar="DST", help="the new folder or file to write")
    parser.add_argument("--to", required=True, choices=WRITABLE, help="the format to write")
    options = parser.parse_args(arguments)
    say(str(write(options.checkpoint, options.dst, to=options.to)))


def merge(arguments: list[str]) -> None:
    """Joins runs or checkpoints that were trained on one frozen encoder into one model, which
    predicts all of their heads from one pass of the encoder, each to the bit as before.

    Train each with callbacks.freeze.parts=[encoder], from the same model.weights.
    """
    parser = make_parser("merge", merge.__doc__)
    text = "two or more runs' folders, or files, folders or hub ids of any known format"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=text)
    text = "a new folder to save to"
    parser.add_argument("--out", required=True, type=Path, metavar="FOLDER", help=text)
    options = parser.parse_args(arguments)

    from dpt.weights.merge import merge as join

    out = options.out
    if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out}: exists already; give a new folder")
    merged = join(options.models)
    merged.save(out)
    say(f"{out}: {', '.join(f'{head} of {path}' for head, path in merged.sources.items())}")


def push(arguments: list[str]) -> None:
    """Publishes a model on the Hugging Face hub: weights, configuration and a model card with task,
    data, scores, training command and licence, in one commit. Log in before: hf auth login.

    The scores are those of the run, or those in --scores. A README.md in the model's folder that
    states a licence is published as it is, unless --license or --scores asks for a new one.
    """
    parser = command_parser("push", push.__doc__, checkpoint="RUN")
    add = parser.add_argument
    add("name", metavar="USER/NAME", help="on the hub; if it exists, it gets a new commit")
    text = "licence of the model, as the hub names it: apache-2.0, cc-by-nc-4.0, other, ..."
    add("--license", "--licence", metavar="NAME", help=text)
    add("--scores", type=Path, metavar="DIR", help="what dpt evaluate RUN run_dir=DIR wrote")
    add("--private", action="store_true", help="create a private repository")
    options = parser.parse_args(arguments)

    from dpt.commands.push import publish

    publish(
        Path(options.checkpoint).expanduser(),
        options.name,
        license=options.license,
        scores=options.scores,
        private=options.private,
    )
