"""Folders of transformers' ``chmv2``: DPT over DINOv3 with bins (canopy height, Meta's CHMv2)."""

from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import transformers_encoders as encoders
from dpt.weights.base import Format, StoredModel
from dpt.weights.dinov3 import CANOPY, mixed_bins
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import Table, Tensors, to_theirs
from dpt.weights.processors import read_dpt_processor, write_dpt_processor
from dpt.weights.shapes import Keys, read_keys, write_keys
from dpt.weights.transformers import neck_table

DECODER: Keys = {
    "readout": ("readout_type", "project"),
    "scales": ("reassemble_factors", [4, 2, 1, 0.5]),
    "reassemble_channels": ("post_process_channels", [128, 256, 512, 1024]),
    "fusion_channels": ("fusion_hidden_size", 256),
}
PROCESSOR: Plain = {  # of transformers' CHMv2ImageProcessor
    "image_mean": CANOPY["mean"],
    "image_std": CANOPY["std"],
    "do_resize": False,
    "do_pad": True,
    "ensure_multiple_of": 16,
    "keep_aspect_ratio": True,
}
MIXED = "chmv2_mixlog"
MASK_TOKEN, REGISTERS = "backbone.embeddings.mask_token", "backbone.embeddings.register_tokens"


def tensor_names(config: Plain) -> Table:
    """Returns the rows of a folder."""
    return [
        *encoders.encoder_table(config["encoder"]),
        *neck_table(len(config["decoder"]["scales"]), "head", "fusion_layers"),
        *[(f"heads.depth.conv{i + 1}.*", f"head.conv_depth.head.{2 * i}.*") for i in range(3)],
    ]


class Chmv2(Format):
    """Folders of ``config.json``, ``preprocessor_config.json`` and weights."""

    name = "chmv2"
    encoders = ("vit",)
    heads = ("depth",)
    free = Format.free | {"encoder.image_size": None}  # rotary embeddings do not need it

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") == self.name

    def read(self, files: CheckpointFiles) -> StoredModel:
        config, processor = files.config, PROCESSOR | files.processor
        encoder = encoders.read_backbone(config.get("backbone_config") or {}, "dinov3_vit")
        patch = encoder["patch_size"]
        if not encoder["final_norm"] or config.get("patch_size", 16) != patch:
            raise ValueError(
                f"its backbone has apply_layernorm={encoder['final_norm']} and patch_size={patch}, "
                "not supported"
            )
        preprocessing = read_dpt_processor(processor, encoder)
        if not processor["do_resize"]:
            preprocessing["multiple_of"] = 1  # the network pads
        head = {"hidden_channels": config.get("head_hidden_size", 128), "upsample": "double"}
        decoder = read_keys(DECODER, config)
        full = model_dict(
            "dpt_base",
            heads={"depth": {"kind": "metric", "bins": read_bins(config), **head}},
            encoder=encoder,
            decoder={**decoder, "batch_norm": False, "unit_bias": True, "align": "resize_lateral"},
            preprocessing={**preprocessing, "output_interpolation": "bilinear_aligned"},
        )
        last, count = encoder["out_indices"][-1], encoder["num_blocks"]
        never_run = [f"backbone.layer.{i}.*" for i in range(last + 1, count)]
        never_run += [MASK_TOKEN, REGISTERS]
        return StoredModel(full, files.tensors, tensor_names(full), never_run)

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        encoder, decoder, (head,) = config["encoder"], config["decoder"], config["heads"].values()
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        if encoder["position"] != "rope":
            raise ValueError(f"encoder.position={encoder['position']!r}: only 'rope'")
        if head["bins"] is None:
            raise ValueError("heads.depth.bins=None: its heads have bins")
        if encoder["patch_size"] == 16:  # its head upsamples twofold, here to the image's size
            head["upsample"] = "double"
        encoder["cls_position"] = True  # it has no position embeddings
        theirs = {
            MASK_TOKEN: torch.zeros(1, 1, encoder["embed_dim"]),
            REGISTERS: torch.zeros(1, 0, encoder["embed_dim"]),
            **to_theirs(tensors, tensor_names(config)),
        }
        theirs_config = {
            "architectures": ["CHMv2ForDepthEstimation"],
            "model_type": self.name,
            "backbone_config": {
                **encoders.write_backbone("dinov3_vit", encoder),
                "reshape_hidden_states": True,
                "return_class_token": True,
            },
            "patch_size": encoder["patch_size"],
            **write_keys(DECODER, decoder),
            "reassemble_factors": [int(s) if s >= 1 else s for s in decoder["scales"]],
            "head_hidden_size": head["hidden_channels"],
            **write_bins(head["bins"]),
            "dtype": str(tensors["encoder.cls_token"].dtype).removeprefix("torch."),
        }
        processor = write_dpt_processor(config, only_square=False)
        processor["image_processor_type"] = "CHMv2ImageProcessor"
        return CheckpointFiles(path, theirs, theirs_config, processor)


def read_bins(config: Plain) -> Plain:
    """Returns our bins; ``chmv2_mixlog`` is read for both strategies or for neither."""
    count = config.get("number_output_channels", 256)
    low, high = config.get("min_depth", 0.001), config.get("max_depth", 96.0)
    spacing, norm = (config.get(f"{key}_strategy", MIXED) for key in ("bins", "norm"))
    if spacing == norm == MIXED:
        return mixed_bins(count, low, high)
    if MIXED in (spacing, norm):
        raise ValueError(f"bins_strategy={spacing!r} with norm_strategy={norm!r}, not supported")
    weights = "relu" if norm == "linear" else norm
    bins = {"count": count, "min_depth": low, "max_depth": high}
    return {**bins, "spacing": spacing, "weights": weights}


def write_bins(bins: Plain) -> Plain:
    """Returns the keys of a config that :func:`read_bins` reads."""
    is_mixed = bins["spacing"] == "mixed"
    norm = "linear" if bins["weights"] == "relu" else bins["weights"]
    return {
        "number_output_channels": bins["count"],
        "bins_strategy": MIXED if is_mixed else bins["spacing"],
        "norm_strategy": MIXED if is_mixed else norm,
        "min_depth": bins["min_depth"] / 8 if is_mixed else bins["min_depth"],
        "max_depth": bins["max_depth"],
    }
