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

DECODER: Keys = {
    "readout": ("readout_type", "project"),
    "scales": ("reassemble_factors", [4, 2, 1, 0.5]),
    "reassemble_channels": ("post_process_channels", [128, 256, 512, 1024]),
    "fusion_channels": ("fusion_hidden_size", 256),
}
BACKBONE: Plain = {  # of transformers' CHMv2Config
    "model_type": "dinov3_vit",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_register_tokens": 4,
    "image_size": 416,
    "layer_norm_eps": 1e-6,
    "key_bias": True,
    "out_indices": [6, 12, 18, 24],
}
PROCESSOR: Plain = {
    "image_mean": CANOPY["mean"],
    "image_std": CANOPY["std"],
    "do_resize": False,
    "do_pad": True,
    "keep_aspect_ratio": True,
    "ensure_multiple_of": 16,
}
MIXED = "chmv2_mixlog"
MASK_TOKEN, REGISTERS = "backbone.embeddings.mask_token", "backbone.embeddings.register_tokens"


def decoder_table(levels: int) -> Table:
    """Returns the rows of decoder and head; transformers counts fusion blocks from the deepest."""
    stage, fusion = "head.reassemble_stage", f"head.fusion_layers.{{{levels - 1}-n}}"
    return [
        ("decoder.reassemble.{n}.read.linear.*", f"{stage}.readout_projects.{{n}}.0.*"),
        ("decoder.reassemble.{n}.project.*", f"{stage}.layers.{{n}}.projection.*"),
        ("decoder.reassemble.{n}.resample.conv.*", f"{stage}.layers.{{n}}.resize.*"),
        ("decoder.layer_rn.*", "head.convs.*"),
        ("decoder.fusion.{n}.project.*", f"{fusion}.projection.*"),
        ("decoder.fusion.{n}.rcu{k}.conv{j}.*", f"{fusion}.residual_layer{{k}}.convolution{{j}}.*"),
        ("heads.depth.conv1.*", "head.conv_depth.head.0.*"),
        ("heads.depth.conv2.*", "head.conv_depth.head.2.*"),
        ("heads.depth.conv3.*", "head.conv_depth.head.4.*"),
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
        encoder = encoders.read_backbone(config.get("backbone_config") or BACKBONE, "dinov3_vit")
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
            heads={"depth": {"kind": "metric", **read_bins(config), **head}},
            encoder=encoder,
            decoder={**decoder, "batch_norm": False, "unit_bias": True, "align": "resize_lateral"},
            preprocessing={**preprocessing, "output_interpolation": "bilinear_aligned"},
        )
        table = [
            *encoders.encoder_table(full["encoder"]),
            *decoder_table(len(decoder["reassemble_channels"])),
        ]
        last, count = encoder["out_indices"][-1], encoder["num_blocks"]
        never_run = [f"backbone.layer.{i}.*" for i in range(last + 1, count)]
        return StoredModel(full, files.tensors, table, [MASK_TOKEN, REGISTERS, *never_run])

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        encoder, decoder, (head,) = config["encoder"], config["decoder"], config["heads"].values()
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        if encoder["position"] != "rope":
            raise ValueError(f"encoder.position={encoder['position']!r}: only 'rope'")
        if encoder["patch_size"] == 16:  # its head upsamples twofold, here to the image's size
            head["upsample"] = "double"
        encoder["cls_position"] = True  # it has no position embeddings
        dim = encoder["embed_dim"]
        table = [
            *encoders.encoder_table(encoder),
            *decoder_table(len(decoder["reassemble_channels"])),
        ]
        theirs = {
            MASK_TOKEN: torch.zeros(1, 1, dim),
            REGISTERS: torch.zeros(1, 0, dim),
            **to_theirs(tensors, table),
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
            **write_bins(head),
            "dtype": str(tensors["encoder.cls_token"].dtype).removeprefix("torch."),
        }
        processor = write_dpt_processor(config, only_square=False)
        processor["image_processor_type"] = "CHMv2ImageProcessor"
        return CheckpointFiles(path, theirs, theirs_config, processor)


def read_bins(config: Plain) -> Plain:
    """Returns the options of a depth head that its bins decide.

    ``chmv2_mixlog`` as a spacing ends at an eighth of ``max_depth``; as a norm it multiplies by 8.
    """
    count = config.get("number_output_channels", 256)
    low, high = config.get("min_depth", 0.001), config.get("max_depth", 96.0)
    spacing, norm = (config.get(f"{key}_strategy", MIXED) for key in ("bins", "norm"))
    if count == 1:
        return {"activation": "relu", "min_depth": low}
    if spacing == norm == MIXED:
        return {"bins": mixed_bins(count, low, high)}
    if MIXED in (spacing, norm):
        raise ValueError(
            f"bins_strategy={spacing!r} with norm_strategy={norm!r}: {MIXED!r} is read for both or "
            "for neither"
        )
    weights = "relu" if norm == "linear" else norm
    bins = {"count": count, "min_depth": low, "max_depth": high}
    return {"bins": {**bins, "spacing": spacing, "weights": weights}}


def write_bins(head: Plain) -> Plain:
    """Returns the keys of a config that :func:`read_bins` reads."""
    bins = head["bins"]
    if bins is None:
        return {"number_output_channels": 1, "min_depth": head["min_depth"]}
    is_mixed = bins["spacing"] == "mixed"
    norm = {"relu": "linear"}.get(bins["weights"], bins["weights"])
    return {
        "number_output_channels": bins["count"],
        "bins_strategy": MIXED if is_mixed else bins["spacing"],
        "norm_strategy": MIXED if is_mixed else norm,
        "min_depth": bins["min_depth"] / 8 if is_mixed else bins["min_depth"],
        "max_depth": bins["max_depth"],
    }
