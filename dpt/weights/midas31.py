"""MiDaS 3.1's ``.pt`` files over BEiT, Swin and SwinV2 (``dpt_beit_*``, ``dpt_swin*``).

Names inside are those of timm 0.6.12, which MiDaS 3.1 pins. Today's timm differs in three: a stage
of Swin merges patches before its blocks, where it did behind them (``layers.0.downsample`` is
``layers.1.downsample`` today); ``relative_position_index`` and ``attn_mask`` are saved no more;
``head`` is ``head.fc``, which depth needs as little as ``norm`` and ``fc_norm``.

What a file says, and how: heads by the columns of a table of position biases or the rows of
``logit_scale``; BEiT's grid and Swin's windows by the rows of that table; SwinV2's windows, and the
image size of both Swins, by the masks of shifted windows. No file tells SwinV2's windows before
fine-tuning: they are those of the released architecture that fits, as are sizes where the masks
were left out. The recipe adds the taps, and LayerNorm's eps: 1e-6 in BEiT, 1e-5 in Swin.

MiDaS 3.1 takes its Swins at their own size alone; at others they go on as in transformers. It
resizes BEiT's tables with rows for columns, which on the square grids of its models is the same.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from dpt.weights import official
from dpt.weights.files import Source, unwrap
from dpt.weights.naming import Rule, gather, split_unused
from dpt.weights.vit_sizes import count_blocks, shape_of
from dpt.zoo import Spec, make_spec

Tensors = dict[str, Tensor]

NAME = "midas31"
MODEL = official.MODEL
BEIT = f"{MODEL}blocks.0.attn.relative_position_bias_table"
SWIN = f"{MODEL}layers.0.blocks.0.attn."

RELEASED: list[dict[str, Any]] = [
    {  # dpt_swin_large_384
        "embed_dim": 192,
        "depths": [2, 2, 18, 2],
        "num_heads": [6, 12, 24, 48],
        "window_size": 12,
        "img_size": [384, 384],
    },
    {  # dpt_swin2_large_384
        "embed_dim": 192,
        "depths": [2, 2, 18, 2],
        "num_heads": [6, 12, 24, 48],
        "window_size": 24,
        "img_size": [384, 384],
        "pretrained_window_sizes": [12, 12, 12, 6],
    },
    {  # dpt_swin2_base_384
        "embed_dim": 128,
        "depths": [2, 2, 18, 2],
        "num_heads": [4, 8, 16, 32],
        "window_size": 24,
        "img_size": [384, 384],
        "pretrained_window_sizes": [12, 12, 12, 6],
    },
    {  # dpt_swin2_tiny_256
        "embed_dim": 96,
        "depths": [2, 2, 6, 2],
        "num_heads": [3, 6, 12, 24],
        "window_size": 16,
        "img_size": [256, 256],
        "pretrained_window_sizes": [0, 0, 0, 0],
    },
]
"""The Swins of MiDaS 3.1. The first one has its windows' biases in a table, made for one size."""

BEIT_RULES: list[Rule] = [
    (r"encoder\.blocks\.(\d+)\.ls(\d)\.gamma", r"pretrained.model.blocks.\1.gamma_\2"),
    *official.RULES,
]
SWIN_RULES: list[Rule] = [
    (
        r"encoder\.model\.layers\.(\d)\.downsample\.(.+)",
        lambda m: f"pretrained.model.layers.{int(m[1]) - 1}.downsample.{m[2]}",
    ),
    (r"encoder\.model\.(.+)", r"pretrained.model.\1"),
    *official.RULES,
]
UNUSED = (
    r"pretrained\.model\.(norm|fc_norm|head)\.",
    r".+\.(relative_position_index|relative_coords_table|attn_mask|k_bias)$",
    r"scratch\.refinenet4\.resConfUnit1\.",
)


def matches(source: Source) -> bool:
    names = unwrap(source.content) if source.config is None else {}
    swin = any(k.startswith(SWIN) for k in names)
    return (BEIT in names or swin) and any(k.startswith("scratch.") for k in names)


