"""DINOv3's depthers (Siméoni et al. 2025): a DPT decoder in a file of its own over a frozen ViT.

The released files hold the decoder alone. One is read together with its backbone if that lies
beside it under its released name, such as ``dinov3_vitl16_chmv2_dpt_head-3703d643.pth`` with
``dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth``; a file of ``depther.state_dict()`` is whole. The
bins are in no file: they follow from the layers, which tell the two released depthers apart.

The depther of canopy heights, CHMv2, is also a folder of transformers (``chmv2``).
"""

import re
from pathlib import Path

import torch
from torch import Tensor

from dpt.files import few
from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import transformers_config as encoders
from dpt.weights.base import Format, StoredModel
from dpt.weights.dinov2 import IMAGENET, decoder_table, read_decoder, spread_blocks
from dpt.weights.files import CheckpointFiles, read_tensors, unwrap
from dpt.weights.names import Shapes, Table, Tensors, gated_rows, quarter_ends, to_theirs
from dpt.weights.transformers import MASK_TOKEN, REGISTERS, neck_table
from dpt.weights.transformers_config import (
    Keys,
    read_dpt_processor,
    read_keys,
    write_dpt_processor,
    write_keys,
)

HEAD_FILE = re.compile(r"(dinov3_\w+)_(synthmix|chmv2)_dpt_head(-\w+)?\.pth$")
BACKBONES = {"synthmix": "lvd1689m", "chmv2": "sat493m"}
"""What the backbone of each depther was trained on, as in the names of files."""
BACKBONE = "encoder.backbone."
HEAD = "decoder."
COUNT = 256  # bins of the released depthers
SYNTHMIX_BINS: Plain = {"count": COUNT, "min_depth": 0.001, "max_depth": 100.0}
CANOPY: Plain = {"mean": [0.42, 0.411, 0.296], "std": [0.213, 0.156, 0.143]}
NEVER_RUN = ("mask_token", "rope_embed.periods", "local_cls_norm.*")


def mixed_bins(count: int, low: float, high: float) -> Plain:
    """Returns the bins ``chmv2_mixlog`` with the weights of this name.

    CHMv2 makes depths from ``low`` to an eighth of ``high``, and multiplies the result by 8.
    """
    bins = {"count": count, "min_depth": 8 * low, "max_depth": high}
    return {**bins, "spacing": "mixed", "eps": 1e-8}


def split_biases(tensors: Tensors) -> dict[str, Tensor]:
    """Returns tensors with our names of biases where a mask takes out those of the keys."""
    split = dict(tensors)
    for mask in [name for name in tensors if name.endswith(".qkv.bias_mask")]:
        del split[mask]
        q_bias, _, v_bias = split.pop(mask.removesuffix("_mask")).chunk(3)
        attention = mask.removesuffix("qkv.bias_mask")
        split |= {f"{attention}q_bias": q_bias, f"{attention}v_bias": v_bias}
    return split


class Dinov3(Format):
    name = "dinov3"

    def recognises(self, files: CheckpointFiles) -> bool:
        is_head = (
            files.has_prefixes(f"{p}reassemble_blocks.", f"{p}conv_depth.") for p in ("", HEAD)
        )
        return not files.config and any(is_head)

    def read(self, files: CheckpointFiles) -> StoredModel:
        tensors = files.tensors
        if not files.has_prefixes(HEAD):
            backbone = unwrap(read_tensors(_find_backbone(files.path)))
            tensors = {f"{HEAD}{name}": tensor for name, tensor in tensors.items()}
            tensors |= {f"{BACKBONE}{name}": tensor for name, tensor in backbone.items()}
        config = _read_config(Shapes(tensors, "a depther of DINOv3"))
        block = f"{BACKBONE}blocks.{{i}}.mlp"
        table = [
            *gated_rows(config["encoder"], f"{block}.{{w1,w2}}.*", f"{block}.w3.*"),
            ("encoder.reg_token", f"{BACKBONE}storage_tokens"),
            ("encoder.*", f"{BACKBONE}*"),
            ("decoder.reassemble.{n}.norm.*", f"{HEAD}reassemble_blocks.batchnorm_layers.{{n}}.*"),
            *decoder_table(HEAD),
        ]
        never_run = [f"{BACKBONE}{name}" for name in NEVER_RUN]
        return StoredModel(config, split_biases(tensors), table, never_run)


