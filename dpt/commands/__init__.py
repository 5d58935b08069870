"""Commands: functions of their arguments, which :mod:`dpt.cli` lists.

Those on files take ordinary flags, and parse them before slow imports: mistakes are reported at
once. The docstring of a function or of its module is the help.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path

from dpt.files import few
from dpt.process import visible


def make_parser(name: str, help: str | None) -> ArgumentParser:
    """Returns the parser of a command, with its docstring as help."""
    description = cleandoc(help or "")
    return ArgumentParser(
        prog=f"dpt {name}", description=description, formatter_class=RawDescriptionHelpFormatter
    )


def command_parser(name: str, help: str | None, *, checkpoint: str = "CKPT") -> ArgumentParser:
    """Returns the parser of a command whose first argument is a checkpoint."""
    parser = make_parser(name, help)
    text = "a run's folder, or a file, folder or hub id of any known format"
    parser.add_argument("checkpoint", metavar=checkpoint, help=text)
    return parser


def exit_if_failed(failed: Sequence[tuple[str | Path, ValueError]]) -> None:
    """Lists the inputs that failed, those of one fault in one line, and ends the process by exit
    code 1 if there are any."""
    if not failed:
        return
    print(f"{len(failed)} failed:", file=sys.stderr)
    names_of: dict[str, list[str]] = {}
    for path, fault in failed:
        name, message = (" ".join(visible(str(text)).split()) for text in (path, fault))
        names_of.setdefault(message, []).append(name)
    for message, names in names_of.items():
        files = names[0] if len(names) == 1 else f"{len(names)} files ({few(names)})"
        print(f"  {message if files in message else f'{files}: {message}'}", file=sys.stderr)
    raise SystemExit(1)
