"""Folders of segmentation_models.pytorch's DPT: timm's ViT, a unit on the deepest lateral too."""

import math

from dpt.model_config import model_dict
from dpt.weights.files import Source
from dpt.weights.format import Checkpoint, Config, Format, Shapes, Table, from_theirs

ENCODER = "encoder.model."
READOUTS = {"cat": "project", "add": "add", "ignore": "ignore"}
DEFAULTS: Config = {  # of its code
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
NOT_TIMMS = {*DEFAULTS, "encoder_name", "encoder_weights", "dynamic_img_size", "strict_img_size"}
"""Keys of a config that are not passed on to timm; our encoder sets the last two itself."""


class Smp(Format):
    name = "smp"

    def recognises(self, source: Source) -> bool:
        if source.config:
            return source.config.get("_model_class") == "DPT" and "encoder_name" in source.config
        return "decoder.reassemble_blocks.0.project_to_feature_dim.weight" in source.tensors

    def read(self, source: Source) -> Checkpoint:
        shapes = Shapes(source.tensors, "smp")
        config = _config(source, shapes)
        total = shapes.count(f"{ENCODER}blocks.")
        behind = range(config["encoder"]["out_indices"][-1] + 1, total)
        heads = ("norm", "fc_norm", "head", "head_dist", "attn_pool")
        unused = [f"{ENCODER}{n}.*" for n in (*heads, *(f"blocks.{i}" for i in behind))]
        table = _table(len(config["decoder"]["scales"]))
        return from_theirs(config, source.tensors, table, unused)


def _table(levels: int) -> Table:
    """Names; its fusion blocks are counted from the deepest level."""
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


def _config(source: Source, shapes: Shapes) -> Config:
    from timm.models import get_pretrained_cfg

    tensors = source.tensors
    if not source.config:
        raise ValueError("tensors of smp's DPT without its settings: save it by save_pretrained")
    config = {**DEFAULTS, **source.config}
    patch = shapes(f"{ENCODER}patch_embed.proj.weight")[-1]
    readout = config["decoder_readout"]
    prefixes = [n for n in ("cls_token", "dist_token", "reg_token") if f"{ENCODER}{n}" in tensors]
    allowed = {"activation": (None, "identity"), "aux_params": (None,), "in_channels": (3,)}
    wrong = [f"{k}={config[k]!r}" for k, values in allowed.items() if config[k] not in values]
    if patch & (patch - 1):
        wrong.append(f"patch size {patch}, whose maps it does not double")
    if readout == "add" and prefixes != ["cls_token"]:
        wrong.append(f"decoder_readout='add', which averages {', '.join(prefixes)}")
    if wrong:
        raise ValueError(f"a DPT of smp that is not supported: {', '.join(wrong)}")
    name = str(config["encoder_name"]).removeprefix("tu-")
    levels, total = config["encoder_depth"], shapes.count(f"{ENCODER}blocks.")
    out_indices = config["encoder_output_indices"]
    if out_indices is None:
        out_indices = [int(total / levels * (i + 1)) - 1 for i in range(levels)]
    timms = {k: v for k, v in source.config.items() if k not in NOT_TIMMS and k[0] != "_"}
    preprocessing: Config = {"resize": "none", "multiple_of": 2 * patch}
    slots = shapes(f"{ENCODER}pos_embed")[1] if f"{ENCODER}pos_embed" in tensors else 0
    for before in (len(prefixes), 1, 0):  # slots before those of patches
        side = math.isqrt(max(slots - before, 0))
        if side and side * side == slots - before:
            preprocessing["image_size"] = [side * patch] * 2
    if "image_size" in preprocessing and not config.get("dynamic_img_size"):
        preprocessing["resize"] = "stretch"  # to the only size that it takes
    if known := get_pretrained_cfg(name):
        preprocessing |= {"mean": list(known.mean), "std": list(known.std)}
        method = known.interpolation.replace("bicubic", "cubic")
        preprocessing["interpolation"] = f"{method}_antialias"  # timm resizes by Pillow
    return model_dict(
        "dpt_base",
        heads={"segmentation": {"num_classes": config["classes"], "auxiliary": False}},
        encoder={
            "kind": "timm",
            "name": name,
            "out_indices": [i % total for i in out_indices],
            **{k: v for k, v in timms.items() if v is not None},
        },
        decoder={
            "reassemble_channels": list(config["decoder_intermediate_channels"]),
            "fusion_channels": config["decoder_fusion_channels"],
            "readout": READOUTS[readout],
            "scales": [patch / 2 ** (i + 2) for i in range(levels)],
            "batch_norm": True,
            "unit_bias": False,
            "deepest_unit": True,
        },
        preprocessing=preprocessing,
    )
