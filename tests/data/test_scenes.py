"""Procedural scenes: reproducible images, exact depth, labels and shadows."""

import numpy as np
import pytest

from dpt import geometry
from dpt.data.scenes import rendering
from dpt.data.scenes.dataset import CLASSES, LAYOUTS, MAX_DEPTH, ScenesDataset
from dpt.files import DataError
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
        with pytest.raises(DataError, match="exchange width and height"):
            ScenesDataset().check({**sample, "depth": sample["depth"].T})
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
