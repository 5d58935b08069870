"""Writing folders that transformers opens: ``config.json``, weights and an image processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpt.types import Preprocessing
from dpt.weights.naming import (
    PLAIN_ENCODER,
    complete,
    one_dense_head,
    refuse_unless,
    restandardize,
    scatter,
)
from dpt.weights.native import write_folder
from dpt.weights.transformers_names import BIT, DINOV2, RESAMPLE, has_backbone, rules_of
from dpt.zoo import Spec

FORMAT = "transformers"


def write(spec: Spec, state: dict[str, Tensor], path: str | Path) -> list[str]:
    """Writes a folder that transformers opens, image processor included.

    Returns:
        What a user should know of the result.

    Raises:
        ValueError: an option of the model that transformers' ``dpt`` has no place for.
    """
    full = complete(spec)
    notes: list[str] = []
    config, processor = make_config(full, notes), make_processor(full, notes)
    if full["encoder"].get("weight_standardization", "sqrt") != "sqrt":
        state = restandardize(state, "sqrt")
        notes.append("the CNN's weights were scaled for transformers' weight standardisation")
    config["dtype"] = str(state["encoder.cls_token"].dtype).removeprefix("torch.")
    tensors = scatter(state, rules_of(spec))
    _add_unused(tensors, full)
    folder = Path(path)
    write_folder(folder, config, tensors)
    text = json.dumps(processor, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")
    return notes


def make_config(full: Spec, notes: list[str]) -> dict[str, Any]:
    encoder, decoder = full["encoder"], full["decoder"]
    name, head = one_dense_head(FORMAT, full)
    _check_head(full, name, head, notes)
    refuse_unless(FORMAT, "decoder", decoder, {"deepest_unit": False})  # there it never runs
    config: dict[str, Any] = {
        "architectures": [
            "DPTForDepthEstimation" if name == "depth" else "DPTForSemanticSegmentation"
        ],
        "model_type": "dpt",
        "hidden_act": "gelu",
        "readout_type": decoder["readout"],
        "reassemble_factors": list(decoder["scales"]),
        "neck_hidden_sizes": list(decoder["reassemble_channels"]),
        "fusion_hidden_size": decoder["fusion_channels"],
        "use_batch_norm_in_fusion_residual": decoder["batch_norm"],
        "use_bias_in_fusion_residual": decoder["unit_bias"],
        "add_projection": decoder["output_project"],
        "head_in_index": -1,
    }
    if name == "segmentation":
        classes = full.get("class_names") or [f"LABEL_{i}" for i in range(head["num_classes"])]
        config["id2label"] = {str(i): c for i, c in enumerate(classes)}
        config["label2id"] = {c: i for i, c in enumerate(classes)}
        config["use_auxiliary_head"] = head["auxiliary"]
        config["semantic_classifier_dropout"] = head["dropout"]
    if encoder["kind"] not in ("vit", "hybrid", "beit"):
        raise ValueError(
            f"the {FORMAT} format (dpt) is not written over a {encoder['kind']} encoder: vit, "
            "hybrid or beit"
        )
    if has_backbone(encoder):
        if name == "segmentation":
            raise ValueError(
                f"the {FORMAT} format (dpt) has no segmentation over a DINOv2 or BEiT encoder"
            )
        if None in decoder["reassemble_channels"]:
            raise ValueError(f"the {FORMAT} format (dpt) has a projection on every level")
        backbone = _beit_config if encoder["kind"] == "beit" else _dinov2_config
        return {**config, "is_hybrid": False, "backbone_config": backbone(encoder)}
    return {**config, **_vit_config(encoder, decoder)}


def _check_head(full: Spec, name: str, head: dict[str, Any], notes: list[str]) -> None:
    decoder, patch = full["decoder"], full["encoder"].get("patch_size", 16)
    if name == "depth":
        if head["kind"] == "metric" and (head["activation"] != "relu" or head["min_depth"]):
            raise ValueError(
                f"the {FORMAT} format (dpt) has no metric depth head ({head['activation']}): its "
                "depth is relative; convert to depth_anything, or keep our own format"
            )
        if head["kind"] == "metric" and not decoder["output_project"]:
            raise ValueError(f"the {FORMAT} format (dpt) would read this metric depth as relative")
        refuse_unless(FORMAT, "heads.depth", head, {"hidden_channels": 32})
    if decoder["output_project"]:
        refuse_unless(FORMAT, "decoder", decoder, {"fusion_channels": 256})
        if name == "segmentation":
            raise ValueError(f"the {FORMAT} format (dpt) has output_project for depth alone")
    if head["upsample"] != "double" and patch != 16:
        raise ValueError(
            f"transformers' heads double the map, which at patch size {patch} is not the image's "
            "size: only a head with upsample='double' can be expressed"
        )
    if decoder["align"] != "resize_lateral":
        notes.append(
            f"exact at sides that are multiples of {2 * patch} pixels; at other sizes transformers "
            "resizes laterals instead"
        )


def _vit_config(encoder: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    refuse_unless(FORMAT, "encoder", encoder, PLAIN_ENCODER)
    height, width = encoder["image_size"]
    if height != width:
        raise ValueError(f"transformers' own ViT takes square images alone, not {height}x{width}")
    dim, patch = encoder["embed_dim"], encoder["patch_size"]
    hybrid = encoder["kind"] == "hybrid"
    config = {
        "is_hybrid": hybrid,
        "hidden_size": dim,
        "num_hidden_layers": _num_blocks(encoder),
        "num_attention_heads": encoder["num_heads"],
        "intermediate_size": int(dim * encoder["mlp_ratio"]),
        "layer_norm_eps": encoder["norm_eps"],
        "qkv_bias": encoder["qkv_bias"],
        "image_size": height,
        "patch_size": patch,
        "num_channels": 3,
        "backbone_out_indices": list(encoder["out_indices"]),
    }
    channels = list(decoder["reassemble_channels"])
    if hybrid:
        if channels[:2] != [None, None] or decoder["readout"] != "project":
            raise ValueError(
                f"the {FORMAT} format (dpt) has hybrids with readout 'project' and without a "
                "projection on the first two levels only"
            )
        config["neck_hidden_sizes"] = [256, 512, *channels[2:]]
        config["backbone_out_indices"] = [0, 1, *encoder["out_indices"]]
        config["backbone_featmap_shape"] = [1, 1024, height // patch, width // patch]
        config["neck_ignore_stages"] = [0, 1]
        config["backbone_config"] = BIT
    elif None in channels:
        raise ValueError(f"the {FORMAT} format (dpt) has a projection on every level")
    return config


def _dinov2_config(encoder: dict[str, Any]) -> dict[str, Any]:
    plain = {k: v for k, v in PLAIN_ENCODER.items() if k in ("position", "cls_position", "gelu")}
    refuse_unless(FORMAT, "encoder", encoder, {**plain, "norm_order": "pre", "in_channels": 3})
    policy = encoder["position_resize"]
    families = {v: k for k, v in DINOV2.items()}
    if policy not in families:
        raise ValueError(
            f"the {FORMAT} format resizes position codes of DINOv2 encoders by {sorted(families)}, "
            f"not {policy!r}"
        )
    if encoder["num_register_tokens"] and families[policy] != "dinov2_with_registers":
        raise ValueError(f"the {FORMAT} format resizes codes beside registers by bicubic_antialias")
    if encoder["num_register_tokens"]:
        raise ValueError(
            "transformers' dpt cannot run over register tokens: it takes them for patches"
        )
    height, width = encoder["image_size"]
    if height != width:
        raise ValueError(f"transformers' DINOv2 has square position grids, not {height}x{width}")
    if encoder["mlp_ratio"] != int(encoder["mlp_ratio"]):
        raise ValueError(f"transformers' DINOv2 has whole mlp_ratio, not {encoder['mlp_ratio']}")
    stages = [i + 1 for i in encoder["out_indices"]]
    config = {
        "model_type": families[policy],
        "hidden_size": encoder["embed_dim"],
        "num_hidden_layers": _num_blocks(encoder),
        "num_attention_heads": encoder["num_heads"],
        "mlp_ratio": int(encoder["mlp_ratio"]),
        "qkv_bias": encoder["qkv_bias"],
        "layer_norm_eps": encoder["norm_eps"],
        "image_size": height,
        "patch_size": encoder["patch_size"],
        "layerscale_value": encoder["layer_scale"],
        "use_swiglu_ffn": encoder["swiglu"],
        "apply_layernorm": encoder["final_norm"],
        "reshape_hidden_states": False,
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
    }
    if families[policy] == "dinov2_with_registers":
        config["num_register_tokens"] = 0
    else:
        config["use_mask_token"] = False
    return config


def _beit_config(encoder: dict[str, Any]) -> dict[str, Any]:
    needed = {
        "in_channels": 3,
        "position_resize": "bilinear",
        "qkv_bias": True,
        "norm_order": "pre",
        "gelu": "exact",
        "swiglu": False,
        "final_norm": False,
    }
    refuse_unless(FORMAT, "encoder", encoder, needed)
    height, width = encoder["image_size"]
    if height != width:
        raise ValueError(f"transformers' BEiT has square position tables, not {height}x{width}")
    stages = [i + 1 for i in encoder["out_indices"]]
    return {
        "model_type": "beit",
        "hidden_size": encoder["embed_dim"],
        "num_hidden_layers": _num_blocks(encoder),
        "num_attention_heads": encoder["num_heads"],
        "intermediate_size": int(encoder["embed_dim"] * encoder["mlp_ratio"]),
        "layer_norm_eps": encoder["norm_eps"],
        "image_size": height,
        "patch_size": encoder["patch_size"],
        "use_relative_position_bias": True,
        "layer_scale_init_value": encoder["layer_scale"] or 0.0,
        "reshape_hidden_states": False,
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
    }


def _num_blocks(encoder: dict[str, Any]) -> int:
    return encoder["out_indices"][-1] + 1  # later ones are not built


def make_processor(full: Spec, notes: list[str]) -> dict[str, Any]:
    """``preprocessor_config.json`` of the image processor that comes closest to ours."""
    encoder = full["encoder"]
    multiple = encoder.get("patch_size", 16)
    p = Preprocessing.from_dict({"multiple_of": multiple, **full["preprocessing"]})
    rule, (height, width) = p.resize, p.image_size
    if not has_backbone(encoder):  # its ViT reads the grid as a square
        if rule != "stretch" or height != width:
            notes.append(
                "transformers' own ViT takes square images alone: its processor stretches pictures "
                f"to {encoder['image_size'][0]}x{encoder['image_size'][1]} (ours: {rule} "
                f"{height}x{width})"
            )
        rule, (height, width) = "stretch", tuple(encoder["image_size"])
    elif rule in ("lower_bound", "upper_bound"):
        larger = "at least as large as" if rule == "lower_bound" else "no larger than"
        notes.append(
            f"transformers has no {rule} rule; keep_aspect_ratio does the same for pictures "
            f"{larger} {height}x{width}"
        )
    notes.append("transformers filters pictures when it shrinks them (antialias); ours does not")
    processor = {
        "image_processor_type": "DPTImageProcessor",
        "do_resize": rule != "none",
        "size": {"height": height, "width": width},
        "keep_aspect_ratio": rule in ("minimal", "lower_bound", "upper_bound"),
        "ensure_multiple_of": p.multiple_of,
        "resample": {v: k for k, v in RESAMPLE.items()}[p.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
        "do_pad": encoder.get("padding") == "center",
    }
    if processor["do_pad"]:
        processor["size_divisor"] = multiple
    return processor


def _add_unused(tensors: dict[str, Tensor], full: Spec) -> None:
    """What transformers would report as missing, though it never runs."""
    unit = "neck.fusion_stage.layers.0.residual_layer"
    for name in [n for n in tensors if n.startswith(f"{unit}2.")]:
        tensors[name.replace(f"{unit}2.", f"{unit}1.")] = torch.zeros_like(tensors[name])
    encoder = full["encoder"]
    if encoder["kind"] == "beit":
        return
    dim = encoder["embed_dim"]
    dinov2 = has_backbone(encoder)
    norm = "backbone.layernorm" if dinov2 else "dpt.layernorm"
    tensors.setdefault(f"{norm}.weight", torch.ones(dim))
    tensors.setdefault(f"{norm}.bias", torch.zeros(dim))
    if dinov2 and encoder["position_resize"] == "bicubic_antialias":
        tensors["backbone.embeddings.register_tokens"] = torch.zeros(1, 0, dim)
        tensors["backbone.embeddings.mask_token"] = torch.zeros(1, dim)
