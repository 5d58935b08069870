"""Models by name, overrides, and the messages for wrong settings."""

import json
import math

import pytest
import torch

import dpt
from dpt.model_config import ModelConfig, make_config, model_dict
from dpt.nn import HEADS
from dpt.types.preprocessing import Preprocessing


def test_list_models():
    names = ["dpt_base", "dpt_hybrid", "dpt_large", "dpt_small", "dpt_tiny"]
    assert set(names) <= set(dpt.list_models())
    assert dpt.list_models("dpt_b*") == ["dpt_base"]
    assert dpt.list_models("resnet*") == []


@pytest.mark.parametrize("name", dpt.list_models("eomt_*"))
def test_every_model_of_queries_builds_and_runs(name):
    panoptic = {"num_classes": 2, "num_queries": 7, "things": [True, False]}
    heads = {"segmentation": {"num_classes": 3, "kind": "masks"}, "panoptic": panoptic}
    with torch.device("meta"):
        model = dpt.create_model(name, heads=heads)
        outputs = model(torch.empty(2, 3, 100, 130), raw=True)
    assert outputs["segmentation"].prediction.shape == (2, 3, 100, 130)
    assert outputs["panoptic"].prediction.masks.shape == (2, 7, 100, 130)
    layers = model.encoder.num_later_blocks + 1
    assert outputs["panoptic"].layers.classes.shape == (2, layers, 7, 3)


@pytest.mark.parametrize("name", dpt.list_models("dpt_*"))
def test_every_model_builds_and_runs(name):
    heads = {"depth": {}, "segmentation": {"num_classes": 3}, "classification": {"num_classes": 2}}
    with torch.device("meta"):
        model = dpt.create_model(name, heads=heads).eval()
        outputs = model(torch.empty(2, 3, 100, 130))
    assert outputs["depth"].shape == (2, 100, 130)
    assert outputs["segmentation"].shape == (2, 3, 100, 130)
    assert outputs["classification"].shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "indices", "channels", "fusion"),
    [
        ("dpt_base", (2, 5, 8, 11), (96, 192, 384, 768), 256),
        ("dpt_large", (5, 11, 17, 23), (256, 512, 1024, 1024), 256),
        ("dpt_hybrid", (8, 11), (None, None, 768, 768), 256),
    ],
)
def test_the_papers_constants(name, indices, channels, fusion):
    config = make_config(name, heads={"depth": {}})
    assert config.encoder.out_indices == indices
    assert config.decoder.reassemble_channels == channels
    assert config.decoder.fusion_channels == fusion
    assert config.preprocessing.mean == config.preprocessing.std == (0.5, 0.5, 0.5)
    with torch.device("meta"):
        model = config.build()
    assert model.encoder.config.patch_size == 16
    assert {level.read.mode for level in model.decoder.reassemble[2:]} == {"project"}
    assert model.decoder.fusion[-1].rcu1 is None


# --- The configuration


def test_a_built_configuration_is_complete_and_plain():
    heads = {"segmentation": {"num_classes": 3}}
    with torch.device("meta"):
        model = dpt.create_model(
            "dpt_tiny", heads=heads, image_size=(64, 96), out_indices=(0, 1, 2, 3), patch_size=32
        )
    plain = model.config.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["encoder"]["image_size"] == plain["preprocessing"]["image_size"] == [64, 96]
    assert plain["preprocessing"]["multiple_of"] == 32
    assert plain["decoder"]["scales"] == [4, 2, 1, 0.5]
    assert plain["decoder"]["batch_norm"] is True
    assert "auto" not in json.dumps(plain)
    assert ModelConfig.from_dict(plain) == model.config


def test_use_does_not_change_the_table():
    before = json.dumps(model_dict("dpt_tiny", heads={"depth": {}}))
    changed = model_dict("dpt_tiny", heads={"depth": {}})
    changed["encoder"]["out_indices"][0] = 7
    changed["decoder"]["reassemble_channels"][0] = 7
    assert json.dumps(model_dict("dpt_tiny", heads={"depth": {}})) == before
    config = make_config("dpt_tiny", heads={"depth": {}})
    with torch.device("meta"):
        model = dpt.DPT(config)
    assert config.decoder.scales == "auto"  # `build` completes the model's own copy
    assert model.config.decoder.scales == (4, 2, 1, 0.5)


def test_overrides_with_and_without_nesting_are_equal():
    nested = make_config(
        "dpt_base", heads={"depth": {}}, encoder={"patch_size": 8}, decoder={"readout": "add"}
    )
    assert make_config("dpt_base", heads={"depth": {}}, patch_size=8, readout="add") == nested
    assert (nested.encoder.patch_size, nested.decoder.readout) == (8, "add")


def test_an_encoder_of_another_kind_replaces_the_tables():
    config = make_config(
        "dpt_base", heads={"depth": {}}, encoder={"kind": "timm", "name": "resnet18", "foo": 3}
    )
    assert config.encoder.arguments == {"foo": 3}
    assert config.to_dict()["encoder"]["foo"] == 3
    assert config.decoder.reassemble_channels == (96, 192, 384, 768)


