"""Points and normals of depth maps: exact on planes, and never across a discontinuity."""

import numpy as np
import pytest
from test_view import random_view

from dpt import geometry
from dpt.data.transforms import TrainTransform
from dpt.data.view import view_sample
from dpt.geometry import View, Window, depth_edges, normals_of_depth, project, unproject

H, W = 120, 160
K = np.array([[140.0, 2, 71], [0, 150, 55.5], [0, 0, 1]])
AHEAD = np.array([0, 0, 1.0])
SLANTED = np.array([0.3, -0.5, 0.81])


def plane(normal, distance, camera=K, size=(H, W)):
    """Depth of the plane normal · point = distance."""
    return distance / (unproject(np.ones(size), camera) @ normal)


def normals(depth, radius=2, valid=None):
    return normals_of_depth(depth, K, depth > 0 if valid is None else valid, radius=radius)


def facing(normal):
    return -normal / np.linalg.norm(normal)


def pixels(size=(H, W)):
    rows, columns = np.indices(size)
    return np.stack([columns, rows], axis=2)


@pytest.mark.parametrize("seed", range(10))
def test_unproject_then_project_is_exact_after_every_augmentation(seed):
    depth = np.random.default_rng(seed).uniform(0.5, 9, (H, W)).astype(np.float32)
    sample = {"image": np.zeros((H, W, 3), np.uint8), "depth": depth, "valid": depth > 0, "K": K}
    transform = TrainTransform(
        image_size=(60, 80), zoom=(0.5, 2), vflip=0.5, turn=0.5, rotate=20 * (seed % 2)
    )
    for out in (transform(sample, seed=seed), view_sample(sample, random_view(seed))):
        points = unproject(out["depth"].astype(np.float64), out["K"])[out["valid"]]
        wanted = pixels(out["depth"].shape)[out["valid"]]
        np.testing.assert_allclose(project(points, out["K"]), wanted, atol=1e-5)


WHOLE = View.of_window(Window(0, 0, H, W), (H, W))
VIEWS = {
    "crop": View.of_window(Window(7, 20, 60, 70), (60, 70)),
    "flip": WHOLE.flipped(),
    "turn": WHOLE.turned(1),
    "turn and flip": WHOLE.turned(3).flipped(),
    "beyond the image": View.of_window(Window(-9, -9, H + 18, W + 18), (H + 18, W + 18)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_points_of_a_plane_lie_on_the_plane_in_every_view(name):
    depth = plane(SLANTED, 2.0)
    sample = {"image": np.zeros((H, W, 3), np.uint8), "depth": depth, "valid": depth > 0, "K": K}
    out, (_, turn) = view_sample(sample, VIEWS[name]), VIEWS[name].map_camera(K)
    turned = np.append(turn @ SLANTED[:2], SLANTED[2])
    points = unproject(out["depth"], out["K"])[out["valid"]]
    np.testing.assert_allclose(points @ turned, 2.0, atol=1e-12)
    found = normals_of_depth(out["depth"], out["K"], out["valid"])[out["valid"]]
    np.testing.assert_allclose(found, np.broadcast_to(facing(turned), found.shape), atol=1e-6)


@pytest.mark.parametrize("radius", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_normals_of_planes_are_exact(radius, dtype):
    found = normals(plane(SLANTED, 2.0).astype(dtype), radius)
    assert found.dtype == np.float32
    wanted = np.broadcast_to(facing(SLANTED), found.shape)
    np.testing.assert_allclose(found, wanted, atol=1e-6 if dtype == np.float64 else 3e-5)


def test_normals_do_not_cross_discontinuities_and_creases():
    near, wall = plane(AHEAD, 1.0), plane(SLANTED, 2.0)
    is_near = np.zeros((H, W), bool)
    is_near[30:80, 50:100] = True
    found = normals(np.where(is_near, near, wall))
    np.testing.assert_allclose(found[is_near], np.tile(facing(AHEAD), (2500, 1)), atol=1e-6)
    np.testing.assert_allclose(found[~is_near] @ facing(SLANTED), 1, atol=1e-6)

    floor = plane(np.array([0, 1.0, 0]), 1.5)
    floor = np.where(floor > 0, floor, np.inf)
    behind = plane(AHEAD, 8.0)
    found = normals(np.minimum(floor, behind))
    is_floor = floor < behind
    assert 20 < is_floor.any(axis=1).sum() < 100
    np.testing.assert_allclose(found[is_floor] @ [0, -1, 0], 1, atol=1e-6)
    np.testing.assert_allclose(found[~is_floor] @ [0, 0, -1], 1, atol=1e-6)


def test_normals_of_bands_of_rows_are_those_of_the_map(monkeypatch):
    depth = plane(SLANTED, 2.0) * np.random.default_rng(0).normal(1, 0.003, (H, W))
    whole = normals(depth)
    monkeypatch.setattr(geometry, "_PIXELS_AT_ONCE", 17 * W)
    np.testing.assert_allclose(normals(depth), whole, atol=1e-6)


def test_depth_edges_are_where_one_surface_hides_another():
    near = np.zeros((H, W), bool)
    near[30:80, 50:100] = True
    depth = np.where(near, 2.0, plane(np.array([0, 0.2, 1]), 4.0))
    right, down = depth_edges(depth, K, np.ones((H, W), bool))
    assert np.array_equal(right, near[:, 1:] != near[:, :-1])
    assert np.array_equal(down, near[1:] != near[:-1])
    right, down = depth_edges(np.where(near, np.nan, depth), K, ~near)
    assert not right.any()
    assert not down.any()
