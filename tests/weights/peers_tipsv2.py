"""Random models of transformers' ``tipsv2_dpt``, saved by transformers and read by us."""

import torch
import torch.nn.functional as F
from peer_cases import jolt
from peers_transformers import OfTransformers
from torch import nn

BACKBONE = {
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "image_size": 56,
    "out_indices": [1, 3, 4, 6],
    "reshape_hidden_states": False,
}
CONFIG = {
    "neck_hidden_sizes": [8, 12, 16, 24],
    "fusion_hidden_size": 16,
    "num_labels": 5,
    # exact in float32, in which its bins are
    "num_depth_bins": 16,
    "min_depth": 0.5,
    "max_depth": 8.0,
}
CLASSES = {
    "depth": "DepthEstimation",
    "normals": "NormalEstimation",
    "segmentation": "SemanticSegmentation",
}


class Output(nn.Module):
    """Images to the map of one task, as its image processor gives it but for class scores."""

    def __init__(self, model: nn.Module, task: str) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        actual = self.model(images)
        if self.task == "depth":
            return actual.predicted_depth
        if self.task == "normals":
            normals = F.normalize(actual.normals, dim=1)
            size = images.shape[-2:]
            return F.normalize(F.interpolate(normals, size=size, mode="bilinear"), dim=1)
        return actual.logits if "logits" in actual else actual.segmentation_logits


class Tipsv2(OfTransformers):
    def make(self):
        import transformers
        from transformers.models.tipsv2.configuration_tipsv2 import Tipsv2VisionConfig

        options = dict(self.options)
        single = options.pop("single", False)
        backbone = Tipsv2VisionConfig(**{**BACKBONE, **options.pop("backbone", {})})
        config = transformers.Tipsv2DptConfig(backbone_config=backbone, **{**CONFIG, **options})
        name = CLASSES[self.task] if single else "DensePrediction"
        theirs = jolt(getattr(transformers, f"Tipsv2DptFor{name}")(config))
        if self.task == "normals":  # away from vectors of length zero
            last = (theirs.decoder if single else theirs.normals_decoder).head
            last.weight.data /= 20
            last.bias.data[2] = -2
        return Output(theirs, self.task)


SIZES = ((56, 56), (84, 84), (56, 98))
SINGLE = 1e-6  # transformers resizes position embeddings in float32 whatever it is given
GATED = {"backbone": {"use_swiglu_ffn": True, "num_register_tokens": 0}, "single": True}
CASES = [
    *(
        Tipsv2("tipsv2_dpt", task, "three necks", SIZES, exact=SINGLE)
        for task in ("depth", "normals", "segmentation")
    ),
    *(
        Tipsv2("tipsv2_dpt", task, "one neck", SIZES[:1], {"single": True})
        for task in ("depth", "normals", "segmentation")
    ),
    Tipsv2("tipsv2_dpt", "depth", "one neck, SwiGLU, no registers", SIZES[:1], GATED),
]
