"""``python tests/benchmarks``: time, memory and scores beside other implementations."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

MODULES = {
    "all_rules": "a pass with protocol=all beside one by one rule",
    "canonical": "metres at fields of view that were not trained",
    "folder": "dpt predict on a folder beside the network's passes alone",
    "foreign": "dpt fit on label sets of several kinds",
    "prompts": "sparse depth beside fits to the same points",
    "rules": "rules of scoring beside the code that defines them",
    "runtimes": "one model in PyTorch, ONNX Runtime and OpenVINO",
    "targets": "exported files of one model beside its .onnx in ONNX Runtime",
    "steady": "flicker of depth in a video",
    "shards": "the files of workers that are killed beside those of one run",
}
"""Benchmarks with options of their own, see NAME --help."""


def run(arguments: list[str]) -> None:
    if arguments and arguments[0] in MODULES:
        module = importlib.import_module(f"benchmarks.{arguments[0]}")
        module.run(arguments[1:])
        return
    import torch
    from benchmarks.models import DTYPES, bench
    from benchmarks.originals import table
    from benchmarks.parts import bench_data

    from dpt.model_config import list_models

    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks",
        description="Times this project and others in one process, in turn, and prints medians, "
        "ratios to this project, and memory.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="model",
        choices=("model", "data", "originals", *MODULES),
        help="model: forward passes and training steps; data: loading and augmentation on one "
        "core; originals: the largest differences of scores from those of the code that defines "
        "them; " + "; ".join(f"{name}: {text}" for name, text in MODULES.items()),
    )
    parser.add_argument("--root", help="data: folder with images and depth (default: made images)")
    parser.add_argument("--model", default="dpt_base", choices=list_models())
    parser.add_argument("--task", default="depth", choices=("depth", "segmentation"))
    parser.add_argument("--size", default=[384, 384], nargs=2, type=int, metavar=("H", "W"))
    parser.add_argument("--batch", default=1, type=int)
    parser.add_argument("--dtype", default="fp32", choices=tuple(DTYPES))
    parser.add_argument(
        "--against",
        default="transformers,smp",
        help="separated by commas: dpt-optimized, dpt-onnx, transformers, smp; "
        "NAME-compile compiles NAME",
    )
    parser.add_argument("--train", action="store_true", help="also time training steps")
    parser.add_argument("--sets", default=200, type=int, help="originals: random sets")
    parser.add_argument("--rounds", default=7, type=int, help="turns that count")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = vars(parser.parse_args(arguments))
    what, root, sets = (given.pop(name) for name in ("what", "root", "sets"))
    given["size"] = tuple(given["size"])
    given["against"] = [name for name in given["against"].split(",") if name]
    if what == "data":
        print(bench_data(root=root, size=given["size"], rounds=given["rounds"]))
    elif what == "originals":
        print(table(sets))
    else:
        print(bench(**given))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    run(sys.argv[1:])
