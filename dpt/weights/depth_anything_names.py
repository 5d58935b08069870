"""Names of tensors in Depth Anything's two layouts, and what its models have in common."""

from __future__ import annotations

import re
from typing import Any

from dpt.weights.naming import PLAIN_ENCODER, Rule
from dpt.weights.transformers_names import DINOV2_RULES, MLP_RULES, SWIGLU_RULES, neck_rules
from dpt.zoo import Spec

FORMAT = "depth_anything"
MODEL_TYPE = "depth_anything"
MAX_DEPTH = {"hypersim": 20.0, "vkitti": 80.0}
V1 = re.compile(r"depth_anything_vit[sbl]14")
FILE_SUFFIXES = (".pth", ".pt")
SCALES = [4, 2, 1, 0.5]
ENCODER: dict[str, Any] = {**PLAIN_ENCODER, "final_norm": True}
"""The options of our ViT that make it Depth Anything's, but for sizes."""
DECODER: dict[str, Any] = {
    "readout": "ignore",
    "batch_norm": False,
    "unit_bias": True,
    "align": "to_lateral",  # 518 pixels are 37 patches, and no doubling leads to an odd grid
    "output_project": False,
    "deepest_unit": False,
}

HEAD = "depth_head."
SCRATCH = f"{HEAD}scratch."
FILE_RULES: list[Rule] = [
    (r"encoder\.(.+)", r"pretrained.\1"),
    (r"decoder\.reassemble\.(\d)\.read\.linear\.(.+)", rf"{HEAD}readout_projects.\1.0.\2"),
    (r"decoder\.reassemble\.(\d)\.project\.(.+)", rf"{HEAD}projects.\1.\2"),
    (r"decoder\.reassemble\.(\d)\.resample\.conv\.(.+)", rf"{HEAD}resize_layers.\1.\2"),
    (r"decoder\.layer_rn\.(\d)\.(.+)", lambda m: f"{SCRATCH}layer{int(m[1]) + 1}_rn.{m[2]}"),
    (
        r"decoder\.fusion\.(\d)\.project\.(.+)",
        lambda m: f"{SCRATCH}refinenet{int(m[1]) + 1}.out_conv.{m[2]}",
    ),
    (
        r"decoder\.fusion\.(\d)\.rcu(\d)\.(.+)",
        lambda m: f"{SCRATCH}refinenet{int(m[1]) + 1}.resConfUnit{m[2]}.{m[3]}",
    ),
    (r"heads\.depth\.conv1\.(.+)", rf"{SCRATCH}output_conv1.\1"),
    (r"heads\.depth\.conv2\.(.+)", rf"{SCRATCH}output_conv2.0.\1"),
    (r"heads\.depth\.conv3\.(.+)", rf"{SCRATCH}output_conv2.2.\1"),
]
FILE_GATED: list[Rule] = [
    (r"encoder\.(.+)\.mlp\.fc1\.(.+)", r"pretrained.\1.mlp.w12.\2"),
    (r"encoder\.(.+)\.mlp\.fc2\.(.+)", r"pretrained.\1.mlp.w3.\2"),
]
FILE_UNUSED = (r"pretrained\.mask_token$", r"depth_head\.scratch\.refinenet4\.resConfUnit1\.")

HEAD_RULES: list[Rule] = [(r"heads\.depth\.(conv\d\..+)", r"head.\1")]
FOLDER_UNUSED = (
    r"backbone\.embeddings\.mask_token$",
    r"neck\.fusion_stage\.layers\.0\.residual_layer1\.",
)


def rules_of(spec: Spec, *, folder: bool) -> list[Rule]:
    """From our names to those of a folder, or of a ``.pth``."""
    gated = spec["encoder"]["swiglu"]
    if folder:  # the names on disk; transformers renames them in memory
        return [*DINOV2_RULES, *(SWIGLU_RULES if gated else MLP_RULES), *neck_rules(), *HEAD_RULES]
    return [*FILE_GATED, *FILE_RULES] if gated else FILE_RULES
