"""Our encoder's arguments for what a ``config.json`` of transformers says of its backbone.

SwinV2 runs on timm's blocks, which compute the same but for three things:

- transformers pads a map to whole windows and then shifts it, timm shifts first, so that on maps
  off the windows rows from the far edge mix: ``pad_windows="before_shift"`` does as transformers.
- transformers hides other regions from each other by -200 where Swin and timm say -100; both
  leave nothing of them in float32 (e^-100 next to one).
- images whose sides are no multiples of the deepest stride are padded before the network here, and
  with zeros inside of it by transformers, whose maps there do not meet: equal at multiples of 32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpt.weights.transformers_names import DINOV2

# what transformers takes where config.json is silent
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 384,
    "patch_size": 16,
    "num_channels": 3,
    "is_hybrid": False,
    "qkv_bias": True,
    "backbone_out_indices": [2, 5, 8, 11],
    "readout_type": "project",
    "reassemble_factors": [4, 2, 1, 0.5],
    "neck_hidden_sizes": [96, 192, 384, 768],
    "fusion_hidden_size": 256,
    "head_in_index": -1,
    "use_batch_norm_in_fusion_residual": False,
    "use_bias_in_fusion_residual": None,
    "add_projection": False,
    "use_auxiliary_head": True,
    "semantic_classifier_dropout": 0.1,
}
DINOV2_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 224,
    "patch_size": 14,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "apply_layernorm": True,
    "num_register_tokens": 4,
}
BEIT_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "use_absolute_position_embeddings": False,
    "use_relative_position_bias": False,
    "use_shared_relative_position_bias": False,
    "layer_scale_init_value": 0.1,
    "add_fpn": False,
}
SWINV2_DEFAULTS: dict[str, Any] = {
    "image_size": 224,
    "patch_size": 4,
    "num_channels": 3,
    "embed_dim": 96,
    "depths": [2, 2, 6, 2],
    "num_heads": [3, 6, 12, 24],
    "window_size": 7,
    "pretrained_window_sizes": [0, 0, 0, 0],
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "use_absolute_embeddings": False,
    "layer_norm_eps": 1e-5,
}


def two(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _patch(path: Path, size: Any) -> int:
    height, width = two(size)
    if height != width:
        raise ValueError(f"{path}: patches of {height}x{width} pixels: only square ones are read")
    return height


def _only_gelu(path: Path, config: dict[str, Any]) -> None:
    if config["hidden_act"] != "gelu":
        raise ValueError(f"{path}: hidden_act={config['hidden_act']!r}: only 'gelu' is read")


def vit_encoder(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Our encoder's arguments for transformers' own ViT, or the hybrid."""
    _only_gelu(path, config)
    taps = list(config["backbone_out_indices"])
    return {
        "embed_dim": config["hidden_size"],
        "num_blocks": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
        "qkv_bias": config["qkv_bias"],
        "norm_eps": config["layer_norm_eps"],
        "image_size": two(config["image_size"]),
        "patch_size": _patch(path, config["patch_size"]),
        "in_channels": config["num_channels"],
        "out_indices": taps[2:] if config["is_hybrid"] else taps,
        "position_resize": "bilinear",
        **({"weight_standardization": "sqrt"} if config["is_hybrid"] else {}),
    }


def _taps(path: Path, config: dict[str, Any]) -> list[int]:
    """Zero-based blocks or stages that a ``backbone_config`` hands on."""
    stages = config.get("out_indices")
    if not stages and config.get("out_features"):  # "stem" is 0, the first block "stage1"
        stages = [
            int(f.removeprefix("stage")) if f != "stem" else 0 for f in config["out_features"]
        ]
    if not stages or min(stages) < 1:
        raise ValueError(f"{path}: the backbone's out_indices={stages}: blocks are counted from 1")
    return [s - 1 for s in stages]


def _square(path: Path, config: dict[str, Any]) -> list[int]:
    """[H, W] of a backbone that transformers gets right on square images alone."""
    height, width = two(config["image_size"])
    if height != width:
        raise ValueError(
            f"{path}: a {config['model_type']} backbone made for {height}x{width} pixels: only "
            "squares are read, for transformers takes its rows for columns"
        )
    return [height, width]


