"""Folders of transformers' ``tipsv2_dpt``: depth, normals and segmentation over one ViT, each with
a decoder of its own, or one of the three.

Normals are read in the frame in which the model gives them, which no file states: compare a floor
with those of another model before you mix them with normals of this project (x right, y down).
"""

from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights.base import Format, StoredModel
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import Shapes, Table, Tensors, gated_rows, to_theirs
from dpt.weights.transformers_config import (
    TIPSV2,
    Keys,
    read_backbone,
    read_dpt_processor,
    read_keys,
    read_names,
    write_backbone,
    write_keys,
    write_names,
    write_pixels,
)

ENCODER = "vision_encoder."
MASK_TOKEN, REGISTERS = f"{ENCODER}mask_token", f"{ENCODER}register_tokens"
DECODER: Keys = {
    "scales": ("reassemble_factors", [4, 2, 1, 0.5]),
    "reassemble_channels": ("neck_hidden_sizes", [96, 192, 384, 768]),
    "fusion_channels": ("fusion_hidden_size", 256),
}
BINS: Keys = {
    "count": ("num_depth_bins", 256),
    "min_depth": ("min_depth", 0.001),
    "max_depth": ("max_depth", 10.0),
}
NEEDED = {"readout_activation": "gelu_pytorch_tanh", "depth_decoder_activation": "relu"}
CLASSES = {
    "depth": "DepthEstimation",
    "normals": "NormalEstimation",
    "segmentation": "SemanticSegmentation",
}
PROCESSOR: Plain = {"size": {"height": 448, "width": 448}, "resample": 2, "do_normalize": False}


def tensor_names(encoder: Plain, levels: int) -> Table:
    """Returns the rows of the encoder and of every head."""
    block = f"{ENCODER}blocks.{{i}}.mlp"
    table = [
        *gated_rows(encoder, f"{block}.w12.*", f"{block}.w3.*"),
        ("encoder.blocks.{i}.mlp.fc1.*", f"{block}.c_fc.*"),
        ("encoder.blocks.{i}.mlp.fc2.*", f"{block}.c_proj.*"),
        ("encoder.reg_token", f"{ENCODER}register_tokens"),
        ("encoder.*", f"{ENCODER}*"),
    ]
    for name in CLASSES:
        ours, theirs = f"decoders.{name}", f"{name}_head"
        fusion = f"{theirs}.fusion_blocks.{{{levels - 1}-n}}"
        stage = f"{theirs}.reassemble"
        table += [
            (f"{ours}.reassemble.{{n}}.read.linear.*", f"{stage}.readout_projects.{{n}}.*"),
            (f"{ours}.reassemble.{{n}}.project.*", f"{stage}.out_projections.{{n}}.*"),
            (f"{ours}.reassemble.{{n}}.resample.conv.*", f"{stage}.resize_layers.{{n}}.*"),
            (f"{ours}.layer_rn.*", f"{theirs}.convs.*"),
            (f"{ours}.fusion.{{n}}.project.*", f"{fusion}.out_conv.*"),
            (f"{ours}.fusion.{{n}}.rcu1.*", f"{fusion}.residual_unit.*"),
            (f"{ours}.fusion.{{n}}.rcu2.*", f"{fusion}.main_unit.*"),
            (f"{ours}.output_project.*", f"{theirs}.project.*"),
            (f"heads.{name}.conv3.*", f"{theirs}.{theirs}.*"),
        ]
    return table


