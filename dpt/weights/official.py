"""Official DPT and MiDaS v3 ``.pt`` files: ViT-B/16, ViT-L/16 and hybrid, depth or segmentation.

A file holds tensors alone, bare or under ``"model"``. The rest is the recipe's: the feature levels
are the ends of the quarters of the ViT, 64 channels per head, LayerNorm eps 1e-6, bilinear resizing
of position embeddings. Scale and shift of the metric NYU and KITTI models are in no file either:
those two are recognised by the names of their releases.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpt.model_config import model_dict
from dpt.weights.files import Source, write_torch
from dpt.weights.format import (
    PLAIN_ENCODER,
    Checkpoint,
    Config,
    Format,
    Shapes,
    Tensors,
    from_theirs,
    quarter_ends,
    to_theirs,
)

METRIC = {
    "dpt_hybrid_nyu": ({"scale": 0.000305, "shift": 0.1378}, [480, 640]),
    "dpt_hybrid_kitti": ({"scale": 0.00006016, "shift": 0.00579}, [352, 1216]),
}
"""Released metric models: from inverse depth to metres, and their input size."""

MODEL = "pretrained.model."
TABLE = [
    ("encoder.*", "pretrained.model.*"),
    ("decoder.reassemble.{n}.read.linear.*", "pretrained.act_postprocess{n+1}.0.project.0.*"),
    ("decoder.reassemble.{n}.project.*", "pretrained.act_postprocess{n+1}.3.*"),
    ("decoder.reassemble.{n}.resample.conv.*", "pretrained.act_postprocess{n+1}.4.*"),
    ("decoder.layer_rn.{n}.*", "scratch.layer{n+1}_rn.*"),
    ("decoder.fusion.{n}.project.*", "scratch.refinenet{n+1}.out_conv.*"),
    ("decoder.fusion.{n}.rcu{k}.*", "scratch.refinenet{n+1}.resConfUnit{k}.*"),
    ("heads.depth.conv1.*", "scratch.output_conv.0.*"),
    ("heads.depth.conv2.*", "scratch.output_conv.2.*"),
    ("heads.depth.conv3.*", "scratch.output_conv.4.*"),
    ("heads.segmentation.layers.*", "scratch.output_conv.*"),
    ("heads.segmentation.auxiliary_layers.*", "auxlayer.*"),
]
DEEPEST_UNIT = "scratch.refinenet4.resConfUnit"
UNUSED = (f"{MODEL}norm.*", f"{MODEL}head.*", f"{MODEL}pre_logits.*", f"{DEEPEST_UNIT}1.*")


class Official(Format):
    name = "official"
    writable = True

    def recognises(self, source: Source) -> bool:
        return source.holds(MODEL, "scratch.")

    def _read(self, source: Source) -> Checkpoint:
        return from_theirs(_config(source), source.tensors, TABLE, UNUSED)

    def _write(self, config: Config, tensors: Tensors, path: Path, notes: list[str]) -> None:
        """Writes a bare ``.pt``, with zeros for the tensors that official code never runs."""
        encoder, decoder = config["encoder"], config["decoder"]
        name, head = self.only_head(config, "depth", "segmentation")
        self.refuse_unless("encoder", encoder, {"kind": ("vit", "hybrid")})
        hybrid = encoder["kind"] == "hybrid"
        needed = {
            **PLAIN_ENCODER,
            "norm_eps": 1e-6,
            "num_heads": encoder["embed_dim"] // 64,
            "out_indices": _out_indices(encoder["num_blocks"], hybrid=hybrid),
            "image_size": [encoder["image_size"][0]] * 2,
        }
        self.refuse_unless("encoder", encoder, needed)
        needed = {
            "readout": "project",
            "scales": [1, 1, 1, 0.5] if hybrid else [4, 2, 1, 0.5],
            "output_project": False,
            "deepest_unit": False,
        }
        self.refuse_unless("decoder", decoder, needed)
        if encoder["patch_size"] != 16:  # official heads double the map: the image's size at 16
            self.refuse_unless(f"heads.{name}", head, {"upsample": "double"})
        if name == "depth" and head["kind"] == "metric":
            self.refuse_unless("heads.depth", head, {"activation": "inverse"})
            constants = {"scale": head["scale"], "shift": head["shift"]}
            if not any(path.name.startswith(n) and c == constants for n, (c, _) in METRIC.items()):
                self.refuse(
                    "stores no scale and shift; only files named "
                    f"{' or '.join(f'{n}*.pt' for n in METRIC)} are read as metric, with theirs"
                )
        if decoder["align"] == "resize_lateral":
            notes.append("official code takes only sides that are multiples of 32")
        if hybrid and encoder["weight_standardization"] != "official":
            tensors = restandardize(tensors, "official")
            notes.append("the CNN's weights were scaled for official weight standardisation")
        if name == "segmentation" and not head["auxiliary"]:
            notes.append("official segmentation models have an auxiliary head; this one had none")
        write_torch(path, to_official(tensors, encoder["embed_dim"]))


def _out_indices(num_blocks: int, *, hybrid: bool) -> list[int]:
    """Blocks of the feature levels; the first two levels of the hybrid come from its CNN."""
    return quarter_ends(num_blocks)[2 if hybrid else 0 :]


def _config(source: Source) -> Config:
    shapes = Shapes(source.tensors, "official DPT")
    encoder = shapes.vit(MODEL)
    hybrid = any(k.startswith(f"{MODEL}patch_embed.backbone.") for k in source.tensors)
    encoder["out_indices"] = _out_indices(encoder["num_blocks"], hybrid=hybrid)
    encoder["position_resize"] = "bilinear"
    if hybrid:
        encoder |= {"kind": "hybrid", "weight_standardization": "official"}
    return dpt_config(shapes, source.path.name, encoder, encoder["image_size"])


def dpt_config(shapes: Shapes, file: str, encoder: Config, size: list[int]) -> Config:
    """The model over an encoder for images of ``size``, by the names of official DPT."""
    tensors = shapes.tensors
    segmentation = "scratch.output_conv.1.running_mean" in tensors
    head: dict[str, Any]
    if segmentation:
        head = {"num_classes": shapes.channels("scratch.output_conv.4.weight")}
        head["auxiliary"] = "auxlayer.0.weight" in tensors
        size = [480, 480] if size == [384, 384] else size  # of the released models
    else:
        hidden = shapes.channels("scratch.output_conv.2.weight")
        head = {"kind": "relative", "hidden_channels": hidden}
        for name, (constants, metric_size) in METRIC.items():
            if file.startswith(name):
                head |= {"kind": "metric", "activation": "inverse", **constants}
                size = metric_size
    kind = encoder.get("kind", "vit")
    if kind != "timm" and encoder["patch_size"] != 16:
        head["upsample"] = "double"
    plain = {"timm": 4, "hybrid": 2}.get(kind, 0)  # levels of a CNN or a pyramid, not projected
    projects = [f"pretrained.act_postprocess{n}.3.weight" for n in range(plain + 1, 5)]
    large = (encoder["embed_dim"], encoder.get("num_blocks")) == (1024, 24)
    unit = "scratch.refinenet1.resConfUnit1"
    return model_dict(
        "dpt_hybrid" if kind == "hybrid" else "dpt_large" if large else "dpt_base",
        heads={"segmentation" if segmentation else "depth": head},
        encoder=encoder,
        decoder={
            "reassemble_channels": [None] * plain + [shapes.channels(n) for n in projects],
            "fusion_channels": shapes.channels("scratch.layer1_rn.weight"),
            "readout": "ignore" if kind == "timm" else "project",
            "batch_norm": f"{unit}.bn1.weight" in tensors,
            "unit_bias": f"{unit}.conv1.bias" in tensors,
            "align": "to_lateral",  # equal to doubling at multiples of 32, all that it takes
        },
        preprocessing={
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "image_size": size,
            "resize": "stretch" if kind == "timm" else "minimal",
            "multiple_of": 32,
            "interpolation": "cubic",
        },
    )


def to_official(tensors: Tensors, dim: int) -> dict[str, Tensor]:
    """Official names; with the tensors that official code has but never runs."""
    return to_theirs(tensors, TABLE, DEEPEST_UNIT) | {
        f"{MODEL}norm.weight": torch.ones(dim),
        f"{MODEL}norm.bias": torch.zeros(dim),
        f"{MODEL}head.weight": torch.zeros(1000, dim),
        f"{MODEL}head.bias": torch.zeros(1000),
    }


def restandardize(state: Tensors, kind: str) -> dict[str, Tensor]:
    """A hybrid's state dict for ``official`` or ``sqrt`` weight standardisation in its CNN.

    Official DPT divides w - mean by std + 1e-5, timm today and transformers by sqrt(var + 1e-8).
    One gain per filter makes up for the difference, up to rounding.
    """

    def scaled(weight: Tensor) -> Tensor:
        w = weight.double()
        var, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, unbiased=False)
        std = var.sqrt()
        if kind == "sqrt":  # a·std / sqrt(a²·var + 1e-8) = std / (std + 1e-5)
            gain = 1e-4 / (2e-5 * std + 1e-10).sqrt()
        else:  # a·std / (a·std + 1e-5) = std / sqrt(var + 1e-8)
            gain = 1e3 * ((var + 1e-8).sqrt() + std)
        return (gain * (w - mean)).to(weight.dtype)

    cnn = "encoder.patch_embed.backbone."
    return {k: scaled(v) if k.startswith(cnn) and v.ndim == 4 else v for k, v in state.items()}
