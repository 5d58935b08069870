"""The same function of the same tensors as transformers and segmentation_models.pytorch."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import dpt

pytestmark = pytest.mark.peers

SIZES = {
    "embed_dim": 48,
    "num_blocks": 6,
    "num_heads": 4,
    "out_indices": [0, 2, 3, 5],
    "image_size": [64, 64],
    "reassemble_channels": [8, 12, 16, 24],
    "fusion_channels": 16,
}
CONFIG = {
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "image_size": 64,
    "patch_size": 16,
    "backbone_out_indices": [0, 2, 3, 5],
    "neck_hidden_sizes": [8, 12, 16, 24],
    "fusion_hidden_size": 16,
    "layer_norm_eps": 1e-6,
    "add_projection": False,
    "num_labels": 5,
}
HYBRID_SIZES = {
    **SIZES,
    "out_indices": [2, 5],
    "reassemble_channels": [None, None, 16, 24],
}
HYBRID_CONFIG = {
    **CONFIG,
    "is_hybrid": True,
    "backbone_out_indices": [0, 1, 2, 5],
    "neck_hidden_sizes": [256, 512, 16, 24],
    "reassemble_factors": [1, 1, 1, 0.5],
    "backbone_featmap_shape": [1, 1024, 4, 4],
}

# names of transformers (in memory) to ours; None drops what we do not have
LAYER = r"dpt\.encoder\.layer\.(\d+)\."
TRANSFORMERS = [
    (r"dpt\.layernorm\..*", None),
    (r"neck\.fusion_stage\.layers\.0\.residual_layer1\..*", None),  # never runs
    (r"dpt\.embeddings\.cls_token", "encoder.cls_token"),
    (r"dpt\.embeddings\.position_embeddings", "encoder.pos_embed"),
    (r"dpt\.embeddings\.(?:patch_embeddings\.)?projection\.", "encoder.patch_embed.proj."),
    (
        r"dpt\.embeddings\.backbone\.bit\.embedder\.convolution",
        "encoder.patch_embed.backbone.stem.conv",
    ),
    (r"dpt\.embeddings\.backbone\.bit\.embedder\.norm", "encoder.patch_embed.backbone.stem.norm"),
    (
        r"dpt\.embeddings\.backbone\.bit\.encoder\.stages\.(\d+)\.layers\.",
        r"encoder.patch_embed.backbone.stages.\1.blocks.",
    ),
    (LAYER + r"attention\.attention\.(query|key|value)\.", r"encoder.blocks.\1.attn.\2."),
    (LAYER + r"attention\.output\.dense\.", r"encoder.blocks.\1.attn.proj."),
    (LAYER + r"layernorm_before\.", r"encoder.blocks.\1.norm1."),
    (LAYER + r"layernorm_after\.", r"encoder.blocks.\1.norm2."),
    (LAYER + r"intermediate\.dense\.", r"encoder.blocks.\1.mlp.fc1."),
    (LAYER + r"output\.dense\.", r"encoder.blocks.\1.mlp.fc2."),
    (r"neck\.reassemble_stage\.readout_projects\.(\d)\.0\.", r"decoder.reassemble.\1.read.linear."),
    (r"neck\.reassemble_stage\.layers\.(\d)\.projection\.", r"decoder.reassemble.\1.project."),
    (r"neck\.reassemble_stage\.layers\.(\d)\.resize\.", r"decoder.reassemble.\1.resample.conv."),
    (r"neck\.convs\.(\d)\.", r"decoder.layer_rn.\1."),
    (r"neck\.fusion_stage\.layers\.(\d)\.projection\.", r"decoder.fusion.-\1.project."),
    (
        r"neck\.fusion_stage\.layers\.(\d)\.residual_layer(\d)\.convolution(\d)\.",
        r"decoder.fusion.-\1.rcu\2.conv\3.",
    ),
    (
        r"neck\.fusion_stage\.layers\.(\d)\.residual_layer(\d)\.batch_norm(\d)\.",
        r"decoder.fusion.-\1.rcu\2.bn\3.",
    ),
    (r"auxiliary_head\.head\.", "heads.segmentation.auxiliary_layers."),
]
DEPTH_HEAD = [(rf"head\.head\.{2 * i}\.", f"heads.depth.conv{i + 1}.") for i in range(3)]
SEGMENTATION_HEAD = [(r"head\.head\.", "heads.segmentation.layers.")]
SMP = [
    (r"decoder\.fusion_blocks\.0\.residual_conv_block1\..*", None),
    (r"encoder\.model\.norm\..*", None),
    (r"encoder\.model\.head\..*", None),
    (r"encoder\.model\.", "encoder."),
    (r"decoder\.projection_blocks\.(\d)\.project\.0\.", r"decoder.reassemble.\1.read.linear."),
    (
        r"decoder\.reassemble_blocks\.(\d)\.project_to_out_channel\.",
        r"decoder.reassemble.\1.project.",
    ),
    (r"decoder\.reassemble_blocks\.(\d)\.upsample\.", r"decoder.reassemble.\1.resample.conv."),
    (r"decoder\.reassemble_blocks\.(\d)\.project_to_feature_dim\.", r"decoder.layer_rn.\1."),
    (
        r"decoder\.fusion_blocks\.(\d)\.residual_conv_block(\d)\.conv_(\d)\.",
        r"decoder.fusion.-\1.rcu\2.conv\3.",
    ),
    (
        r"decoder\.fusion_blocks\.(\d)\.residual_conv_block(\d)\.batch_norm_(\d)\.",
        r"decoder.fusion.-\1.rcu\2.bn\3.",
    ),
    (r"decoder\.fusion_blocks\.(\d)\.project\.", r"decoder.fusion.-\1.project."),
    (r"segmentation_head\.head\.", "heads.segmentation.layers."),
]


def rename(tensors, rules):
    """Tensors under our names; query, key and value rows are joined."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, replacement in rules:
            if re.match(pattern, name):
                if replacement is not None:
                    new = re.sub(f"^{pattern}", replacement, name)
                    # peers count fusion blocks from the deepest
                    new = re.sub(r"fusion\.-(\d)", lambda m: f"fusion.{3 - int(m[1])}", new)
                    found[new] = tensor
                break
        else:
            raise AssertionError(f"no rule for {name}")
    for name in [n for n in found if ".attn.query." in n]:
        rows = [found.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        found[name.replace("query", "qkv")] = torch.cat(rows)
    return found


def jolt(model):
    """Random tensors that keep a signal's size, none at its initial zero or one."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            noise = torch.randn_like(tensor) if tensor.is_floating_point() else None
            if noise is None:
                continue
            if name.endswith("running_var"):
                tensor.copy_(1 + noise.abs() / 5)
            elif tensor.ndim == 1:
                tensor.add_(noise / 5)
            elif "token" in name or "pos" in name:
                tensor.copy_(noise)
            else:
                tensor.copy_(noise * (2 / tensor[0].numel()) ** 0.5)
    return model.eval()


def transformers_pair(kind, *, hybrid=False, **config):
    """A random model of transformers and ours with its tensors."""
    from transformers import DPTConfig, DPTForDepthEstimation, DPTForSemanticSegmentation

    torch.manual_seed(0)
    depth = kind == "depth"
    settings = {**(HYBRID_CONFIG if hybrid else CONFIG), **config}
    settings["use_batch_norm_in_fusion_residual"] = not depth
    cls = DPTForDepthEstimation if depth else DPTForSemanticSegmentation
    theirs = jolt(cls(DPTConfig(**settings)))
    if depth:  # away from a map of zeros behind the last ReLU
        nn.init.constant_(theirs.head.head[4].bias, 2.0)
    ours = dpt.create_model(
        "dpt_hybrid" if hybrid else "dpt_base",
        heads={"depth": {}} if depth else {"segmentation": {"num_classes": 5}},
        readout=settings.get("readout_type", "project"),
        **(HYBRID_SIZES if hybrid else SIZES),
    ).eval()
    rules = TRANSFORMERS + (DEPTH_HEAD if depth else SEGMENTATION_HEAD)
    ours.load_checked(rename(theirs.state_dict(), rules), source="transformers")
    return SimpleNamespace(theirs=theirs, ours=ours, rules=rules)


def outputs(pair, images, kind):
    wanted = pair.theirs(images)
    found = pair.ours(images)[kind]
    return found, wanted.predicted_depth if kind == "depth" else wanted.logits


def assert_same(found, wanted, tolerance):
    assert found.shape == wanted.shape
    scale = wanted.abs().max()
    assert wanted.std() > 0.02 * scale  # a flat map would say nothing
    assert (found - wanted).abs().max() <= tolerance * scale


CASES = [("depth", mode) for mode in ("project", "add", "ignore")] + [("segmentation", "project")]


@pytest.mark.parametrize(("kind", "readout"), CASES)
def test_outputs_equal_transformers(kind, readout):
    pair = transformers_pair(kind, readout_type=readout)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert_same(*outputs(pair, images, kind), 1e-5)
        pair.theirs.double(), pair.ours.double()
        assert_same(*outputs(pair, images.double(), kind), 1e-12)


def test_outputs_equal_transformers_at_another_size():
    """Position codes resized as official DPT does; transformers takes square images alone."""
    pair = transformers_pair("depth")
    pair.theirs.double(), pair.ours.double()
    with torch.no_grad():
        for side in (32, 96):
            images = torch.randn(1, 3, side, side, dtype=torch.float64)
            assert_same(*outputs(pair, images, "depth"), 1e-12)


def test_auxiliary_layers_equal_transformers():
    """The same layers; transformers feeds them the last fusion output, the paper the one before."""
    pair = transformers_pair("segmentation")
    maps = [torch.randn(1, 16, 4 * 2**i, 4 * 2**i) for i in range(4)]
    head = pair.ours.heads["segmentation"]
    with torch.no_grad():
        for one in maps:
            wanted = pair.theirs.auxiliary_head(one)
            torch.testing.assert_close(head.auxiliary_layers(one), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "readout"), [("depth", "project"), ("segmentation", "project")])
def test_gradients_equal_transformers(kind, readout):
    pair = transformers_pair(kind, readout_type=readout)
    pair.theirs.double(), pair.ours.double()
    found, wanted = outputs(pair, torch.randn(2, 3, 64, 64, dtype=torch.float64), kind)
    weights = torch.randn_like(found)
    (found * weights).sum().backward()
    (wanted * weights).sum().backward()
    grads = {n: p.grad for n, p in pair.theirs.named_parameters() if p.grad is not None}
    grads = rename(grads, pair.rules)
    worst = 0.0
    for name, p in pair.ours.named_parameters():
        if "auxiliary" in name:  # not part of an evaluation-mode output
            assert p.grad is None
            continue
        scale = grads[name].abs().max()
        assert scale > 0, name
        worst = max(worst, ((p.grad - grads[name]).abs().max() / scale).item())
    assert worst <= 1e-9


def test_hybrid_equals_transformers():
    pair = transformers_pair("depth", hybrid=True)
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert_same(*outputs(pair, images, "depth"), 1e-5)
        pair.theirs.double(), pair.ours.double()
        assert_same(*outputs(pair, images.double(), "depth"), 1e-12)


def test_segmentation_equals_smp():
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    theirs = smp.DPT(
        "tu-vit_tiny_patch16_224",
        encoder_weights=None,
        decoder_intermediate_channels=(8, 12, 16, 24),
        decoder_fusion_channels=16,
        classes=5,
        img_size=64,
    )
    jolt(theirs)
    # its deepest block refines a lateral that nothing is added to; the official code does not
    theirs.decoder.fusion_blocks[0].residual_conv_block1 = nn.Identity()
    ours = dpt.create_model(
        "dpt_tiny",
        heads={"segmentation": {"num_classes": 5, "auxiliary": False}},
        **{
            **SIZES,
            "embed_dim": 192,
            "num_heads": 3,
            "num_blocks": 12,
            "out_indices": [2, 5, 8, 11],
        },
    ).eval()
    ours.load_checked(rename(theirs.state_dict(), SMP), source="smp")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found, wanted = ours(images)["segmentation"], theirs(images)
        assert_same(found, wanted, 1e-5)
        found, wanted = (m.double()(images.double()) for m in (ours, theirs))
        assert_same(found["segmentation"], wanted, 1e-12)


@pytest.mark.parametrize(
    ("name", "millions"), [("dpt_base", 111.65), ("dpt_large", 344.06), ("dpt_hybrid", 123.15)]
)
def test_official_parameter_counts(name, millions):
    """With what official files hold beside: the top unit, the final norm, a 1000-class head."""
    with torch.device("meta"):
        model = dpt.create_model(name, heads={"depth": {}})
    count = sum(p.numel() for p in model.parameters())
    dim = model.encoder.embed_dim
    unit = 2 * (256 * 256 * 9 + 256)
    assert (count + unit + 2 * dim + 1000 * dim + 1000) / 1e6 == pytest.approx(millions, abs=5e-3)
