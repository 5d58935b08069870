"""Cameras: points are seen at the same place before and after every change of an image."""

import numpy as np
import pytest
import torch
from test_view import random_view

from dpt.data.loading import collate_eval, collate_train
from dpt.data.transforms import EvalTransform, TrainTransform
from dpt.data.view import view_sample
from dpt.geometry import Camera
from dpt.types.preprocessing import Preprocessing

H, W = 120, 160
K = np.array([[150.0, 0, 71], [0, 140, 55.5], [0, 0, 1]])
SAMPLE = {
    "image": np.zeros((H, W, 3), np.uint8),
    "depth": np.full((H, W), 3, np.float32),
    "valid": np.ones((H, W), bool),
    "K": K,
}


def project(points: np.ndarray, camera: np.ndarray) -> np.ndarray:
    pixels = points @ camera.T
    return pixels[:, :2] / pixels[:, 2:]


def points(seed: int = 0) -> np.ndarray:
    """Random points (N, 3) in front of the camera, in metres."""
    random = np.random.default_rng(seed)
    return random.uniform([-2, -2, 1], [2, 2, 8], (50, 3))


@pytest.mark.parametrize("seed", range(30))
def test_view_camera_sees_points_where_the_view_shows_them(seed):
    view = random_view(seed)
    result, turn = view.map_camera(K)
    turned = np.column_stack([points()[:, :2] @ turn.T, points()[:, 2]])
    expected = view.map_points(project(points(), K))
    np.testing.assert_allclose(project(turned, result), expected, atol=1e-9)
    np.testing.assert_allclose(turn @ turn.T, np.eye(2), atol=1e-12)
    assert (np.diag(result) > 0).all()
    assert np.array_equal(result[2], [0, 0, 1])
    assert result[1, 0] == 0
    np.testing.assert_array_equal(view_sample(SAMPLE, view)["K"], result)


def test_camera_resized_keeps_the_field_of_view():
    camera = Camera.from_fov(60, (H, W))
    half = camera.resized((H // 2, W // 2))
    assert camera.focal == pytest.approx(W / 2 / np.tan(np.radians(30)))
    assert half.focal == pytest.approx(camera.focal / 2)
    assert half.fov == pytest.approx(60) == camera.fov
    np.testing.assert_allclose(half.K[:2, 2], [(W / 2 - 1) / 2, (H / 2 - 1) / 2])


@pytest.mark.parametrize("zoom_scales_depth", [True, False])
def test_train_transform_depth_and_camera_keep_sizes_across(zoom_scales_depth):
    """A metre at the object's depth covers as many pixels in either description."""
    transform = TrainTransform(
        image_size=(60, 80), zoom=(2.0, 2.0), hflip=0, zoom_scales_depth=zoom_scales_depth
    )
    out = transform(SAMPLE, seed=3)
    depth = out["depth"][0, 0]
    assert depth == (1.5 if zoom_scales_depth else 3)
    # half the size and zoom 2: a pixel of the source is a pixel of the result
    np.testing.assert_allclose(np.diag(out["K"])[:2] / depth, np.diag(K)[:2] / 3, rtol=1e-6)


def test_eval_transform_camera_follows_the_image_not_its_labels():
    preprocessing = Preprocessing(image_size=(60, 60), resize="stretch", multiple_of=1)
    out = EvalTransform(preprocessing)(SAMPLE)
    np.testing.assert_allclose(np.diag(out["K"]), [150 * 60 / W, 140 * 60 / H, 1])
    assert out["depth"].shape == (H, W)


@pytest.mark.parametrize("collate", [collate_train, collate_eval])
def test_collate_unknown_camera_is_nan(collate):
    without = {key: value for key, value in SAMPLE.items() if key != "K"}
    batch = collate([SAMPLE, without], ["depth"])
    assert batch["K"].dtype == torch.float32
    np.testing.assert_array_equal(batch["K"][0], K.astype(np.float32))
    assert batch["K"][1].isnan().all()
    assert "K" not in collate([without, without], ["depth"])
