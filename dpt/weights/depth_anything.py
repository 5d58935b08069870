"""Depth Anything v1 and v2: the authors' ``.pth`` files, and transformers' folders.

Both hold a DINOv2 ViT whose final LayerNorm runs on every tap, and a decoder that ignores the CLS
token. A folder's config tells everything; a ``.pth`` holds tensors alone, and what they do not
tell follows these rules:

- sizes come from shapes, 64 channels a head, LayerNorm eps 1e-6
- v1 and v2 have the same tensors and differ in the taps: v1 takes the last four blocks, v2 spreads
  them. A file is v1 where it carries the name of its release (``depth_anything_vitl14``) or the
  hub config of v1's code; everything else is v2.
- v2's metric models multiply a sigmoid by a largest depth that is not in the file. A number stored
  under ``"max_depth"`` beside a wrapped state dict is taken; else the name says it, ``hypersim``
  (20 m) or ``vkitti`` (80 m), as the releases are called. Any other name means relative.

Away from the native grid the authors resize position codes by DINOv2's scale factor, transformers
by size: each reader stores its own policy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dpt.weights.depth_anything_names import (
    DECODER,
    ENCODER,
    FILE_UNUSED,
    FOLDER_UNUSED,
    FORMAT,
    HEAD,
    MAX_DEPTH,
    MODEL_TYPE,
    SCALES,
    SCRATCH,
    V1,
    rules_of,
)
from dpt.weights.depth_anything_write import write
from dpt.weights.dinov2 import spread_taps
from dpt.weights.files import Source, unwrap
from dpt.weights.naming import gather, split_unused
from dpt.weights.transformers import dinov2_encoder, read_preprocessing
from dpt.weights.vit_sizes import infer_vit, shape_of
from dpt.zoo import Spec, make_spec

__all__ = ["NAME", "matches", "read", "unused", "write"]

log = logging.getLogger("dpt")

NAME = FORMAT
FAMILY = "Depth Anything"
PREPROCESSING: dict[str, Any] = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "image_size": [518, 518],
    "resize": "lower_bound",
    "multiple_of": 14,
    "interpolation": "cubic",
}
DEFAULT_BACKBONE = {  # of transformers' DepthAnythingConfig
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_attention_heads": 6,
    "image_size": 518,
    "out_indices": [9, 10, 11, 12],
}
CONFIG = {
    "patch_size": 14,
    "reassemble_factors": SCALES,
    "neck_hidden_sizes": [48, 96, 192, 384],
    "fusion_hidden_size": 64,
    "head_in_index": -1,
    "head_hidden_size": 32,
    "depth_estimation_type": "relative",
    "max_depth": 1,
}


def _is_folder(source: Source) -> bool:
    return source.config is not None and source.config.get("model_type") == MODEL_TYPE


def matches(source: Source) -> bool:
    if source.config is not None and "model_type" in source.config:
        return _is_folder(source)
    names = unwrap(source.content)
    return any(k.startswith("pretrained.") for k in names) and any(
        k.startswith(SCRATCH) for k in names
    )


def read(source: Source) -> tuple[Spec, dict[str, Tensor]]:
    tensors = unwrap(source.content)
    spec = _folder_spec(source) if _is_folder(source) else _file_spec(source, tensors)
    state, left = gather(spec, tensors, rules_of(spec, folder=_is_folder(source)))
    _, unexpected = split_unused(left, _unused_patterns(source, spec))
    if _is_folder(source) and spec["heads"]["depth"]["kind"] == "relative":
        gain = {**CONFIG, **(source.config or {})}["max_depth"]
        if gain not in (None, 1):  # transformers multiplies relative depth by it too
            for name in ("heads.depth.conv3.weight", "heads.depth.conv3.bias"):
                state[name] = state[name] * gain
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the file that take no part in a prediction."""
    tensors = unwrap(source.content)
    spec = _folder_spec(source) if _is_folder(source) else _file_spec(source, tensors)
    return split_unused(tensors, _unused_patterns(source, spec))[0]


def _unused_patterns(source: Source, spec: Spec) -> tuple[str, ...]:
    """Names of what never runs; blocks behind the last tap among them."""
    encoder = spec["encoder"]
    behind = range(encoder["out_indices"][-1] + 1, encoder["num_blocks"])
    if _is_folder(source):
        return (*FOLDER_UNUSED, *(rf"backbone\.encoder\.layer\.{i}\." for i in behind))
    return (*FILE_UNUSED, *(rf"pretrained\.blocks\.{i}\." for i in behind))


