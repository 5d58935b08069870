"""Random models of segmentation_models.pytorch, saved by it and read by us.

Its deepest fusion block runs a residual unit that ours has not: here it is the identity.
"""

from typing import Any

import torch
from peer_cases import Case, jolt
from torch import nn

import dpt


def make(name: str = "tu-vit_tiny_patch16_224", *, identity: bool = True, **options: Any):
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    model = smp.DPT(
        name,
        encoder_weights=None,
        decoder_intermediate_channels=(8, 12, 16, 24),
        decoder_fusion_channels=16,
        classes=5,
        img_size=64,
        dynamic_img_size=True,
        embed_dim=64,
        num_heads=2,
        **options,
    )
    jolt(model)
    if identity:
        last = model.decoder.fusion_blocks[0].residual_conv_block1.batch_norm_2
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return model


class Smp(Case):
    def build(self, folder):
        theirs = make(**self.options)
        theirs.save_pretrained(folder)
        return theirs, dpt.DPT.from_pretrained(folder)


SIZES = ((64, 64), (64, 96))
REGISTERS = {"class_token": True, "reg_tokens": 2}
CASES = [
    Smp("smp", "segmentation", "ViT", SIZES),
    Smp("smp", "segmentation", "ViT, add", SIZES[:1], {"decoder_readout": "add"}),
    Smp(
        "smp",
        "segmentation",
        "ViT/8, other taps",
        SIZES[:1],
        {
            "name": "tu-vit_small_patch8_224",
            "decoder_readout": "ignore",
            "encoder_output_indices": [1, 2, 5, -4],
        },
    ),
    Smp("smp", "segmentation", "ViT, registers", SIZES[:1], REGISTERS),
    Smp(
        "smp",
        "segmentation",
        "DeiT, distilled",
        SIZES[:1],
        {"name": "tu-deit_tiny_distilled_patch16_224"},
    ),
]
