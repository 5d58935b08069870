"""Folders of segmentation_models.pytorch's DPT, as its ``save_pretrained`` writes them.

Its ViT is timm's and stays so. A bare state dict tells neither the encoder nor the taps: the config
is needed. Unlike official DPT, it runs a residual unit on the deepest lateral too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dpt.weights.files import Source, unwrap
from dpt.weights.naming import Rule, gather, split_unused
from dpt.weights.vit_sizes import count_blocks
from dpt.zoo import Spec, make_spec

NAME = "smp"
ENCODER = "encoder.model."
READOUTS = {"cat": "project", "add": "add", "ignore": "ignore"}
DEFAULTS: dict[str, Any] = {
    "encoder_depth": 4,
    "encoder_output_indices": None,
    "decoder_readout": "cat",
    "decoder_intermediate_channels": [256, 512, 1024, 1024],
    "decoder_fusion_channels": 256,
    "in_channels": 3,
    "classes": 1,
    "activation": None,
    "aux_params": None,
}
"""What its code takes where a config is silent."""

ANY_SIZE = ("dynamic_img_size", "strict_img_size")
"""timm's switches for other image sizes, which our encoder sets itself."""

INTERPOLATIONS = {"bicubic": "cubic", "bilinear": "bilinear"}


def matches(source: Source) -> bool:
    if source.config is not None:
        return source.config.get("_model_class") == "DPT" and "encoder_name" in source.config
    return "decoder.reassemble_blocks.0.project_to_feature_dim.weight" in unwrap(source.content)


def read(source: Source) -> tuple[Spec, dict[str, Tensor]]:
    tensors = unwrap(source.content)
    spec = _spec(source, tensors)
    state, left = gather(spec, tensors, rules_of(len(spec["decoder"]["scales"])))
    _, unexpected = split_unused(left, _unused_patterns(spec))
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the folder that take no part in a prediction."""
    tensors = unwrap(source.content)
    return split_unused(tensors, _unused_patterns(_spec(source, tensors)))[0]


def rules_of(levels: int) -> list[Rule]:
    """From our names to its; its fusion blocks are counted from the deepest."""

    def fusion(number: str) -> str:
        return f"decoder.fusion_blocks.{levels - 1 - int(number)}"

    block = r"decoder.reassemble_blocks.\1"
    return [
        (r"encoder\.model\.(.+)", r"encoder.model.\1"),
        (
            r"decoder\.reassemble\.(\d)\.read\.linear\.(.+)",
            r"decoder.projection_blocks.\1.project.0.\2",
        ),
        (r"decoder\.reassemble\.(\d)\.project\.(.+)", rf"{block}.project_to_out_channel.\2"),
        (r"decoder\.reassemble\.(\d)\.resample\.conv\.(.+)", rf"{block}.upsample.\2"),
        (r"decoder\.layer_rn\.(\d)\.(.+)", rf"{block}.project_to_feature_dim.\2"),
        (r"decoder\.fusion\.(\d)\.project\.(.+)", lambda m: f"{fusion(m[1])}.project.{m[2]}"),
        (
            r"decoder\.fusion\.(\d)\.rcu(\d)\.conv(\d)\.(.+)",
            lambda m: f"{fusion(m[1])}.residual_conv_block{m[2]}.conv_{m[3]}.{m[4]}",
        ),
        (
            r"decoder\.fusion\.(\d)\.rcu(\d)\.bn(\d)\.(.+)",
            lambda m: f"{fusion(m[1])}.residual_conv_block{m[2]}.batch_norm_{m[3]}.{m[4]}",
        ),
        (r"heads\.segmentation\.layers\.(.+)", r"segmentation_head.head.\1"),
    ]


def _unused_patterns(spec: Spec) -> list[str]:
    """Names of what never runs: timm's own head and norms, blocks behind the last tap."""
    last = spec["encoder"]["out_indices"][-1]
    behind = rf"encoder\.model\.blocks\.(?!(?:{'|'.join(map(str, range(last + 1)))})\.)"
    heads = r"encoder\.model\.(?:norm|fc_norm|head|head_dist|attn_pool)\."
    return [heads, behind]


