"""Commands on configured data: they take Hydra overrides, and Hydra's flags."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import dpt
from dpt.config.run_folder import MISTAKES, fail, print_fault

if TYPE_CHECKING:
    from dpt.config.compose import SweptRun

SWEEP = {"-m", "--multirun"}
HELP = {"-h", "--help"}
PRINTING = {"-c", "--cfg", "--resolve", "-p", "--package", "-i", "--info"}
PRINTING |= {"-sc", "--shell-completion"}
USER_FILES = {"-cd", "--config-dir"}


def train(arguments: list[str]) -> None:
    _run("train", arguments, dpt.train)


def evaluate(arguments: list[str]) -> None:
    _run("evaluate", arguments, dpt.evaluate)


def find_lr(arguments: list[str]) -> None:
    from dpt.run import find_lr as function

    _run("find-lr", arguments, function)


def check(arguments: list[str]) -> None:
    """Exits with 1 if there are errors."""
    findings = _run("data check", arguments, dpt.check)
    if any(finding.severity == "error" for finding in findings or ()):
        raise SystemExit(1)


def download(arguments: list[str]) -> None:
    def function(*overrides: str) -> None:
        from dpt.commands.data_sets import download

        download(*overrides)

    _run("data download", arguments, function)


def pack(arguments: list[str]) -> None:
    def function(*overrides: str) -> None:
        from dpt.commands.data_sets import pack

        pack(*overrides)

    _run("data pack", arguments, function)


def _run(command: str, arguments: list[str], function: Callable[..., Any]) -> Any:
    """Calls the function of a command with its overrides, or lets Hydra act on its flags."""
    from dpt.config.compose import print_help, run_hydra

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
        return function(*arguments)
    return None


def _sweep(command: str, arguments: list[str], function: Callable[..., Any]) -> None:
    """Calls a function for each run of a sweep, and logs their scores."""
    from dpt.config.compose import run_hydra
    from dpt.run_log import log_sweep

    scores: dict[str, Mapping[str, float] | None] = {}  # of each run; None: it failed

    def run_one(swept: "SweptRun") -> None:
        scores[swept.name] = None
        try:
            result = function(*swept.overrides)
        except MISTAKES as error:
            if len(scores) == 1:  # the others would fail like the first
                fail(error)
            print_fault(error)
        else:
            scores[swept.name] = result.scores if isinstance(result, dpt.Run) else {}

    run_hydra(command, arguments, run_one)
    if any(scores.values()):
        log_sweep(scores)
    if None in scores.values():
        raise SystemExit(1)
