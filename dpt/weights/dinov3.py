"""DINOv3's depthers (Siméoni et al. 2025): a DPT decoder in a file of its own over a frozen ViT.

The released files hold the decoder alone. One is read together with its backbone if that lies
beside it under its released name, such as ``dinov3_vitl16_chmv2_dpt_head-3703d643.pth`` with
``dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth``; a file of ``depther.state_dict()`` is whole. The
bins are in no file: they follow from the layers, which tell the two released depthers apart.
"""

import re
from pathlib import Path

from torch import Tensor

from dpt.files import few
from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights.base import Format, StoredModel
from dpt.weights.dinov2 import IMAGENET, decoder_table, read_decoder, spread_blocks
from dpt.weights.files import CheckpointFiles, read_tensors, unwrap
from dpt.weights.names import Tensors, gated_rows
from dpt.weights.shapes import Shapes, quarter_ends

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
