"""Procedural scenes: reproducible images, exact depth, labels and shadows."""

import numpy as np
import pytest

from dpt import geometry
from dpt.data.scenes import rendering
from dpt.data.scenes.dataset import CLASSES, MAX_DEPTH, ScenesDataset
from dpt.data.scenes.random_scenes import LAYOUTS
from dpt.data.scenes.rendering import Camera, Solid, in_shadow
from dpt.types.samples import Sample

SMALL = (48, 64)


@pytest.fixture(scope="module")
def train() -> list[Sample]:
    dataset = ScenesDataset(split="train", length=80, size=SMALL)
    return [dataset[k] for k in range(80)]


def same(first: Sample, second: Sample) -> bool:
    return all(np.array_equal(first[k], second[k]) for k in ("image", "depth", "valid", "labels"))


def test_scenes_same_index_gives_the_same_bits():
    first, second = ScenesDataset(), ScenesDataset(length=9)
    for k in (8, 0):  # in another order, from another instance
        second[k - 1 if k else 3]
        assert same(first[k], second[k])
        assert first[k]["value"] == second[k]["value"]


@pytest.mark.parametrize(
    ("split", "index", "caption", "means"),
    [
        ("train", 0, "a park with boxes, a ball, a cone and trees", (151.7, 3.403, 2.540)),
        ("train", 1, "a park with cylinders and trees", (140.3, 4.332, 3.188)),
        ("train", 2, "a corridor with balls and cones", (142.28, 3.697, 1.569)),
        ("val", 0, "a street with a box, a ball and a tree", (144.05, 6.826, 1.632)),
        ("val", 3, "a room with boxes, a ball, a cylinder and a cone", (123.52, 2.652, 2.326)),
    ],
)
def test_scenes_stay_the_same(split, index, caption, means):
    """The scores of the guide's first run rest on them."""
    sample = ScenesDataset(split=split, size=SMALL)[index]
    assert sample["caption"] == caption
    assert sample["name"] == f"scenes/{split}/{index:06}"
    values = [sample[key].mean() for key in ("image", "depth", "labels")]
    assert values == pytest.approx(means, abs=0.01)


def test_scenes_samples_are_as_promised(train):
    for sample in train:
        ScenesDataset().check(sample)
        assert sample["image"].shape == (*SMALL, 3)
        assert sample["image"].std() > 5  # neither burnt out nor black
        depth, valid = sample["depth"], sample["valid"]
        assert (depth[~valid] == 0).all()
        assert depth[valid].min() > 0.05
        assert depth[valid].max() <= MAX_DEPTH
        assert not valid[sample["labels"] == rendering.SKY].any()
    assert np.mean([sample["valid"].mean() for sample in train]) > 0.7


def test_scenes_normals_are_those_of_their_depth():
    size = (240, 320)
    found = []
    for index in range(6):
        sample = ScenesDataset(split="val", size=size)[index]
        scene = LAYOUTS[ScenesDataset.class_id_names[sample["class_id"]]]
        rng = np.random.default_rng((0, 1, index))
        rng.integers(len(LAYOUTS))
        K = geometry.Camera.from_focal(scene(rng).camera.focal * size[1], size).K
        exact, depth, valid = sample["normals"], sample["depth"], sample["valid"]
        fitted = geometry.normals_of_depth(depth, K, valid, radius=1)
        length = np.linalg.norm(exact, axis=2)
        np.testing.assert_allclose(length[length > 0], 1, atol=1e-5)
        assert np.array_equal(length == 0, sample["labels"] == rendering.SKY)
        points = geometry.unproject(depth, K)
        is_facing = (points * exact).sum(2)[valid] < 1e-3
        assert is_facing.mean() > 0.9999  # all but a few at the rims of cones
        cosine = (fitted * exact).sum(2)[valid & fitted.any(axis=2)]
        found.append(np.degrees(np.arccos(cosine.clip(-1, 1))))
    errors = np.concatenate(found)
    assert np.median(errors) < 0.1
    assert np.mean(errors < 2) > 0.95  # all but the edges of solids


