"""Official DPT, MiDaS v3 and v3.1 ``.pt`` files: ViT, hybrid, BEiT, Swin, SwinV2.

A file holds tensors alone, bare or under ``"model"``, with the names of the timm version that the
code pins. Other settings follow that code: the feature levels are the last blocks of each quarter;
a ViT has 64 channels per head, LayerNorm eps 1e-6 (Swin 1e-5) and bilinear resizing of position
embeddings. Scale and shift of the metric NYU and KITTI models follow from the released file names.

MiDaS v3.1: heads are counted by the columns of a table of position biases, or the rows of
``logit_scale``. The rows of that table tell BEiT's grid and Swin's windows; the masks of shifted
windows tell SwinV2's windows and the image size of both Swins. Other settings are those of the
released Swin that fits. MiDaS takes its Swins only at their own size; at other sizes they work as
in transformers. Its resizing of BEiT's tables confuses rows and columns: equal on square grids.
"""

from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.nn.beit import offsets_side
from dpt.validation import Plain
from dpt.weights import base, names
from dpt.weights.files import CheckpointFiles

METRIC = {
    "dpt_hybrid_nyu": ({"scale": 0.000305, "shift": 0.1378}, [480, 640]),
    "dpt_hybrid_kitti": ({"scale": 0.00006016, "shift": 0.00579}, [352, 1216]),
}
"""Released metric models: from inverse depth to metres, and their input size."""

