"""DINOv3's depthers (Siméoni et al. 2025): a DPT decoder in a file of its own over a frozen ViT.

The released file, SYNTHMIX, holds the decoder alone. It is read together with its backbone if that
lies beside it under its released name, such as ``dinov3_vit7b16_synthmix_dpt_head-02040be1.pth``
with ``dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth``; a file of ``depther.state_dict()`` is whole.
The bins are in no file. CHMv2, the depther of canopy heights, is not read: it has a readout.
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
from dpt.weights.names import Shapes, Tensors, gated_rows

HEAD_FILE = re.compile(r"(dinov3_\w+)_synthmix_dpt_head(-\w+)?\.pth$")
BACKBONE = "encoder.backbone."
HEAD = "decoder."
COUNT = 256  # bins of the released depther
NEVER_RUN = ("mask_token", "rope_embed.periods", "local_cls_norm.*")


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
        if any(f"{p}reassemble_blocks.readout_projects.0.0.weight" in tensors for p in ("", HEAD)):
            raise ValueError("CHMv2, DINOv3's depther of canopy heights, is not read")
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
    pattern = f"{released[1]}_pretrain_lvd1689m*.pth" if released else ""
    found = sorted(path.parent.glob(pattern)) if pattern else []
    if len(found) != 1:
        raise ValueError(
            "the decoder of a depther, whose backbone must lie beside it, both under their "
            "released names, such as dinov3_vit7b16_synthmix_dpt_head-02040be1.pth and "
            f"dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth: {pattern or 'no such name'}, found "
            f"{few([file.name for file in found], 3) or 'none'}"
        )
    return found[0]


def _read_config(shapes: Shapes) -> Plain:
    encoder = _read_encoder(shapes)
    count = shapes(f"{HEAD}conv_depth.head.4.weight")[0]
    if count != COUNT:
        raise ValueError(
            f"{HEAD}conv_depth.head.4.weight has {count} outputs: the released depther has "
            f"{COUNT} bins, and the depths of others are in no file"
        )
    head: Plain = {
        "kind": "metric",
        "bins": {"count": COUNT, "min_depth": 0.001, "max_depth": 100.0},
        "hidden_channels": shapes(f"{HEAD}conv_depth.head.2.weight")[0],
        "upsample": "double",
    }
    return model_dict(
        "dpt_base",
        heads={"depth": head},
        encoder={
            **encoder,
            "out_indices": spread_blocks(encoder["num_blocks"]),
            "padding": "center",
        },
        decoder=read_decoder(shapes, HEAD),
        preprocessing={  # its example squeezes images into 1024 × 1024
            **IMAGENET,
            "image_size": [1024, 1024],
            "resize": "stretch",
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
