"""Folders of transformers' ``dpt``: depth or segmentation, over its own ViT, the hybrid or DINOv2.

Names are those on disk, which transformers keeps while names in memory change. Its DINOv2 codes
are resized by size (``bicubic``), with registers also antialiased; its own ViT's ``bilinear``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from dpt.weights.files import Source, unwrap
from dpt.weights.naming import gather, split_unused
from dpt.weights.transformers_names import (
    BIT,
    DINOV2,
    DINOV2_RULES,
    MLP_RULES,
    RESAMPLE,
    SWIGLU_RULES,
    neck_rules,
    rules_of,
    unused_patterns,
)
from dpt.weights.transformers_write import FORMAT, make_processor, write
from dpt.zoo import Spec, make_spec

__all__ = [
    "DINOV2_RULES",
    "MLP_RULES",
    "NAME",
    "SWIGLU_RULES",
    "dinov2_encoder",
    "make_processor",
    "matches",
    "neck_rules",
    "read",
    "read_preprocessing",
    "unused",
    "write",
]

NAME = FORMAT

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


def matches(source: Source) -> bool:
    return source.config is not None and source.config.get("model_type") == "dpt"


def read(source: Source) -> tuple[Spec, dict[str, Tensor]]:
    spec, tensors = read_spec(source), unwrap(source.content)
    state, left = gather(spec, tensors, rules_of(spec))
    _, unexpected = split_unused(left, unused_patterns(spec))
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the folder that take no part in a prediction."""
    return split_unused(unwrap(source.content), unused_patterns(read_spec(source)))[0]


def read_spec(source: Source) -> Spec:
    given = source.config or {}
    config = {**DEFAULTS, **given}
    backbone = config.get("backbone_config")
    if config["is_hybrid"]:
        _check_bit(source, config)
        backbone = None
    if backbone is None and given.get("backbone"):
        raise ValueError(
            f"{source.path}: its backbone {given['backbone']!r} is named, not described; only a "
            "backbone_config is read"
        )
    if backbone is None:
        encoder = vit_encoder(source.path, config)
    else:
        encoder = dinov2_encoder(source.path, backbone)
    if config["head_in_index"] not in (-1, len(config["neck_hidden_sizes"]) - 1):
        raise ValueError(f"{source.path}: head_in_index={config['head_in_index']}: only -1 is read")
    channels: list[int | None] = list(config["neck_hidden_sizes"])
    if config["is_hybrid"]:
        channels[:2] = [None, None]
    batch_norm, bias = (
        config["use_batch_norm_in_fusion_residual"],
        config["use_bias_in_fusion_residual"],
    )
    classes = _class_names(given)
    kinds = str(given.get("architectures"))
    segmentation = "Segmentation" in kinds or (
        "Depth" not in kinds and "head.head.1.running_mean" in unwrap(source.content)
    )
    head: dict[str, Any]
    if segmentation:
        weight = unwrap(source.content).get("head.head.4.weight")
        head = {
            "num_classes": len(classes) or 2 if weight is None else weight.shape[0],
            "dropout": config["semantic_classifier_dropout"],
            "auxiliary": bool(config["use_auxiliary_head"]),
        }
    elif config["add_projection"]:  # DINOv2's depth heads alone have it: metres
        head = {"kind": "metric", "activation": "relu"}
    else:
        head = {"kind": "relative"}
    spec = make_spec(
        "dpt_hybrid" if config["is_hybrid"] else "dpt_base",
        heads={"segmentation" if segmentation else "depth": {**head, "upsample": "double"}},
        encoder=encoder,
        decoder={
            "reassemble_channels": channels,
            "scales": list(config["reassemble_factors"])[: len(channels)],
            "fusion_channels": config["fusion_hidden_size"],
            "readout": config["readout_type"],
            "batch_norm": bool(batch_norm),
            "unit_bias": not batch_norm if bias is None else bool(bias),
            "align": "resize_lateral",
            "output_project": bool(config["add_projection"]) and not segmentation,
        },
        preprocessing=read_preprocessing(source, encoder),
    )
    if segmentation and classes:
        spec["class_names"] = classes
    return spec


