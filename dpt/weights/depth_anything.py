"""Depth Anything v1, v2 and 3: of its authors, or a folder of transformers (v1, v2).

A folder's config holds all sizes. The authors' files hold tensors alone: sizes come from shapes,
with 64 channels per head and LayerNorm eps 1e-6.

- v1 takes the last four blocks, v2 blocks spread over the encoder. A file is v1 if it has the name
  of its release (``depth_anything_vitl14``) or the hub config of v1's code; every other one is v2.
- the largest depth of v2's metric models is a number under ``"max_depth"`` beside a wrapped state
  dict or in the config, or follows from the name, as in the releases: ``hypersim`` (20 m) or
  ``vkitti`` (80 m). Any other file is relative, unless a value in it says ``metric``, or it holds
  scores of metric depth (silog).
- v3 (Lin et al. 2025), mono and metric, is the folder of its Hub repositories. The name of the
  configuration in ``config.json`` (``da3mono-large``, ``da3metric-large``) tells the two apart.
  Mono predicts depth up to scale; metric predicts metres for a focal length of 300 pixels of the
  network's input. Both predict sky where the second map is 0.3 and more. The last LayerNorm has an
  epsilon of 1e-5. Images are resized twice: to a longest side of 504 pixels, then to multiples of
  14. Its code runs the encoder in half precision and the rest in fp32; here the precision is
  chosen for both, and the last layer and exp are always in fp32.

Away from the native grid the authors resize position embeddings by DINOv2's scale factor,
transformers by size. The authors' code resizes depth to the image's size by bilinear interpolation,
in v2 with aligned corners, transformers by bicubic interpolation. Each reader stores its own
policies.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dpt.model_config import model_dict
from dpt.process import log
from dpt.validation import Plain
from dpt.weights import base, names, transformers
from dpt.weights.files import CheckpointFiles

MAX_DEPTH = {"hypersim": 20.0, "vkitti": 80.0}
V1 = re.compile(r"depth_anything_vit[sbl]14")
DECODER: Plain = {
    "readout": "ignore",
    "batch_norm": False,
    "unit_bias": True,
    "align": "to_lateral",  # 518 pixels are 37 patches, and no doubling leads to an odd grid
    "scales": names.SCALES,
}
DECODER_KEYS: transformers.Keys = {
    "reassemble_channels": ("neck_hidden_sizes", [48, 96, 192, 384]),
    "fusion_channels": ("fusion_hidden_size", 64),
    "scales": ("reassemble_factors", names.SCALES),
}
HEAD_KEYS: transformers.Keys = {
    "kind": ("depth_estimation_type", "relative"),
    "hidden_channels": ("head_hidden_size", 32),
}

FILE_MASK_TOKEN = "pretrained.mask_token"
FILE_UNIT = "depth_head.scratch.refinenet4.resConfUnit"  # of the deepest level
MONO, METRIC = "da3mono-large", "da3metric-large"


class AuthorsNames(NamedTuple):
    """Prefixes of the tensors in the authors' files, and the model that is closest to theirs."""

    backbone: str
    head: str
    model: str

    def table(self, encoder: Plain) -> names.Table:
        """Returns the rows of a file."""
        scratch = f"{self.head}scratch."
        fusion = f"{scratch}refinenet{{n+1}}"
        return [
            *names.gated_rows(encoder, f"{self.backbone}blocks.{{i}}.mlp", "w12", "w3"),
            ("encoder.*", f"{self.backbone}*"),
            ("decoder.reassemble.{n}.project.*", f"{self.head}projects.{{n}}.*"),
            ("decoder.reassemble.{n}.resample.conv.*", f"{self.head}resize_layers.{{n}}.*"),
            ("decoder.layer_rn.{n}.*", f"{scratch}layer{{n+1}}_rn.*"),
            ("decoder.fusion.{n}.project.*", f"{fusion}.out_conv.*"),
            ("decoder.fusion.{n}.rcu{k}.*", f"{fusion}.resConfUnit{{k}}.*"),
            ("heads.depth.conv1.*", f"{scratch}output_conv1.*"),
            ("heads.depth.conv2.*", f"{scratch}output_conv2.0.*"),
            ("heads.depth.conv3.*", f"{scratch}output_conv2.2.*"),
            ("heads.depth.branches.sky.conv2.*", f"{scratch}sky_output_conv2.0.*"),
            ("heads.depth.branches.sky.conv3.*", f"{scratch}sky_output_conv2.2.*"),
        ]

    def read(
        self, shapes: names.Shapes, *, head: Plain, encoder: Plain, preprocessing: Plain
    ) -> Plain:
        """Returns the configuration of a file with further options of each part."""
        sizes = shapes.vit(self.backbone)
        levels = [f"{self.head}projects.{i}.weight" for i in range(4)]
        hidden_channels = shapes(f"{self.head}scratch.output_conv2.0.weight")[0]
        return model_dict(
            self.model,
            heads={"depth": {"hidden_channels": hidden_channels, **head}},
            encoder={
                **sizes,
                "final_norm": True,
                "layer_scale": 1.0,
                "out_indices": names.spread_blocks(sizes["num_blocks"]),
                "position_resize": "dinov2",
                **encoder,
            },
            decoder={
                **DECODER,
                "reassemble_channels": [shapes(name)[0] for name in levels],
                "fusion_channels": shapes(f"{self.head}scratch.layer1_rn.weight")[0],
            },
            preprocessing={**names.IMAGENET, "multiple_of": sizes["patch_size"], **preprocessing},
        )


