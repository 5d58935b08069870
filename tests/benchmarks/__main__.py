"""``python tests/benchmarks``: time and memory beside other implementations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def run(arguments: list[str]) -> None:
    import torch
    from benchmarks.loader import bench_data
    from benchmarks.models import DTYPES, bench
    from benchmarks.parts import bench_metrics
    from benchmarks.profiling import profile_model
    from benchmarks.switches import bench_switches

    from dpt.model_config import list_models

    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks",
        description="Times forward passes and training steps beside other implementations, taking "
        "turns in one process; prints medians, ratios to ours, and memory.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="model",
        choices=("model", "data", "metrics", "switches"),
        help="data: loading and augmentation on one core; metrics: their updates; switches: what "
        "each switch of a training run does to a step",
    )
    parser.add_argument("--root", help="data: a folder with images and depth; else made-up photos")
    parser.add_argument("--model", default="dpt_base", choices=list_models())
    parser.add_argument("--task", default="depth", choices=("depth", "segmentation"))
    parser.add_argument("--size", default=[384, 384], nargs=2, type=int, metavar=("H", "W"))
    parser.add_argument("--batch", default=1, type=int)
    parser.add_argument("--dtype", default="fp32", choices=tuple(DTYPES))
    parser.add_argument(
        "--against",
        default="",
        help="comma-separated: dpt-optimized, dpt-onnx, transformers, transformers-onnx, smp; "
        "NAME-compile compiles it",
    )
    parser.add_argument("--train", action="store_true", help="training steps too")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="instead, where the time of a forward pass and of a training step of ours goes",
    )
    parser.add_argument("--rounds", default=7, type=int, help="turns that count")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = vars(parser.parse_args(arguments))
    what, root, rounds = given.pop("what"), given.pop("root"), given["rounds"]
    profiles = given.pop("profile")
    given["size"] = tuple(given["size"])
    given["against"] = [name for name in given["against"].split(",") if name]
    if what == "data":
        print(bench_data(root=root, size=given["size"], rounds=rounds))
    elif what == "metrics":
        print(bench_metrics(rounds=rounds))
    elif what == "switches":
        shared = ("model", "task", "size", "batch", "rounds", "device")
        print(bench_switches(**{k: given[k] for k in shared}))
    elif profiles:
        del given["against"], given["train"]
        print(profile_model(**given))
    else:
        print(bench(**given))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    run(sys.argv[1:])
