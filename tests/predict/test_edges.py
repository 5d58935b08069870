"""Depth at the size of a larger image: edges where the image has some (``--edges``)."""

import json

import cv2
import numpy as np
import pytest
import torch
from photos import save_photo

from dpt import Predictor, functional
from dpt.data.scenes.dataset import ScenesDataset
from dpt.functional import guided_resize, resize
from dpt.metrics.rules.base import DepthImage
from dpt.metrics.rules.boundaries import DepthProBoundary

rng = np.random.default_rng(0)


def by_loops(depth: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Joint bilateral upsampling (Kopf et al. 2007, section 3), one pixel after another."""
    (h, w), (height, width) = depth.shape, image.shape[:2]
    small = image.reshape(h, height // h, w, width // w, 3).mean(axis=(1, 3))
    out = np.zeros((height, width))
    for y, x in np.ndindex(height, width):
        v, u = (y + 0.5) * h / height - 0.5, (x + 0.5) * w / width - 0.5
        total = weights = 0.0
        for row in range(round(v) - 2, round(v) + 3):
            for column in range(round(u) - 2, round(u) + 3):
                place = min(max(row, 0), h - 1), min(max(column, 0), w - 1)
                color = np.exp(-((small[place] - image[y, x]) ** 2).sum() / (2 * 0.05**2))
                near = np.exp(-((row - v) ** 2 + (column - u) ** 2) / 2)
                total += near * (color + 1e-8) * depth[place]
                weights += near * (color + 1e-8)
        out[y, x] = total / weights
    return out


def guided(depth: np.ndarray, image: np.ndarray) -> np.ndarray:
    guide = torch.from_numpy(image).permute(2, 0, 1)
    return guided_resize(torch.from_numpy(depth)[None, None], guide)[0, 0].numpy()


def test_guided_is_the_sum_of_the_publication(monkeypatch):
    depth = rng.uniform(1, 5, (6, 8)).astype(np.float32)
    image = rng.uniform(0, 0.3, (18, 24, 3)).astype(np.float32)
    expected = by_loops(depth, image)
    np.testing.assert_allclose(guided(depth, image), expected, rtol=1e-4)
    monkeypatch.setattr(functional, "_GUIDE_PIXELS", 100)  # four rows at once
    np.testing.assert_allclose(guided(depth, image), expected, rtol=1e-4)


def test_an_edge_of_the_image_is_one_of_the_depth():
    image = np.zeros((32, 48, 3), np.float32)
    image[:, 24:] = 1
    depth = np.full((8, 12), 2, np.float32)
    depth[:, 6:] = 4
    out = guided(depth, image)
    np.testing.assert_allclose(out[:, :24], 2, atol=1e-4)
    np.testing.assert_allclose(out[:, 24:], 4, atol=1e-4)


def test_boundaries_of_scenes_are_sharper_and_depth_is_not_worse():
    """True depth at a quarter of the size, as sharp as a network can be, and back."""
    scores = {"smooth": [], "nearest": [], "guided": []}
    data = ScenesDataset(size=(192, 256), split="val", length=2)
    for sample in (data[0], data[1]):
        true, valid = sample["depth"], sample["valid"]
        filled = np.where(valid, true, true[valid].max())
        small = cv2.resize(filled, (64, 48), interpolation=cv2.INTER_AREA)
        maps = torch.from_numpy(small)[None, None]
        enlarged = {
            "smooth": resize(maps, true.shape, "bilinear_aligned")[0, 0].numpy(),
            "nearest": cv2.resize(small, (256, 192), interpolation=cv2.INTER_NEAREST_EXACT),
            "guided": guided(small, sample["image"].astype(np.float32) / 255),
        }
        for rule, depth in enlarged.items():
            image = DepthImage(depth.astype(float), true.astype(float), valid)
            f1 = DepthProBoundary().values(image.pixels(valid))[0]
            error = (np.abs(depth - true) / np.where(valid, true, 1))[valid].mean()
            scores[rule].append((f1, error))
    f1, abs_rel = np.mean([scores[rule] for rule in scores], axis=1).T
    assert f1[0] < f1[1] < f1[2]
    assert f1[2] > 3 * f1[0]
    assert abs_rel[2] < abs_rel[0]


def test_predictor_changes_depth_alone(joint):
    image = rng.integers(0, 256, (150, 210, 3), dtype=np.uint8)
    by_rule = {rule: Predictor(joint, edges=rule)(image) for rule in ("smooth", "nearest")}
    values = Predictor(joint).run([Predictor(joint).prepare(image).input])[0]["depth"]
    assert values.shape[-2:] < image.shape[:2]
    assert set(np.unique(by_rule["nearest"].depth)) <= set(np.unique(values.numpy()))
    assert by_rule["smooth"].depth.shape == by_rule["nearest"].depth.shape == image.shape[:2]
    result = Predictor(joint, edges="guided")(image)
    guide = torch.from_numpy(image).permute(2, 0, 1) / 255
    np.testing.assert_allclose(result.depth, guided_resize(values, guide)[0, 0], rtol=1e-5)
    assert np.array_equal(result.labels, by_rule["smooth"].labels)
    small = image[:40, :40]  # the network's map is larger
    of_small = [Predictor(joint, edges=rule)(small).depth for rule in ("smooth", "guided")]
    assert np.array_equal(*of_small)
    with pytest.raises(ValueError, match="edges"):
        Predictor(joint, edges="sharp")


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["--format", "npy"], "smooth"),
        (["--format", "npy", "--edges", "nearest"], "nearest"),
        (["--format", "npy,ply", "--fov", "60"], "guided"),
        (["--format", "ply", "--fov", "60", "--edges", "smooth"], "smooth"),
    ],
)
def test_points_are_guided_by_default(tmp_path, predict, out, words, rule):
    if "ply" in words[1]:
        pytest.importorskip("trimesh", reason="needs the extra 'points'")
    save_photo(tmp_path / "a.png", 90, 120, seed=0)
    predict(tmp_path / "a.png", *words)
    assert json.loads((out / "predictions.json").read_text())["options"]["edges"] == rule
