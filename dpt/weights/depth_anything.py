"""Depth Anything v1 and v2: the authors' ``.pth`` files, and transformers' folders.

Both hold a DINOv2 ViT whose final LayerNorm runs on every feature level, and a decoder that ignores
the CLS token. A folder's config holds all sizes. A ``.pth`` holds tensors alone:

- sizes come from shapes, with 64 channels per head and LayerNorm eps 1e-6.
- v1 and v2 have the same tensors and differ in the feature levels: v1 takes the last four blocks,
  v2 blocks spread over the encoder. A file is v1 if it has the name of its release
  (``depth_anything_vitl14``) or the hub config of v1's code; every other one is v2.
- v2's metric models multiply a sigmoid by a largest depth that is not in the file. It is a number
  under ``"max_depth"`` beside a wrapped state dict, or follows from the name, as in the releases:
  ``hypersim`` (20 m) or ``vkitti`` (80 m). Any other name means relative depth.

Away from the native grid the authors resize position embeddings by DINOv2's scale factor,
transformers by size: each reader stores its own policy.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.weights import dinov2, transformers
from dpt.weights.files import Source
from dpt.weights.format import (
    Checkpoint,
    Config,
    Format,
    Keys,
    Shapes,
    Table,
    Tensors,
    from_theirs,
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
PREPROCESSING: Config = {
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
    "image_size": [518, 518],
    "resize": "lower_bound",
    "interpolation": "cubic",
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
    ("decoder.reassemble.{n}.read.linear.*", HEAD + "readout_projects.{n}.0.*"),
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
    hint = (
        "; a .pth stores no largest depth, its name gives it: hypersim for 20 m, vkitti for 80 m, "
        "neither for relative depth"
    )

    def recognises(self, source: Source) -> bool:
        if "model_type" in source.config:
            return _is_folder(source)
        return source.holds("pretrained.", SCRATCH)

    def _read(self, source: Source) -> Checkpoint:
        folder = _is_folder(source)
        config = _folder_config(source) if folder else _file_config(source)
        names = table(config["encoder"], folder=folder)
        if not folder:
            encoder = config["encoder"]
            behind = range(encoder["out_indices"][-1] + 1, encoder["num_blocks"])
            unused = [FILE_MASK_TOKEN, f"{FILE_UNIT}1.*"]
            unused += [f"pretrained.blocks.{i}.*" for i in behind]
            return from_theirs(config, source.tensors, names, unused)
        found = from_theirs(config, source.tensors, names, transformers.unused(config))
        if config["heads"]["depth"]["kind"] == "relative":
            gain = source.config.get("max_depth") or 1  # transformers multiplies by it here too
            for name in ("heads.depth.conv3.weight", "heads.depth.conv3.bias"):
                found.tensors[name] = found.tensors[name] * gain
        return found

    def _write(self, config: Config, tensors: Tensors, path: Path) -> Source:
        encoder, (head,) = config["encoder"], config["heads"].values()
        folder = path.suffix not in (".pth", ".pt")
        if encoder["layer_scale"] is not None and not folder:
            encoder["layer_scale"] = 1.0  # gains are in the tensors
        unit = transformers.DEEPEST_UNIT if folder else FILE_UNIT
        theirs = to_theirs(tensors, table(encoder, folder=folder), unit)
        mask_token = transformers.MASK_TOKEN if folder else FILE_MASK_TOKEN
        theirs[mask_token] = torch.zeros(1, encoder["embed_dim"])
        if not folder:
            return Source(path, {}, {}, theirs)
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        processor = transformers.write_processor(config)
        return Source(path, _write_config(config, head), processor, theirs)


def table(encoder: Config, *, folder: bool) -> Table:
    """Names in a folder, or in a ``.pth``."""
    if not folder:
        gated = [
            (ours, theirs.replace("backbone.", "pretrained.")) for ours, theirs in dinov2.GATED
        ]
        return [*gated, *FILE_TABLE] if encoder["swiglu"] else FILE_TABLE
    gated = transformers.GATED if encoder["swiglu"] else []
    head = ("heads.depth.*", "head.*")
    return [*gated, *transformers.DINOV2_TABLE, *transformers.neck_table(), head]


def _is_folder(source: Source) -> bool:
    return source.config.get("model_type") == "depth_anything"


def _file_config(source: Source) -> Config:
    shapes = Shapes(source.tensors, "Depth Anything")
    encoder = shapes.vit("pretrained.")
    path = source.path
    out_indices = _out_indices(encoder["num_blocks"], path, v1=bool(source.config))
    if not (source.config or V1.search(path.name) or "v2" in path.name.lower()):
        log.warning(
            "%s: read as Depth Anything v2; v1 has the same tensors but other feature levels, and "
            "is recognised by its file name alone (depth_anything_vit[sbl]14)",
            path,
        )
    max_depth = source.content.get("max_depth") or _named_depth(path)
    if max_depth is None and "metric" in path.name.lower():
        raise ValueError(
            "metric by its name, but without a largest depth: put hypersim (20 m) "
            'or vkitti (80 m) in its name, or save it as {"model": tensors, "max_depth": metres}'
        )
    head: Config = {
        "kind": "relative",
        "hidden_channels": shapes.channels(f"{SCRATCH}output_conv2.0.weight"),
    }
    if max_depth is not None:
        head |= {"kind": "metric", "activation": "sigmoid", "max_depth": max_depth}
    readout = f"{HEAD}readout_projects.0.0.weight" in source.tensors
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder={
            **encoder,
            "patch_size": 14,
            "final_norm": True,
            "layer_scale": 1.0,
            "out_indices": out_indices,
            "position_resize": "dinov2",
        },
        decoder={
            **DECODER,
            "readout": "project" if readout else "ignore",
            "reassemble_channels": shapes.each(f"{HEAD}projects.{{}}.weight"),
            "fusion_channels": shapes.channels(f"{SCRATCH}layer1_rn.weight"),
        },
        preprocessing={**PREPROCESSING, "multiple_of": 14},
    )


def _out_indices(num_blocks: int, path: Path, *, v1: bool = False) -> list[int]:
    if v1 or V1.search(path.name):
        return list(range(num_blocks - 4, num_blocks))
    return dinov2.out_indices(num_blocks)


def _named_depth(path: Path) -> float | None:
    """The largest depth of a metric ``.pth`` by its name."""
    return next((depth for word, depth in MAX_DEPTH.items() if word in path.name.lower()), None)


def _folder_config(source: Source) -> Config:
    config = source.config
    backbone = config.get("backbone_config") or DEFAULT_BACKBONE
    encoder = transformers.read_backbone(backbone, "dinov2")
    patch = encoder["patch_size"]
    if not encoder["final_norm"] or config.get("patch_size", 14) != patch:
        raise ValueError(
            f"a Depth Anything whose backbone has apply_layernorm="
            f"{encoder['final_norm']} and patch_size={patch}, not supported"
        )
    head = read_keys(HEAD_KEYS, config)
    if head["kind"] == "metric":
        head |= {"activation": "sigmoid", "max_depth": float(config.get("max_depth") or 1)}
    preprocessing = {**PREPROCESSING, "resize": "minimal", "multiple_of": patch}
    if source.processor:
        preprocessing = transformers.read_processor(source, encoder)
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder=encoder,
        decoder={**DECODER, **read_keys(DECODER_KEYS, config)},
        preprocessing=preprocessing,
    )


def _write_config(config: Config, head: Config) -> Config:
    """``config.json`` of a folder."""
    encoder = config["encoder"]
    return {
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