def _find_backbone(path: Path) -> Path:
    """Returns the file of the backbone beside a decoder's."""
    released = HEAD_FILE.match(path.name)
    pattern = f"{released[1]}_pretrain_{BACKBONES[released[2]]}*.pth" if released else ""
    found = sorted(path.parent.glob(pattern)) if pattern else []
    if len(found) != 1:
        raise ValueError(
            "the decoder of a depther, whose backbone must lie beside it, both under their "
            "released names, such as dinov3_vitl16_chmv2_dpt_head-3703d643.pth and "
            f"dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth: {pattern or 'no such name'}, found "
            f"{few([file.name for file in found], 3) or 'none'}"
        )
    return found[0]


def _read_config(shapes: Shapes) -> Plain:
    encoder, decoder = _read_encoder(shapes), read_decoder(shapes, HEAD)
    is_canopy = decoder["readout"] == "project"
    count = shapes(f"{HEAD}conv_depth.head.4.weight")[0]
    if count != COUNT:
        raise ValueError(
            f"{HEAD}conv_depth.head.4.weight has {count} outputs: the released depthers have "
            f"{COUNT} bins, and the depths of others are in no file"
        )
    bins = mixed_bins(count, 0.001, 96.0) if is_canopy else SYNTHMIX_BINS
    levels = quarter_ends if is_canopy else spread_blocks
    head: Plain = {
        "kind": "metric",
        "bins": bins,
        "hidden_channels": shapes(f"{HEAD}conv_depth.head.2.weight")[0],
        "upsample": "double",
    }
    # CHMv2's code takes whole tiles; the other's example squeezes images into 1024 × 1024
    images: Plain = {"resize": "none", "multiple_of": 1, **CANOPY}
    if not is_canopy:
        images = {"image_size": [1024, 1024], "resize": "stretch", **IMAGENET}
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder={
            **encoder,
            "out_indices": levels(encoder["num_blocks"]),
            "padding": "center",
        },
        decoder=decoder,
        preprocessing={
            **images,
            "interpolation": "bilinear_antialias",
            "output_interpolation": "bilinear",
        },
    )


def _read_encoder(shapes: Shapes) -> Plain:
    """Returns the options of the ViT; assumed is a LayerNorm eps of 1e-5 and a theta of 100."""
    dim, _, patch, _ = shapes(f"{BACKBONE}patch_embed.proj.weight")
    block = f"{BACKBONE}blocks.0."
    gated = f"{block}mlp.w1.weight" in shapes.tensors
    width = shapes(f"{block}mlp.{'w1' if gated else 'fc1'}.weight")[0]
    registers = f"{BACKBONE}storage_tokens"
    return {
        "patch_size": patch,
        "embed_dim": dim,
        "num_blocks": shapes.count(f"{BACKBONE}blocks."),
        # a period for each pair of channels of a head and side of the image
        "num_heads": dim // (4 * shapes(f"{BACKBONE}rope_embed.periods")[0]),
        "mlp_ratio": (1.5 if gated else 1) * width / dim,
        "swiglu": gated,
        "qkv_bias": f"{block}attn.qkv.bias" in shapes.tensors,
        "key_bias": f"{block}attn.qkv.bias_mask" not in shapes.tensors,
        "norm_eps": 1e-5,
        "num_register_tokens": shapes(registers)[1] if registers in shapes.tensors else 0,
        "position": "rope",
        "layer_scale": 1.0,
        "final_norm": True,
    }


# --- CHMv2 of transformers

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


def tensor_names(config: Plain) -> Table:
    """Returns the rows of a folder."""
    return [
        *encoders.encoder_table(config["encoder"]),
        *neck_table(len(config["decoder"]["scales"]), "head", "fusion_layers"),
        *[(f"heads.depth.conv{i + 1}.*", f"head.conv_depth.head.{2 * i}.*") for i in range(3)],
    ]


class Chmv2(Format):
    """Folders of transformers: ``config.json``, ``preprocessor_config.json`` and weights."""

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
