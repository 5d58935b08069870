"""Ranks images by how much a model's predictions for views of each disagree, and writes a table
with the columns image and score. Label the first ones next: the model is likely to be wrong there.

The views are the image and its mirror image, each also at 0.75 of the size. For classes and
segments, the score is the mean difference of the probabilities (0 to 1); for depth, the mean
difference after alignment. For a model with several such outputs there is a column for each, and
the score is the mean of the image's ranks, from 0 to 1. Images that cannot be read are listed at
the end; the exit code is then 1.
"""

import os
from pathlib import Path

from dpt.commands import command_parser, exit_if_failed
from dpt.files import plural
from dpt.process import say


def run(arguments: list[str]) -> None:
    """Runs the command."""
    parser = command_parser("data rank", __doc__)
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="images, also in sub-folders")
    add("--out", type=Path, default=Path("ranking.csv"), help="default: ranking.csv")
    add("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    options = parser.parse_args(arguments)
    if options.out.suffix.lower() != ".csv":
        raise ValueError(f"--out {options.out}: the table is a CSV file: name it so")

    import numpy as np
    from scipy.stats import rankdata

    from dpt.model import DPT
    from dpt.predict.ranking import Ranker
    from dpt.predict.sources import find_inputs
    from dpt.run_log import start_log, tracked, write_csv

    start_log(None)
    inputs = find_inputs([options.folder], out=options.out)
    images = [file.path for file in inputs if not file.is_video]
    ranker = Ranker(DPT.from_pretrained(options.checkpoint), device=options.device)
    names: list[str] = []
    scores: list[list[float]] = []
    failed: list[tuple[Path, ValueError]] = []
    for path in tracked(images, len(images), title="images"):
        try:
            scores.append(ranker.scores(path))
            names.append(Path(os.path.relpath(path, options.folder)).as_posix())
        except ValueError as error:
            failed.append((path, error))
    if scores:
        header, columns = ["image", "score"], np.array(scores).T
        if len(columns) > 1:
            header += ranker.outputs
            ranks = [rankdata(column) / len(column) for column in columns]
            columns = np.stack([np.mean(ranks, axis=0), *columns])
        rows = sorted(zip(names, *columns.tolist(), strict=True), key=lambda row: -row[1])
        write_csv(options.out, [header, *rows], digits=6)
        say(f"{options.out}: {plural(len(scores), 'image')}, the first to be labelled first")
    if len(images) < len(inputs):
        say(f"left out: {plural(len(inputs) - len(images), 'video')}")
    exit_if_failed(failed)