MODEL = "pretrained.model."
TABLE = [
    ("encoder.blocks.{i}.ls{k}.gamma", "pretrained.model.blocks.{i}.gamma_{k}"),  # BEiT
    # Swin: timm merges patches before a stage's blocks; timm 0.6.12 did so after the blocks of the
    # previous stage
    ("encoder.model.layers.{s}.downsample.*", "pretrained.model.layers.{s-1}.downsample.*"),
    ("encoder.model.*", "pretrained.model.*"),
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
NEVER_RUN = (
    *(f"{MODEL}{n}.*" for n in ("norm", "fc_norm", "head", "pre_logits")),
    *(f"*.{n}" for n in ("relative_position_index", "relative_coords_table", "attn_mask")),
    *("*.k_bias", f"{DEEPEST_UNIT}1.*"),
)
BEIT = f"{MODEL}blocks.0.attn.relative_position_bias_table"
SWIN = f"{MODEL}layers.0.blocks.0.attn."
RELEASED = [  # the Swins of MiDaS 3.1: width, heads, window, image size, windows in pretraining
    (192, 6, 12, 384, None),  # dpt_swin_large_384, the only Swin v1
    (192, 6, 24, 384, [12, 12, 12, 6]),  # dpt_swin2_large_384
    (128, 4, 24, 384, [12, 12, 12, 6]),  # dpt_swin2_base_384
    (96, 3, 16, 256, [0, 0, 0, 0]),  # dpt_swin2_tiny_256
]


class Official(base.Format):
    name = "official"
    encoders = ("vit", "hybrid")
    free = base.Format.free | {
        "decoder.align": "official code takes only sides that are multiples of 32",
        "encoder.weight_standardization": "the weights of the CNN are scaled for it",
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.has_prefixes(MODEL, "scratch.")

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        shapes = names.Shapes(files.tensors, "official DPT")
        config = _config(shapes, files.path.name, _encoder(shapes, files))
        return base.StoredModel(config, files.tensors, TABLE, NEVER_RUN)

    def _files(self, config: Plain, tensors: names.Tensors, path: Path) -> CheckpointFiles:
        encoder, (head,) = config["encoder"], config["heads"].values()
        if encoder["patch_size"] == 16:  # official heads double the map: the image's size
            head["upsample"] = "image"
        if encoder.get("weight_standardization") == "sqrt":
            tensors = restandardize(tensors, "official")
        dim = encoder["embed_dim"]
        theirs = names.to_theirs(tensors, TABLE, DEEPEST_UNIT)
        theirs |= {f"{MODEL}norm.weight": torch.ones(dim), f"{MODEL}norm.bias": torch.zeros(dim)}
        theirs[f"{MODEL}head.weight"] = torch.zeros(1000, dim)
        theirs[f"{MODEL}head.bias"] = torch.zeros(1000)
        return CheckpointFiles(path, theirs)


def _config(shapes: names.Shapes, file: str, encoder: Plain) -> Plain:
    """Returns the configuration of the model over an encoder."""
    name, head, size = _head(shapes, file, encoder)
    kind = encoder.get("kind", "vit")
    if kind != "timm" and encoder["patch_size"] != 16:
        head["upsample"] = "double"
    unprojected = {"timm": 4, "hybrid": 2}.get(kind, 0)  # levels of a CNN or a pyramid
    projects = [f"pretrained.act_postprocess{n}.3.weight" for n in range(unprojected + 1, 5)]
    is_large = (encoder["embed_dim"], encoder.get("num_blocks")) == (1024, 24)
    unit = "scratch.refinenet1.resConfUnit1"
    return model_dict(
        "dpt_hybrid" if kind == "hybrid" else "dpt_large" if is_large else "dpt_base",
        heads={name: head},
        encoder=encoder,
        decoder={
            "reassemble_channels": [None] * unprojected + [shapes(n)[0] for n in projects],
            "fusion_channels": shapes("scratch.layer1_rn.weight")[0],
            "readout": "ignore" if kind == "timm" else "project",
            "batch_norm": f"{unit}.bn1.weight" in shapes.tensors,
            "unit_bias": f"{unit}.conv1.bias" in shapes.tensors,
            "align": "to_lateral",  # equal to doubling at multiples of 32, all that it takes
        },
        preprocessing={
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "image_size": size,
            "resize": "stretch" if kind == "timm" else "minimal",
            "multiple_of": 32,
            "interpolation": "cubic_float",
            "output_interpolation": "bicubic",
        },
    )


def _head(shapes: names.Shapes, file: str, encoder: Plain) -> tuple[str, Plain, list[int]]:
    """Returns the name and the options of the head, and the model's image size."""
    size = encoder.get("img_size") or encoder["image_size"]
    if "scratch.output_conv.1.running_mean" in shapes.tensors:
        num_classes = shapes("scratch.output_conv.4.weight")[0]
        auxiliary = "auxlayer.0.weight" in shapes.tensors
        size = [480, 480] if size == [384, 384] else size  # of the released models
        return "segmentation", {"num_classes": num_classes, "auxiliary": auxiliary}, size
    hidden_channels = shapes("scratch.output_conv.2.weight")[0]
    head: Plain = {"kind": "relative", "hidden_channels": hidden_channels}
    for model, (constants, metric_size) in METRIC.items():
        if file.startswith(model):
            head |= {"kind": "metric", "activation": "inverse", **constants}
            size = metric_size
    return "depth", head, size


def restandardize(state: names.Tensors, kind: str) -> names.Tensors:
    """Returns a hybrid's tensors for ``official`` or ``sqrt`` weight standardisation in its CNN.

    Official DPT divides w - mean by std + 1e-5, timm today and transformers by sqrt(var + 1e-8).
    One gain per filter makes up for the difference, up to rounding.
    """
    scaled = dict(state)
    for name, tensor in state.items():
        if name.startswith("encoder.patch_embed.backbone.") and tensor.ndim == 4:
            weight = tensor.double()
            var, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, unbiased=False)
            std = var.sqrt()
            gain = 1e3 * ((var + 1e-8).sqrt() + std)  # a·std / (a·std + 1e-5) = std / sqrt(...)
            if kind == "sqrt":  # a·std / sqrt(a²·var + 1e-8) = std / (std + 1e-5)
                gain = 1e-4 / (2e-5 * std + 1e-10).sqrt()
            scaled[name] = (gain * (weight - mean)).to(tensor.dtype)
    return scaled


def _encoder(shapes: names.Shapes, files: CheckpointFiles) -> Plain:
    if files.has_prefixes(SWIN):
        return _swin(shapes)
    if BEIT in shapes.tensors:
        offsets, heads = shapes(BEIT)
        width = shapes(f"{MODEL}cls_token")[-1]
        encoder = shapes.vit(MODEL, head_dim=width // heads) | {"kind": "beit"}
        encoder["image_size"] = [encoder["patch_size"] * offsets_side(offsets - 3)] * 2
        encoder["layer_scale"] = 0.1 if f"{MODEL}blocks.0.gamma_1" in shapes.tensors else None
    else:
        encoder = shapes.vit(MODEL)
    encoder["position_resize"] = "bilinear"
    encoder["out_indices"] = names.quarter_ends(encoder["num_blocks"])
    if files.has_prefixes(f"{MODEL}patch_embed.backbone."):  # its CNN gives the first two levels
        encoder |= {"kind": "hybrid", "weight_standardization": "official"}
        encoder["out_indices"] = encoder["out_indices"][2:]
    return encoder


def _swin(shapes: names.Shapes) -> Plain:
    """Returns the options of the released Swin that fits: windows are in no file."""
    dim, _, patch, _ = shapes(f"{MODEL}patch_embed.proj.weight")
    stages = [f"{MODEL}layers.{i}.blocks." for i in range(shapes.count(f"{MODEL}layers."))]
    is_v2, mask = f"{SWIN}logit_scale" in shapes.tensors, f"{stages[0]}1.attn_mask"
    for width, heads, window, size, pretrained in RELEASED:
        masks = ((size // patch // window) ** 2, window**2, window**2)
        fits = mask not in shapes.tensors or shapes(mask) == masks
        if fits and (dim, is_v2) == (width, pretrained is not None):
            return {
                "kind": "timm",
                "name": "swinv2_tiny_window8_256" if is_v2 else "swin_tiny_patch4_window7_224",
                "embed_dim": dim,
                "depths": [shapes.count(stage) for stage in stages],
                "num_heads": [heads * 2**i for i in range(len(stages))],
                "window_size": window,
                "img_size": [size, size],
                **({"pretrained_window_sizes": pretrained} if is_v2 else {}),
                "patch_size": patch,
                "mlp_ratio": shapes(f"{stages[0]}0.mlp.fc1.weight")[0] / dim,
                "qkv_bias": f"{SWIN}{'q_bias' if is_v2 else 'qkv.bias'}" in shapes.tensors,
                "out_indices": list(range(len(stages))),
                "pad_windows": "before_shift",
            }
    raise ValueError(f"fits no Swin that MiDaS 3.1 released: {dim} channels")
