"""DINOv2's DPT depth heads (its hub, and files of its depth code that hold backbone and head).

The hub's ``dinov2_vits14_nyu_dpt_head.pth`` holds a head alone. It is read together with its
backbone where that lies beside it under its released name (``dinov2_vits14_pretrain.pth``). A file
with ``backbone.*`` beside ``decode_head.*``, as DINOv2's depther saves its state dict, is whole.

The head reads taps before the final LayerNorm, resizes laterals to what comes from above, has one
more 3×3 convolution behind the fusions and gives relu(x) + 0.001 metres. Its depther also cuts at
10 m (NYU) or 80 m (KITTI); that number is in no file, and predictions here are not cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from dpt.weights.files import Source, read_tensors, unwrap
from dpt.weights.naming import PLAIN_ENCODER, Rule, gather, split_unused
from dpt.weights.vit_sizes import infer_vit, shape_of
from dpt.zoo import Spec, make_spec

NAME = "dinov2"
MIN_DEPTH = 0.001
TAPS = {24: [4, 11, 17, 23], 40: [9, 19, 29, 39]}
"""Of ViT-L and ViT-g; smaller ones tap the end of each quarter."""

HEAD_FILE = re.compile(r"(dinov2_vit[sblg]14(?:_reg4)?)_\w+_dpt_head\.pth$")

HEAD = "decode_head."
_BLOCKS = f"{HEAD}reassemble_blocks."
RULES: list[Rule] = [
    (r"encoder\.reg_token", "backbone.register_tokens"),
    (r"encoder\.(.+)", r"backbone.\1"),
    (r"decoder\.reassemble\.(\d)\.read\.linear\.(.+)", rf"{_BLOCKS}readout_projects.\1.0.\2"),
    (r"decoder\.reassemble\.(\d)\.project\.(.+)", rf"{_BLOCKS}projects.\1.conv.\2"),
    (r"decoder\.reassemble\.(\d)\.resample\.conv\.(.+)", rf"{_BLOCKS}resize_layers.\1.\2"),
    (r"decoder\.layer_rn\.(\d)\.(.+)", rf"{HEAD}convs.\1.conv.\2"),
    (
        r"decoder\.fusion\.(\d)\.project\.(.+)",
        lambda m: f"{HEAD}fusion_blocks.{3 - int(m[1])}.project.conv.{m[2]}",
    ),
    (
        r"decoder\.fusion\.(\d)\.rcu(\d)\.conv(\d)\.(.+)",
        lambda m: f"{HEAD}fusion_blocks.{3 - int(m[1])}.res_conv_unit{m[2]}.conv{m[3]}.conv.{m[4]}",
    ),
    (r"decoder\.output_project\.(.+)", rf"{HEAD}project.conv.\1"),
    (r"heads\.depth\.conv1\.(.+)", rf"{HEAD}conv_depth.head.0.\1"),
    (r"heads\.depth\.conv2\.(.+)", rf"{HEAD}conv_depth.head.2.\1"),
    (r"heads\.depth\.conv3\.(.+)", rf"{HEAD}conv_depth.head.4.\1"),
]
GATED: list[Rule] = [
    (r"encoder\.(.+)\.mlp\.fc1\.(.+)", r"backbone.\1.mlp.w12.\2"),
    (r"encoder\.(.+)\.mlp\.fc2\.(.+)", r"backbone.\1.mlp.w3.\2"),
]
UNUSED = (r"backbone\.mask_token$", r"backbone\.norm\.")


def spread_taps(num_blocks: int) -> list[int]:
    """Blocks that DINOv2's heads and Depth Anything v2 read."""
    return TAPS.get(num_blocks) or [num_blocks * (i + 1) // 4 - 1 for i in range(4)]


def matches(source: Source) -> bool:
    if source.config is not None:
        return False
    names = list(unwrap(source.content))
    return any(k.startswith((_BLOCKS, f"{HEAD}conv_depth.", f"{HEAD}bn.")) for k in names) or any(
        k.startswith("reassemble_blocks.") for k in names
    )


def read(source: Source) -> tuple[Spec, dict[str, Tensor]]:
    tensors = _with_backbone(source)
    spec = _infer(source.path, tensors)
    rules = [*GATED, *RULES] if spec["encoder"]["swiglu"] else RULES
    state, left = gather(spec, tensors, rules)
    _, unexpected = split_unused(left, UNUSED)
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the file that take no part in a prediction."""
    return split_unused(_with_backbone(source), UNUSED)[0]


def _with_backbone(source: Source) -> dict[str, Tensor]:
    """The file's tensors, and those of the backbone beside it where it holds a head alone."""
    tensors = unwrap(source.content)
    released = HEAD_FILE.match(source.path.name)
    if released and not any(k.startswith("backbone.") for k in tensors):
        beside = source.path.with_name(f"{released[1]}_pretrain.pth")
        if beside.is_file():
            found = unwrap(read_tensors(beside))
            return {**tensors, **{f"backbone.{k}": v for k, v in found.items()}}
    return tensors


def _infer(path: Path, tensors: Mapping[str, Tensor]) -> Spec:
    if any(k.startswith("reassemble_blocks.") for k in tensors):
        raise ValueError(
            f"{path}: a DINOv3 head; it bins depth and normalises tokens, which is not read"
        )
    if f"{_BLOCKS}projects.0.conv.weight" not in tensors:
        raise ValueError(f"{path}: a linear DINOv2 head, which is no DPT; only DPT heads are read")
    if not any(k.startswith("backbone.") for k in tensors):
        raise ValueError(
            f"{path}: a DINOv2 head alone, without the backbone that it was trained on. Put both "
            "side by side under their released names (dinov2_vits14_nyu_dpt_head.pth and "
            "dinov2_vits14_pretrain.pth), or in one file, the backbone's names after 'backbone.'"
        )

    def channels(name: str) -> int:
        return shape_of(tensors, name, path=path, family="a DINOv2 depth head")[0]

    encoder = infer_vit(tensors, "backbone.", path=path, family="DINOv2")
    registers = bool(encoder["num_register_tokens"])
    patch = encoder["patch_size"]
    head = {
        "kind": "metric",
        "activation": "relu",
        "min_depth": MIN_DEPTH,
        "hidden_channels": channels(f"{HEAD}conv_depth.head.2.weight"),
        "upsample": "double",
    }
    return make_spec(
        "dpt_base",
        heads={"depth": head},
        encoder={
            **PLAIN_ENCODER,
            **encoder,
            "out_indices": spread_taps(encoder["num_blocks"]),
            # the hub's models with registers resize codes by size, with antialiasing
            "position_resize": "bicubic_antialias" if registers else "dinov2",
            "padding": "center",
        },
        decoder={
            "reassemble_channels": [
                channels(f"{_BLOCKS}projects.{i}.conv.weight") for i in range(4)
            ],
            "fusion_channels": channels(f"{HEAD}convs.0.conv.weight"),
            "readout": "project"
            if f"{_BLOCKS}readout_projects.0.0.weight" in tensors
            else "ignore",
            "batch_norm": False,
            "unit_bias": False,
            "align": "resize_lateral",
            "output_project": True,
            "scales": [4, 2, 1, 0.5],
        },
        # its code feeds whole images, 0..255 less ImageNet's mean, over its deviation
        preprocessing={
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "resize": "none",
            "multiple_of": patch,
            "interpolation": "bilinear",
        },
    )
