"""Depth Anything 3: what a folder tells, the rule of its inputs, and what is written back."""

import json

import numpy as np
import pytest
import torch
from peer_cases import random_images
from peers_depth_anything3 import CASES
from safetensors.torch import load_file, save_file

import dpt
from dpt.data.view import resize_image
from dpt.types.preprocessing import Preprocessing
from dpt.weights import load_model_weights
from dpt.weights.files import open_checkpoint
from dpt.weights.formats import convert, read

pytestmark = pytest.mark.peers
MONO, METRIC = CASES


@pytest.fixture(params=CASES, ids=str)
def both(request, tmp_path):
    """A case, the peer, ours, and the peer's folder."""
    return (request.param, *request.param.build(tmp_path), tmp_path)


def test_kind_of_depth_follows_from_the_name(both):
    case, _, ours, _ = both
    output = ours.outputs["depth"]
    expected = ("m", 300.0) if case is METRIC else ("relative depth", None)
    assert (output.unit, output.canonical_focal) == expected
    assert output.extra_named("sky").threshold == 0.3


def test_sky_equals_the_peers(both):
    _, theirs, ours, _ = both
    images = random_images(2, (98, 70))
    with torch.no_grad():
        expected, sky = theirs.sky(images), ours(images)["depth"].sky
    assert 0 < (expected > 0).float().mean() < 1 or expected.std() > 0.1
    assert (sky - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_round_trip_is_exact(both, tmp_path):
    case, _, _, folder = both
    convert(folder, tmp_path / "ours", to="dpt")
    convert(tmp_path / "ours", tmp_path / "again", to="depth_anything_3")
    before, after = (open_checkpoint(path).tensors for path in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)
    config = json.loads((tmp_path / "again/config.json").read_text())
    assert config["model_name"] == case.model_name


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("da3-large", "model.cam_dec.backbone.0.weight", "da3mono-large"),
        ("da3mono-large", "model.head.norm.weight", "unexpected model.head.norm.weight"),
    ],
)
def test_other_folders_are_refused(name, tensor, message, tmp_path):
    MONO.build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_name": name}))
    if tensor is not None:
        tensors = load_file(tmp_path / "model.safetensors")
        save_file(tensors | {tensor: torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path)
    assert str(tmp_path) in str(caught.value)


SIZES = {
    (480, 640): (378, 504),
    (504, 377): (504, 378),
    (503, 91): (504, 98),  # 91.2 becomes 91, half a multiple, which goes up
    (1008, 363): (504, 182),  # 181.5 becomes 182, a multiple
    (375, 1242): (154, 504),
    (90, 128): (350, 504),
}


@pytest.mark.parametrize("size", SIZES)
def test_input_size_is_that_of_the_authors(size):
    rule = {"image_size": (504, 504), "resize": "longest_side", "multiple_of": 14}
    assert Preprocessing(**rule).input_size(*size) == SIZES[size]


def test_images_are_resized_twice():
    import cv2

    image = np.random.default_rng(0).integers(0, 256, (96, 130, 3), dtype=np.uint8)
    once = cv2.resize(image, (504, 372), interpolation=cv2.INTER_CUBIC)
    expected = cv2.resize(once, (504, 378), interpolation=cv2.INTER_CUBIC)
    assert np.array_equal(resize_image(image, (378, 504), "cubic_area_twice"), expected)
    large = np.random.default_rng(1).integers(0, 256, (700, 1000, 3), dtype=np.uint8)
    once = cv2.resize(large, (504, 353), interpolation=cv2.INTER_AREA)
    expected = cv2.resize(once, (504, 350), interpolation=cv2.INTER_AREA)
    assert np.array_equal(resize_image(large, (350, 504), "cubic_area_twice"), expected)


@pytest.mark.parametrize(
    ("sky", "kind", "left_out", "new"),
    [
        ("sigmoid", "up_to_scale", [], ["heads.depth.branches.sky.conv3 (sky: relu to sigmoid)"]),
        ("relu", "relative", [], ["heads.depth.conv3 (kind: up_to_scale to relative, "]),
    ],
)
def test_fine_tuning_keeps_what_means_the_same(sky, kind, left_out, new, tmp_path):
    _, ours = MONO.build(tmp_path)
    checkpoint, config = read(tmp_path), ours.config.to_dict()
    config["heads"]["depth"] |= {"sky": sky, "kind": kind}
    model = dpt.DPT(type(ours.config).from_dict(config))
    report = load_model_weights(model, model.config, checkpoint, source="da3")
    assert report.unused == left_out
    assert [o[: len(n)] for o, n in zip(report.outputs, new, strict=True)] == new
    model(random_images(1, (70, 70)))["depth"]