FILE = AuthorsNames("pretrained.", "depth_head.", "dpt_base")
V3 = AuthorsNames("model.backbone.pretrained.", "model.head.", "dpt_large")


class DepthAnything(base.Format):
    """A ``.pth`` of the authors' code, or a folder of transformers."""

    name = "depth_anything"
    encoders = ("vit",)
    heads = ("depth",)
    free = base.Format.free | {
        "encoder.position_resize": "outputs differ away from the encoder's image_size"
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        if "model_type" in files.config:
            return files.config["model_type"] == self.name
        return files.has_prefixes(FILE.backbone, FILE.head)

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        if "model_type" not in files.config:
            config = _read_file(files)
            never_run = [FILE_MASK_TOKEN, f"{FILE_UNIT}1.*"]
            return base.StoredModel(config, files.tensors, FILE.table(config["encoder"]), never_run)
        config, tensors = _read_folder(files), files.tensors
        if config["heads"]["depth"]["kind"] == "relative":
            # transformers multiplies by it here too
            last, gain = "head.conv3.", files.config.get("max_depth") or 1
            tensors = {k: v * gain if k.startswith(last) else v for k, v in tensors.items()}
        encoder = config["encoder"]
        return base.StoredModel(config, tensors, _table(encoder), transformers.never_run(encoder))

    def _files(self, config: Plain, tensors: names.Tensors, path: Path) -> CheckpointFiles:
        encoder, head = config["encoder"], config["heads"]["depth"]
        mask_token = torch.zeros(1, encoder["embed_dim"])
        if path.suffix in (".pth", ".pt"):
            if head["max_depth"] != _named_depth(path):
                depths = "hypersim: 20 m, vkitti: 80 m, others: relative"
                fault = f"the name of a .pth says the largest depth ({depths}), or write a folder"
                raise ValueError(f"max_depth={head['max_depth']}: {fault}")
            encoder["layer_scale"] = 1.0  # gains are in the tensors
            theirs = names.to_theirs(tensors, FILE.table(encoder), FILE_UNIT)
            return CheckpointFiles(path, theirs | {FILE_MASK_TOKEN: mask_token})
        theirs = names.to_theirs(tensors, _table(encoder), transformers.DEEPEST_UNIT)
        theirs[transformers.MASK_TOKEN] = mask_token
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        processor = transformers.write_dpt_processor(config)
        theirs_config = {
            "architectures": ["DepthAnythingForDepthEstimation"],
            "model_type": "depth_anything",
            "backbone_config": transformers.write_backbone("dinov2", encoder),
            "patch_size": encoder["patch_size"],
            "reassemble_hidden_size": encoder["embed_dim"],
            **transformers.write_keys(DECODER_KEYS, config["decoder"]),
            "reassemble_factors": names.SCALES,  # whole numbers, which transformers needs
            **transformers.write_keys(HEAD_KEYS, head),
            "max_depth": int(head["max_depth"] or 1) if head["kind"] == "metric" else 1,
        }
        return CheckpointFiles(path, theirs, theirs_config, processor)


def _table(encoder: Plain) -> names.Table:
    """Returns the rows of a folder."""
    neck = transformers.neck_table()
    return [*transformers.encoder_table(encoder), *neck, ("heads.depth.*", "head.*")]


def _read_file(files: CheckpointFiles) -> Plain:
    """Returns the configuration of a ``.pth``."""
    shapes = names.Shapes(files.tensors, "Depth Anything")
    path, num_blocks = files.path, shapes.count(f"{FILE.backbone}blocks.")
    max_depth = _recorded_depth(files)
    is_v1 = (files.config and max_depth is None) or V1.search(path.name)
    if path.is_file() and not (is_v1 or "v2" in path.name.lower()):
        log.warning("%s: read as Depth Anything v2; v1 needs its name, %s", path, V1.pattern)
    head: Plain = {"kind": "relative"}
    if max_depth is not None:
        head = {"kind": "metric", "activation": "sigmoid", "max_depth": max_depth}
    encoder, interpolation = {}, "bilinear_aligned"
    if is_v1:
        encoder, interpolation = {"out_indices": [*range(num_blocks - 4, num_blocks)]}, "bilinear"
    preprocessing = {
        "image_size": [518, 518],
        "resize": "lower_bound",
        "interpolation": "cubic_float",
        "output_interpolation": interpolation,
    }
    return FILE.read(shapes, head=head, encoder=encoder, preprocessing=preprocessing)


def _recorded_depth(files: CheckpointFiles) -> Any:
    """Returns the largest depth of a ``.pth``, None of a relative one: by its own record, which is
    not checked, or else by its name."""
    facts, name = files.facts, files.path.name.lower()
    kind = files.depth_kind
    if kind is None and "relative" not in name and ("metric" in name or "silog" in facts):
        kind = "metric"
    max_depth = facts.get("max_depth") or _named_depth(files.path)
    if kind == "metric" and max_depth is None:
        remedy = "put hypersim (20 m), vkitti (80 m) or relative into its name"
        raise ValueError(f"metric by its name or record, but without a largest depth: {remedy}")
    return None if kind == "relative" else max_depth


def _named_depth(path: Path) -> float | None:
    return next((v for word, v in MAX_DEPTH.items() if word in path.name.lower()), None)


def _read_folder(files: CheckpointFiles) -> Plain:
    """Returns the configuration of a folder of transformers."""
    config = files.config
    encoder = transformers.read_backbone(config.get("backbone_config") or {}, "dinov2")
    head = transformers.read_keys(HEAD_KEYS, config)
    if head["kind"] == "metric":
        head |= {"activation": "sigmoid", "max_depth": float(config.get("max_depth") or 1)}
    statistics = {"image_mean": names.IMAGENET["mean"], "image_std": names.IMAGENET["std"]}
    released = {**statistics, "size": 518, "keep_aspect_ratio": True, "ensure_multiple_of": 14}
    preprocessing = transformers.read_dpt_processor(files.processor or released, encoder)
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder=encoder,
        decoder={**DECODER, **transformers.read_keys(DECODER_KEYS, config)},
        preprocessing={**preprocessing, "output_interpolation": "bicubic"},
    )


