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
from dpt.weights.files import Source, write_folder, write_torch
from dpt.weights.format import (
    PLAIN_ENCODER,
    Checkpoint,
    Config,
    Format,
    Shapes,
    Table,
    Tensors,
    complete,
    from_theirs,
    to_theirs,
)

log = logging.getLogger("dpt")

MODEL_TYPE = "depth_anything"
MAX_DEPTH = {"hypersim": 20.0, "vkitti": 80.0}
V1 = re.compile(r"depth_anything_vit[sbl]14")
FILE_SUFFIXES = (".pth", ".pt")
SCALES = [4, 2, 1, 0.5]
ENCODER: Config = {**PLAIN_ENCODER, "final_norm": True}
"""Options of our ViT that make it Depth Anything's, but for sizes."""
DECODER: Config = {
    "readout": "ignore",
    "batch_norm": False,
    "unit_bias": True,
    "align": "to_lateral",  # 518 pixels are 37 patches, and no doubling leads to an odd grid
    "output_project": False,
    "deepest_unit": False,
}
PREPROCESSING: Config = {
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
CONFIG: Config = {
    "patch_size": 14,
    "reassemble_factors": SCALES,
    "neck_hidden_sizes": [48, 96, 192, 384],
    "fusion_hidden_size": 64,
    "head_in_index": -1,
    "head_hidden_size": 32,
    "depth_estimation_type": "relative",
    "max_depth": 1,
}

HEAD = "depth_head."
SCRATCH = f"{HEAD}scratch."
FILE_GATED = [(ours, theirs.replace("backbone.", "pretrained.")) for ours, theirs in dinov2.GATED]
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
    name = "depth_anything"
    writable = True

    def recognises(self, source: Source) -> bool:
        if source.config is not None and "model_type" in source.config:
            return _is_folder(source)
        return all(any(k.startswith(p) for k in source.tensors) for p in ("pretrained.", SCRATCH))

    def read(self, source: Source) -> Checkpoint:
        folder = _is_folder(source)
        config = _folder_config(source) if folder else _file_config(source)
        encoder = config["encoder"]
        behind = range(encoder["out_indices"][-1] + 1, encoder["num_blocks"])
        if folder:
            unused = [transformers.MASK_TOKEN, f"{transformers.DEEPEST_UNIT}1.*"]
            unused += [f"backbone.encoder.layer.{i}.*" for i in behind]
        else:
            unused = [FILE_MASK_TOKEN, f"{FILE_UNIT}1.*"]
            unused += [f"pretrained.blocks.{i}.*" for i in behind]
        found = from_theirs(config, source.tensors, table(encoder, folder=folder), unused)
        if folder and config["heads"]["depth"]["kind"] == "relative":
            gain = {**CONFIG, **(source.config or {})}["max_depth"]
            if gain not in (None, 1):  # transformers multiplies relative depth by it too
                for name in ("heads.depth.conv3.weight", "heads.depth.conv3.bias"):
                    found.tensors[name] = found.tensors[name] * gain
        return found

    def write(self, config: Config, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a ``.pth`` if ``path`` ends so, otherwise a folder that transformers opens.

        Tensors that never run are written as zeros.
        """
        path, full = Path(path), complete(config)
        folder = path.suffix not in FILE_SUFFIXES
        _, head = self.only_head(full, "depth")
        encoder, own = full["encoder"], "bicubic" if folder else "dinov2"
        self._check(full, head, path, folder=folder)
        notes = []
        if encoder["position_resize"] != own:
            notes.append(
                f"position embeddings of this model are resized by {encoder['position_resize']!r}, "
                f"in this format by {own!r}: outputs differ away from {encoder['image_size']}"
            )
        unit = transformers.DEEPEST_UNIT if folder else FILE_UNIT
        theirs = to_theirs(tensors, table(encoder, folder=folder), unit)
        mask_token = transformers.MASK_TOKEN if folder else FILE_MASK_TOKEN
        theirs[mask_token] = torch.zeros(1, encoder["embed_dim"])
        if folder:
            processor = transformers.write_processor(full, notes)
            write_folder(path, _write_config(full, head), theirs, processor)
        else:
            write_torch(path, theirs)
        return notes

    def _check(self, full: Config, head: Config, path: Path, *, folder: bool) -> None:
        encoder = full["encoder"]
        self.refuse_unless("encoder", encoder, {"kind": "vit"})
        free = {k: encoder[k] for k in ("position_resize", "swiglu")}
        free["layer_scale"] = 1.0 if encoder["layer_scale"] is None else encoder["layer_scale"]
        needed: Config = {**ENCODER, **free, "image_size": [encoder["image_size"][0]] * 2}
        if folder:
            needed["mlp_ratio"] = int(encoder["mlp_ratio"])
        else:
            needed |= {"patch_size": 14, "num_heads": encoder["embed_dim"] // 64, "norm_eps": 1e-6}
            v1 = V1.search(path.name) is not None
            needed["out_indices"] = _out_indices(encoder["num_blocks"], v1=v1)
        self.refuse_unless("encoder", encoder, needed)
        self.refuse_unless("decoder", full["decoder"], {**DECODER, "scales": SCALES})
        metric = head["kind"] == "metric"
        needed = {"upsample": "image", **({"activation": "sigmoid"} if metric else {})}
        depth = head["max_depth"] if metric else None
        if folder and depth is not None:
            needed["max_depth"] = int(depth)
        self.refuse_unless("heads.depth", head, needed)
        named = _named_depth(path.name)
        if not folder and (depth != named or (depth is None and "metric" in path.name.lower())):
            self.refuse(
                "does not store the largest depth in a .pth, its name gives it: hypersim for 20 m, "
                f"vkitti for 80 m, neither for relative depth; {path.name!r} does not go with "
                f"{'relative depth' if depth is None else f'{depth} m'}. A folder stores it."
            )


def table(encoder: Config, *, folder: bool) -> Table:
    """Names in a folder, or in a ``.pth``."""
    if not folder:
        return FILE_GATED + FILE_TABLE if encoder["swiglu"] else FILE_TABLE
    gated = transformers.GATED if encoder["swiglu"] else []
    head = ("heads.depth.*", "head.*")
    return [*gated, *transformers.DINOV2_TABLE, *transformers.neck_table(), head]


def _is_folder(source: Source) -> bool:
    return source.config is not None and source.config.get("model_type") == MODEL_TYPE


def _file_config(source: Source) -> Config:
    shapes = Shapes(source, source.tensors, "Depth Anything")
    if f"{SCRATCH}refinenet1.resConfUnit1.bn1.weight" in source.tensors:
        raise ValueError(f"{source.path}: Depth Anything with BatchNorm, which is not supported")
    encoder = shapes.vit("pretrained.")
    num_blocks = encoder["num_blocks"]
    v1 = V1.search(source.path.name) is not None or source.config is not None
    if not v1 and "v2" not in source.path.name.lower():
        log.warning(
            "%s: read as Depth Anything v2; v1 has the same tensors but other feature levels, and "
            "is recognised by its file name alone (depth_anything_vit[sbl]14)",
            source.path,
        )
    max_depth = _max_depth(source)
    head: Config = {"kind": "relative"}
    if max_depth is not None:
        head = {"kind": "metric", "activation": "sigmoid", "max_depth": max_depth}
    readout = f"{HEAD}readout_projects.0.0.weight" in source.tensors
    hidden = shapes.channels(f"{SCRATCH}output_conv2.0.weight")
    return model_dict(
        "dpt_base",
        heads={"depth": {**head, "hidden_channels": hidden}},
        encoder={
            **ENCODER,
            **encoder,
            "out_indices": _out_indices(num_blocks, v1=v1),
            "position_resize": "dinov2",
        },
        decoder={
            **DECODER,
            "readout": "project" if readout else "ignore",
            "reassemble_channels": [
                shapes.channels(f"{HEAD}projects.{i}.weight") for i in range(4)
            ],
            "fusion_channels": shapes.channels(f"{SCRATCH}layer1_rn.weight"),
            "scales": SCALES,
        },
        preprocessing={**PREPROCESSING, "multiple_of": encoder["patch_size"]},
    )


def _out_indices(num_blocks: int, *, v1: bool) -> list[int]:
    return list(range(num_blocks - 4, num_blocks)) if v1 else dinov2.out_indices(num_blocks)


def _named_depth(name: str) -> float | None:
    """The largest depth of a metric ``.pth`` by its name."""
    return next((depth for word, depth in MAX_DEPTH.items() if word in name.lower()), None)


def _max_depth(source: Source) -> float | None:
    """The largest depth of a metric ``.pth``; None for a relative one."""
    stored = source.content.get("max_depth")
    if isinstance(stored, int | float) and stored > 0:
        return float(stored)
    depth = _named_depth(source.path.name)
    if depth is None and "metric" in source.path.name.lower():
        raise ValueError(
            f"{source.path}: metric by its name, but without a largest depth: put hypersim (20 m) "
            'or vkitti (80 m) in its name, or save it as {"model": tensors, "max_depth": metres}'
        )
    return depth


def _folder_config(source: Source) -> Config:
    config = {**CONFIG, **(source.config or {})}
    backbone = config.get("backbone_config") or DEFAULT_BACKBONE
    encoder = transformers.read_backbone(source.path, backbone, "dinov2")
    wrong = [] if encoder["final_norm"] else ["a backbone without apply_layernorm"]
    if encoder["patch_size"] != config["patch_size"]:
        wrong.append(f"patch_size={config['patch_size']} over {encoder['patch_size']}")
    if config["head_in_index"] not in (-1, 3):
        wrong.append(f"head_in_index={config['head_in_index']}")
    if wrong:
        raise ValueError(f"{source.path}: a Depth Anything with {', '.join(wrong)}, not supported")
    head: Config = {"kind": config["depth_estimation_type"]}
    if head["kind"] == "metric":
        head |= {"activation": "sigmoid", "max_depth": float(config["max_depth"])}
    preprocessing = {**PREPROCESSING, "resize": "minimal", "multiple_of": encoder["patch_size"]}
    if source.processor is not None:
        preprocessing = transformers.read_processor(source, encoder)
    return model_dict(
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


def _write_config(full: Config, head: Config) -> Config:
    """``config.json`` of a folder."""
    encoder, decoder = full["encoder"], full["decoder"]
    return {
        "architectures": ["DepthAnythingForDepthEstimation"],
        "model_type": MODEL_TYPE,
        "backbone_config": transformers.write_backbone("dinov2", encoder),
        "patch_size": encoder["patch_size"],
        "reassemble_hidden_size": encoder["embed_dim"],
        "reassemble_factors": SCALES,
        "neck_hidden_sizes": decoder["reassemble_channels"],
        "fusion_hidden_size": decoder["fusion_channels"],
        "head_in_index": -1,
        "head_hidden_size": head["hidden_channels"],
        "depth_estimation_type": head["kind"],
        "max_depth": int(head["max_depth"]) if head["kind"] == "metric" else 1,
        "dtype": "float32",
    }
