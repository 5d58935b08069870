"""Commands on files: ``dpt NAME ...`` calls ``run(arguments)`` of the module NAME in this folder.

They take ordinary flags. Most parse them before slow imports: mistakes are reported at once. The
docstring of a module is its help.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter


def command_parser(name: str, help: str | None, *, checkpoint: str = "CKPT") -> ArgumentParser:
    """Returns the parser of a command whose first argument is a checkpoint."""
    parser = ArgumentParser(
        prog=f"dpt {name}", description=help, formatter_class=RawDescriptionHelpFormatter
    )
    text = "a run's folder, or a file, folder or hub id of any known format"
    parser.add_argument("checkpoint", metavar=checkpoint, help=text)
    return parser
