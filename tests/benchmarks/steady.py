"""Flicker of depth with and without steadying: ``python tests/benchmarks steady RUN --frames DIR``.

The frames are those of 7-Scenes as tsdf-fusion-python has them: colour, depth in millimetres, pose
and the camera's matrix. Measured depth and pose tell which pixels of two consecutive frames show
the same point. --long N: drift and memory of N made frames instead, without a model.

- flicker: mean of the change of log(predicted / measured depth) from a frame to the next one.
- cuts: how many new shots were found.
- TAE: as of Video Depth Anything (Chen et al. 2025): predicted depth moved by the poses, beside
  that of the neighbouring frame, mean relative difference both ways, in percent.
"""

import argparse
import resource
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch

import dpt
from dpt.data import read_image
from dpt.predict.steady import Steady
from dpt.types.outputs import OutputSpec

SIZE = 320, 240  # (W, H) at which predictions are compared
CAMERA = np.array([[585 / 2, 0, 159.75], [0, 585 / 2, 119.75], [0, 0, 1]])
Y, X = np.mgrid[: SIZE[1], : SIZE[0]]


class Frame(NamedTuple):
    image: np.ndarray
    depth: np.ndarray  # metres at SIZE, 0: not measured
    pose: np.ndarray  # from the camera to the world
    camera: np.ndarray = CAMERA  # at SIZE