class Tipsv2Dpt(Format):
    """transformers' ``Tipsv2DptForDensePrediction`` and its classes for one task."""

    name = "tipsv2_dpt"
    encoders = ("vit",)
    heads = tuple(CLASSES)
    head_counts = (1, 3)
    has_own_decoders = True
    free = Format.free | {
        "decoder.*": None,  # no head reads it
        **dict.fromkeys(f"heads.segmentation.{k}" for k in ("auxiliary", "upsample")),
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") == self.name

    def read(self, files: CheckpointFiles) -> StoredModel:
        config = files.config
        encoder = read_backbone(config.get("backbone_config") or {}, TIPSV2)
        decoder = read_keys(DECODER, config)
        for key, value in NEEDED.items():
            if config.get(key, value) != value:
                raise ValueError(f"{key}={config[key]!r}, not supported (only {value!r})")
        decoder |= {
            "readout_gelu": "tanh",
            "batch_norm": False,
            "unit_bias": False,
            "align": "resize_lateral",
            "output_project": True,
        }
        names = [name for name in CLASSES if files.has_prefixes(f"{name}_head.")]
        full = model_dict(
            "dpt_base",
            heads={
                name: {
                    **_read_head(name, files),
                    "decoder": {**decoder, "output_relu": name == "depth"},
                }
                for name in names
            },
            encoder=encoder,
            preprocessing={
                **read_dpt_processor(PROCESSOR | files.processor, encoder),
                "multiple_of": encoder["patch_size"],
                "output_interpolation": "bilinear",
            },
        )
        tensors = {k: v[:, :, None, None] if _is_linear(k) else v for k, v in files.tensors.items()}
        later = range(encoder["out_indices"][-1] + 1, encoder["num_blocks"])
        never_run = [MASK_TOKEN, REGISTERS, *(f"{ENCODER}blocks.{i}.*" for i in later)]
        table = tensor_names(encoder, len(decoder["scales"]))
        return StoredModel(full, tensors, table, never_run)

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        encoder, heads, preprocessing = (config[k] for k in ("encoder", "heads", "preprocessing"))
        for name, head in heads.items():
            for key in ("decoder", *(["bins"] if name == "depth" else [])):
                if head[key] is None:
                    raise ValueError(f"heads.{name}.{key}=None: its heads have {key} of their own")
        decoder = next(iter(heads.values()))["decoder"]
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        theirs = {
            MASK_TOKEN: torch.zeros(1, encoder["embed_dim"]),
            REGISTERS: torch.zeros(1, 0, encoder["embed_dim"]),
            **to_theirs(tensors, tensor_names(encoder, len(decoder["scales"]))),
        }
        task = "DensePrediction" if len(heads) > 1 else CLASSES[next(iter(heads))]
        theirs_config: Plain = {
            "architectures": [f"Tipsv2DptFor{task}"],
            "model_type": self.name,
            "backbone_config": {
                **write_backbone(TIPSV2, encoder),
                "mlp_ratio": encoder["mlp_ratio"],  # not whole in the model So400m
            },
            **write_keys(DECODER, decoder),
            "reassemble_factors": [int(s) if s >= 1 else s for s in decoder["scales"]],
            **NEEDED,
            "dtype": str(tensors["encoder.cls_token"].dtype).removeprefix("torch."),
        }
        if "segmentation" in heads:
            theirs_config |= write_names(heads["segmentation"])
        if "depth" in heads:
            theirs_config |= write_keys(BINS, heads["depth"]["bins"])
        height, width = preprocessing["image_size"]
        processor = {
            "image_processor_type": "Tipsv2DptImageProcessor",
            "do_resize": preprocessing["resize"] != "none",
            "size": {"height": height, "width": width},
            **write_pixels(preprocessing),
        }
        renamed = {k: v[:, :, 0, 0] if _is_linear(k) else v for k, v in theirs.items()}
        return CheckpointFiles(path, renamed, theirs_config, processor)


def _is_linear(name: str) -> bool:
    """Whether a tensor is the weight of a head's last layer, here a 1×1 convolution."""
    return name in [f"{head}_head.{head}_head.weight" for head in CLASSES]


def _read_head(name: str, files: CheckpointFiles) -> Plain:
    config = files.config
    if name == "segmentation":
        shapes = Shapes(files.tensors, "transformers' tipsv2_dpt")
        classes = shapes("segmentation_head.segmentation_head.weight")[0]
        return {"kind": "map", "num_classes": classes, "class_names": read_names(config)}
    if name == "normals":
        return {"hidden_channels": None}
    bins = read_keys(BINS, config)
    bins["eps"] = bins["min_depth"]
    return {"kind": "metric", "hidden_channels": None, "bins": bins}
