"""Many workers that are killed beside one undisturbed run: ``python tests/benchmarks shards``.

Tiny images are predicted once by one process, and once by several workers (``dpt predict --shard``)
of which one is killed (SIGKILL) at random times and started again. The output folders must hold the
same files with the same bytes.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np
import torch
from photos import TINY

import dpt

ROOT = Path(__file__).parents[2]
SMALL = {
    "image_size": [16, 16],
    "embed_dim": 8,
    "num_heads": 1,
    "reassemble_channels": [4, 4, 4, 4],
    "fusion_channels": 4,
}


def run(arguments: list[str]) -> None:
    """Compares the folders; prints the time of each part."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks shards", description=__doc__)
    parser.add_argument("--images", default=1000, type=int)
    parser.add_argument("--workers", default=2, type=int)
    parser.add_argument("--kills", default=10, type=int)
    parser.add_argument("--seed", default=0, type=int, help="of the times of the kills")
    parser.add_argument("--folder", default="runs/shards", type=Path, help="images and outputs")
    options = parser.parse_args(arguments)
    folder = options.folder
    photos, model, whole, out = (folder / name for name in ("photos", "model", "whole", "shards"))
    if not model.exists():
        make_images(photos, options.images)
        save_model(model)
    if not (whole / "predictions.jsonl").exists():
        with timed("one process"):
            require_success(start(model, photos, whole))
    moments = np.random.default_rng(options.seed).uniform(0.02, 0.98, options.kills)
    kills = Kills(out, sorted(moments), (whole / "predictions.jsonl").stat().st_size)
    with timed(f"{options.workers} workers, {options.kills} kills"):
        predict_in_shards(model, photos, out, kills, options.workers)
        require_success(start(model, photos, out, "--merge"))
    expected, found = digests(whole), digests(out)
    different = sorted(n for n in expected.keys() | found if expected.get(n) != found.get(n))
    if different:
        raise SystemExit(f"{len(different)} files differ: {different[:5]}")
    lines = (out / "predictions.jsonl").read_text().splitlines()
    names = {json.loads(line)["name"] for line in lines}
    assert len(names) == len(lines), "an image has two records"
    print(f"{len(names)} images, each once; {len(found)} files equal those of one process")


@contextmanager
def timed(title: str) -> Iterator[None]:
    """Prints how long the block takes."""
    begin = time.monotonic()
    yield
    print(f"{title}: {time.monotonic() - begin:.0f} s", flush=True)


def make_images(folder: Path, count: int) -> None:
    """Writes PNG files of 20 x 24 pixels, 1000 in each folder."""
    random = np.random.default_rng(0)
    for k in range(count):
        path = folder / f"{k // 1000:04}/{k:07}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), random.integers(0, 256, (20, 24, 3), np.uint8))


def save_model(folder: Path) -> None:
    """Writes a tiny model with random weights."""
    torch.manual_seed(0)
    heads = {"segmentation": {"num_classes": 5}}
    dpt.create_model("dpt_tiny", heads=heads, **(TINY | SMALL)).save_pretrained(folder)


def start(model: Path, photos: Path, out: Path, *options: str) -> subprocess.Popen:
    """Starts ``dpt predict``."""
    command = [sys.executable, "-m", "dpt", "predict", model, photos, "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with open(out.parent / f"{out.name}.log", "a") as log:
        return subprocess.Popen(
            [*command, "--format", "png", *options], env=environment, stdout=log, stderr=log
        )


def require_success(process: subprocess.Popen) -> None:
    """Waits for the end of a command."""
    if process.wait():
        raise SystemExit(f"{process.args} ended by exit code {process.returncode}")


class Kills:
    """Says when the next worker is to be killed: at fractions of the work in 0..1."""

    def __init__(self, out: Path, moments: list[float], size: int) -> None:
        self.out, self.moments, self.size = out, list(moments), size

    def is_time(self) -> bool:
        """Whether the journals of all workers hold the next fraction of the records."""
        if not self.moments:
            return False
        written = sum(path.stat().st_size for path in self.out.glob("shards/*.jsonl"))
        if written < self.moments[0] * self.size:
            return False
        del self.moments[0]
        return True


def predict_in_shards(model: Path, photos: Path, out: Path, kills: Kills, count: int) -> None:
    """Runs the workers; starts a killed one again."""
    names = [f"{number}/{count}" for number in range(1, count + 1)]
    workers = {name: start(model, photos, out, "--shard", name) for name in names}
    random = np.random.default_rng(0)
    while workers:
        time.sleep(0.05)
        if kills.is_time():
            workers[random.choice(list(workers))].send_signal(signal.SIGKILL)
        for name, worker in list(workers.items()):
            if worker.poll() == -signal.SIGKILL:
                workers[name] = start(model, photos, out, "--shard", name)
            elif worker.poll() is not None:
                require_success(workers.pop(name))
    assert not kills.moments, "the work ended before the last kill"


def digests(folder: Path) -> dict[str, str]:
    """Returns a hash of the content of each file by its path."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
