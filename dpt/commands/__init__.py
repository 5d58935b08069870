"""Commands on files: ``dpt NAME ...`` calls ``run(arguments)`` of the module NAME in this folder.

They take ordinary flags. Most parse them before slow imports: mistakes are reported at once. The
docstring of a module is its help.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from dpt.files import few
from dpt.process import visible


def command_parser(name: str, help: str | None, *, checkpoint: str = "CKPT") -> ArgumentParser:
    """Returns the parser of a command whose first argument is a checkpoint."""
    parser = ArgumentParser(
        prog=f"dpt {name}", description=help, formatter_class=RawDescriptionHelpFormatter
    )
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
