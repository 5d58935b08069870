"""Names and constants of transformers' ``dpt`` folders, for reading and writing.

Names are those on disk, which transformers keeps while names in memory change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpt.weights.naming import Rule
from dpt.zoo import Spec

DINOV2 = {"dinov2": "bicubic", "dinov2_with_registers": "bicubic_antialias"}
"""Backbones that are read, and how transformers resizes their position codes."""

BIT = {
    "model_type": "bit",
    "global_padding": "same",
    "layer_type": "bottleneck",
    "depths": [3, 4, 9],
    "out_features": ["stage1", "stage2", "stage3"],
    "embedding_dynamic_padding": True,
}
RESAMPLE = {2: "bilinear", 3: "cubic", 4: "area"}  # Pillow's numbers


VIT_BLOCK = r"encoder\.blocks\.(\d+)\."
SWIN_BLOCK = r"encoder\.model\.layers\.(\d+\.blocks\.\d+)\."


def _attention(ours: str, theirs: str, inner: str = "attention") -> list[Rule]:
    """Weights of attention; ``ours`` matches up to the block's place, which is its first group."""
    return [
        (ours + r"attn\.qkv\.(.+)", theirs + rf"\1.attention.{inner}.{{qkv}}.\2"),
        (ours + r"attn\.q_bias", theirs + rf"\1.attention.{inner}.query.bias"),
        (ours + r"attn\.v_bias", theirs + rf"\1.attention.{inner}.value.bias"),
        (ours + r"attn\.proj\.(.+)", theirs + r"\1.attention.output.dense.\2"),
    ]


def _norms_and_mlp(ours: str, theirs: str) -> list[Rule]:
    return [
        (ours + r"norm1\.(.+)", theirs + r"\1.layernorm_before.\2"),
        (ours + r"norm2\.(.+)", theirs + r"\1.layernorm_after.\2"),
        (ours + r"mlp\.fc1\.(.+)", theirs + r"\1.intermediate.dense.\2"),
        (ours + r"mlp\.fc2\.(.+)", theirs + r"\1.output.dense.\2"),
    ]


VIT_RULES: list[Rule] = [
    (r"encoder\.cls_token", "dpt.embeddings.cls_token"),
    (r"encoder\.pos_embed", "dpt.embeddings.position_embeddings"),
    (r"encoder\.patch_embed\.proj\.(.+)", r"dpt.embeddings.patch_embeddings.projection.\1"),
    *_attention(VIT_BLOCK, "dpt.encoder.layer."),
    *_norms_and_mlp(VIT_BLOCK, "dpt.encoder.layer."),
]
CNN = "dpt.embeddings.backbone.bit."
HYBRID_RULES: list[Rule] = [
    (r"encoder\.patch_embed\.proj\.(.+)", r"dpt.embeddings.projection.\1"),
    (r"encoder\.patch_embed\.backbone\.stem\.conv\.(.+)", CNN + r"embedder.convolution.\1"),
    (r"encoder\.patch_embed\.backbone\.stem\.norm\.(.+)", CNN + r"embedder.norm.\1"),
    (
        r"encoder\.patch_embed\.backbone\.stages\.(\d)\.blocks\.(.+)",
        CNN + r"encoder.stages.\1.layers.\2",
    ),
    *VIT_RULES,
]
DINOV2_RULES: list[Rule] = [
    (r"encoder\.cls_token", "backbone.embeddings.cls_token"),
    (r"encoder\.reg_token", "backbone.embeddings.register_tokens"),
    (r"encoder\.pos_embed", "backbone.embeddings.position_embeddings"),
    (r"encoder\.patch_embed\.proj\.(.+)", r"backbone.embeddings.patch_embeddings.projection.\1"),
    *_attention(VIT_BLOCK, "backbone.encoder.layer."),
    (
        r"encoder\.blocks\.(\d+)\.ls(\d)\.gamma",
        r"backbone.encoder.layer.\1.layer_scale\2.lambda1",
    ),
    (r"encoder\.norm\.(.+)", r"backbone.layernorm.\1"),
]
MLP_RULES: list[Rule] = [
    (r"encoder\.blocks\.(.+)", r"backbone.encoder.layer.\1"),  # norm1, norm2, mlp.fc1, mlp.fc2
]
SWIGLU_RULES: list[Rule] = [
    (r"encoder\.blocks\.(.+)\.mlp\.fc1\.(.+)", r"backbone.encoder.layer.\1.mlp.weights_in.\2"),
    (r"encoder\.blocks\.(.+)\.mlp\.fc2\.(.+)", r"backbone.encoder.layer.\1.mlp.weights_out.\2"),
    *MLP_RULES,
]
BEIT_RULES: list[Rule] = [
    (r"encoder\.cls_token", "backbone.embeddings.cls_token"),
    (r"encoder\.patch_embed\.proj\.(.+)", r"backbone.embeddings.patch_embeddings.projection.\1"),
    (
        VIT_BLOCK + r"attn\.(relative_position_bias)_table",
        r"backbone.encoder.layer.\1.attention.attention.\2.\2_table",
    ),
    *_attention(VIT_BLOCK, "backbone.encoder.layer."),
    *_norms_and_mlp(VIT_BLOCK, "backbone.encoder.layer."),
    (VIT_BLOCK + r"ls(\d)\.gamma", r"backbone.encoder.layer.\1.lambda_\2"),
]
SWINV2_RULES: list[Rule] = [
    (
        r"encoder\.model\.patch_embed\.proj\.(.+)",
        r"backbone.embeddings.patch_embeddings.projection.\1",
    ),
    (r"encoder\.model\.patch_embed\.norm\.(.+)", r"backbone.embeddings.norm.\1"),
    (  # timm merges patches before a stage, transformers behind the one before it
        r"encoder\.model\.layers\.(\d+)\.downsample\.(.+)",
        lambda m: f"backbone.encoder.layers.{int(m[1]) - 1}.downsample.{m[2]}",
    ),
    (
        SWIN_BLOCK + r"attn\.logit_scale",
        r"backbone.encoder.layers.\1.attention.self.logit_scale",
    ),
    (
        SWIN_BLOCK + r"attn\.cpb_mlp\.(.+)",
        r"backbone.encoder.layers.\1.attention.self.continuous_position_bias_mlp.\2",
    ),
    *_attention(SWIN_BLOCK, "backbone.encoder.layers.", inner="self"),
    *_norms_and_mlp(SWIN_BLOCK, "backbone.encoder.layers."),
]


