"""Normals of samples: turned with the view, told from depth, checked, collated and packed."""

import numpy as np
import pytest
import torch
from test_points import SLANTED, H, K, W, facing, plane
from test_view import random_view

from dpt.data import DataError
from dpt.data.datasets.files import FileDataset
from dpt.data.loading import collate_eval, collate_train
from dpt.data.transforms import EvalTransform, TrainTransform
from dpt.data.view import view_sample
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import DatasetInfo

NORMAL = facing(SLANTED).astype(np.float32)


def made(**changed):
    """A sample that shows a slanted plane."""
    depth = plane(SLANTED, 2.0).astype(np.float32)
    sample = {
        "image": np.zeros((H, W, 3), np.uint8),
        "depth": depth,
        "valid": depth > 0,
        "normals": np.tile(NORMAL, (H, W, 1)),
        "K": K,
        "name": "photo.png",
    }
    return {key: value for key, value in (sample | changed).items() if value is not None}


@pytest.mark.parametrize("seed", range(12))
def test_view_turns_normals_as_its_camera(seed):
    view = random_view(seed)
    found = view_sample(made(), view)["normals"]
    _, turn = view.map_camera(K)
    wanted = np.append(turn @ NORMAL[:2], NORMAL[2])
    is_known = found.any(axis=2)
    assert found.dtype == np.float32
    assert is_known.mean() > 0.1
    np.testing.assert_allclose(found[is_known] - wanted, 0, atol=1e-6)
    without = view_sample(made(K=None), view)["normals"]
    np.testing.assert_allclose(np.linalg.norm(without[is_known], axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("zoom_scales_depth", [True, False])
def test_train_transform_normals_are_those_of_the_undivided_depth(zoom_scales_depth):
    transform = TrainTransform(
        image_size=(60, 80),
        zoom=(2.0, 2.0),
        hflip=1,
        zoom_scales_depth=zoom_scales_depth,
        targets=["normals"],
    )
    out = transform(made(), seed=1)
    is_divided = out["depth"].max() < made()["depth"].max() / 1.5
    assert is_divided == zoom_scales_depth
    np.testing.assert_allclose(out["normals"] - NORMAL * [-1, 1, 1], 0, atol=1e-6)


def test_collate_missing_normals_are_zero():
    transform = TrainTransform(image_size=(60, 80), hflip=0, targets=["normals"])
    samples = [transform(made(normals=n), seed=0) for n in (made()["normals"], None)]
    batch = collate_train(samples, ["normals"])
    assert batch["normals"].shape == (2, 3, 60, 80)
    assert torch.equal(batch["normals"][0, :, 3, 5], torch.from_numpy(NORMAL))
    assert not batch["normals"][1].any()
    preprocessing = Preprocessing(image_size=(32, 32), resize="stretch")
    kept = collate_eval([EvalTransform(preprocessing)(made())], ["normals"])
    assert kept["normals"][0].shape == (3, H, W)


class Planes(FileDataset):
    """Files of depth, of which no file is read."""

    sample = made(normals=None)
    depth_rule = "depth"

    def __post_init__(self):
        self.info = DatasetInfo(("depth", "normals"), max_depth=10.0)
        self._cache = {}

    def read_sample(self, index):
        return dict(self.sample)

    def __len__(self):
        return 1

    def name(self, index):
        return "photo.png"


def test_file_dataset_normals_from_depth():
    assert "normals" not in Planes(root=".", split="train")[0]
    for cache in (False, True):
        data = Planes(root=".", split="train", normals_from_depth=2, cache=cache)
        np.testing.assert_allclose(data[0]["normals"] - NORMAL, 0, atol=3e-5)
        data.check(data[0])


def test_file_dataset_normals_from_depth_of_another_size_than_the_image():
    data = Planes(root=".", split="train", normals_from_depth=2)
    data.sample = made(normals=None, image=np.zeros((2 * H, 2 * W, 3), np.uint8))
    data.sample["K"] = np.diag([2, 2, 1]) @ K + [[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]]
    np.testing.assert_allclose(data[0]["normals"] - NORMAL, 0, atol=3e-5)


def test_file_dataset_normals_from_depth_needs_camera_and_dense_depth():
    data = Planes(root=".", split="train", normals_from_depth=2)
    data.sample = made(normals=None, K=None)
    with pytest.raises(DataError, match=r"^photo\.png: .*data\.normals_from_depth"):
        data[0]
    sparse = np.random.default_rng(0).random((H, W)) < 0.05
    data.sample = made(normals=None, valid=sparse)
    with pytest.raises(DataError, match=r"no pixel of photo\.png has a normal.*normals_from_depth"):
        data.validate()
