"""DINOv2's and DINOv3's own DPT depth heads, with their backbones.

A released head (``dinov2_vits14_nyu_dpt_head.pth``, or DINOv3's SYNTHMIX
``dinov3_vit7b16_synthmix_dpt_head-02040be1.pth``) is read together with its backbone if that lies
beside it under its released name (``dinov2_vits14_pretrain.pth``,
``dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth``); a file of the whole depther is read too.

- DINOv2's head gives relu(x) + 0.001 metres. Its depther also clips at 10 m (NYU) or 80 m (KITTI);
  that number is in no file, and nothing is clipped here.
- DINOv3's bins (Siméoni et al. 2025) are in no file. CHMv2, the depther of canopy heights, is not
  read: it has a readout.
"""

import re

from torch import Tensor

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import base, names
from dpt.weights.files import CheckpointFiles, read_tensors, unwrap

V2, V2_BACKBONE = "decode_head.", "backbone."
V3, V3_BACKBONE = "decoder.", "encoder.backbone."
V2_HEAD_FILE = re.compile(r"(dinov2_vit[sblg]14(?:_reg4)?)_\w+_dpt_head\.pth$")
V3_HEAD_FILE = re.compile(r"(dinov3_\w+)_synthmix_dpt_head(-\w+)?\.pth$")
V3_NEVER_RUN = ("mask_token", "rope_embed.periods", "local_cls_norm.*")


def _table(theirs: str, backbone: str, encoder: Plain, *, gate: str, registers: str) -> names.Table:
    """Returns the rows of a depther; ``theirs`` and ``backbone`` are prefixes of names."""
    blocks, fusion = f"{theirs}reassemble_blocks", f"{theirs}fusion_blocks.{{3-n}}"
    return [
        *names.gated_rows(encoder, f"{backbone}blocks.{{i}}.mlp", gate, "w3"),
        ("encoder.reg_token", f"{backbone}{registers}"),
        ("encoder.*", f"{backbone}*"),
        ("decoder.reassemble.{n}.norm.*", f"{blocks}.batchnorm_layers.{{n}}.*"),
        ("decoder.reassemble.{n}.read.linear.*", f"{blocks}.readout_projects.{{n}}.0.*"),
        ("decoder.reassemble.{n}.project.*", f"{blocks}.projects.{{n}}.conv.*"),
        ("decoder.reassemble.{n}.resample.conv.*", f"{blocks}.resize_layers.{{n}}.*"),
        ("decoder.layer_rn.{n}.*", f"{theirs}convs.{{n}}.conv.*"),
        ("decoder.fusion.{n}.project.*", f"{fusion}.project.conv.*"),
        ("decoder.fusion.{n}.rcu{k}.conv{j}.*", f"{fusion}.res_conv_unit{{k}}.conv{{j}}.conv.*"),
        ("decoder.output_project.*", f"{theirs}project.conv.*"),
        ("heads.depth.conv1.*", f"{theirs}conv_depth.head.0.*"),
        ("heads.depth.conv2.*", f"{theirs}conv_depth.head.2.*"),
        ("heads.depth.conv3.*", f"{theirs}conv_depth.head.4.*"),
    ]


def split_biases(tensors: names.Tensors) -> dict[str, Tensor]:
    """Returns tensors with our names of biases where a mask takes out those of the keys."""
    split = dict(tensors)
    for mask in [name for name in tensors if name.endswith(".qkv.bias_mask")]:
        del split[mask]
        q_bias, _, v_bias = split.pop(mask.removesuffix("_mask")).chunk(3)
        attention = mask.removesuffix("qkv.bias_mask")
        split |= {f"{attention}q_bias": q_bias, f"{attention}v_bias": v_bias}
    return split


def _with_backbone(files: CheckpointFiles, name: re.Pattern[str], pretrained: str) -> names.Tensors:
    """Returns the tensors of a head under ``decode_head.`` or ``decoder.``, and of its backbone.

    Args:
        name: what the released name of a head matches; its first group is that of the model.
        pretrained: pattern for the rest of the backbone's name.
    """
    theirs, backbone = (V2, V2_BACKBONE) if name is V2_HEAD_FILE else (V3, V3_BACKBONE)
    if files.has_prefixes(theirs, backbone):
        return files.tensors
    released = name.match(files.path.name)
    backbone_file = f"{released[1]}{pretrained}" if released else f"NAME{pretrained}"
    beside = [*files.path.parent.glob(backbone_file)]
    if len(beside) != 1:
        remedy = f"one {backbone_file} must lie beside it, both under their released names"
        raise ValueError(f"a head alone: {remedy}")
    head = {theirs + k.removeprefix(theirs): tensor for k, tensor in files.tensors.items()}
    return head | {backbone + k: v for k, v in unwrap(read_tensors(beside[0])).items()}