def neck_rules(levels: int = 4) -> list[Rule]:
    """Decoder to ``neck.*``, where fusion blocks are counted from the deepest."""

    def fusion(number: str) -> str:
        return f"neck.fusion_stage.layers.{levels - 1 - int(number)}"

    return [
        (
            r"decoder\.reassemble\.(\d)\.read\.linear\.(.+)",
            r"neck.reassemble_stage.readout_projects.\1.0.\2",
        ),
        (
            r"decoder\.reassemble\.(\d)\.project\.(.+)",
            r"neck.reassemble_stage.layers.\1.projection.\2",
        ),
        (
            r"decoder\.reassemble\.(\d)\.resample\.conv\.(.+)",
            r"neck.reassemble_stage.layers.\1.resize.\2",
        ),
        (r"decoder\.layer_rn\.(.+)", r"neck.convs.\1"),
        (r"decoder\.fusion\.(\d)\.project\.(.+)", lambda m: f"{fusion(m[1])}.projection.{m[2]}"),
        (
            r"decoder\.fusion\.(\d)\.rcu(\d)\.conv(\d)\.(.+)",
            lambda m: f"{fusion(m[1])}.residual_layer{m[2]}.convolution{m[3]}.{m[4]}",
        ),
        (
            r"decoder\.fusion\.(\d)\.rcu(\d)\.bn(\d)\.(.+)",
            lambda m: f"{fusion(m[1])}.residual_layer{m[2]}.batch_norm{m[3]}.{m[4]}",
        ),
    ]


HEAD_RULES: list[Rule] = [
    (r"decoder\.output_project\.(.+)", r"head.projection.\1"),
    (r"heads\.depth\.conv(\d)\.(.+)", lambda m: f"head.head.{2 * int(m[1]) - 2}.{m[2]}"),
    (r"heads\.segmentation\.layers\.(.+)", r"head.head.\1"),
    (r"heads\.segmentation\.auxiliary_layers\.(.+)", r"auxiliary_head.head.\1"),
]


def has_backbone(encoder: Mapping[str, Any]) -> bool:
    """Whether transformers has this encoder in a ``backbone_config``, not as dpt's own ViT."""
    return encoder["kind"] in ("beit", "timm") or encoder.get("layer_scale") is not None


def rules_of(spec: Spec) -> list[Rule]:
    encoder = spec["encoder"]
    by_kind = {"hybrid": HYBRID_RULES, "vit": VIT_RULES, "beit": BEIT_RULES, "timm": SWINV2_RULES}
    rules = by_kind[encoder["kind"]]
    if encoder["kind"] == "vit" and has_backbone(encoder):
        rules = DINOV2_RULES + (SWIGLU_RULES if encoder.get("swiglu") else MLP_RULES)
    return rules + neck_rules(len(spec["decoder"]["reassemble_channels"])) + HEAD_RULES


def unused_patterns(spec: Spec) -> list[str]:
    """Tensors that a folder may hold though nothing runs them."""
    encoder = spec["encoder"]
    patterns = [
        r"neck\.fusion_stage\.layers\.0\.residual_layer1\.",
        r"backbone\.embeddings\.mask_token",
        r"dpt\.pooler\.",
        r"dpt\.layernorm\.",
        r"backbone\..+\.relative_(position_index|coords_table)",  # as older versions stored them
    ]
    if not encoder.get("num_register_tokens"):
        patterns.append(r"backbone\.embeddings\.register_tokens")  # none, in a tensor of 0 rows
    if not encoder.get("final_norm"):
        patterns.append(r"backbone\.(beit\.)?layernorm\.")
    last = encoder["out_indices"][-1]
    pyramid = encoder["kind"] == "timm"
    count = len(encoder["depths"]) if pyramid else encoder["num_blocks"]
    beyond = "|".join(map(str, range(last + 1, count)))
    if beyond:
        patterns.append(rf"(dpt|backbone)\.encoder\.layers?\.({beyond})\.")
    if pyramid:  # patches merged for a stage that is not tapped, nor any behind it
        patterns.append(rf"backbone\.encoder\.layers\.{last}\.downsample\.")
    return patterns
