"""Commands on configured data: all but ``fit`` and ``compare`` take Hydra's overrides and flags."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import dpt
from dpt.commands import make_parser
from dpt.config.run_folder import MISTAKES, fail, print_fault
from dpt.process import say

SWEEP = {"-m", "--multirun"}
HELP = {"-h", "--help"}
PRINTING = {"-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info"}
PRINTING |= {"-sc", "--shell-completion"}
USER_FILES = {"-cd", "--config-dir"}


FUNCTIONS = {
    "train": "dpt.run.train",
    "find-lr": "dpt.run.find_lr",
    "evaluate": "dpt.run.evaluate",
    "data check": "dpt.commands.data_sets.check",
    "data download": "dpt.commands.data_sets.download",
    "data pack": "dpt.commands.data_sets.pack",
}
"""The functions of the commands that take Hydra's overrides, which are their arguments."""


def fit(arguments: list[str]) -> None:
    """Trains a model on a folder of images with labels, scores and exports it.

    Prints its assumptions and the train.py command. If the files can be interpreted in two ways, it
    lists the settings that decide and does not train. run_dir (runs/fit/DIR_DATE) holds the run,
    pairs.csv, data_check/, evaluation/ and model.onnx (model.pt2 if the extra onnx is not
    installed).
    """
    parser = make_parser("fit", fit.__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="images, and masks or depth maps")
    parser.add_argument("--time", default="15m", help="for everything: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--plan", action="store_true", help="print what is found, and stop")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as for train.py")
    options = parser.parse_intermixed_args(arguments)

    from dpt.fitting import Plan

    if options.plan:
        Plan(options.folder, options.overrides, options.time).show()
    else:
        dpt.fit(options.folder, *options.overrides, time=options.time)


def compare(arguments: list[str]) -> None:
    """Says whether B is better than A: run_dirs that dpt evaluate wrote on the same data, split and
    protocol. Writes the paired difference of each score with a 95 % interval over sequences,
    folders or images, the images that moved most and pictures of them, as report.html,
    comparison.json and per_image.csv.
    """
    parser = make_parser("compare", compare.__doc__)
    add = parser.add_argument
    add("a", type=Path, metavar="A", help="the run_dir of an evaluation")
    add("b", type=Path, metavar="B", help="another")
    add("--out", type=Path, default=Path("comparison"), metavar="DIR", help="default: comparison")
    options = parser.parse_args(arguments)

    from dpt.config.run_folder import quiet_libraries
    from dpt.evaluation.compare import Evaluated
    from dpt.evaluation.compare import compare as write_comparison
    from dpt.run_log import start_log

    start_log(None)
    quiet_libraries()  # pictures of checkpoints are predicted again
    summary = write_comparison(Evaluated.read(options.a), Evaluated.read(options.b), options.out)
    say(f"{summary}; report: {options.out / 'report.html'}")


def run(command: str, arguments: list[str]) -> None:
    """Calls the function of a command with its overrides, or lets Hydra act on its flags."""
    from dpt.config.compose import print_help, run_hydra

    module, _, name = FUNCTIONS[command].rpartition(".")
    function = getattr(import_module(module), name)

    flags = {argument.partition("=")[0] for argument in arguments if argument[:1] == "-"}
    unknown = sorted(flags - SWEEP - HELP - PRINTING - USER_FILES)
    if unknown:
        raise ValueError(f"there is no flag {unknown[0]}: write {unknown[0].lstrip('-')}=VALUE")
    if (SWEEP | PRINTING) & flags and any(word.startswith("resume=") for word in arguments):
        raise ValueError(f"resume continues one run: leave {min(flags)} out")
    if HELP & flags:
        print_help(command, arguments)
    elif PRINTING & flags:
        run_hydra(command, arguments, print)
    elif SWEEP & flags:
        _sweep(command, arguments, function)
    else:
        function(*arguments)


def _sweep(command: str, arguments: list[str], function: Callable[..., Any]) -> None:
    """Calls a function for each run of a sweep, and logs their scores."""
    from dpt.config.compose import run_hydra
    from dpt.run_log import log_sweep

    scores: dict[str, Mapping[str, float] | None] = {}  # of each run; None: it failed

    def run_one(name: str, overrides: list[str]) -> None:
        scores[name] = None
        try:
            result = function(*overrides)
        except MISTAKES as error:
            if len(scores) == 1:  # the others would fail like the first
                fail(error)
            print_fault(error)
        else:
            scores[name] = result.scores if isinstance(result, dpt.Run) else {}

    run_hydra(command, arguments, run_one)
    if any(scores.values()):
        log_sweep(scores)
    if None in scores.values():
        raise SystemExit(1)