def _config(
    shapes: names.Shapes, theirs: str, *, encoder: Plain, head: Plain, preprocessing: Plain
) -> Plain:
    """Returns the configuration of a depther, whose decoder follows from the tensors it has."""
    blocks = f"{theirs}reassemble_blocks"
    decoder = {
        "reassemble_channels": [shapes(f"{blocks}.projects.{i}.conv.weight")[0] for i in range(4)],
        "fusion_channels": shapes(f"{theirs}convs.0.conv.weight")[0],
        "readout": "project" if shapes.count(f"{blocks}.readout_projects.") else "ignore",
        "reassemble_norm": shapes.count(f"{blocks}.batchnorm_layers.") > 0,
        "batch_norm": False,
        "unit_bias": f"{theirs}fusion_blocks.0.res_conv_unit2.conv1.conv.bias" in shapes.tensors,
        "align": "resize_lateral",
        "output_project": f"{theirs}project.conv.weight" in shapes.tensors,
        "scales": names.SCALES,
    }
    hidden_channels = shapes(f"{theirs}conv_depth.head.2.weight")[0]
    head = {"kind": "metric", "hidden_channels": hidden_channels, "upsample": "double", **head}
    levels = {"out_indices": names.spread_blocks(encoder["num_blocks"]), "padding": "center"}
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder={**encoder, **levels, "layer_scale": 1.0},
        decoder=decoder,
        preprocessing={**names.IMAGENET, **preprocessing, "output_interpolation": "bilinear"},
    )


class Dinov2(base.Format):
    name = "dinov2"

    def recognises(self, files: CheckpointFiles) -> bool:
        heads = ("reassemble_blocks.", "conv_depth.", "bn.")
        return not files.config and any(files.has_prefixes(f"{V2}{head}") for head in heads)

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        tensors = _with_backbone(files, V2_HEAD_FILE, "_pretrain.pth")
        shapes = names.Shapes(tensors, "a DPT depth head of DINOv2")
        encoder = shapes.vit(V2_BACKBONE)
        # the hub's models with registers resize by size, with antialiasing
        has_registers = encoder["num_register_tokens"] > 0
        encoder["position_resize"] = "bicubic_antialias" if has_registers else "dinov2"
        # its code takes whole images in 0..255, normalised by ImageNet's mean and deviation
        size = {"resize": "none", "multiple_of": encoder["patch_size"], "interpolation": "bilinear"}
        head = {"activation": "relu", "min_depth": 0.001}
        config = _config(shapes, V2, encoder=encoder, head=head, preprocessing=size)
        table = _table(V2, V2_BACKBONE, encoder, gate="w12", registers="register_tokens")
        return base.StoredModel(config, tensors, table, ["backbone.mask_token", "backbone.norm.*"])


class Dinov3(base.Format):
    name = "dinov3"

    def recognises(self, files: CheckpointFiles) -> bool:
        parts = ("reassemble_blocks.", "conv_depth.")
        is_head = (files.has_prefixes(*(f"{prefix}{p}" for p in parts)) for prefix in ("", V3))
        return not files.config and any(is_head)

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        tensors = _with_backbone(files, V3_HEAD_FILE, "_pretrain_lvd1689m*.pth")
        shapes = names.Shapes(tensors, "a depther of DINOv3")
        if shapes.count(f"{V3}reassemble_blocks.readout_projects."):
            raise ValueError("CHMv2, DINOv3's depther of canopy heights, is not read")
        # a period for each pair of channels of a head and side of the image
        periods = shapes(f"{V3_BACKBONE}rope_embed.periods")[0]
        encoder = shapes.vit(V3_BACKBONE, head_dim=4 * periods) | {
            "key_bias": f"{V3_BACKBONE}blocks.0.attn.qkv.bias_mask" not in tensors,
            "norm_eps": 1e-5,
            "position": "rope",
            "final_norm": True,
        }
        # its example squeezes images into 1024 × 1024
        size = {"image_size": [1024] * 2, "resize": "stretch"}
        config = _config(
            shapes,
            V3,
            encoder=encoder,
            head={"bins": {"count": 256, "min_depth": 0.001, "max_depth": 100.0}},
            preprocessing={**size, "interpolation": "bilinear_antialias"},
        )
        table = _table(V3, V3_BACKBONE, encoder, gate="{w1,w2}", registers="storage_tokens")
        never_run = [f"{V3_BACKBONE}{name}" for name in V3_NEVER_RUN]
        return base.StoredModel(config, split_biases(tensors), table, never_run)
