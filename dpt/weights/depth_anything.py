"""DPTs over DINOv2: Depth Anything v1 and v2, and DINOv2's own depth heads.

Depth Anything is a folder of transformers, whose config holds all sizes, or a ``.pth`` of its
authors, which holds tensors alone:

- sizes come from shapes, with 64 channels per head and LayerNorm eps 1e-6.
- v1 takes the last four blocks, v2 blocks spread over the encoder. A file is v1 if it has the name
  of its release (``depth_anything_vitl14``) or the hub config of v1's code; every other one is v2.
- the largest depth of v2's metric models is a number under ``"max_depth"`` beside a wrapped state
  dict, or follows from the name, as in the releases: ``hypersim`` (20 m) or ``vkitti`` (80 m). Any
  other name means relative depth.

Away from the native grid the authors resize position embeddings by DINOv2's scale factor,
transformers by size. The authors' code resizes depth to the image's size by bilinear interpolation,
in v2 with aligned corners, transformers by bicubic interpolation. Each reader stores its own
policies.

A head of DINOv2's hub (``dinov2_vits14_nyu_dpt_head.pth``) is read together with its backbone if
that lies beside it under its released name (``dinov2_vits14_pretrain.pth``); a file with
``backbone.*`` beside ``decode_head.*`` is whole. The head gives relu(x) + 0.001 metres. Its depther
also clips at 10 m (NYU) or 80 m (KITTI); that number is in no file, and nothing is clipped here.
"""

import logging
import re
from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.weights import transformers
from dpt.weights.files import Source, read_tensors, unwrap
from dpt.weights.format import (
    Checkpoint,
    Config,
    Format,
    Keys,
    Shapes,
    Table,
    Tensors,
    from_theirs,
    quarter_ends,
    read_keys,
    to_theirs,
    write_keys,
)

log = logging.getLogger("dpt")

MAX_DEPTH = {"hypersim": 20.0, "vkitti": 80.0}
V1 = re.compile(r"depth_anything_vit[sbl]14")
SCALES = [4, 2, 1, 0.5]
DECODER: Config = {
    "readout": "ignore",
    "batch_norm": False,
    "unit_bias": True,
    "align": "to_lateral",  # 518 pixels are 37 patches, and no doubling leads to an odd grid
    "scales": SCALES,
}
IMAGENET: Config = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PREPROCESSING: Config = {
    **IMAGENET,
    "image_size": [518, 518],
    "resize": "lower_bound",
    "interpolation": "cubic_float",
}
DEFAULT_BACKBONE = {  # of transformers' DepthAnythingConfig
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_attention_heads": 6,
    "image_size": 518,
    "out_indices": [9, 10, 11, 12],
}
DECODER_KEYS: Keys = {
    "reassemble_channels": ("neck_hidden_sizes", [48, 96, 192, 384]),
    "fusion_channels": ("fusion_hidden_size", 64),
    "scales": ("reassemble_factors", SCALES),
}
HEAD_KEYS: Keys = {
    "kind": ("depth_estimation_type", "relative"),
    "hidden_channels": ("head_hidden_size", 32),
}

HEAD = "depth_head."
SCRATCH = f"{HEAD}scratch."
FILE_TABLE = [
    ("encoder.*", "pretrained.*"),
    ("decoder.reassemble.{n}.project.*", HEAD + "projects.{n}.*"),
    ("decoder.reassemble.{n}.resample.conv.*", HEAD + "resize_layers.{n}.*"),
    ("decoder.layer_rn.{n}.*", SCRATCH + "layer{n+1}_rn.*"),
    ("decoder.fusion.{n}.project.*", SCRATCH + "refinenet{n+1}.out_conv.*"),
    ("decoder.fusion.{n}.rcu{k}.*", SCRATCH + "refinenet{n+1}.resConfUnit{k}.*"),
    ("heads.depth.conv1.*", SCRATCH + "output_conv1.*"),
    ("heads.depth.conv2.*", SCRATCH + "output_conv2.0.*"),
    ("heads.depth.conv3.*", SCRATCH + "output_conv2.2.*"),
]
FILE_UNIT = f"{SCRATCH}refinenet4.resConfUnit"
FILE_MASK_TOKEN = "pretrained.mask_token"


