"""A pass with ``protocol=all`` beside one by the protocol that is the default."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from benchmarks.timing import markdown, median_ratio, take_turns

from dpt.cli import main


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks all_rules",
        description="Evaluates a run in turn by one rule and by all, and prints processor time "
        "without the loading of libraries.",
    )
    parser.add_argument("run", help="folder of a run, or checkpoint=FILE data=NAME")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--rounds", default=3, type=int, help="turns that count")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:

        def evaluate(*protocol: str) -> None:
            out = tempfile.mkdtemp(dir=folder)
            sys.argv = ["dpt", "evaluate", options.run, *options.overrides, *protocol]
            sys.argv.append(f"run_dir={out}")
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                main()

        passes = {"one rule": lambda _: evaluate(), "all rules": lambda _: evaluate("protocol=all")}
        seconds = take_turns(passes, options.rounds, clock=time.process_time)
    rows = [
        [
            name,
            f"{statistics.median(values):.1f}",
            f"{median_ratio(values, seconds['one rule']):.2f}",
        ]
        for name, values in seconds.items()
    ]
    print(markdown(["pass", "seconds", "time / one rule"], rows))
