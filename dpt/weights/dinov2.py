"""DINOv2's DPT depth heads (its hub, and files of its depth code that hold backbone and head).

The hub's ``dinov2_vits14_nyu_dpt_head.pth`` holds a head alone. It is read together with its
backbone if that lies beside it under its released name (``dinov2_vits14_pretrain.pth``). A file
with ``backbone.*`` beside ``decode_head.*``, as DINOv2's depther saves its state dict, is whole.

The head reads feature levels before the final LayerNorm, resizes laterals to the size of the
upsampled map, has one more 3×3 convolution behind the fusions and gives relu(x) + 0.001 metres. Its
depther also clips at 10 m (NYU) or 80 m (KITTI); that number is in no file, and predictions here
are not clipped.
"""

from __future__ import annotations

import re

from dpt.model_config import model_dict
from dpt.weights.files import Source, read_tensors, unwrap
from dpt.weights.format import Checkpoint, Config, Format, Shapes, from_theirs, quarter_ends

HEAD_FILE = re.compile(r"(dinov2_vit[sblg]14(?:_reg4)?)_\w+_dpt_head\.pth$")
BLOCKS = "decode_head.reassemble_blocks."
FUSION = "decode_head.fusion_blocks.{3-n}"
GATED = [
    ("encoder.blocks.{i}.mlp.fc1.*", "backbone.blocks.{i}.mlp.w12.*"),
    ("encoder.blocks.{i}.mlp.fc2.*", "backbone.blocks.{i}.mlp.w3.*"),
]
TABLE = [
    ("encoder.reg_token", "backbone.register_tokens"),
    ("encoder.*", "backbone.*"),
    ("decoder.reassemble.{n}.read.linear.*", BLOCKS + "readout_projects.{n}.0.*"),
    ("decoder.reassemble.{n}.project.*", BLOCKS + "projects.{n}.conv.*"),
    ("decoder.reassemble.{n}.resample.conv.*", BLOCKS + "resize_layers.{n}.*"),
    ("decoder.layer_rn.{n}.*", "decode_head.convs.{n}.conv.*"),
    ("decoder.fusion.{n}.project.*", FUSION + ".project.conv.*"),
    ("decoder.fusion.{n}.rcu{k}.conv{j}.*", FUSION + ".res_conv_unit{k}.conv{j}.conv.*"),
    ("decoder.output_project.*", "decode_head.project.conv.*"),
    ("heads.depth.conv1.*", "decode_head.conv_depth.head.0.*"),
    ("heads.depth.conv2.*", "decode_head.conv_depth.head.2.*"),
    ("heads.depth.conv3.*", "decode_head.conv_depth.head.4.*"),
]
UNUSED = ("backbone.mask_token", "backbone.norm.*")


class Dinov2(Format):
    name = "dinov2"

    def recognises(self, source: Source) -> bool:
        heads = (BLOCKS, "decode_head.conv_depth.", "decode_head.bn.")
        return not source.config and any(source.holds(head) for head in heads)

    def _read(self, source: Source) -> Checkpoint:
        tensors = source.tensors
        released = HEAD_FILE.match(source.path.name)
        if released and not source.holds("backbone."):
            backbone = source.path.with_name(f"{released[1]}_pretrain.pth")
            if backbone.is_file():
                found = unwrap(read_tensors(backbone))
                tensors = {**tensors, **{f"backbone.{k}": v for k, v in found.items()}}
        config = _config(Shapes(tensors, "a DINOv2 depth head"))
        table = GATED + TABLE if config["encoder"]["swiglu"] else TABLE
        return from_theirs(config, tensors, table, UNUSED)


def out_indices(num_blocks: int) -> list[int]:
    """Blocks of the feature levels of DINOv2's heads and Depth Anything v2."""
    return [4, 11, 17, 23] if num_blocks == 24 else quarter_ends(num_blocks)


def _config(shapes: Shapes) -> Config:
    tensors = shapes.tensors
    if f"{BLOCKS}projects.0.conv.weight" not in tensors:
        raise ValueError("a linear DINOv2 head, which is not a DPT; only DPTs are read")
    if not any(k.startswith("backbone.") for k in tensors):
        raise ValueError(
            "a DINOv2 head alone, without the backbone that it was trained on. Put both "
            "side by side under their released names (dinov2_vits14_nyu_dpt_head.pth and "
            "dinov2_vits14_pretrain.pth), or in one file, the backbone's names after 'backbone.'"
        )
    encoder = shapes.vit("backbone.")
    readout = f"{BLOCKS}readout_projects.0.0.weight" in tensors
    return model_dict(
        "dpt_base",
        heads={
            "depth": {
                "kind": "metric",
                "activation": "relu",
                "min_depth": 0.001,
                "hidden_channels": shapes.channels("decode_head.conv_depth.head.2.weight"),
                "upsample": "double",
            }
        },
        encoder={
            **encoder,
            "layer_scale": 1.0,
            "out_indices": out_indices(encoder["num_blocks"]),
            # the hub's models with registers resize by size, with antialiasing
            "position_resize": "bicubic_antialias" if encoder["num_register_tokens"] else "dinov2",
            "padding": "center",
        },
        decoder={
            "reassemble_channels": shapes.each(BLOCKS + "projects.{}.conv.weight"),
            "fusion_channels": shapes.channels("decode_head.convs.0.conv.weight"),
            "readout": "project" if readout else "ignore",
            "batch_norm": False,
            "unit_bias": False,
            "align": "resize_lateral",
            "output_project": True,
            "scales": [4, 2, 1, 0.5],
        },
        # its code takes whole images in 0..255, normalised by ImageNet's mean and deviation
        preprocessing={
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "resize": "none",
            "multiple_of": encoder["patch_size"],
            "interpolation": "bilinear",
        },
    )