class DepthAnything(Format):
    """A ``.pth`` of the authors' code, or a folder of transformers."""

    name = "depth_anything"
    encoders = ("vit",)
    heads = ("depth",)
    free = Format.free | {
        "encoder.position_resize": "outputs differ away from the encoder's image_size",
    }

    def recognises(self, source: Source) -> bool:
        if "model_type" in source.config:
            return source.config["model_type"] == self.name
        return source.holds("pretrained.", SCRATCH)

    def read(self, source: Source) -> Checkpoint:
        folder = "model_type" in source.config
        config = _folder_config(source) if folder else _file_config(source)
        unused = [*transformers.unused(config), FILE_MASK_TOKEN, f"{FILE_UNIT}1.*"]
        found = from_theirs(config, source.tensors, table(config, folder=folder), unused)
        if folder and config["heads"]["depth"]["kind"] == "relative":
            gain = source.config.get("max_depth") or 1  # transformers multiplies by it here too
            for name in found.tensors:
                if name.startswith("heads.depth.conv3."):
                    found.tensors[name] = found.tensors[name] * gain
        return found

    def _write(self, config: Config, tensors: Tensors, path: Path) -> Source:
        encoder, (head,) = config["encoder"], config["heads"].values()
        folder = path.suffix not in (".pth", ".pt")
        if not folder and head["max_depth"] != _named_depth(path):
            raise ValueError(
                f"max_depth={head['max_depth']}: the name of a .pth says the largest depth "
                "(hypersim: 20 m, vkitti: 80 m, others: relative): choose such a name, or write a "
                "folder"
            )
        if encoder["layer_scale"] is not None and not folder:
            encoder["layer_scale"] = 1.0  # gains are in the tensors
        unit = transformers.DEEPEST_UNIT if folder else FILE_UNIT
        theirs = to_theirs(tensors, table(config, folder=folder), unit)
        mask_token = transformers.MASK_TOKEN if folder else FILE_MASK_TOKEN
        theirs[mask_token] = torch.zeros(1, encoder["embed_dim"])
        if not folder:
            return Source(path, {}, {}, theirs)
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        theirs_config = {
            "architectures": ["DepthAnythingForDepthEstimation"],
            "model_type": "depth_anything",
            "backbone_config": {
                **transformers.write_backbone("dinov2", encoder),
                "layerscale_value": encoder["layer_scale"] or 1.0,
            },
            "patch_size": encoder["patch_size"],
            "reassemble_hidden_size": encoder["embed_dim"],
            **write_keys(DECODER_KEYS, config["decoder"]),
            "reassemble_factors": SCALES,  # whole numbers, which transformers needs
            "head_in_index": -1,
            **write_keys(HEAD_KEYS, head),
            "max_depth": int(head["max_depth"] or 1) if head["kind"] == "metric" else 1,
            "dtype": "float32",
        }
        return Source(path, theirs_config, transformers.write_processor(config), theirs)


def _gated(config: Config, prefix: str) -> Table:
    """Rows of a gated MLP."""
    rows = (("fc1", "w12"), ("fc2", "w3")) if config["encoder"]["swiglu"] else ()
    return [(f"encoder.blocks.{{i}}.mlp.{a}.*", f"{prefix}blocks.{{i}}.mlp.{b}.*") for a, b in rows]


def table(config: Config, *, folder: bool) -> Table:
    """Rows of a folder, or of a ``.pth``."""
    if not folder:
        return [*_gated(config, "pretrained."), *FILE_TABLE]
    encoder, neck = transformers.encoder_table(config), transformers.neck_table()
    return [*encoder, *neck, ("heads.depth.*", "head.*")]


def _file_config(source: Source) -> Config:
    shapes = Shapes(source.tensors, "Depth Anything")
    encoder = shapes.vit("pretrained.")
    path, num_blocks = source.path, encoder["num_blocks"]
    v1 = source.config or V1.search(path.name)
    if path.is_file() and not (v1 or "v2" in path.name.lower()):
        log.warning("%s: read as Depth Anything v2; v1 needs its name, %s", path, V1.pattern)
    max_depth = source.content.get("max_depth") or _named_depth(path)
    if max_depth is None and "metric" in path.name.lower():
        raise ValueError(
            "metric by its name, but without a largest depth: name it hypersim (20 m) or vkitti "
            '(80 m), or save it as {"model": tensors, "max_depth": metres}'
        )
    hidden = shapes(f"{SCRATCH}output_conv2.0.weight")[0]
    projects = [shapes(f"{HEAD}projects.{i}.weight")[0] for i in range(4)]
    head: Config = {"kind": "relative", "hidden_channels": hidden}
    if max_depth is not None:
        head |= {"kind": "metric", "activation": "sigmoid", "max_depth": max_depth}
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder={
            **encoder,
            "patch_size": 14,
            "final_norm": True,
            "layer_scale": 1.0,
            "out_indices": list(range(num_blocks - 4, num_blocks)) if v1 else _spread(num_blocks),
            "position_resize": "dinov2",
        },
        decoder={
            **DECODER,
            "reassemble_channels": projects,
            "fusion_channels": shapes(f"{SCRATCH}layer1_rn.weight")[0],
        },
        preprocessing={
            **PREPROCESSING,
            "multiple_of": 14,
            "output_interpolation": "bilinear" if v1 else "bilinear_aligned",
        },
    )