def test_settings_of_another_kind_of_depth_head_are_dropped():
    """As training completes a relative head from the weights of a metric one."""
    sigmoid = {"kind": "metric", "activation": "sigmoid", "max_depth": 10.0}
    inverse = {"kind": "metric", "activation": "inverse", "scale": 2.0, "min_depth": 1.0}
    for other, expected in ((sigmoid, {}), (inverse, {}), (inverse, sigmoid)):
        plain = model_dict("dpt_tiny", heads={"depth": {**other, "kind": "relative", **expected}})
        assert (
            ModelConfig.from_dict(plain).heads
            == make_config("dpt_tiny", heads={"depth": expected}).heads
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dpt_huge"}, r"no model 'dpt_huge'.*dpt_base.*dpt_large"),
        ({"heads": {}}, r"model\.heads=.*depth, .*segmentation, .*classification"),
        ({"heads": {"surface": {}}}, r"model\.heads='surface': choose from .*depth.*DPT_PLUGINS"),
        ({"heads": ["depth"]}, r"model\.heads=\['depth'\]"),
        ({"heads": {"depth": "metric"}}, r"model\.heads\.depth='metric': must be a dictionary"),
        ({"heads": {"depth": {"kind": "log"}}}, r"heads\.depth\.kind='log': .*metric.*relative"),
        ({"heads": {"depth": {"max_dept": 3}}}, r"heads\.depth\.max_dept\. .*mean max_depth"),
        ({"heads": {"depth": {"kind": "metric"}}}, r"model\.heads\.depth: .*max_depth"),
        ({"heads": {"segmentation": {}}}, r"heads\.segmentation\.num_classes must be given"),
        ({"patch_sise": 8}, r"^there is no patch_sise\. Did you mean patch_size.*readout"),
        ({"encoder": "vit_tiny_patch16_224"}, r"model\.encoder='vit_tiny.*must be a mapping"),
        ({"preprocessing": Preprocessing()}, r"model\.preprocessing=.*must be a mapping"),
        ({"encoder": {"kind": "resnet"}}, r"encoder\.kind='resnet': choose from vit"),
        ({"encoder": {"kind": "timm"}}, r"model\.encoder\.name must be given"),
        ({"in_channels": 0}, r"model\.encoder\.in_channels=0: must be greater than or equal to 1"),
        (
            {"encoder": {"in_chans": 4}},
            r"model\.encoder\.in_chans: set model\.encoder\.in_channels",
        ),
        (
            {"in_channels": 4, "preprocessing": {"mean": [0.5] * 3}},
            r"preprocessing\.mean has 3 numbers for 4 channels",
        ),
        ({"readout": "cat"}, r"model\.decoder\.readout='cat': .*project"),
        ({"scales": "x"}, r"model\.decoder\.scales='x': must be a list or must be 'auto'$"),
        ({"out_indices": [2, 5, 8]}, "one entry per level"),
        ({"out_indices": [2, 5, 8, 12]}, r"out_indices=\[2, 5, 8, 12\].*0\.\.11"),
        ({"image_size": 384}, r"model\.encoder\.image_size=384: must be a list"),
        ({"num_heads": 5}, "not a multiple of num_heads=5"),
        ({"embed_dim": 0}, r"model\.encoder\.embed_dim=0: must be greater than or equal to 1"),
        ({"embed_dim": 48_000}, r"18,497,040,000 parameters .* at most 10,000,000,000 in"),
        ({"fusion_channels": 10**12}, r"describes no model \(.*overflow"),
        ({"num_blocks": 10**9}, r"model\.encoder\.num_blocks=10+: must be less"),
        ({"mlp_ratio": math.inf}, r"model\.encoder\.mlp_ratio=inf: must be a finite number"),
        ({"reassemble_channels": [8, -8, 8, 8]}, r"reassemble_channels\.1=-8: must be greater"),
        ({"preprocessing": {"std": [0, 0, 0]}}, r"preprocessing\.std=\[0\.0, .*above 0"),
        ({"preprocessing": {"multiple_of": 0}}, r"preprocessing\.multiple_of=0: must be 1 to"),
        ({"preprocessing": {"image_size": [10**5, 10**5]}}, r"image_size=\[100000, .*at most"),
        ({"decoder": {"scales": [3.5, 2, 1, 0.5]}}, "resample scale 3.5"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message):
    arguments = {"name": "dpt_tiny", "heads": {"depth": {}}, **arguments}
    with pytest.raises(ValueError, match=message) as caught:
        dpt.create_model(arguments.pop("name"), **arguments)
    assert "\n" not in str(caught.value)


def test_a_setting_of_a_head_without_effect_is_a_warning(caplog):
    make_config("dpt_tiny", heads={"depth": {"max_depth": 9}})
    assert "model.heads.depth.max_depth=9 has no effect" in caplog.text


def test_a_head_with_another_name_than_that_of_its_output_is_refused(monkeypatch):
    monkeypatch.setitem(HEADS, "number", HEADS["regression"])
    with pytest.raises(
        ValueError, match=r"heads\.number: its OutputSpec has the name 'regression'"
    ):
        dpt.create_model("dpt_tiny", heads={"number": {}})
