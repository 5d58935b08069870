"""Commands on files: ``dpt NAME ...`` calls ``run(arguments)`` of the module NAME in this folder.

They take ordinary flags. Most parse them before slow imports: mistakes are reported at once.
"""

import argparse
from typing import Any

CHECKPOINT = "a run's folder, or a file, folder or hub id of any known format"


def command_parser(name: str, description: str, **options: Any) -> argparse.ArgumentParser:
    """The parser of a command on a checkpoint, which is its first argument."""
    parser = argparse.ArgumentParser(prog=f"dpt {name}", description=description, **options)
    parser.add_argument("checkpoint", metavar="CKPT", help=CHECKPOINT)
    return parser
