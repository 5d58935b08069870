"""Folders of transformers' ``dpt``: its own ViT or the hybrid, or depth over a ``backbone_config``.

Names are those on disk, which transformers keeps while names in memory change. Its DINOv2 codes
are resized by size (``bicubic``), with registers also antialiased; its own ViT's and BEiT's tables
``bilinear``. Beside DINOv2, backbones are BEiT and SwinV2; over Swin transformers' dpt cannot run.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dpt.weights.files import Source, unwrap
from dpt.weights.naming import gather, split_unused
from dpt.weights.transformers_backbones import (
    BEIT_DEFAULTS,
    DEFAULTS,
    DINOV2_DEFAULTS,
    SWINV2_DEFAULTS,
    backbone_encoder,
    dinov2_encoder,
    two,
    vit_encoder,
)
from dpt.weights.transformers_names import (
    BIT,
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
    "BEIT_DEFAULTS",
    "DEFAULTS",
    "DINOV2_DEFAULTS",
    "DINOV2_RULES",
    "MLP_RULES",
    "NAME",
    "SWIGLU_RULES",
    "SWINV2_DEFAULTS",
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
        encoder = backbone_encoder(source.path, backbone)
    if config["head_in_index"] not in (-1, len(config["neck_hidden_sizes"]) - 1):
        raise ValueError(f"{source.path}: head_in_index={config['head_in_index']}: only -1 is read")
    channels: list[int | None] = list(config["neck_hidden_sizes"])
    scales, readout = list(config["reassemble_factors"])[: len(channels)], config["readout_type"]
    if config["is_hybrid"]:
        channels[:2] = [None, None]
    elif encoder.get("kind") == "timm":  # a pyramid's maps go straight to the fusion
        channels, scales, readout = [None] * len(channels), [1] * len(channels), "ignore"
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
    if segmentation and backbone is not None:
        raise ValueError(
            f"{source.path}: segmentation over a backbone_config, which transformers never looks "
            "at: it builds its own ViT there"
        )
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
            "scales": scales,
            "fusion_channels": config["fusion_hidden_size"],
            "readout": readout,
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
    size = two(size)
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