class DepthAnything3(base.Format):
    """The folder of a Hub repository, mono or metric."""

    name = "depth_anything_3"
    encoders = ("vit",)
    heads = ("depth",)

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.has_prefixes("backbone.pretrained.", "head.")

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        name = files.config.get("model_name")
        if name not in (MONO, METRIC):
            raise ValueError(f"model_name={name!r} in config.json must be {MONO} or {METRIC}")
        depth: Plain = {"kind": "up_to_scale"}
        if name == METRIC:
            depth = {"kind": "metric", "activation": "exp", "canonical_focal": 300.0}
        tensors = {f"model.{name}": tensor for name, tensor in files.tensors.items()}
        config = V3.read(
            names.Shapes(tensors, "Depth Anything 3"),
            head={**depth, "sky": "relu"},
            encoder={"final_norm_eps": 1e-5},
            preprocessing={
                "image_size": [504, 504],
                "resize": "longest_side",
                "interpolation": "cubic_area_twice",
                "output_interpolation": "bilinear",
            },
        )
        table, never_run = V3.table(config["encoder"]), [f"{V3.backbone}mask_token"]
        return base.StoredModel(config, tensors, table, never_run)

    def _files(self, config: Plain, tensors: names.Tensors, path: Path) -> CheckpointFiles:
        encoder, head = config["encoder"], config["heads"]["depth"]
        model_name = METRIC if head["kind"] == "metric" else MONO
        encoder["layer_scale"] = 1.0  # gains are in the tensors
        theirs = names.to_theirs(tensors, V3.table(encoder))
        return CheckpointFiles(path, theirs, {"model_name": model_name})
