"""Random models of transformers' ``dpt``, saved by transformers and read by us."""

import torch
from peer_cases import Case, jolt
from torch import nn

CONFIG = {
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "image_size": 64,
    "patch_size": 16,
    "backbone_out_indices": [0, 2, 3, 5],
    "neck_hidden_sizes": [8, 12, 16, 24],
    "fusion_hidden_size": 16,
    "layer_norm_eps": 1e-6,
    "num_labels": 5,
}
HYBRID = {
    "is_hybrid": True,
    "backbone_out_indices": [0, 1, 2, 5],
    "neck_hidden_sizes": [256, 512, 16, 24],
    "reassemble_factors": [1, 1, 1, 0.5],
    "backbone_featmap_shape": [1, 1024, 4, 4],
}
BACKBONE = {
    "model_type": "dinov2",
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 70,
    "patch_size": 14,
    "out_indices": [1, 3, 4, 6],
    "reshape_hidden_states": False,
    "apply_layernorm": False,
}


class Output(nn.Module):
    """Images to the one tensor that is compared."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        actual = self.model(images)
        return actual.logits if "logits" in actual else actual.predicted_depth


def make(task, *, backbone=None, **options):
    from transformers import AutoConfig, DPTConfig, DPTForDepthEstimation
    from transformers import DPTForSemanticSegmentation as Segmentation

    config = {**CONFIG, **options}
    if backbone is not None:
        config["backbone_config"] = AutoConfig.for_model(**backbone)
    config.setdefault("use_batch_norm_in_fusion_residual", task == "segmentation")
    cls = DPTForDepthEstimation if task == "depth" else Segmentation
    theirs = jolt(cls(DPTConfig(**config)))
    if task == "depth":  # away from a map of zeros behind the last ReLU
        nn.init.constant_(theirs.head.head[4].bias, 2.0)
    return theirs


class OfTransformers(Case):
    """A random model of transformers, saved by it and read by us."""

    def save(self, theirs, folder):
        theirs.model.save_pretrained(folder)
        return folder


class Transformers(OfTransformers):
    def make(self):
        return Output(make(self.task, **self.options))


SQUARE = ((64, 64), (32, 32), (96, 96))  # its own ViT takes no others
EVEN, ODD = ((112, 112), (112, 168)), ((70, 70), (70, 98), (42, 84))
DINOV2_HEAD = {
    "fusion_hidden_size": 256,
    "add_projection": True,
    "use_bias_in_fusion_residual": False,
    "backbone": BACKBONE,
}
NORM_SWIGLU = {**BACKBONE, "apply_layernorm": True, "use_swiglu_ffn": True}


SINGLE = 1e-5  # resizes codes in float32 whatever it is given

PATCH_8 = {"patch_size": 8, "qkv_bias": False, "layer_norm_eps": 1e-3}

CASES = [
    Transformers("transformers", *row)
    for row in (
        *(
            ("depth", f"ViT, {m}", SQUARE, {"readout_type": m})
            for m in ("project", "add", "ignore")
        ),
        ("depth", "ViT, odd grid", ((80, 80), (48, 48)), {"image_size": 80}),
        ("depth", "ViT/8", ((64, 64), (40, 40)), PATCH_8),
        ("segmentation", "ViT", SQUARE),
        ("segmentation", "ViT, no auxiliary", SQUARE, {"use_auxiliary_head": False}),
        ("depth", "hybrid", SQUARE[:1], HYBRID),
        ("segmentation", "hybrid", SQUARE[:1], HYBRID),
        ("depth", "DINOv2, its depth head", ((70, 70), (42, 56)), DINOV2_HEAD, SINGLE),
        ("depth", "DINOv2, norm, SwiGLU", (*ODD, *EVEN), {"backbone": NORM_SWIGLU}, SINGLE),
    )
]