def test_scenes_every_class_and_every_kind_of_scene_occurs(train):
    ids = np.unique(np.concatenate([sample["labels"].ravel() for sample in train]))
    assert ids.tolist() == list(range(len(CLASSES)))
    kinds = {sample["class_id"] for sample in train}
    assert kinds == set(range(len(ScenesDataset.class_id_names)))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_render_depth_back_projects_to_floors_and_ceilings(kind):
    scene = LAYOUTS[kind](np.random.default_rng(list(LAYOUTS).index(kind)))
    _, depth, labels, _, _ = rendering.render(scene, SMALL, np.random.default_rng(0))
    rows, columns = np.indices(SMALL) + 0.5
    focal = scene.camera.focal * SMALL[1]
    local = np.stack([(columns - SMALL[1] / 2) / focal, (rows - SMALL[0] / 2) / focal])
    right, down, forward = scene.camera.rotation
    rise = local[0] * right[2] + local[1] * down[2] + forward[2]
    height = scene.camera.position[2] + depth * rise
    ground = (labels == rendering.GROUND) & (depth < MAX_DEPTH)
    assert ground.any()
    np.testing.assert_allclose(height[ground], 0, atol=1e-4)
    ceiling = labels == rendering.CEILING
    np.testing.assert_allclose(height[ceiling], scene.shell.high[2], atol=1e-4)
    others = ~ground & ~ceiling & (depth < MAX_DEPTH)
    assert height[others].min() > -1e-4  # nothing lies below the ground


def solid(kind, center, half, rotation=None):
    rotation = np.eye(3, dtype=np.float32) if rotation is None else rotation
    return Solid(kind, np.float32(center), np.float32(half), rotation)


INSIDE = {
    "box": lambda p: np.abs(p).max(0) < 1,
    "ball": lambda p: (p * p).sum(0) < 1,
    "cylinder": lambda p: (p[0] ** 2 + p[1] ** 2 < 1) & (np.abs(p[2]) < 1),
    "cone": lambda p: (np.hypot(p[0], p[1]) < (1 - p[2]) / 2) & (np.abs(p[2]) < 1),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_solid_span_agrees_with_ray_marching(kind):
    rng = np.random.default_rng(3)
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0].astype(np.float32)
    target = solid(kind, [4, 0.3, 1], [0.5, 0.9, 0.7], rotation)
    camera = Camera.looking(height=1.2, yaw=0.05, pitch=-0.03, roll=0.2, fov=0.7)
    rays = camera.rays((24, 32))
    with np.errstate(all="ignore"):
        entry, leave = target.span(camera.position[:, None], rays)
    steps = np.arange(2.5, 5.5, 0.004)
    points = camera.position[:, None, None] + rays[:, :, None] * steps
    local = rotation.T @ (points.reshape(3, -1) - target.center[:, None]) / target.half[:, None]
    inside = INSIDE[kind](local).reshape(len(entry), -1)
    marched = inside.any(1)
    assert 40 < marched.sum() < 700
    assert (entry[marched] < leave[marched]).all()
    np.testing.assert_allclose(entry[marched], steps[inside.argmax(1)[marched]], atol=0.005)
    last = steps[inside.shape[1] - 1 - inside[:, ::-1].argmax(1)]
    np.testing.assert_allclose(leave[marched], last[marched], atol=0.005)
    grazing = (entry < leave) & ~marched
    assert (leave - entry)[grazing].max(initial=0) < 0.005


def test_in_shadow_of_a_box():
    box = solid("box", [0, 0, 1], [0.5, 0.5, 0.5])
    light = np.float32([0, 0, 3])
    # The upper edge, 1.5 m above ground and 0.5 m aside, casts its shadow 1 m aside.
    x = np.float32([0, 0.9, 0.99, 1.01, 2])
    points = np.stack([x, 0 * x, 0 * x])
    with np.errstate(all="ignore"):
        dark = in_shadow(points, np.full(5, 9), light, [box])
        itself = in_shadow(points, np.zeros(5), light, [box])
    assert dark.tolist() == [True, True, True, False, False]
    assert not itself.any()
