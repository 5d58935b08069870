"""Files of one model beside its ``.onnx``: ``python tests/benchmarks targets CKPT NAME=FILE ...``.

NAME is a target of ``dpt export --to``. All run one image in turn in one process, and the seconds
are CPU time: with one thread it does not depend on what else the machine does. The first file is
the reference of the ratios. The difference to PyTorch is the largest of an output, as a fraction of
its largest value.
"""

import argparse
import time
from pathlib import Path

import torch
from benchmarks.timing import markdown, median_ratio, take_turns
from torch import nn

import dpt
from dpt.exporting.files import parts_of
from dpt.exporting.graph import Graph
from dpt.exporting.targets import target_of


def run(arguments: list[str]) -> None:
    """Prints size, ratio of times and difference, a row for each file."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks targets", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--image", required=True, help="a picture")
    parser.add_argument("--size", required=True, nargs=2, type=int, metavar=("H", "W"))
    parser.add_argument("--rounds", default=11, type=int)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = dpt.DPT.from_pretrained(options.checkpoint)
    pixels = torch.from_numpy(dpt.Predictor(model).prepare(options.image).input)[None]
    images = model.preprocessing.normalize(pixels.permute(0, 3, 1, 2))
    images = nn.functional.interpolate(images, size=options.size, mode="bilinear")
    named = (text.partition("=") for text in options.files)
    files = [(name, Path(path)) for name, _, path in named]
    runs = {f"{name} {p.name}": target_of(p, name).open(p) for name, p in files}
    with torch.inference_mode():
        turns = {name: lambda _, run=run: run(images) for name, run in runs.items()}
        seconds = take_turns(turns, options.rounds, clock=time.process_time)
        expected = Graph.of(model, tasks=(), with_preprocessing=False)(images)
        rows = []
        for (name, file), (_, path) in zip(runs.items(), files, strict=True):
            outputs = file(images)
            off = max(
                float((outputs[key] - value).abs().max() / value.abs().max())
                for key, value in expected.items()
            )
            size = sum(part.stat().st_size for part in parts_of(path)) / 1e6
            ratio = median_ratio(seconds[name], next(iter(seconds.values())))
            rows.append([name, f"{size:.1f}", f"{ratio:.2f}", f"{off:.1e}"])
    print(markdown(["file", "MB", "time", "largest difference"], rows))