def read(source: Source) -> tuple[Spec, Tensors]:
    tensors = unwrap(source.content)
    spec = _infer(tensors, source.path)
    rules = BEIT_RULES if spec["encoder"]["kind"] == "beit" else SWIN_RULES
    state, left = gather(spec, tensors, rules)
    _, unexpected = split_unused(left, UNUSED)
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the file that take no part in a prediction."""
    return split_unused(unwrap(source.content), UNUSED)[0]


def _shape(tensors: Tensors, name: str, path: Path) -> tuple[int, ...]:
    return shape_of(tensors, name, path=path, family="MiDaS 3.1")


def _side(offsets: int, path: Path) -> int:
    """Side w of a square with (2w - 1)² offsets between its cells."""
    root = math.isqrt(max(offsets, 0))
    if root * root != offsets or root % 2 == 0:
        raise ValueError(f"{path}: a table of {offsets} position biases, which are no square's")
    return (root + 1) // 2


def _infer(tensors: Tensors, path: Path) -> Spec:
    def channels(name: str) -> int:
        return _shape(tensors, name, path)[0]

    beit = BEIT in tensors
    encoder = _beit(tensors, path) if beit else _swin(tensors, path)
    steps = [f"pretrained.act_postprocess{n}.3.weight" for n in (1, 2, 3, 4)]
    return make_spec(
        "dpt_base",
        heads={
            "depth": {
                "kind": "relative",
                "hidden_channels": channels("scratch.output_conv.2.weight"),
            }
        },
        encoder=encoder,
        decoder={
            "reassemble_channels": [channels(s) for s in steps] if beit else [None] * 4,
            "scales": [4, 2, 1, 0.5] if beit else [1] * 4,
            "fusion_channels": channels("scratch.layer1_rn.weight"),
            "readout": "project" if beit else "ignore",
            "unit_bias": "scratch.refinenet1.resConfUnit1.conv1.bias" in tensors,
            "align": "to_lateral",
        },
        preprocessing={
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "image_size": encoder["image_size" if beit else "img_size"],
            "resize": "minimal" if beit else "stretch",
            "multiple_of": 32,
            "interpolation": "cubic",
        },
    )


def _beit(tensors: Tensors, path: Path) -> dict[str, Any]:
    dim, in_channels, patch, _ = _shape(tensors, f"{MODEL}patch_embed.proj.weight", path)
    offsets, heads = tensors[BEIT].shape
    num_blocks = count_blocks(tensors, f"{MODEL}blocks.")
    if num_blocks < 4:
        raise ValueError(f"{path}: {num_blocks} blocks under {MODEL}blocks; four are tapped")
    block = f"{MODEL}blocks.0."
    return {
        "kind": "beit",
        "embed_dim": dim,
        "num_blocks": num_blocks,
        "num_heads": heads,
        "mlp_ratio": _shape(tensors, f"{block}mlp.fc1.weight", path)[0] / dim,
        "qkv_bias": f"{block}attn.q_bias" in tensors,
        "norm_eps": 1e-6,
        "image_size": [patch * _side(offsets - 3, path)] * 2,
        "patch_size": patch,
        "in_channels": in_channels,
        "out_indices": official.taps(num_blocks, hybrid=False),
        "position_resize": "bilinear",
        "layer_scale": 0.1 if f"{block}gamma_1" in tensors else None,
    }


def _swin(tensors: Tensors, path: Path) -> dict[str, Any]:
    second = f"{SWIN}logit_scale" in tensors
    dim, in_channels, patch, _ = _shape(tensors, f"{MODEL}patch_embed.proj.weight", path)
    stages = [f"{MODEL}layers.{i}." for i in range(count_blocks(tensors, f"{MODEL}layers."))]
    told: dict[str, Any] = {
        "embed_dim": dim,
        "depths": [count_blocks(tensors, f"{stage}blocks.") for stage in stages],
    }
    if second:
        scales = [f"{stage}blocks.0.attn.logit_scale" for stage in stages]
        told["num_heads"] = [_shape(tensors, name, path)[0] for name in scales]
    else:
        tables = [f"{stage}blocks.0.attn.relative_position_bias_table" for stage in stages]
        told["num_heads"] = [_shape(tensors, name, path)[1] for name in tables]
        told["window_size"] = _side(tensors[tables[0]].shape[0], path)
    mask = tensors.get(f"{MODEL}layers.0.blocks.1.attn_mask")  # (windows, cells, cells)
    if mask is not None:
        told["window_size"] = math.isqrt(mask.shape[1])
        told["img_size"] = [patch * math.isqrt(mask.shape[0] * mask.shape[1])] * 2
    qkv_bias = f"{SWIN}q_bias" if second else f"{SWIN}qkv.bias"
    return {
        "kind": "timm",
        "name": "swinv2_tiny_window8_256" if second else "swin_tiny_patch4_window7_224",
        **_complete(told, second, path),
        "patch_size": patch,
        "in_chans": in_channels,
        "mlp_ratio": _shape(tensors, f"{stages[0]}blocks.0.mlp.fc1.weight", path)[0] / dim,
        "qkv_bias": qkv_bias in tensors,
        "out_indices": list(range(len(stages))),
        "pad_windows": "before_shift",
    }


def _complete(told: dict[str, Any], second: bool, path: Path) -> dict[str, Any]:
    """What a file tells of its Swin, and what it does not tell by the released one that fits."""
    needed = {"window_size", "img_size"} | ({"pretrained_window_sizes"} if second else set())
    if needed <= set(told):
        return told
    for row in RELEASED:
        if ("pretrained_window_sizes" in row) == second and told.items() <= row.items():
            return row
    raise ValueError(
        f"{path}: does not tell its {', '.join(sorted(needed - set(told)))}, and what it tells "
        f"({', '.join(f'{k} {v}' for k, v in told.items())}) fits no Swin{'V2' if second else ''} "
        "that MiDaS 3.1 released"
    )
