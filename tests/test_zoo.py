"""Sizes by name, overrides, and what a user is told who mistypes one."""

import json
import subprocess
import sys

import pytest
import torch
from dpt.zoo import ENCODERS, HEADS, SIZES, build, make_spec

import dpt


def test_list_models_is_sorted_and_globs():
    assert dpt.list_models() == sorted(SIZES)
    assert {"dpt_tiny", "dpt_small", "dpt_base", "dpt_large", "dpt_hybrid"} <= set(
        dpt.list_models()
    )
    assert dpt.list_models("dpt_b*") == ["dpt_base"]
    assert dpt.list_models("resnet*") == []


@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_size_builds_and_runs(name):
    heads = {"depth": {}, "segmentation": {"num_classes": 3}, "classification": {"num_classes": 2}}
    with torch.device("meta"):
        model = dpt.create_model(name, heads=heads).eval()
        outputs = model(torch.empty(2, 3, 100, 130))
    assert outputs["depth"].shape == (2, 100, 130)
    assert outputs["segmentation"].shape == (2, 3, 100, 130)
    assert outputs["classification"].shape == (2, 2)


OFFICIAL = {  # out_indices, reassemble channels, fusion channels
    "dpt_base": ([2, 5, 8, 11], [96, 192, 384, 768], 256),
    "dpt_large": ([5, 11, 17, 23], [256, 512, 1024, 1024], 256),
    "dpt_hybrid": ([8, 11], [None, None, 768, 768], 256),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_papers_constants(name):
    taps, channels, fusion = OFFICIAL[name]
    spec = make_spec(name, heads={"depth": {}})
    assert spec["encoder"]["out_indices"] == taps
    assert spec["decoder"]["reassemble_channels"] == channels
    assert spec["decoder"]["fusion_channels"] == fusion
    assert spec["preprocessing"]["mean"] == spec["preprocessing"]["std"] == [0.5] * 3
    with torch.device("meta"):
        encoder, decoder, _ = build(spec)
    assert encoder.patch_size == 16
    assert {level.read.mode for level in decoder.reassemble[2:]} == {"project"}
    assert not hasattr(decoder.fusion[-1].rcu1, "conv1")


def test_spec_is_plain_data():
    spec = make_spec(
        "dpt_tiny",
        heads={"segmentation": {"num_classes": 3}},
        image_size=(64, 96),
        out_indices=(0, 1, 2, 3),
    )
    assert json.loads(json.dumps(spec)) == spec
    assert spec["encoder"]["image_size"] == spec["preprocessing"]["image_size"] == [64, 96]


def test_the_size_table_is_not_changed_by_use():
    before = json.dumps(SIZES)
    spec = make_spec("dpt_tiny", heads={"depth": {}}, encoder={"num_blocks": 4}, readout="add")
    spec["encoder"]["embed_dim"] = 7
    spec["decoder"]["reassemble_channels"][0] = 7
    spec["encoder"]["out_indices"][0] = 7
    assert json.dumps(SIZES) == before


def test_overrides_with_and_without_nesting_are_one():
    nested = make_spec(
        "dpt_base", heads={"depth": {}}, encoder={"patch_size": 8}, decoder={"readout": "add"}
    )
    assert make_spec("dpt_base", heads={"depth": {}}, patch_size=8, readout="add") == nested
    assert nested["encoder"]["patch_size"] == 8
    assert nested["preprocessing"]["multiple_of"] == 8


def test_batch_norm_follows_segmentation_unless_told():
    def batch_norm(heads, **overrides):
        return make_spec("dpt_tiny", heads=heads, **overrides)["decoder"]["batch_norm"]

    seg = {"segmentation": {"num_classes": 2}}
    assert batch_norm(seg) is True
    assert batch_norm({"depth": {}}) is False
    assert batch_norm(seg, batch_norm=False) is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dpt_huge"}, "no model 'dpt_huge'.*dpt_base.*dpt_large"),
        ({"heads": {}}, "at least one head of depth, segmentation, classification, regression"),
        ({"heads": {"normals": {}}}, "heads has no normals; it takes.*depth"),
        ({"heads": ["depth"]}, "heads.*{'depth': {...}}"),
        ({"heads": {"depth": "metric"}}, "heads.*{'depth': {...}}"),
        ({"heads": {"depth": None}}, "heads.*{'depth': {...}}"),
        ({"heads": {"depth": {"kind": "log"}}}, "kind='log'.*relative.*metric"),
        (
            {"heads": {"depth": {"max_dept": 3}}},
            "the depth head has no max_dept; it takes.*max_depth",
        ),
        ({"heads": {"depth": {"kind": "metric"}}}, "max_depth > 0"),
        ({"heads": {"segmentation": {}}}, "the segmentation head needs num_classes"),
        ({"heads": {"classification": {}}}, "the classification head needs num_classes"),
        ({"patch_sise": 8}, "has no patch_sise; it takes"),
        ({"encoder": {"patch_sise": 8}}, "encoder has no patch_sise; it takes.*patch_size"),
        ({"decoder": {"readot": "add"}}, "has no readot; it takes.*readout"),
        ({"preprocessing": {"mena": 1}}, "preprocessing has no mena; it takes.*mean"),
        ({"encoder": {"kind": "resnet"}}, "encoder kind 'resnet'.*vit, hybrid, timm"),
        ({"encoder": {"kind": "timm"}}, "the timm encoder needs name"),
        ({"readout": "cat"}, "readout='cat'.*project"),
        ({"out_indices": [2, 5, 8]}, "one entry a level"),
        ({"out_indices": [2, 5, 8, 12]}, r"out_indices=\[2, 5, 8, 12\].*0\.\.11"),
        ({"image_size": 384}, r"image_size=384.*\[H, W\]"),
        ({"position": "rope"}, "position='rope'.*sincos_2d"),
        ({"position_resize": "nearest"}, "position_resize='nearest'.*dinov2"),
        ({"num_heads": 5}, "not a multiple of num_heads=5"),
        ({"decoder": {"scales": [3.5, 2, 1, 0.5]}}, "resample scale 3.5"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message):
    arguments = {"name": "dpt_tiny", "heads": {"depth": {}}, **arguments}
    with torch.device("meta"), pytest.raises(ValueError, match=message) as caught:
        dpt.create_model(arguments.pop("name"), **arguments)
    assert "\n" not in str(caught.value)


def test_tables_name_what_exists():
    assert set(ENCODERS) == {"vit", "hybrid", "timm", "beit"}
    assert set(HEADS) == {
        "depth", "segmentation", "classification", "regression", "inpainting",
    }  # fmt: skip


def test_import_costs_torch_only():
    code = (
        "import sys, dpt; dpt.create_model('dpt_tiny', heads={'depth': {}}, num_blocks=4,"
        "out_indices=[0, 1, 2, 3]);"
        "heavy = {'lightning', 'pytorch_lightning', 'torchmetrics', 'timm', 'cv2', 'torchvision',"
        "'albumentations', 'wandb', 'hydra', 'transformers'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