def _named_depth(path: Path) -> float | None:
    return next((v for word, v in MAX_DEPTH.items() if word in path.name.lower()), None)


def _spread(num_blocks: int) -> list[int]:
    """Blocks of the feature levels of Depth Anything v2 and DINOv2's heads."""
    return [4, 11, 17, 23] if num_blocks == 24 else quarter_ends(num_blocks)


def _folder_config(source: Source) -> Config:
    config = source.config
    backbone = config.get("backbone_config") or DEFAULT_BACKBONE
    encoder = transformers.read_backbone(backbone, "dinov2")
    patch = encoder["patch_size"]
    if not encoder["final_norm"] or config.get("patch_size", 14) != patch:
        found = f"apply_layernorm={encoder['final_norm']} and patch_size={patch}"
        raise ValueError(f"a Depth Anything whose backbone has {found}, not supported")
    head = read_keys(HEAD_KEYS, config)
    if head["kind"] == "metric":
        head |= {"activation": "sigmoid", "max_depth": float(config.get("max_depth") or 1)}
    preprocessing = {
        **PREPROCESSING,
        "resize": "minimal",
        "multiple_of": patch,
        "interpolation": "cubic_antialias",
    }
    if source.processor:
        preprocessing = transformers.read_processor(source, encoder)
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder=encoder,
        decoder={**DECODER, **read_keys(DECODER_KEYS, config)},
        preprocessing={**preprocessing, "output_interpolation": "bicubic"},
    )


# DINOv2's depth heads

HEAD_FILE = re.compile(r"(dinov2_vit[sblg]14(?:_reg4)?)_\w+_dpt_head\.pth$")
BLOCKS = "decode_head.reassemble_blocks."
FUSION = "decode_head.fusion_blocks.{3-n}"
DINOV2_TABLE = [
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


class Dinov2(Format):
    name = "dinov2"

    def recognises(self, source: Source) -> bool:
        heads = (BLOCKS, "decode_head.conv_depth.", "decode_head.bn.")
        return not source.config and any(source.holds(head) for head in heads)

    def read(self, source: Source) -> Checkpoint:
        tensors = source.tensors
        released = HEAD_FILE.match(source.path.name)
        if released and not source.holds("backbone."):
            backbone = source.path.with_name(f"{released[1]}_pretrain.pth")
            if backbone.is_file():
                found = unwrap(read_tensors(backbone))
                tensors = {**tensors, **{f"backbone.{k}": v for k, v in found.items()}}
        config = _dinov2_config(Shapes(tensors, "a DINOv2 depth head"))
        unused = ("backbone.mask_token", "backbone.norm.*")
        return from_theirs(config, tensors, [*_gated(config, "backbone."), *DINOV2_TABLE], unused)


def _dinov2_config(shapes: Shapes) -> Config:
    tensors = shapes.tensors
    if f"{BLOCKS}projects.0.conv.weight" not in tensors:
        raise ValueError("a linear DINOv2 head, which is not a DPT; only DPTs are read")
    if not any(k.startswith("backbone.") for k in tensors):
        raise ValueError(
            "a DINOv2 head alone, without the backbone that it was trained on. Put both side by "
            "side under their released names, such as dinov2_vits14_pretrain.pth, or in one file"
        )
    encoder = shapes.vit("backbone.")
    projects = [shapes(f"{BLOCKS}projects.{i}.conv.weight")[0] for i in range(4)]
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
            "out_indices": _spread(encoder["num_blocks"]),
            # the hub's models with registers resize by size, with antialiasing
            "position_resize": "bicubic_antialias" if encoder["num_register_tokens"] else "dinov2",
            "padding": "center",
        },
        decoder={
            "reassemble_channels": projects,
            "fusion_channels": shapes("decode_head.convs.0.conv.weight")[0],
            "batch_norm": False,
            "unit_bias": False,
            "align": "resize_lateral",
            "output_project": True,
            "scales": SCALES,
        },
        # its code takes whole images in 0..255, normalised by ImageNet's mean and deviation
        preprocessing={
            **IMAGENET,
            "resize": "none",
            "multiple_of": encoder["patch_size"],
            "interpolation": "bilinear",
            "output_interpolation": "bilinear",
        },
    )
