"""MiDaS 3.1 ``.pt`` files over BEiT, Swin and SwinV2 (``dpt_beit_*``, ``dpt_swin*``).

Names are those of timm 0.6.12, which MiDaS 3.1 pins. Today's timm differs in three: a Swin stage
merges patches before its blocks, no longer behind them (``layers.0.downsample`` is
``layers.1.downsample`` today); ``relative_position_index`` and ``attn_mask`` are no longer saved;
``head`` is ``head.fc``, which depth does not need, nor ``norm`` and ``fc_norm``.

Sources of the configuration: heads from the columns of a table of position biases, or the rows of
``logit_scale``; BEiT's grid and Swin's windows from the rows of that table; SwinV2's windows, and
the image size of both Swins, from the masks of shifted windows. No file holds SwinV2's windows
before fine-tuning: they are those of the released architecture that fits, as are sizes where the
masks are missing. The recipe gives the feature levels and LayerNorm's eps: 1e-6 in BEiT, 1e-5 in
Swin.

MiDaS 3.1 takes its Swins only at their own size; at other sizes they work as in transformers. Its
resizing of BEiT's tables confuses rows and columns, which makes no difference on square grids.
"""

from __future__ import annotations

import math

from dpt.weights import official
from dpt.weights.files import Source
from dpt.weights.format import Checkpoint, Config, Format, Shapes, from_theirs, quarter_ends

MODEL = official.MODEL
BEIT = f"{MODEL}blocks.0.attn.relative_position_bias_table"
SWIN = f"{MODEL}layers.0.blocks.0.attn."


def _released(dim: int, heads: int, window: int, size: int, pretrained: list[int] | None) -> Config:
    row: Config = {
        "embed_dim": dim,
        "depths": [2, 2, 18 if dim > 96 else 6, 2],
        "num_heads": [heads * 2**i for i in range(4)],
        "window_size": window,
        "img_size": [size, size],
    }
    return row | ({} if pretrained is None else {"pretrained_window_sizes": pretrained})


RELEASED = [
    _released(192, 6, 12, 384, None),  # dpt_swin_large_384, the only Swin v1
    _released(192, 6, 24, 384, [12, 12, 12, 6]),  # dpt_swin2_large_384
    _released(128, 4, 24, 384, [12, 12, 12, 6]),  # dpt_swin2_base_384
    _released(96, 3, 16, 256, [0, 0, 0, 0]),  # dpt_swin2_tiny_256
]
"""The Swins of MiDaS 3.1."""

TABLE = [
    ("encoder.blocks.{i}.ls{k}.gamma", "pretrained.model.blocks.{i}.gamma_{k}"),
    ("encoder.model.layers.{s}.downsample.*", "pretrained.model.layers.{s-1}.downsample.*"),
    ("encoder.model.*", "pretrained.model.*"),
    *official.TABLE,
]
UNUSED = (
    *official.UNUSED,
    f"{MODEL}fc_norm.*",
    *(f"*.{n}" for n in ("relative_position_index", "relative_coords_table", "attn_mask")),
    "*.k_bias",
)


class Midas31(Format):
    name = "midas31"

    def recognises(self, source: Source) -> bool:
        return any(source.holds(attention, "scratch.") for attention in (BEIT, SWIN))

    def _read(self, source: Source) -> Checkpoint:
        shapes = Shapes(source.tensors, "MiDaS 3.1")
        encoder = _beit(shapes) if BEIT in source.tensors else _swin(shapes)
        size = encoder.get("img_size") or encoder["image_size"]
        config = official.dpt_config(shapes, source.path.name, encoder, size)
        return from_theirs(config, source.tensors, TABLE, UNUSED)


def _side(count: int) -> int:
    """Side w of a square with (2w - 1)² offsets between its cells."""
    return (math.isqrt(max(count, 0)) + 1) // 2


def _beit(shapes: Shapes) -> Config:
    dim, in_channels, patch, _ = shapes(f"{MODEL}patch_embed.proj.weight")
    offsets, heads = shapes(BEIT)
    num_blocks = shapes.count(f"{MODEL}blocks.")
    block = f"{MODEL}blocks.0."
    return {
        "kind": "beit",
        "embed_dim": dim,
        "num_blocks": num_blocks,
        "num_heads": heads,
        "mlp_ratio": shapes.channels(f"{block}mlp.fc1.weight") / dim,
        "qkv_bias": f"{block}attn.q_bias" in shapes.tensors,
        "norm_eps": 1e-6,
        "image_size": [patch * _side(offsets - 3)] * 2,
        "patch_size": patch,
        "in_channels": in_channels,
        "out_indices": quarter_ends(num_blocks),
        "position_resize": "bilinear",
        "layer_scale": 0.1 if f"{block}gamma_1" in shapes.tensors else None,
    }


def _swin(shapes: Shapes) -> Config:
    v2 = f"{SWIN}logit_scale" in shapes.tensors
    dim, in_channels, patch, _ = shapes(f"{MODEL}patch_embed.proj.weight")
    stages = [f"{MODEL}layers.{i}.blocks." for i in range(shapes.count(f"{MODEL}layers."))]
    found: Config = {"embed_dim": dim, "depths": [shapes.count(stage) for stage in stages]}
    if v2:
        found["num_heads"] = [shapes.channels(f"{stage}0.attn.logit_scale") for stage in stages]
    else:
        tables = [shapes(f"{stage}0.attn.relative_position_bias_table") for stage in stages]
        found["num_heads"] = [heads for _, heads in tables]
        found["window_size"] = _side(tables[0][0])
    mask = shapes.tensors.get(f"{stages[0]}1.attn_mask")  # (windows, cells, cells)
    if mask is not None:
        found["window_size"] = math.isqrt(mask.shape[1])
        found["img_size"] = [patch * math.isqrt(mask.shape[0] * mask.shape[1])] * 2
    return {
        "kind": "timm",
        "name": "swinv2_tiny_window8_256" if v2 else "swin_tiny_patch4_window7_224",
        **_complete(found, v2=v2),
        "patch_size": patch,
        "in_chans": in_channels,
        "mlp_ratio": shapes.channels(f"{stages[0]}0.mlp.fc1.weight") / dim,
        "qkv_bias": f"{SWIN}{'q_bias' if v2 else 'qkv.bias'}" in shapes.tensors,
        "out_indices": list(range(len(stages))),
        "pad_windows": "before_shift",
    }


def _complete(found: Config, *, v2: bool) -> Config:
    """Sizes found in a file; those that are missing, of the released Swin that fits."""
    needed = {"window_size", "img_size"} | ({"pretrained_window_sizes"} if v2 else set())
    if needed <= set(found):
        return found
    for row in RELEASED:
        if ("pretrained_window_sizes" in row) == v2 and found.items() <= row.items():
            return row
    missing = ", ".join(sorted(needed - set(found)))
    raise ValueError(
        f"does not tell its {missing}, and fits no Swin that MiDaS 3.1 released: {found}"
    )
