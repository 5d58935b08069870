"""Runs, checkpoints and files of predictions that evaluations score."""

import csv
from functools import partial

import cv2
import numpy as np
import pytest
import torch
from photos import save_picture

import dpt
from dpt.data.transforms import EvalTransform


@pytest.fixture(scope="session")
def checkpoint(joint_run):
    return joint_run / "checkpoints/last.ckpt"


@pytest.fixture(scope="session")
def larger_scores(evaluate, checkpoint, tmp_path_factory):
    """The evaluation of ``checkpoint`` with larger inputs."""
    return evaluate(tmp_path_factory.mktemp("larger") / "run", checkpoint, "image_size=[64,96]")


@pytest.fixture(scope="session")
def images_table():
    """images_table(folder): the rows of per_image.csv."""

    def read(folder):
        with (folder / "per_image.csv").open() as file:
            return list(csv.DictReader(file))

    return read


@pytest.fixture(scope="session")
def only_depth():
    """only_depth(folder): overrides that choose a folder with depth and without labels."""

    def overrides(folder):
        data = {"root": folder, "depth": "depth", "max_depth": 10, "missing": "skip"}
        return ("data=folder", *(f"data.{key}={value}" for key, value in data.items()))

    return overrides


@pytest.fixture
def mistake(score_files, tmp_path, refused):
    """mistake(predictions, *overrides): the one line that is printed."""
    return partial(refused, score_files, tmp_path / "run")


@pytest.fixture(scope="session")
def folder_run(train, dense_data, tmp_path_factory):
    return train(tmp_path_factory.mktemp("folder") / "run", "task=joint", *dense_data)


@pytest.fixture(scope="session")
def files(folder_run, dense_folder, tmp_path_factory):
    """A folder of that run's predictions: depth/*.npy and labels/*.png."""
    root = tmp_path_factory.mktemp("predictions")
    (root / "depth").mkdir()
    model = dpt.DPT.from_pretrained(folder_run / "checkpoints/last.ckpt")
    for path in sorted((dense_folder / "images/val").glob("*.png")):
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        small = EvalTransform(model.preprocessing)({"image": image})["image"]
        batch = torch.from_numpy(small).permute(2, 0, 1)[None]
        with torch.no_grad():
            out = model(model.preprocessing.normalize(batch))
        size = {"size": image.shape[:2], "mode": "bilinear", "align_corners": True}
        depth = torch.nn.functional.interpolate(out["depth"][:, None], **size)[0, 0]
        logits = torch.nn.functional.interpolate(out["segmentation"], **size)
        np.save(root / f"depth/{path.stem}.npy", depth.numpy())
        labels = logits[0].argmax(0).to(torch.uint8).numpy()
        save_picture(root / f"labels/{path.stem}.png", labels)
    return root


@pytest.fixture(scope="session")
def scored_files(score_files, files, tmp_path_factory):
    """Those files by the protocol that is used if none is named."""
    return score_files(tmp_path_factory.mktemp("scored") / "run", files)