def _spec(source: Source, tensors: Mapping[str, Tensor]) -> Spec:
    path = source.path
    if source.config is None:
        raise ValueError(
            f"{path}: the tensors of a DPT of segmentation_models.pytorch, which tell neither its "
            "encoder nor its taps: save it as a folder, by its save_pretrained"
        )
    config = {**DEFAULTS, **source.config}
    kernel = tensors.get(f"{ENCODER}patch_embed.proj.weight")
    if kernel is None or kernel.ndim != 4:
        raise ValueError(f"{path}: no {ENCODER}patch_embed.proj.weight: only plain ViTs are read")
    readout, patch = config["decoder_readout"], kernel.shape[-1]
    prefixes = [n for n in ("cls_token", "dist_token", "reg_token") if f"{ENCODER}{n}" in tensors]
    several = prefixes != ["cls_token"]
    wrong = [
        f"{key}={config[key]!r}"
        for key, fine in (
            ("activation", (None, "identity")),
            ("aux_params", (None,)),
            ("in_channels", (3,)),
        )
        if config[key] not in fine
    ]
    if patch & (patch - 1):
        wrong.append(f"patch size {patch}, whose maps it does not double")
    if readout != "ignore" and "cls_token" not in prefixes:
        wrong.append(f"decoder_readout={readout!r} without a CLS token")
    if readout == "add" and several:
        wrong.append(f"decoder_readout='add', which averages {', '.join(prefixes)}")
    if wrong:
        raise ValueError(f"{path}: a DPT of smp that is not read: {', '.join(wrong)}")
    name = str(config["encoder_name"]).removeprefix("tu-")
    levels = config["encoder_depth"]
    scales = [patch / 2 ** (i + 2) for i in range(levels)]
    arguments = {
        k: v
        for k, v in source.config.items()
        if k not in (*DEFAULTS, *ANY_SIZE, "encoder_name", "encoder_weights")
        and not k.startswith("_")
        and v is not None
    }
    return make_spec(
        "dpt_base",
        heads={"segmentation": {"num_classes": config["classes"], "auxiliary": False}},
        encoder={
            "kind": "timm",
            "name": name,
            "out_indices": _taps(config["encoder_output_indices"], levels, tensors),
            **arguments,
        },
        decoder={
            "reassemble_channels": list(config["decoder_intermediate_channels"]),
            "fusion_channels": config["decoder_fusion_channels"],
            "readout": READOUTS[readout],
            "scales": scales,
            "batch_norm": True,
            "unit_bias": False,
            "deepest_unit": True,
        },
        preprocessing=_preprocessing(name, patch, tensors, len(prefixes), config),
    )


def _taps(given: Any, levels: int, tensors: Mapping[str, Tensor]) -> list[int]:
    total = count_blocks(tensors, f"{ENCODER}blocks.")
    if given is None:
        return [int(total / levels * (i + 1)) - 1 for i in range(levels)]
    return [i % total for i in given]


def _preprocessing(
    name: str, patch: int, tensors: Mapping[str, Tensor], prefixes: int, config: Mapping[str, Any]
) -> dict[str, Any]:
    """What timm notes for the encoder, as smp's own preprocessing; its size where it has one."""
    from timm.models import get_pretrained_cfg

    known = get_pretrained_cfg(name)
    codes = tensors.get(f"{ENCODER}pos_embed")
    settings: dict[str, Any] = {"resize": "none", "multiple_of": 2 * patch}
    if codes is not None:
        for slots in (prefixes, 1, 0):
            side = round(max(codes.shape[1] - slots, 0) ** 0.5)
            if side and side * side == codes.shape[1] - slots:
                settings["image_size"] = [side * patch, side * patch]
                if not config.get("dynamic_img_size"):  # the only size that it takes
                    settings["resize"] = "stretch"
                break
    if known is not None:
        settings |= {"mean": list(known.mean), "std": list(known.std)}
        if known.interpolation in INTERPOLATIONS:
            settings["interpolation"] = INTERPOLATIONS[known.interpolation]
    return settings