def _check_bit(source: Source, config: dict[str, Any]) -> None:
    backbone = {**BIT, **(config.get("backbone_config") or {})}
    wrong = [k for k in ("model_type", "layer_type", "depths") if backbone[k] != BIT[k]]
    if wrong or list(config["neck_hidden_sizes"])[:2] != [256, 512]:
        raise ValueError(
            f"{source.path}: a hybrid over another CNN than ResNet-50 (BiT), which is not read"
        )


def _two(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _patch(path: Path, size: Any) -> int:
    height, width = _two(size)
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
        "image_size": _two(config["image_size"]),
        "patch_size": _patch(path, config["patch_size"]),
        "in_channels": config["num_channels"],
        "out_indices": taps[2:] if config["is_hybrid"] else taps,
        "position_resize": "bilinear",
        **({"weight_standardization": "sqrt"} if config["is_hybrid"] else {}),
    }


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
    stages = config.get("out_indices")
    if not stages and config.get("out_features"):  # "stem" is 0, the first block "stage1"
        stages = [
            int(f.removeprefix("stage")) if f != "stem" else 0 for f in config["out_features"]
        ]
    if not stages or min(stages) < 1:
        raise ValueError(f"{path}: the backbone's out_indices={stages}: blocks are counted from 1")
    return {
        "embed_dim": config["hidden_size"],
        "num_blocks": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_ratio": config["mlp_ratio"],
        "qkv_bias": config["qkv_bias"],
        "norm_eps": config["layer_norm_eps"],
        "image_size": _two(config["image_size"]),
        "patch_size": _patch(path, config["patch_size"]),
        "in_channels": config["num_channels"],
        "out_indices": [s - 1 for s in stages],
        "position_resize": DINOV2[family],
        "layer_scale": config["layerscale_value"],
        "swiglu": config["use_swiglu_ffn"],
        "final_norm": config["apply_layernorm"],
        "num_register_tokens": config["num_register_tokens"] if "registers" in family else 0,
    }


def _class_names(config: dict[str, Any]) -> list[str]:
    names = config.get("id2label")
    if not isinstance(names, dict) or all(str(v).startswith("LABEL_") for v in names.values()):
        return []  # what transformers fills in where there are none
    return [names[k] for k in sorted(names, key=int)]


def read_preprocessing(source: Source, encoder: dict[str, Any]) -> dict[str, Any]:
    """Our preprocessing for a processor of transformers; its defaults where there is none."""
    p = source.processor or {}
    p = p.get("image_processor", p)  # processor_config.json nests it
    size = p.get("size", {"height": 384, "width": 384})
    if isinstance(size, dict):
        if not {"height", "width"} <= set(size):
            raise ValueError(f"{source.path}: its processor's size={size}: height and width needed")
        size = [size["height"], size["width"]]
    size = _two(size)
    resample = p.get("resample", 3)
    if resample not in RESAMPLE:
        raise ValueError(f"{source.path}: resample={resample}: only {RESAMPLE} are read")
    mean, std = p.get("image_mean", [0.5] * 3), p.get("image_std", [0.5] * 3)
    if not p.get("do_rescale", True):  # given for pixel values in 0..255
        mean, std = [m / 255 for m in mean], [s / 255 for s in std]
    rule = "minimal" if p.get("keep_aspect_ratio", False) else "stretch"
    if p.get("do_pad"):
        encoder["padding"] = "center"
    return {
        "mean": list(mean),
        "std": list(std),
        "image_size": size,
        "resize": rule if p.get("do_resize", True) else "none",
        "multiple_of": p.get("ensure_multiple_of") or 1,
        "interpolation": RESAMPLE[resample],
    }