def _only(path: Path, config: dict[str, Any], needed: dict[str, Any]) -> None:
    wrong = [f"{k}={config[k]!r} (only {v!r})" for k, v in needed.items() if config[k] != v]
    if wrong:
        raise ValueError(f"{path}: its {config['model_type']} backbone has {', '.join(wrong)}")


def dinov2_encoder(path: Path, backbone: dict[str, Any]) -> dict[str, Any]:
    """Our encoder's arguments for a ``backbone_config`` over DINOv2, with or without registers."""
    family = backbone.get("model_type")
    if family not in DINOV2:
        raise ValueError(
            f"{path}: over a {family!r} backbone, which is not read; those read are the model's "
            f"own ViT, the hybrid, {', '.join(DINOV2)}"
        )
    config = {**DINOV2_DEFAULTS, **backbone}
    _only_gelu(path, config)
    taps = _taps(path, config)
    return {
        "embed_dim": config["hidden_size"],
        "num_blocks": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_ratio": config["mlp_ratio"],
        "qkv_bias": config["qkv_bias"],
        "norm_eps": config["layer_norm_eps"],
        "image_size": two(config["image_size"]),
        "patch_size": _patch(path, config["patch_size"]),
        "in_channels": config["num_channels"],
        "out_indices": taps,
        "position_resize": DINOV2[family],
        "layer_scale": config["layerscale_value"],
        "swiglu": config["use_swiglu_ffn"],
        "final_norm": config["apply_layernorm"],
        "num_register_tokens": config["num_register_tokens"] if "registers" in family else 0,
    }


def beit_encoder(path: Path, backbone: dict[str, Any]) -> dict[str, Any]:
    """Our encoder's arguments for a ``backbone_config`` over BEiT."""
    config = {**BEIT_DEFAULTS, **backbone}
    _only_gelu(path, config)
    needed = {
        "use_relative_position_bias": True,
        "use_shared_relative_position_bias": False,
        "use_absolute_position_embeddings": False,
        "add_fpn": False,
    }
    _only(path, config, needed)
    return {
        "kind": "beit",
        "embed_dim": config["hidden_size"],
        "num_blocks": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
        "norm_eps": config["layer_norm_eps"],
        "image_size": _square(path, config),
        "patch_size": _patch(path, config["patch_size"]),
        "in_channels": config["num_channels"],
        "out_indices": _taps(path, config),
        "position_resize": "bilinear",
        "layer_scale": config["layer_scale_init_value"] or None,
    }


def swinv2_encoder(path: Path, backbone: dict[str, Any]) -> dict[str, Any]:
    """Our encoder's arguments for a ``backbone_config`` over SwinV2: timm's."""
    config = {**SWINV2_DEFAULTS, **backbone}
    _only_gelu(path, config)
    _only(path, config, {"use_absolute_embeddings": False, "layer_norm_eps": 1e-5})
    size, patch = _square(path, config), _patch(path, config["patch_size"])
    stride = patch * 2 ** (len(config["depths"]) - 1)
    if size[0] % stride:
        raise ValueError(f"{path}: image_size={size[0]} is no multiple of the last stride {stride}")
    return {
        "kind": "timm",
        "name": "swinv2_tiny_window8_256",  # every size of it is given
        "img_size": size,
        "patch_size": patch,
        "in_chans": config["num_channels"],
        "embed_dim": config["embed_dim"],
        "depths": list(config["depths"]),
        "num_heads": list(config["num_heads"]),
        "window_size": config["window_size"],
        "pretrained_window_sizes": list(config["pretrained_window_sizes"]),
        "mlp_ratio": config["mlp_ratio"],
        "qkv_bias": config["qkv_bias"],
        "out_indices": _taps(path, config),
        "pad_windows": "before_shift",
    }


def backbone_encoder(path: Path, backbone: dict[str, Any]) -> dict[str, Any]:
    """Our encoder's arguments for a ``backbone_config`` of the dpt family."""
    family = backbone.get("model_type")
    if family == "beit":
        return beit_encoder(path, backbone)
    if family == "swinv2":
        return swinv2_encoder(path, backbone)
    if family in DINOV2:
        return dinov2_encoder(path, backbone)
    why = ", which transformers' dpt itself runs at no size" if family == "swin" else ""
    raise ValueError(
        f"{path}: over a {family!r} backbone, which is not read{why}; those read are the model's "
        f"own ViT, the hybrid, {', '.join(DINOV2)}, beit, swinv2"
    )
