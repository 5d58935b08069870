"""Random models of segmentation_models.pytorch, saved by it and read by us."""

from typing import Any

from peer_cases import Case, jolt


def make(name: str = "tu-vit_tiny_patch16_224", **options: Any):
    import segmentation_models_pytorch as smp

    return jolt(
        smp.DPT(
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
    )


class Smp(Case):
    def make(self):
        return make(**self.options)

    def save(self, theirs, folder):
        theirs.save_pretrained(folder)
        return folder


SIZES = ((64, 64), (64, 96))
REGISTERS = {"class_token": True, "reg_tokens": 2}
BARE = {"class_token": False, "global_pool": "avg", "decoder_readout": "ignore"}
PATCH_8 = {
    "name": "tu-vit_small_patch8_224",
    "decoder_readout": "ignore",
    "encoder_output_indices": [1, 2, 5, -4],
}
CASES = [
    Smp("smp", "segmentation", *row)
    for row in (
        ("ViT", SIZES),
        ("ViT, add", SIZES[:1], {"decoder_readout": "add"}),
        ("ViT/8, other levels", SIZES[:1], PATCH_8),
        ("ViT/32", SIZES, {"name": "tu-vit_small_patch32_224"}),
        ("ViT, registers", SIZES[:1], REGISTERS),
        ("ViT, no CLS token", SIZES[:1], BARE),
        ("DeiT, distilled", SIZES[:1], {"name": "tu-deit_tiny_distilled_patch16_224"}),
    )
]
