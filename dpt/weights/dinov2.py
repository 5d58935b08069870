"""DINOv2's own DPT depth heads, with their backbones; Depth Anything shares some of their names.

A head of DINOv2's hub (``dinov2_vits14_nyu_dpt_head.pth``) is read together with its backbone if
that lies beside it under its released name (``dinov2_vits14_pretrain.pth``); a file with
``backbone.*`` beside ``decode_head.*`` is whole. The head gives relu(x) + 0.001 metres. Its depther
also clips at 10 m (NYU) or 80 m (KITTI); that number is in no file, and nothing is clipped here.
"""

import re

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights.base import Format, StoredModel
from dpt.weights.files import CheckpointFiles, read_tensors, unwrap
from dpt.weights.names import Shapes, Table, gated_rows, quarter_ends

IMAGENET: Plain = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SCALES = [4, 2, 1, 0.5]
HEAD_FILE = re.compile(r"(dinov2_vit[sblg]14(?:_reg4)?)_\w+_dpt_head\.pth$")
BLOCKS = "decode_head.reassemble_blocks."


def decoder_table(theirs: str) -> Table:
    """Returns the rows of decoder and head of DINOv2 and v3; ``theirs`` is a prefix of names."""
    blocks, fusion = f"{theirs}reassemble_blocks", f"{theirs}fusion_blocks.{{3-n}}"
    return [
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


TABLE = [
    ("encoder.reg_token", "backbone.register_tokens"),
    ("encoder.*", "backbone.*"),
    *decoder_table("decode_head."),
]


def read_decoder(shapes: Shapes, theirs: str) -> Plain:
    """Returns the options of a decoder of DINOv2 or v3, by the tensors that it has."""
    blocks = f"{theirs}reassemble_blocks"
    return {
        "reassemble_channels": [shapes(f"{blocks}.projects.{i}.conv.weight")[0] for i in range(4)],
        "fusion_channels": shapes(f"{theirs}convs.0.conv.weight")[0],
        "readout": "project" if shapes.count(f"{blocks}.readout_projects.") else "ignore",
        "reassemble_norm": shapes.count(f"{blocks}.batchnorm_layers.") > 0,
        "batch_norm": False,
        "unit_bias": f"{theirs}fusion_blocks.0.res_conv_unit2.conv1.conv.bias" in shapes.tensors,
        "align": "resize_lateral",
        "output_project": f"{theirs}project.conv.weight" in shapes.tensors,
        "scales": SCALES,
    }


def gated_table(encoder: Plain, prefix: str) -> Table:
    """Returns the rows of gated MLPs under DINOv2's names."""
    mlp = f"{prefix}blocks.{{i}}.mlp"
    return gated_rows(encoder, f"{mlp}.w12.*", f"{mlp}.w3.*")


def spread_blocks(num_blocks: int) -> list[int]:
    """Returns the blocks of the feature levels of Depth Anything v2 and DINOv2's heads."""
    return [4, 11, 17, 23] if num_blocks == 24 else quarter_ends(num_blocks)


class Dinov2(Format):
    name = "dinov2"

    def recognises(self, files: CheckpointFiles) -> bool:
        heads = (BLOCKS, "decode_head.conv_depth.", "decode_head.bn.")
        return not files.config and any(files.has_prefixes(head) for head in heads)

    def read(self, files: CheckpointFiles) -> StoredModel:
        tensors = files.tensors
        released = HEAD_FILE.match(files.path.name)
        if released and not files.has_prefixes("backbone."):
            backbone = files.path.with_name(f"{released[1]}_pretrain.pth")
            if backbone.is_file():
                encoder = unwrap(read_tensors(backbone))
                tensors = {**tensors, **{f"backbone.{k}": v for k, v in encoder.items()}}
        config = _read_config(Shapes(tensors, "a DINOv2 depth head"))
        table = [*gated_table(config["encoder"], "backbone."), *TABLE]
        return StoredModel(config, tensors, table, ["backbone.mask_token", "backbone.norm.*"])


def _read_config(shapes: Shapes) -> Plain:
    if f"{BLOCKS}projects.0.conv.weight" not in shapes.tensors:
        raise ValueError("a linear DINOv2 head, which is not a DPT; only DPTs are read")
    if not any(k.startswith("backbone.") for k in shapes.tensors):
        raise ValueError(
            "a DINOv2 head alone, without the backbone that it was trained on. Put both side by "
            "side under their released names, such as dinov2_vits14_pretrain.pth, or in one file"
        )
    encoder = shapes.vit("backbone.")
    return model_dict(
        "dpt_base",
        heads={
            "depth": {
                "kind": "metric",
                "activation": "relu",
                "min_depth": 0.001,
                "hidden_channels": shapes("decode_head.conv_depth.head.2.weight")[0],
                "upsample": "double",
            }
        },
        encoder={
            **encoder,
            "layer_scale": 1.0,
            "out_indices": spread_blocks(encoder["num_blocks"]),
            # the hub's models with registers resize by size, with antialiasing
            "position_resize": "bicubic_antialias" if encoder["num_register_tokens"] else "dinov2",
            "padding": "center",
        },
        decoder=read_decoder(shapes, "decode_head."),
        # its code takes whole images in 0..255, normalised by ImageNet's mean and deviation
        preprocessing={
            **IMAGENET,
            "resize": "none",
            "multiple_of": encoder["patch_size"],
            "interpolation": "bilinear",
            "output_interpolation": "bilinear",
        },
    )
