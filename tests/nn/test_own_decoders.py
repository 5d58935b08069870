"""Heads with a decoder of their own: several decoders on one pass of the encoder."""

import pytest
import torch
from tiny import HEADS, assert_equal, random_norms, small_model

import dpt

SIZE = (64, 48)
OWN = {"readout": "add", "fusion_channels": 12, "batch_norm": True}


def two_decoders(depth=OWN, segmentation=None):
    heads = {
        "depth": {**HEADS["depth"], "decoder": depth},
        "segmentation": {**HEADS["segmentation"], "decoder": segmentation},
    }
    return random_norms(small_model(heads=heads)).eval()


def alone(model, name):
    """The model of one head: its own decoder there is the model's."""
    settings = model.config.to_dict()
    head = settings["heads"][name]
    settings["decoder"] = head.pop("decoder") or settings["decoder"]
    settings["heads"] = {name: head}
    single = dpt.DPT(dpt.model_config.ModelConfig.from_dict(settings)).eval()
    own = f"decoders.{name}."
    state = {
        k.replace(own, "decoder."): v
        for k, v in model.state_dict().items()
        if k.startswith(("encoder.", own, f"heads.{name}."))
        or (k.startswith("decoder.") and name not in model.decoders)
    }
    single.load_state_dict(state)
    return single


@pytest.mark.parametrize("segmentation", [None, {}], ids=["one_own", "both_own"])
def test_each_head_predicts_as_alone_from_one_pass_of_the_encoder(segmentation):
    model, images = two_decoders(segmentation=segmentation), torch.randn(2, 3, *SIZE)
    passes = []
    model.encoder.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        found = model(images)
        wanted = {name: alone(model, name)(images)[name] for name in model.heads}
    assert_equal(found, wanted)
    assert len(passes) == 1


def test_settings_that_an_own_decoder_lacks_are_those_of_the_shared_one():
    model = two_decoders(segmentation={"readout": "ignore"})
    shared, depth, segmentation = (
        model.config.decoder,
        model.config.heads["depth"].decoder,
        model.config.heads["segmentation"].decoder,
    )
    assert (depth.readout, depth.fusion_channels, depth.batch_norm) == ("add", 12, True)
    assert (segmentation.readout, segmentation.fusion_channels) == ("ignore", 8)
    assert depth.reassemble_channels == segmentation.reassemble_channels == (8, 8, 12, 16)
    # `auto` is for the heads that read the decoder: classes of pixels have BN
    assert (shared.batch_norm, segmentation.batch_norm) == (False, True)


def test_save_load_and_optimize(tmp_path):
    model, images = two_decoders(), torch.randn(2, 3, *SIZE)
    model.save_pretrained(tmp_path / "saved")
    loaded = dpt.DPT.from_pretrained(tmp_path / "saved")
    assert loaded.config == model.config
    assert_equal(loaded.state_dict(), model.state_dict())
    fast = model.optimize_for_inference(compiled=False)
    norms = [module for module in fast.decoders.modules() if "BatchNorm" in type(module).__name__]
    assert not norms
    with torch.no_grad():
        torch.testing.assert_close(fast(images), loaded(images), rtol=1e-4, atol=1e-4)
