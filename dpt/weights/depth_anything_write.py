"""Writing Depth Anything: a ``.pth`` as the authors', or a folder that transformers opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpt.weights.depth_anything_names import (
    DECODER,
    ENCODER,
    FILE_SUFFIXES,
    FORMAT,
    MAX_DEPTH,
    MODEL_TYPE,
    SCALES,
    SCRATCH,
    V1,
    rules_of,
)
from dpt.weights.dinov2 import spread_taps
from dpt.weights.naming import complete, one_dense_head, refuse_unless, scatter
from dpt.weights.native import write_folder
from dpt.weights.transformers_write import make_processor
from dpt.zoo import Spec


def write(spec: Spec, state: dict[str, Tensor], path: str | Path) -> list[str]:
    """Writes a ``.pth`` where ``path`` ends so, else a folder that transformers opens.

    What the format has but never runs is written as zeros.

    Returns:
        What a user should know of the result.

    Raises:
        ValueError: an option of the model that the format has no place for.
    """
    path = Path(path)
    full = complete(spec)
    name, head = one_dense_head(FORMAT, full)
    if name != "depth":
        raise ValueError(f"the {FORMAT} format has a depth head alone, no {name} head")
    if full["encoder"]["kind"] != "vit":
        raise ValueError(f"the {FORMAT} format has no {full['encoder']['kind']} encoder, only vit")
    encoder, decoder = full["encoder"], full["decoder"]
    folder = path.suffix not in FILE_SUFFIXES
    dim, gated = encoder["embed_dim"], encoder["swiglu"]
    free = {"position_resize": encoder["position_resize"], "swiglu": gated}
    free["layer_scale"] = 1.0 if encoder["layer_scale"] is None else encoder["layer_scale"]
    needed = {**ENCODER, **free, "image_size": [encoder["image_size"][0]] * 2}
    if not folder:
        needed |= {"patch_size": 14, "num_heads": dim // 64, "norm_eps": 1e-6}
        v1 = V1.search(path.name) is not None
        blocks = encoder["num_blocks"]
        needed["out_indices"] = list(range(blocks - 4, blocks)) if v1 else spread_taps(blocks)
    lists = {k: list(encoder[k]) for k in ("image_size", "out_indices")}
    refuse_unless(FORMAT, "encoder", {**encoder, **lists}, needed)
    scales = [float(s) for s in decoder["scales"]]
    refuse_unless(FORMAT, "decoder", {**decoder, "scales": scales}, {**DECODER, "scales": SCALES})
    if head["upsample"] != "image":
        raise ValueError(f"the {FORMAT} format has no head with upsample={head['upsample']!r}")
    if head["kind"] == "metric" and head["activation"] != "sigmoid":
        raise ValueError(f"the {FORMAT} format has no {head['activation']} metric depth head")
    own = "bicubic" if folder else "dinov2"
    notes = []
    if encoder["position_resize"] != own:
        notes.append(
            f"position codes of this model are resized by {encoder['position_resize']!r}, in this "
            f"format by {own!r}: outputs differ away from {encoder['image_size']}"
        )
    tensors = scatter(state, rules_of(full, folder=folder))
    _add_unused(tensors, dim, folder=folder)
    if folder:
        config, processor = _config(full, head), make_processor(full, notes)
        write_folder(path, config, tensors)
        text = json.dumps(processor, indent=2) + "\n"
        (path / "preprocessor_config.json").write_text(text, encoding="utf-8")
        return notes
    metres = head["max_depth"] if head["kind"] == "metric" else None
    named = next((m for word, m in MAX_DEPTH.items() if word in path.name.lower()), None)
    if metres != named or (metres is None and "metric" in path.name.lower()):
        raise ValueError(
            f"a .pth of {FORMAT} does not store the largest depth, its name does: hypersim for "
            f"20 m, vkitti for 80 m, neither for relative depth; {path.name!r} does not go with "
            f"{'relative depth' if metres is None else f'{metres} m'}. A folder stores it."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, path)
    return notes


def _add_unused(tensors: dict[str, Tensor], dim: int, *, folder: bool) -> None:
    """What the format's code would miss, though it never runs."""
    unit, token = f"{SCRATCH}refinenet4.resConfUnit", "pretrained.mask_token"
    if folder:
        unit = "neck.fusion_stage.layers.0.residual_layer"
        token = "backbone.embeddings.mask_token"
    for name in [n for n in tensors if n.startswith(f"{unit}2.")]:
        tensors[name.replace(f"{unit}2.", f"{unit}1.")] = torch.zeros_like(tensors[name])
    tensors[token] = torch.zeros(1, dim)


def _config(spec: Spec, head: Mapping[str, Any]) -> dict[str, Any]:
    """``config.json`` of a folder."""
    encoder, decoder = spec["encoder"], spec["decoder"]
    whole = {"mlp_ratio": encoder["mlp_ratio"]}
    if head["kind"] == "metric":
        whole["max_depth"] = head["max_depth"]
    for name, value in whole.items():
        if value != int(value):
            raise ValueError(f"transformers takes a whole number for {name}, not {value}")
    return {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": MODEL_TYPE,
        "backbone_config": {
            "architectures": ["Dinov2Model"],
            "model_type": "dinov2",
            "hidden_size": encoder["embed_dim"],
            "num_hidden_layers": encoder["out_indices"][-1] + 1,
            "num_attention_heads": encoder["num_heads"],
            "mlp_ratio": int(encoder["mlp_ratio"]),
            "layer_norm_eps": encoder["norm_eps"],
            "image_size": encoder["image_size"][0],
            "patch_size": encoder["patch_size"],
            "qkv_bias": encoder["qkv_bias"],
            "use_swiglu_ffn": encoder["swiglu"],
            "apply_layernorm": True,
            "reshape_hidden_states": False,
            "out_indices": [i + 1 for i in encoder["out_indices"]],
            "out_features": [f"stage{i + 1}" for i in encoder["out_indices"]],
        },
        "patch_size": encoder["patch_size"],
        "reassemble_hidden_size": encoder["embed_dim"],
        "reassemble_factors": SCALES,
        "neck_hidden_sizes": list(decoder["reassemble_channels"]),
        "fusion_hidden_size": decoder["fusion_channels"],
        "head_in_index": -1,
        "head_hidden_size": head["hidden_channels"],
        "depth_estimation_type": head["kind"],
        "max_depth": int(head["max_depth"]) if head["kind"] == "metric" else 1,
        "dtype": "float32",
    }
