"""Random models of transformers' EoMT over DINOv2 and DINOv3, saved by it and read by us."""

import torch
import torch.nn.functional as F
from peer_cases import jolt
from peers_dinov3 import exact_rotation
from peers_transformers import OfTransformers
from torch import nn

from dpt.nn.heads.queries import semantic_scores

CONFIG = {
    "hidden_size": 48,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 16,
    "num_blocks": 2,
    "num_queries": 7,
    "num_register_tokens": 2,
    "num_labels": 5,
}


def exact_attention(module, query, key, value, mask, scaling, **options):
    """transformers' own is float32 inside, or takes a float32 mask to float64 scores."""
    mask = None if mask is None else mask.to(query)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return mixed.transpose(1, 2), None


class Output(nn.Module):
    """Images to one tensor: mask logits, or the class scores that they and the classes give."""

    def __init__(self, model: nn.Module, *, semantic: bool) -> None:
        super().__init__()
        self.model, self.semantic = model, semantic

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        actual = self.model(images)
        masks, classes = actual.masks_queries_logits, actual.class_queries_logits
        if not self.semantic:
            return masks
        masks = F.interpolate(masks, size=images.shape[-2:], mode="bilinear")
        return semantic_scores(masks, classes)


class Eomt(OfTransformers):
    def make(self):
        import transformers

        options = dict(self.options)
        masked = options.pop("masked", 0.0)
        kind = "EomtDinov3" if "intermediate_size" in options else "Eomt"
        config = getattr(transformers, f"{kind}Config")(**CONFIG, **options)
        transformers.AttentionInterface.register("exact", exact_attention)
        model = getattr(transformers, f"{kind}ForUniversalSegmentation")
        theirs = jolt(model._from_config(config, attn_implementation="exact"))
        if kind == "EomtDinov3":
            theirs.rope_embeddings.register_forward_hook(exact_rotation)
        theirs.attn_mask_probs.fill_(masked)
        return Output(theirs, semantic=self.task == "segmentation")

    def save(self, theirs, folder):
        from transformers import EomtImageProcessor

        EomtImageProcessor(do_split_image=theirs.semantic).save_pretrained(folder)
        return super().save(theirs, folder)


DINOV3 = {"intermediate_size": 96}
CASES = [
    Eomt("eomt", "panoptic", "EoMT", ((64, 64),)),
    Eomt("eomt", "panoptic", "EoMT, masked attention", ((64, 64),), {"masked": 1.0}),
    Eomt("eomt", "panoptic", "EoMT, SwiGLU", ((64, 64),), {"use_swiglu_ffn": True}),
    Eomt("eomt", "segmentation", "EoMT", ((64, 64),)),
    Eomt("eomt", "panoptic", "DINOv3", ((64, 64),), DINOV3),
    Eomt("eomt", "panoptic", "DINOv3, masked", ((64, 64),), {**DINOV3, "masked": 1.0}),
]
