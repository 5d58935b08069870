"""Folders of transformers' ``dpt``: what we write opens there, what we read comes back exactly."""

import json

import numpy as np
import pytest
import torch
from peer_cases import default
from peers_beit_swin import CASES as MIDAS_CASES
from peers_official import CASES as OFFICIAL_CASES
from peers_transformers import BACKBONE, Output, make
from PIL import Image

import dpt
from dpt.data.view import resize_image
from dpt.weights.formats import convert
from dpt.weights.transformers import BACKBONES, DECODER, VIT, Transformers

pytestmark = pytest.mark.peers

SMALL = {
    "embed_dim": 48,
    "num_blocks": 6,
    "num_heads": 4,
    "out_indices": [0, 2, 3, 5],
    "image_size": [64, 64],
    "reassemble_channels": [8, 12, 16, 24],
    "fusion_channels": 16,
}
DINOV2 = {
    "patch_size": 14,
    "image_size": [70, 70],
    "layer_scale": 0.1,
    "position_resize": "bicubic",
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


def small(heads=None, **overrides):
    heads = heads or {"depth": {}}
    return dpt.create_model("dpt_base", heads=heads, **{**SMALL, **overrides}).eval()


def write(model, folder):
    """Writes our model as a folder of transformers, and returns the notes."""
    return Transformers().write(model.config.to_dict(), model.state_dict(), folder)


def opened(model, folder):
    """Our model in transformers' hands, opened as its users do; nothing missing or left over."""
    from transformers import AutoModelForDepthEstimation, DPTForSemanticSegmentation

    write(model, folder)
    is_depth = "depth" in model.heads
    cls = AutoModelForDepthEstimation if is_depth else DPTForSemanticSegmentation
    theirs, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return Output(theirs.eval())


DOUBLE = {"depth": {"upsample": "double"}}
FINE_TUNED = {
    "depth": ({"depth": {}}, {}),
    "patch 8": (DOUBLE, {"patch_size": 8, "align": "resize_lateral"}),
    "segmentation": ({"segmentation": {"num_classes": 5}}, {}),
    "DINOv2": (DOUBLE, {**DINOV2, "align": "resize_lateral"}),
    "add": ({"depth": {}}, {"readout": "add"}),
    "ignore": ({"depth": {}}, {"readout": "ignore", "qkv_bias": False}),
    "batch norm": ({"depth": {}}, {"batch_norm": True, "unit_bias": True}),
    "fusion 24": ({"depth": {}}, {"fusion_channels": 24, "norm_eps": 1e-5}),
    "no auxiliary": ({"segmentation": {"num_classes": 5, "auxiliary": False}}, {}),
    "no batch norm": ({"segmentation": {"num_classes": 5}}, {"batch_norm": False}),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*FINE_TUNED][4:]]


@pytest.mark.parametrize("name", [*[*FINE_TUNED][:4], *SLOW])
def test_a_fine_tuned_model_of_ours_opens_in_transformers(name, tmp_path):
    heads, overrides = FINE_TUNED[name]
    model, (task,) = small(heads, **overrides), heads
    torch.nn.init.normal_(model.encoder.pos_embed)
    theirs = opened(model, tmp_path)
    again = dpt.DPT.from_pretrained(tmp_path)
    for size in ((56, 84), (112, 112)) if "DINOv2" in name else ((64, 64), (96, 96)):
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected, actual = theirs(images), model(images)[task]
            assert torch.equal(again(images)[task], actual)
        if expected.shape[-2:] != size:  # transformers doubles: a user resizes to the image
            expected = torch.nn.functional.interpolate(expected[None], size, mode="bilinear")[0]
        assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


AUTHORS = [c for c in OFFICIAL_CASES if "metric" not in c.model and not c.wrapped]
AUTHORS += [c for c in MIDAS_CASES if str(c) == "MiDaS 3.1, depth, BEiT"]


