"""The licences that authors of checkpoints state: each file finds its family."""

import pytest
from tiny import call, small_model

from dpt.weights import hub
from dpt.weights.licences import families, family_of

KNOWN = {
    "dpt_hybrid_nyu-2ce69ec7.pt": "official DPT",
    "dpt_large-midas-2f21e586.pt": "official DPT",
    "dpt_beit_large_512.pt": "MiDaS 3.0 and 3.1",
    "dpt_large_384.pt": "MiDaS 3.0 and 3.1",
    "depth_anything_vitl14.pth": "Depth Anything V1",
    "LiheYoung/depth-anything-small-hf": "Depth Anything V1",
    "depth_anything_v2_vits.pth": "Depth Anything V2 small",
    "depth-anything/Depth-Anything-V2-Small-hf": "Depth Anything V2 small",
    "depth_anything_v2_vitl.pth": "Depth Anything V2 base, large, giant",
    "depth-anything/Depth-Anything-V2-Base-hf": "Depth Anything V2 base, large, giant",
    "depth_anything_v2_metric_hypersim_vits.pth": "Depth Anything V2 metric, small",
    "depth_anything_v2_metric_vkitti_vitl.pth": "Depth Anything V2 metric, base and large",
    "depth-anything/DA3METRIC-LARGE": "Depth Anything 3 (Apache)",
    "timm:vit_small_patch14_dinov2.lvd142m": "DINOv2",
    "timm:vit_small_patch14_reg4_dinov2.lvd142m": "DINOv2",
    "dinov2_vits14_pretrain.pth": "DINOv2",
    "facebook/dpt-dinov2-small-kitti": "DINOv2 in transformers",
    "timm:vit_small_patch16_dinov3.lvd1689m": "DINOv3",
    "dinov3_vits16_pretrain_lvd1689m.pth": "DINOv3",
    "tue-mps/coco_panoptic_eomt_large_640": "EoMT on DINOv2",
    "tue-mps/ade20k_semantic_eomt_large_512_dinov3": "EoMT on DINOv3",
    "Intel/dpt-large": "Intel DPT in transformers (Apache)",
    "Intel/dpt-beit-large-512": "Intel DPT in transformers (MIT)",
    "smp-hub/dpt-large-ade20k": "segmentation_models.pytorch DPT",
    "timm:vit_base_patch16_224.mae": "MAE",
    "timm:vit_small_patch16_224.dino": "DINO (first version)",
    "timm:vit_base_patch16_224.augreg_in21k": "ViT of Google",
    "last.ckpt": None,
}


@pytest.mark.parametrize(("name", "expected"), KNOWN.items())
def test_a_file_finds_its_family(name, expected):
    found = family_of(name)
    assert (found and found.family) == expected


def test_the_list_names_every_family(capsys):
    call("convert", "--list")
    printed = capsys.readouterr().out
    assert all(f"{family.family}: " in printed for family in families())
    assert "    commercial use: not allowed\n" in printed


def test_a_card_says_what_the_authors_of_the_first_weights_state():
    model = small_model(heads={"depth": {"kind": "relative"}})
    for name, said in (
        ("depth_anything_v2_vitl.pth", "commercial use not allowed"),
        ("last.ckpt", None),
    ):
        weights = hub.InitialWeights(name, None, None)
        training = hub.Training("depth", "folder", None, None, "python train.py", weights)
        text = hub.Card("a/b", "mit", training).text(model, model.config)
        assert ("Their authors" in text) == bool(said)
        assert said is None or said in text
