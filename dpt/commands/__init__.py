"""Commands on files: ``dpt NAME ...`` calls ``run(arguments)`` of the module NAME in this folder.

They take ordinary flags. Most parse them before slow imports: mistakes are reported at once.
"""

import argparse


def command_parser(
    name: str,
    description: str,
    *,
    checkpoint: str = "CKPT",
    epilog: str | None = None,
    formatter: type[argparse.HelpFormatter] = argparse.HelpFormatter,
) -> argparse.ArgumentParser:
    """Returns the parser of a command whose first argument is a checkpoint."""
    parser = argparse.ArgumentParser(
        prog=f"dpt {name}", description=description, epilog=epilog, formatter_class=formatter
    )
    text = "a run's folder, or a file, folder or hub id of any known format"
    parser.add_argument("checkpoint", metavar=checkpoint, help=text)
    return parser
