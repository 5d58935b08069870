"""Says whether B is better than A: two folders that dpt evaluate wrote on the same data, split and
protocol. Writes the paired difference of each score with a 95 % interval over sequences, folders or
images, the images that moved most and pictures of them, as report.html, comparison.json and
per_image.csv.
"""

from pathlib import Path

from dpt.commands import make_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    """Runs the command."""
    parser = make_parser("compare", __doc__)
    for letter in "ab":
        help_text = "the run_dir of an evaluation"
        parser.add_argument(letter, type=Path, metavar=letter.upper(), help=help_text)
    text = "a folder for the results (default: comparison)"
    parser.add_argument("--out", type=Path, default=Path("comparison"), metavar="DIR", help=text)
    options = parser.parse_args(arguments)

    from dpt.config.run_folder import quiet_libraries
    from dpt.evaluation.compare import Evaluated, compare
    from dpt.run_log import start_log

    start_log(None)
    quiet_libraries()  # pictures of checkpoints are predicted again
    summary = compare(Evaluated.read(options.a), Evaluated.read(options.b), options.out)
    say(f"{summary}; report: {options.out / 'report.html'}")
