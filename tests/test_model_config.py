"""Models by name, overrides, and the messages for wrong settings."""

import json
import math

import pytest
import torch

import dpt
from dpt.model_config import ModelConfig, make_config, model_dict


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
        ({"heads": {"surface": {}}}, r"model\.heads='surface': choose from .*depth.*DPT_PLUGINS"),
        ({"heads": {"depth": {"kind": "log"}}}, r"heads\.depth\.kind='log': .*metric.*relative"),
        ({"heads": {"depth": {"max_dept": 3}}}, r"heads\.depth\.max_dept\. .*mean max_depth"),
        ({"patch_sise": 8}, r"^there is no patch_sise\. Did you mean patch_size.*readout"),
        ({"encoder": {"kind": "resnet"}}, r"encoder\.kind='resnet': choose from vit"),
        ({"encoder": {"in_chans": 4}}, r"no model\.encoder\.in_chans\. .*mean in_channels"),
        ({"encoder": {"kind": "timm", "name": "resnet18", "in_chans": 4}}, "'in_chans'"),
        (
            {"in_channels": 4, "preprocessing": {"mean": [0.5] * 3}},
            r"preprocessing\.mean has 3 numbers for 4 channels",
        ),
        ({"out_indices": [2, 5, 8, 12]}, r"out_indices=\[2, 5, 8, 12\].*0\.\.11"),
        ({"num_heads": 5}, "embed_dim=192: must be a multiple of 5"),
        ({"embed_dim": 48_000}, r"18,497,040,000 parameters .* at most 10,000,000,000 in"),
        ({"mlp_ratio": math.inf}, r"model\.encoder\.mlp_ratio=inf: must be a finite number"),
        ({"preprocessing": {"image_size": [10**5, 10**5]}}, r"image_size=\[100000, .*at most"),
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
