"""Flicker of depth with and without steadying: ``python tests/benchmarks steady RUN --frames DIR``.

The frames are those of 7-Scenes as tsdf-fusion-python has them: colour, depth in millimetres, pose
and the camera's matrix. Measured depth and pose tell which pixels of two consecutive frames show
the same point.

- flicker: mean of the change of log(predicted / measured depth) from a frame to the next one.
- TAE: as of Video Depth Anything (Chen et al. 2025): predicted depth moved by the poses, beside
  that of the neighbouring frame, mean relative difference both ways, in percent.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

import dpt
from dpt.data import read_image

SIZE = 320, 240  # (W, H) at which predictions are compared
CAMERA = np.array([[585 / 2, 0, 159.75], [0, 585 / 2, 119.75], [0, 0, 1]])
Y, X = np.mgrid[: SIZE[1], : SIZE[0]]


class Frame(NamedTuple):
    image: np.ndarray
    depth: np.ndarray  # metres at SIZE, 0: not measured
    pose: np.ndarray  # from the camera to the world


def run(arguments: list[str]) -> None:
    """Predicts the frames in both ways, changed frames too, and prints the measures."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks steady", description=__doc__)
    parser.add_argument("model", help="a run or checkpoint of metric depth")
    parser.add_argument("--frames", required=True, type=Path, help="frame-000700.color.jpg, ...")
    parser.add_argument("--range", default=[700, 849], nargs=2, type=int, metavar=("FIRST", "LAST"))
    options = parser.parse_args(arguments)
    first, last = options.range
    frames = [read_frame(options.frames, k) for k in range(first, last + 1)]
    predictor = dpt.Predictor(options.model)
    print(f"{'':12}{'flicker':>18}{'TAE %':>16}{'abs_rel':>18}{'s a frame':>16}")
    for name, change in CHANGES.items():
        images = [change(k, frame.image) for k, frame in enumerate(frames)]
        rows = [measures(frames, *predicted(predictor, images, steady=s)) for s in (False, True)]
        cells = (f"{a:8.4f} {b:8.4f}" for a, b in zip(*rows, strict=True))
        print(f"{name:12}" + " ".join(cells), flush=True)


def exposed(number: int, image: np.ndarray) -> np.ndarray:
    """The exposure changes to and fro by a third within 40 frames."""
    factor = 1 + np.sin(number * 2 * np.pi / 40) / 3
    return (image * factor).clip(0, 255).astype(np.uint8)


CHANGES = {"as it is": lambda _, image: image, "exposure": exposed}


def read_frame(folder: Path, number: int) -> Frame:
    start = folder / f"frame-{number:06d}"
    depth = cv2.imread(f"{start}.depth.png", cv2.IMREAD_UNCHANGED).astype(np.float32) / 1000
    depth = cv2.resize(np.where(depth > 60, 0, depth), SIZE, interpolation=cv2.INTER_NEAREST)
    return Frame(read_image(f"{start}.color.jpg"), depth, np.loadtxt(f"{start}.pose.txt"))


def predicted(predictor, images, *, steady):
    """Depth of each frame at SIZE, and the mean seconds of a frame."""
    results = predictor.video(images) if steady else map(predictor, images)
    started, depths = time.perf_counter(), []
    for result in results:
        depths.append(cv2.resize(result.depth, SIZE, interpolation=cv2.INTER_AREA))
    return depths, (time.perf_counter() - started) / len(images)


def measures(frames, depths, seconds):
    """Flicker, TAE, abs_rel and the seconds."""
    pairs = [*zip(frames, depths, strict=True)]
    flicker = [change_of_error(*a, *b) for a, b in pairwise(pairs)]
    both_ways = [(*a, *b) for a, b in pairwise(pairs)] + [(*b, *a) for a, b in pairwise(pairs)]
    tae = [difference(*pair) for pair in both_ways]
    errors = [(abs(d - f.depth)[f.depth > 0] / f.depth[f.depth > 0]).mean() for f, d in pairs]
    return np.mean(flicker), 100 * np.mean(tae), np.mean(errors), seconds


def change_of_error(a, predicted_a, b, predicted_b):
    x, y, z, is_seen = moved(a.depth, a, b)
    measured = b.depth[y, x]
    same = is_seen & (measured > 0) & (abs(measured - z) < 0.03 * z)
    before = np.log(predicted_a[same] / a.depth[same])
    return abs(np.log(predicted_b[y, x][same] / measured[same]) - before).mean()


def difference(a, predicted_a, b, predicted_b):
    x, y, z, is_seen = moved(predicted_a, a, b)
    other = predicted_b[y, x]
    return (abs(z - other) / other)[is_seen & (a.depth > 0)].mean()


def moved(depth, a, b):
    """Pixels (x, y) and depth z in frame b of the points that the pixels of frame a show, and
    whether they are inside."""
    rays = np.stack((X, Y, np.ones_like(X)), axis=2) @ np.linalg.inv(CAMERA).T
    points = rays * depth[..., None]
    to_b = np.linalg.inv(b.pose) @ a.pose
    points = points @ to_b[:3, :3].T + to_b[:3, 3]
    z = np.maximum(points[..., 2], 1e-6)
    x, y = np.rint((points @ CAMERA.T)[..., :2] / z[..., None]).astype(int).transpose(2, 0, 1)
    inside = (depth > 0) & (x >= 0) & (y >= 0) & (x < SIZE[0]) & (y < SIZE[1])
    return x.clip(0, SIZE[0] - 1), y.clip(0, SIZE[1] - 1), z, inside
