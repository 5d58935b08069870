"""Folders of segmentation_models.pytorch's DPT: timm's ViT, a unit on the deepest lateral too."""

import math

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import base, names
from dpt.weights.files import CheckpointFiles

ENCODER = "encoder.model."
NEVER_RUN = [ENCODER + n for n in ("norm.*", "fc_norm.*", "head.*", "head_dist.*", "attn_pool.*")]
READOUTS = {"cat": "project", "add": "add", "ignore": "ignore"}
DEFAULTS: Plain = {  # of its code
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
NOT_TIMMS = {
    *(*DEFAULTS, "_model_class", "encoder_name", "encoder_weights"),
    *("dynamic_img_size", "strict_img_size"),
}
"""Keys of a config that are not passed on to timm; our encoder sets image sizes itself."""


class Smp(base.Format):
    name = "smp"

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("_model_class") == "DPT" and "encoder_name" in files.config

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        shapes = names.Shapes(files.tensors, "smp")
        config, num_blocks = {**DEFAULTS, **files.config}, shapes.count(f"{ENCODER}blocks.")
        levels, patch = config["encoder_depth"], shapes(f"{ENCODER}patch_embed.proj.weight")[-1]
        prefix_tokens = ("cls_token", "dist_token", "reg_token")
        tokens = [n for n in prefix_tokens if ENCODER + n in shapes.tensors]
        _require_supported(config, tokens)
        spread = [int(num_blocks / levels * (i + 1)) - 1 for i in range(levels)]
        out_indices = [i % num_blocks for i in config["encoder_output_indices"] or spread]
        name = str(config["encoder_name"]).removeprefix("tu-")
        of_timm = {k: v for k, v in config.items() if k not in NOT_TIMMS and v is not None}
        ours = model_dict(
            "dpt_base",
            heads={"segmentation": {"num_classes": config["classes"], "auxiliary": False}},
            encoder={"kind": "timm", "name": name, "out_indices": out_indices, **of_timm},
            decoder={
                "reassemble_channels": list(config["decoder_intermediate_channels"]),
                "fusion_channels": config["decoder_fusion_channels"],
                "readout": READOUTS[config["decoder_readout"]],
                "scales": [patch / 2 ** (i + 2) for i in range(levels)],
                "batch_norm": True,
                "unit_bias": False,
                "deepest_unit": True,
            },
            preprocessing=_read_preprocessing(config, shapes, name, patch, len(tokens)),
        )
        later = [f"{ENCODER}blocks.{i}.*" for i in range(out_indices[-1] + 1, num_blocks)]
        return base.StoredModel(ours, files.tensors, _table(levels), [*NEVER_RUN, *later])


def _table(levels: int) -> names.Table:
    """Returns the rows; its fusion blocks are counted from the deepest level."""
    block = "decoder.reassemble_blocks.{n}"
    fusion = f"decoder.fusion_blocks.{{{levels - 1}-n}}"
    unit = f"{fusion}.residual_conv_block{{k}}"
    return [
        ("encoder.model.*", "encoder.model.*"),
        ("decoder.reassemble.{n}.read.linear.*", "decoder.projection_blocks.{n}.project.0.*"),
        ("decoder.reassemble.{n}.project.*", f"{block}.project_to_out_channel.*"),
        ("decoder.reassemble.{n}.resample.conv.*", f"{block}.upsample.*"),
        ("decoder.layer_rn.{n}.*", f"{block}.project_to_feature_dim.*"),
        ("decoder.fusion.{n}.project.*", f"{fusion}.project.*"),
        ("decoder.fusion.{n}.rcu{k}.conv{j}.*", f"{unit}.conv_{{j}}.*"),
        ("decoder.fusion.{n}.rcu{k}.bn{j}.*", f"{unit}.batch_norm_{{j}}.*"),
        ("heads.segmentation.layers.*", "segmentation_head.head.*"),
    ]


def _require_supported(config: Plain, tokens: list[str]) -> None:
    allowed = {"activation": (None, "identity"), "aux_params": (None,), "in_channels": (3,)}
    faults = [f"{k}={config[k]!r}" for k, values in allowed.items() if config[k] not in values]
    if config["decoder_readout"] == "add" and tokens != ["cls_token"]:
        faults.append(f"decoder_readout='add', which averages {', '.join(tokens)}")
    if faults:
        raise ValueError(f"a DPT of smp that is not supported: {', '.join(faults)}")


def _read_preprocessing(
    config: Plain, shapes: names.Shapes, name: str, patch: int, num_tokens: int
) -> Plain:
    """Returns the image size of square position embeddings, and the statistics of timm's model."""
    from timm.models import get_pretrained_cfg

    preprocessing: Plain = {"resize": "none", "multiple_of": 2 * patch}
    positions = f"{ENCODER}pos_embed"
    slots = shapes(positions)[1] if positions in shapes.tensors else 0
    side = math.isqrt(slots)
    if side and slots - side**2 in (0, 1, num_tokens):  # with slots of tokens before the patches
        preprocessing["image_size"] = [side * patch] * 2
        if not config.get("dynamic_img_size"):
            preprocessing["resize"] = "stretch"  # to the only size that it takes
    released = get_pretrained_cfg(name)
    if released is not None:
        preprocessing["mean"], preprocessing["std"] = list(released.mean), list(released.std)
        method = released.interpolation.replace("bicubic", "cubic")
        preprocessing["interpolation"] = f"{method}_antialias"  # timm resizes by Pillow
    return preprocessing