@pytest.mark.parametrize(
    "case", default(AUTHORS, "official, segmentation, ViT", "MiDaS 3.1, depth, BEiT")
)
def test_authors_files_become_folders_of_transformers(case, tmp_path):
    from transformers import DPTForDepthEstimation, DPTForSemanticSegmentation

    theirs, _ = case.build(tmp_path)
    convert(tmp_path / case.file, tmp_path / "hf", to="transformers")
    cls = DPTForDepthEstimation if case.task == "depth" else DPTForSemanticSegmentation
    model = Output(cls.from_pretrained(tmp_path / "hf").eval())
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, actual = theirs(images), model(images)
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_auxiliary_layers_equal_transformers(tmp_path):
    """The same layers; transformers feeds them the last fusion output, the paper the one before."""
    theirs = make("segmentation")
    theirs.save_pretrained(tmp_path)
    ours = dpt.DPT.from_pretrained(tmp_path).heads["segmentation"].auxiliary_layers
    for side in (4, 8, 16, 32):
        maps = torch.randn(1, 16, side, side)
        with torch.no_grad():
            expected, actual = theirs.auxiliary_head(maps), ours(maps)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "size", "interpolation"),
    [
        ("stretch", (64, 64), "cubic_antialias"),
        ("minimal", (300, 200), "bilinear_antialias"),
        ("minimal", (50, 80), "cubic_antialias"),
        ("none", (50, 80), "cubic_antialias"),
    ],
)
def test_image_processor_reproduces_our_preprocessing(rule, size, interpolation, tmp_path):
    """Sizes and pixels; Pillow and torchvision differ by one of 255 levels."""
    from transformers import AutoImageProcessor

    settings = {
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
        "resize": rule,
        "image_size": [70, 98],
        "interpolation": interpolation,
        "output_interpolation": "bicubic",
    }
    if rule == "none":  # transformers then leaves sizes as they are
        settings["multiple_of"] = 1
    heads = {"depth": {"upsample": "double"}}
    model = small(heads, **DINOV2, align="resize_lateral", preprocessing=settings)
    notes = write(model, tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    actual = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    ours = model.preprocessing
    assert tuple(actual.shape[-2:]) == ours.input_size(*size)
    resized = resize_image(picture, ours.input_size(*size), rule=ours.interpolation)
    expected = ours.normalize(torch.from_numpy(resized).permute(2, 0, 1)[None])
    assert (actual - expected).abs().max() <= 1.01 / 255 / min(settings["std"])
    assert dpt.DPT.from_pretrained(tmp_path).preprocessing == ours
    assert notes == []


def test_rules_that_transformers_lacks_are_noted(tmp_path):
    model = small()  # lower_bound: not for its own ViT, which takes squares
    notes = write(model, tmp_path / "a")
    assert any(n.startswith("preprocessing.resize='lower_bound' becomes 'stretch'") for n in notes)
    assert dpt.DPT.from_pretrained(tmp_path / "a").preprocessing.resize == "stretch"
    model = small({"depth": {"upsample": "double"}}, **DINOV2)
    notes = write(model, tmp_path / "b")
    assert any(n.startswith("preprocessing.resize='lower_bound' becomes 'minimal'") for n in notes)
    assert any("multiples of two patches" in n for n in notes)


def test_processor_with_padding_and_pixels_up_to_255(tmp_path):
    """As DINOv2's depth models on the hub have it."""
    theirs = make("depth", backbone=BACKBONE)
    theirs.save_pretrained(tmp_path)
    processor = {
        "do_resize": False,
        "do_rescale": False,
        "do_pad": True,
        "size_divisor": 14,
        "image_mean": [123.675, 116.28, 103.53],
        "image_std": [58.395, 57.12, 57.375],
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    model = dpt.DPT.from_pretrained(tmp_path)
    assert model.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))
    assert model.preprocessing.input_size(333, 517) == (333, 517)
    assert model.encoder.padding == "center"
    images = torch.randn(1, 3, 60, 75)
    padded = torch.nn.functional.pad(images, (4, 5, 5, 5))  # to 84 x 70, as its processor pads
    with torch.no_grad():
        actual, whole = model(images)["depth"], model(padded)["depth"]
    torch.testing.assert_close(actual, whole[:, 5:65, 4:79])


def test_pixels_are_scaled_as_the_image_processor_scales_them(tmp_path):
    from transformers import DPTImageProcessor

    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    write(small(), tmp_path)
    no_scale, no_mean = {"do_rescale": False}, {"do_normalize": False}
    for change in ({}, no_mean, {"rescale_factor": 1 / 127.5}, no_scale, {**no_scale, **no_mean}):
        processor = DPTImageProcessor(do_resize=False, image_mean=[0.4] * 3, **change)
        expected = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
        processor.save_pretrained(tmp_path)
        ours = dpt.DPT.from_pretrained(tmp_path).preprocessing
        actual = ours.normalize(torch.from_numpy(picture).permute(2, 0, 1)[None])
        torch.testing.assert_close(actual, expected.float())


def test_class_names_are_saved_with_the_weights(tmp_path):
    names = ["wall", "floor", "sky", "tree", "road"]
    theirs = make("segmentation")
    theirs.config.id2label = dict(enumerate(names))
    theirs.save_pretrained(tmp_path)
    model = dpt.DPT.from_pretrained(tmp_path)
    assert list(model.outputs["segmentation"].class_names) == names
    write(model, tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["id2label"]["3"] == "tree"


def test_defaults_are_those_of_transformers():
    from transformers import AutoConfig, DPTConfig

    keys = VIT.keys | DECODER
    rows = [(DPTConfig(), keys.values())]
    for model_type, family in BACKBONES.items():
        rows.append((AutoConfig.for_model(model_type), family.keys.values()))
    for config, keys in rows:
        for key, value in keys:
            actual = getattr(config, key)
            assert (list(actual) if isinstance(actual, tuple) else actual) == value, key