def _file_spec(source: Source, tensors: Mapping[str, Tensor]) -> Spec:
    def channels(name: str) -> int:
        return shape_of(tensors, name, path=source.path, family=FAMILY)[0]

    unit = f"{SCRATCH}refinenet1.resConfUnit1"
    if f"{unit}.bn1.weight" in tensors:
        raise ValueError(f"{source.path}: Depth Anything with BatchNorm, which is not read")
    encoder = infer_vit(tensors, "pretrained.", path=source.path, family=FAMILY)
    num_blocks = encoder["num_blocks"]
    v1 = V1.search(source.path.name) is not None or source.config is not None
    if not v1 and "v2" not in source.path.name.lower():
        log.warning(
            "%s: taken as Depth Anything v2; v1 has the same tensors but other taps, and is known "
            "by its name alone (depth_anything_vit[sbl]14)",
            source.path,
        )
    last_four = list(range(num_blocks - 4, num_blocks))
    max_depth = _max_depth(source)
    head: dict[str, Any] = {"kind": "relative"}
    if max_depth is not None:
        head = {"kind": "metric", "activation": "sigmoid", "max_depth": max_depth}
    readout = f"{HEAD}readout_projects.0.0.weight" in tensors
    return make_spec(
        "dpt_base",
        heads={"depth": {**head, "hidden_channels": channels(f"{SCRATCH}output_conv2.0.weight")}},
        encoder={
            **ENCODER,
            **encoder,
            "out_indices": last_four if v1 else spread_taps(num_blocks),
            "position_resize": "dinov2",
        },
        decoder={
            **DECODER,
            "readout": "project" if readout else "ignore",
            "reassemble_channels": [channels(f"{HEAD}projects.{i}.weight") for i in range(4)],
            "fusion_channels": channels(f"{SCRATCH}layer1_rn.weight"),
            "scales": SCALES,
        },
        preprocessing={**PREPROCESSING, "multiple_of": encoder["patch_size"]},
    )


def _max_depth(source: Source) -> float | None:
    """Of a metric ``.pth``; None for a relative one. See the rule at the top of this module."""
    stored = source.content.get("max_depth")
    if isinstance(stored, int | float) and stored > 0:
        return float(stored)
    name = source.path.name.lower()
    for word, metres in MAX_DEPTH.items():
        if word in name:
            return metres
    if "metric" in name:
        raise ValueError(
            f"{source.path}: metric by its name, but no largest depth is stored in it: let the "
            "name contain hypersim (20 m) or vkitti (80 m), or save the file as "
            '{"model": tensors, "max_depth": metres}'
        )
    return None


def _folder_spec(source: Source) -> Spec:
    assert source.config is not None
    config = {**CONFIG, **source.config}
    encoder = dinov2_encoder(source.path, config.get("backbone_config") or DEFAULT_BACKBONE)
    wrong = [] if encoder["final_norm"] else ["a backbone without apply_layernorm"]
    if encoder["num_register_tokens"]:
        wrong.append("register tokens, which its code takes for patches")
    if encoder["patch_size"] != config["patch_size"]:
        wrong.append(f"patch_size={config['patch_size']} over {encoder['patch_size']}")
    if config["head_in_index"] not in (-1, 3):
        wrong.append(f"head_in_index={config['head_in_index']}")
    if wrong:
        raise ValueError(f"{source.path}: a Depth Anything that is not read: {', '.join(wrong)}")
    head: dict[str, Any] = {"kind": config["depth_estimation_type"]}
    if head["kind"] == "metric":
        head |= {"activation": "sigmoid", "max_depth": float(config["max_depth"])}
    preprocessing = {**PREPROCESSING, "resize": "minimal", "multiple_of": encoder["patch_size"]}
    if source.processor is not None:
        preprocessing = read_preprocessing(source, encoder)
    return make_spec(
        "dpt_base",
        heads={"depth": {**head, "hidden_channels": config["head_hidden_size"]}},
        encoder=encoder,
        decoder={
            **DECODER,
            "reassemble_channels": list(config["neck_hidden_sizes"]),
            "fusion_channels": config["fusion_hidden_size"],
            "scales": list(config["reassemble_factors"]),
        },
        preprocessing=preprocessing,
    )
