"""From a photo to maps of its size: as the code of each format's authors computes them."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peers_depth_anything import Folder, Hub
from peers_official import Official
from peers_transformers import Transformers
from photos import photo_of
from PIL import Image

import dpt
from dpt.data.base import Sample
from dpt.data.transforms import EvalTransform
from dpt.model_config import ModelConfig

PHOTO = photo_of(90, 133)
NOISE = np.random.default_rng(0).integers(0, 256, (90, 133, 3), np.uint8)
BICUBIC = {"mode": "bicubic", "align_corners": False}
BILINEAR = {"mode": "bilinear", "align_corners": False}
ALIGNED = {"mode": "bilinear", "align_corners": True}
V1_FILE = "depth_anything_vits14.pth"
AUTHORS = [
    (Official("official", "depth", "ViT", ()), BICUBIC),
    (Official("official", "segmentation", "ViT", ()), BICUBIC),
    (Hub("depth_anything", "depth", "v2", ()), ALIGNED),
    (Hub("depth_anything", "depth", "v1", (), {"version": "v1"}, file=V1_FILE), BILINEAR),
]


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    ("case", "rule"), AUTHORS, ids=[f"{c.format} {c.model} {c.task}" for c, _ in AUTHORS]
)
def test_of_the_authors(case, rule, tmp_path):
    """Images are resized as floats, maps (of classes the logits) by the rule."""
    theirs, ours = case.build(tmp_path)
    settings = ours.preprocessing
    height, width = settings.input_size(*NOISE.shape[:2])
    image = cv2.resize(NOISE / 255.0, (width, height), interpolation=cv2.INTER_CUBIC)
    image = torch.from_numpy((image - settings.mean) / settings.std).permute(2, 0, 1)[None]
    with torch.no_grad():
        maps = theirs(image.float())
    maps = maps if maps.ndim == 4 else maps[:, None]
    expected = F.interpolate(maps, NOISE.shape[:2], **rule)[0]
    actual = dpt.Predictor(ours)(NOISE)
    if case.task == "depth":
        assert error(actual.depth, expected[0].numpy()) < 2e-5
    else:
        assert (actual.labels == expected.argmax(0).numpy()).mean() > 0.9995  # ties fall either way


@pytest.mark.parametrize(
    "case",
    [
        Transformers("transformers", "depth", "ViT", ()),
        Transformers("transformers", "segmentation", "ViT", ()),
        Folder("depth_anything", "depth", "transformers", ()),
    ],
    ids=lambda case: f"{case.format} {case.task}",
)
def test_of_transformers(case, tmp_path):
    """As its image processor resizes the outputs."""
    from transformers import DPTImageProcessor

    theirs, _ = case.build(tmp_path)
    side = 64 if case.format == "transformers" else 70
    processor = DPTImageProcessor(size={"height": side, "width": side})
    processor.save_pretrained(tmp_path)
    predictor = dpt.Predictor(tmp_path)
    pixels = predictor.prepare(PHOTO).input  # its own resizing differs by one of 255 levels
    inputs = predictor.preprocessing.normalize(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    with torch.no_grad():
        outputs = theirs.model(inputs)
    actual = predictor(Image.fromarray(PHOTO))
    if case.task == "depth":
        (expected,) = processor.post_process_depth_estimation(outputs, [PHOTO.shape[:2]])
        assert error(actual.depth, expected["predicted_depth"].numpy()) < 2e-5
    else:
        (expected,) = processor.post_process_semantic_segmentation(outputs, [PHOTO.shape[:2]])
        assert (actual.labels == expected.numpy()).mean() > 0.9995


def test_rules_are_stored_and_absent_ones_are_those_of_own_models(tmp_path):
    _, model = Official("official", "depth", "ViT", ()).build(tmp_path)
    model.save_pretrained(tmp_path / "ours")
    again = dpt.DPT.from_pretrained(tmp_path / "ours").preprocessing
    assert (again.interpolation, again.output_interpolation) == ("cubic_float", "bicubic")
    plain = model.config.to_dict()
    del plain["preprocessing"]["output_interpolation"]
    assert ModelConfig.from_dict(plain).preprocessing.output_interpolation == "bilinear_aligned"


def test_evaluation_sees_the_same_input_as_prediction(tmp_path):
    _, model = Official("official", "depth", "ViT", ()).build(tmp_path)
    sample: Sample = {"image": NOISE}
    seen = EvalTransform(model.preprocessing)(sample)["image"]
    np.testing.assert_array_equal(seen, dpt.Predictor(model).prepare(NOISE).input)