def run(arguments: list[str]) -> None:
    """Predicts the frames in both ways, changed frames too, and prints the measures."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks steady", description=__doc__)
    parser.add_argument("model", nargs="?", help="a run or checkpoint of metric depth")
    parser.add_argument("--frames", type=Path, help="frame-000700.color.jpg, ...")
    parser.add_argument("--range", default=[700, 849], nargs=2, type=int, metavar=("FIRST", "LAST"))
    parser.add_argument("--long", type=int, metavar="N", help="frames to make")
    options = parser.parse_args(arguments)
    if options.long:
        return print_drift(options.long)
    first, last = options.range
    frames = [read_frame(options.frames, k) for k in range(first, last + 1)]
    predictor = dpt.Predictor(options.model)
    print(f"{'':12}{'flicker':>18}{'TAE %':>16}{'abs_rel':>18}{'s a frame':>18}{'cuts':>10}")
    for name, change in CHANGES.items():
        shown = change(frames)
        rows = [measures(shown, *predicted(predictor, shown, steady=s)) for s in (False, True)]
        cells = (f"{a:8.4f} {b:8.4f}" for a, b in zip(*rows, strict=True))
        print(f"{name:12}" + " ".join(cells), flush=True)


def exposed(frames):
    """The exposure changes to and fro by a third within 40 frames."""
    factors = 1 + np.sin(np.arange(len(frames)) * 2 * np.pi / 40) / 3
    images = [
        (f.image * x).clip(0, 255).astype(np.uint8) for f, x in zip(frames, factors, strict=True)
    ]
    return [f._replace(image=image) for f, image in zip(frames, images, strict=True)]


def zoomed(frames):
    """The middle is magnified, up to twice and back within 80 frames."""
    zooms = 1.5 - np.cos(np.arange(len(frames)) * 2 * np.pi / 80) / 2
    return [zoom(frame, factor) for frame, factor in zip(frames, zooms, strict=True)]


def zoom(frame, factor):
    def crop(array, rule):
        middle = (np.array(array.shape[1::-1]) - 1) / 2
        matrix = np.column_stack((np.eye(2) * factor, (1 - factor) * middle))
        return cv2.warpAffine(array, matrix, array.shape[1::-1], flags=rule)

    image, depth = crop(frame.image, cv2.INTER_LINEAR), crop(frame.depth, cv2.INTER_NEAREST)
    camera = CAMERA * [[factor, 1, factor], [1, factor, factor], [1, 1, 1]]
    camera[:2, 2] += (1 - factor) * (np.array(SIZE) - 1) / 2
    return Frame(image, depth, frame.pose, camera)


CHANGES = {
    "as it is": lambda frames: frames,
    "exposure": exposed,
    "zoom": zoomed,
    "fast camera": lambda frames: frames[::3],
    "cuts": lambda frames: [*frames[:25], *frames[100:125], *frames[25:50], *frames[125:]],
}


def print_drift(count):
    """Depth of a moving plane whose scale is noisy: found / true scale, and the largest memory."""
    random = np.random.default_rng(0)
    noise = np.random.default_rng(1).integers(0, 255, (24, 64, 3), np.uint8)
    image = cv2.resize(noise, (512, 192))
    steady = Steady({"depth": OutputSpec("depth", "depth", unit="m")})
    ratios = []
    for k in range(count):
        x, y = round(200 + 150 * np.sin(k / 100)), round(60 + 50 * np.sin(k / 37))
        plane = 2 + np.sin(np.arange(x, x + 64) / 60) + np.zeros((48, 1))
        depth = torch.tensor(plane * random.normal(1, 0.05), dtype=torch.float32)[None, None]
        found = steady({"depth": depth}, image[y : y + 48, x : x + 64])["depth"]
        ratios.append(float((found / torch.from_numpy(plane)).median()))
        if (k + 1) % (count // 5) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{k + 1}: scale {np.mean(ratios):.4f}, {peak:.0f} MiB, {steady.cuts} cuts")
            ratios.clear()


def read_frame(folder: Path, number: int) -> Frame:
    start = folder / f"frame-{number:06d}"
    depth = cv2.imread(f"{start}.depth.png", cv2.IMREAD_UNCHANGED).astype(np.float32) / 1000
    depth = cv2.resize(np.where(depth > 60, 0, depth), SIZE, interpolation=cv2.INTER_NEAREST)
    return Frame(read_image(f"{start}.color.jpg"), depth, np.loadtxt(f"{start}.pose.txt"))


def predicted(predictor, frames, *, steady):
    """Depth of each frame at SIZE, the mean seconds of a frame, and the number of cuts."""
    images = [frame.image for frame in frames]
    results = predictor.video(images) if steady else map(predictor, images)
    started, depths, cuts = time.perf_counter(), [], 0
    for result, frame in zip(results, frames, strict=True):
        focal = frame.camera[0, 0] / CAMERA[0, 0]  # the model knows that of CAMERA alone
        depths.append(cv2.resize(result.depth, SIZE, interpolation=cv2.INTER_AREA) * focal)
        cuts = predictor.steady.cuts if steady else 0
    return depths, (time.perf_counter() - started) / len(images), cuts


def measures(frames, depths, seconds, cuts):
    """Flicker, TAE, abs_rel, the seconds and the cuts."""
    pairs = [*zip(frames, depths, strict=True)]
    flicker = [change_of_error(*a, *b) for a, b in pairwise(pairs)]
    both_ways = [(*a, *b) for a, b in pairwise(pairs)] + [(*b, *a) for a, b in pairwise(pairs)]
    tae = [difference(*pair) for pair in both_ways]
    errors = [(abs(d - f.depth)[f.depth > 0] / f.depth[f.depth > 0]).mean() for f, d in pairs]
    return np.nanmean(flicker), 100 * np.nanmean(tae), np.mean(errors), seconds, cuts


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
    rays = np.stack((X, Y, np.ones_like(X)), axis=2) @ np.linalg.inv(a.camera).T
    points = rays * depth[..., None]
    to_b = np.linalg.inv(b.pose) @ a.pose
    points = points @ to_b[:3, :3].T + to_b[:3, 3]
    z = np.maximum(points[..., 2], 1e-6)
    x, y = np.rint((points @ b.camera.T)[..., :2] / z[..., None]).astype(int).transpose(2, 0, 1)
    inside = (depth > 0) & (x >= 0) & (y >= 0) & (x < SIZE[0]) & (y < SIZE[1])
    return x.clip(0, SIZE[0] - 1), y.clip(0, SIZE[1] - 1), z, inside
