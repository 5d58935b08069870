"""Names and constants of transformers' ``dpt`` folders, for reading and writing.

Names are those on disk, which transformers keeps while names in memory change.
"""

from __future__ import annotations

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


def _block(prefix: str) -> list[Rule]:
    block = r"encoder\.blocks\.(\d+)\."
    return [
        (block + r"attn\.qkv\.(.+)", prefix + r"\1.attention.attention.{qkv}.\2"),
        (block + r"attn\.proj\.(.+)", prefix + r"\1.attention.output.dense.\2"),
    ]


VIT_RULES: list[Rule] = [
    (r"encoder\.cls_token", "dpt.embeddings.cls_token"),
    (r"encoder\.pos_embed", "dpt.embeddings.position_embeddings"),
    (r"encoder\.patch_embed\.proj\.(.+)", r"dpt.embeddings.patch_embeddings.projection.\1"),
    *_block("dpt.encoder.layer."),
    (r"encoder\.blocks\.(\d+)\.norm1\.(.+)", r"dpt.encoder.layer.\1.layernorm_before.\2"),
    (r"encoder\.blocks\.(\d+)\.norm2\.(.+)", r"dpt.encoder.layer.\1.layernorm_after.\2"),
    (r"encoder\.blocks\.(\d+)\.mlp\.fc1\.(.+)", r"dpt.encoder.layer.\1.intermediate.dense.\2"),
    (r"encoder\.blocks\.(\d+)\.mlp\.fc2\.(.+)", r"dpt.encoder.layer.\1.output.dense.\2"),
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
    *_block("backbone.encoder.layer."),
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


def rules_of(spec: Spec) -> list[Rule]:
    encoder = spec["encoder"]
    rules = HYBRID_RULES if encoder["kind"] == "hybrid" else VIT_RULES
    if encoder.get("layer_scale") is not None:
        rules = DINOV2_RULES + (SWIGLU_RULES if encoder.get("swiglu") else MLP_RULES)
    return rules + neck_rules(len(spec["decoder"]["reassemble_channels"])) + HEAD_RULES


def unused_patterns(spec: Spec) -> list[str]:
    """Tensors that a folder may hold though nothing runs them."""
    patterns = [
        r"neck\.fusion_stage\.layers\.0\.residual_layer1\.",
        r"backbone\.embeddings\.mask_token",
        r"dpt\.pooler\.",
        r"dpt\.layernorm\.",
    ]
    if not spec["encoder"].get("num_register_tokens"):
        patterns.append(r"backbone\.embeddings\.register_tokens")  # none, in a tensor of 0 rows
    if not spec["encoder"].get("final_norm"):
        patterns.append(r"backbone\.layernorm\.")
    last, count = spec["encoder"]["out_indices"][-1], spec["encoder"]["num_blocks"]
    beyond = "|".join(map(str, range(last + 1, count)))
    return [*patterns, rf"(dpt|backbone)\.encoder\.layer\.({beyond})\."] if beyond else patterns
