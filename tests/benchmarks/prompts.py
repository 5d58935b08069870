"""Sparse depth beside fits to the same points: ``python tests/benchmarks prompts --data-dir DIR``.

A model with and one without prompts are trained alike on the kitchen, and scored on its held-out
frames: 200 random pixels of measured depth are given for each image, and all others are scored.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from scipy.interpolate import NearestNDInterpolator
from tiny import call

from dpt.config.schema import DataConfig
from dpt.data import EvalTransform
from dpt.data.base import Augmented
from dpt.functional import resize
from dpt.metrics import depth_errors
from dpt.model import DPT

SETTINGS = (
    *("experiment=rgbd", "data.folds=5", "data.fold=4", "data.gap=20", "logger=none"),
    *("data.image_size=[64,96]", "data.cache_size=[96,144]"),
)
POINTS = 200
ROWS = ("prompted", "scale and shift", "plane", "constant", "nearest point", "not fitted")


def run(arguments: list[str]) -> None:
    """Trains and scores; prints abs_rel, a line for each method with a number for each seed."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks prompts", description=__doc__)
    parser.add_argument("--data-dir", required=True, help="the folder with rgbd/images")
    parser.add_argument("--out", default="runs/prompts", type=Path, help="folder of the runs")
    parser.add_argument("--steps", default=300, type=int)
    parser.add_argument("--seeds", default=[0, 1], nargs="+", type=int)
    options = parser.parse_args(arguments)
    columns = []
    for seed in options.seeds:
        folders = {}
        for name, setting in (("plain", "false"), ("prompted", "true")):
            folder = folders[name] = options.out / f"{name}{seed}"
            if not (folder / "metrics.json").is_file():
                call(
                    *("train", *SETTINGS, f"paths.data_dir={options.data_dir}"),
                    *(f"model.decoder.prompts={setting}", f"steps={options.steps}"),
                    *(f"seed={seed}", f"run_dir={folder}"),
                )
        columns.append(errors_of(folders["prompted"], folders["plain"]))
    for row, values in zip(ROWS, zip(*columns, strict=True), strict=True):
        print(f"{row:16}", *(f"{value:8.4f}" for value in values))


def errors_of(*folders: Path) -> list[float]:
    """The abs_rel of each row, means over the images, of the best checkpoints of two runs."""
    data = OmegaConf.to_container(OmegaConf.load(folders[0] / "config.yaml").data)
    dataset = DataConfig.read(data).make("val")
    prompted, plain = map(DPT.from_pretrained, folders)
    preprocessing = plain.preprocessing
    samples = Augmented(dataset, EvalTransform(preprocessing, POINTS), seed=0)
    errors = []
    for index in range(len(dataset)):
        sample, given = samples[index], dataset[index]["valid"]
        given = given & ~sample["valid"]
        inputs = preprocessing.normalize(torch.tensor(sample["image"]).permute(2, 0, 1)[None])
        with torch.no_grad():
            depths = prompted(inputs, prompts=torch.tensor(sample["prompt"])[None]), plain(inputs)
        rule = preprocessing.output_interpolation
        first, own = (
            resize(depth["depth"][:, None], given.shape, rule)[0, 0].numpy() for depth in depths
        )
        maps = [first, *fits(own, sample["depth"], given)]
        errors.append([abs_rel(values, sample["depth"], sample["valid"]) for values in maps])
    return np.mean(errors, axis=0).tolist()


def fits(own: np.ndarray, depth: np.ndarray, given: np.ndarray) -> list[np.ndarray]:
    """Depths (H, W) in the order of ``ROWS`` from the second, each fitted to the given points."""
    y, x = np.indices(depth.shape)
    ones = np.ones(depth.shape)

    def least_squares(*terms: np.ndarray) -> np.ndarray:
        matrix = np.stack([term[given] for term in terms], axis=1)
        weights = np.linalg.lstsq(matrix, depth[given], rcond=None)[0]
        return sum(w * term for w, term in zip(weights, terms, strict=True))

    nearest: Callable[..., np.ndarray] = NearestNDInterpolator(np.argwhere(given), depth[given])
    constant = np.full(depth.shape, np.median(depth[given]))
    return [least_squares(own, ones), least_squares(x, y, ones), constant, nearest(y, x), own]


def abs_rel(prediction: np.ndarray, depth: np.ndarray, valid: np.ndarray) -> float:
    maps = [torch.tensor(array)[None] for array in (prediction, depth, valid)]
    return float(depth_errors(maps[0].float().clamp(1e-3, 10.0), *maps[1:])[0, 0])
