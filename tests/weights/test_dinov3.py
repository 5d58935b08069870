"""DINOv3: our ViT with rotary embeddings against transformers', and depthers in their own files."""

import pytest
import torch
import yaml
from peer_cases import jolt
from peers_dinov3 import BACKBONE, CASES, DIM, GATED, exact_rotation
from tiny import assert_equal

import dpt
from dpt.files import config_dir
from dpt.nn import VisionTransformer, ViTConfig
from dpt.weights import load_encoder_weights

pytestmark = pytest.mark.peers
CASES = {case.model: case for case in CASES}
OURS = {
    "embed_dim": DIM,
    "num_blocks": 6,
    "num_heads": 2,
    "mlp_ratio": 1.5,
    "num_register_tokens": 4,
    "position": "rope",
    "norm_eps": 1e-6,
    "layer_scale": 1.0,
    "final_norm": True,
    "out_indices": (5,),
}
KINDS = {
    "biases": ({}, {}),
    "no key bias": ({"key_bias": False, "rope_theta": 50.0}, {"key_bias": False, "rope_theta": 50}),
    "gated": ({**GATED, "key_bias": False}, {"swiglu": True, "qkv_bias": False, "mlp_ratio": 2.25}),
}


@pytest.fixture(params=KINDS)
def models(request, tmp_path):
    """transformers' DINOv3ViTModel, and our ViT with its weights."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    theirs_options, options = KINDS[request.param]
    torch.manual_seed(0)
    theirs = jolt(DINOv3ViTModel(DINOv3ViTConfig(**{**BACKBONE, **theirs_options})))
    theirs.save_pretrained(tmp_path)
    ours = VisionTransformer(ViTConfig(**{**OURS, **options})).eval()
    report = load_encoder_weights(ours, tmp_path)
    assert (report.missing, report.unused, report.moved) == ([], [], [])
    theirs.rope_embeddings.register_forward_hook(exact_rotation)
    return theirs, ours


def test_tokens_and_gradients_equal_those_of_transformers(models):
    for size in ((64, 64), (16, 48), (80, 32)):
        images = torch.randn(2, 3, *size)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            theirs, ours = (model.to(dtype) for model in models)
            with torch.no_grad():
                expected = theirs(images.to(dtype)).last_hidden_state
                (actual,), grids = ours(images.to(dtype))
            assert grids == [(size[0] // 16, size[1] // 16)]
            assert (actual - expected).abs().max() <= tolerance * expected.abs().max()
    (images,) = (torch.randn(1, 3, 64, 48).double() for _ in range(1))
    weights = torch.randn(1, 17, DIM).double()
    (theirs(images).last_hidden_state * weights).sum().backward()
    (ours(images).levels[0] * weights).sum().backward()
    last = ours.blocks[2].attn.qkv.weight.grad.chunk(3)
    for name, actual in zip("qkv", last, strict=True):
        expected = getattr(theirs.model.layer[2].attention, f"{name}_proj").weight.grad
        assert (actual - expected).abs().max() <= 1e-9 * expected.abs().max()


def test_an_encoder_of_the_hub_loads(tmp_path):
    torch.manual_seed(0)
    theirs = CASES["hub, SYNTHMIX"].make().encoder.backbone
    torch.save(theirs.state_dict(), tmp_path / "dinov3_vits16_pretrain.pth")
    options = {**OURS, "num_blocks": 8, "norm_eps": 1e-5, "out_indices": (1, 3, 5, 7)}
    ours = VisionTransformer(ViTConfig(**options, key_bias=False)).eval()
    report = load_encoder_weights(ours, tmp_path / "dinov3_vits16_pretrain.pth")
    assert (report.missing, report.moved) == ([], [])
    assert report.unused == ["mask_token", "rope_embed.periods"]
    images = torch.randn(1, 3, 32, 64)
    with torch.no_grad():
        for level, (patches, cls_token) in zip(ours(images).levels, theirs(images), strict=True):
            torch.testing.assert_close(level[:, 5:].mT.unflatten(2, (2, 4)), patches)
            torch.testing.assert_close(level[:, 0], cls_token)


def test_gated_layers_of_the_hub_and_of_timm_are_joined(tmp_path):
    import timm

    sizes = {"embed_dim": DIM, "depth": 2, "num_heads": 2}
    theirs = timm.create_model("vit_small_plus_patch16_dinov3_qkvb", num_classes=0, **sizes).eval()
    jolt(theirs)
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    options = {**OURS, "num_blocks": 2, "out_indices": (1,), "mlp_ratio": 6.0, "swiglu": True}
    ours = VisionTransformer(ViTConfig(**options | {"norm_eps": 1e-5}, key_bias=False)).eval()
    report = load_encoder_weights(ours, tmp_path / "timm.pth")
    assert (report.missing, report.unused) == ([], [])
    images = torch.randn(1, 3, 48, 32)
    with torch.no_grad():
        torch.testing.assert_close(
            ours(images).levels[0], theirs.forward_features(images), rtol=1e-4, atol=1e-4
        )


def test_a_decoder_finds_its_backbone_beside_it(tmp_path):
    torch.manual_seed(0)
    theirs = CASES["hub, SYNTHMIX"].make()
    torch.save(theirs.state_dict(), tmp_path / "whole.pth")
    alone = tmp_path / "dinov3_vitl16_synthmix_dpt_head-0.pth"
    torch.save(theirs.decoder.state_dict(), alone)
    with pytest.raises(ValueError, match=r"dinov3_vitl16_pretrain_lvd1689m\*\.pth must lie"):
        dpt.DPT.from_pretrained(alone)
    backbone = tmp_path / "dinov3_vitl16_pretrain_lvd1689m-8aa4cbdd.pth"
    torch.save(theirs.encoder.backbone.state_dict(), backbone)
    actual, expected = (dpt.DPT.from_pretrained(path) for path in (alone, tmp_path / "whole.pth"))
    assert actual.config == expected.config
    assert_equal(actual.state_dict(), expected.state_dict())
    output, preprocessing = actual.outputs["depth"], actual.preprocessing
    assert (output.unit, output.value_range) == ("m", (0.001, 100.0))
    assert (preprocessing.mean[0], actual.encoder.padding) == (0.485, "center")
    assert actual.config.encoder.num_heads == 2


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_encoders_by_name_have_the_tensors_of_timms(size):
    import timm

    settings = yaml.safe_load((config_dir() / f"model/encoder/dinov3_{size}.yaml").read_text())
    settings = {k: v for k, v in settings.items() if k != "defaults"}
    with torch.device("meta"):
        ours = VisionTransformer(ViTConfig(**settings))
        theirs = timm.create_model(f"vit_{size}_patch16_dinov3_qkvb", num_classes=0)
    expected = {
        name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma"): tensor.shape
        for name, tensor in theirs.state_dict().items()
    }
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected
    assert ours.config.num_heads == theirs.blocks[0].attn.num_heads
    assert ours.config.norm_eps == theirs.norm.eps
