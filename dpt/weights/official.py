"""Official DPT and MiDaS v3 ``.pt`` files: ViT-B/16, ViT-L/16 and hybrid, depth or segmentation.

A file holds tensors alone, bare or under ``"model"``. What it does not say is the recipe's: taps,
64 channels a head, LayerNorm eps 1e-6, bilinear resizing of position codes. Scale and shift of the
metric NYU and KITTI models stand in no file either: those two are known by the name under which
they were released.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpt.weights.files import Source, unwrap
from dpt.weights.naming import (
    PLAIN_ENCODER,
    Rule,
    complete,
    gather,
    one_dense_head,
    refuse_unless,
    restandardize,
    scatter,
    split_unused,
)
from dpt.weights.vit_sizes import infer_vit, shape_of
from dpt.zoo import Spec, make_spec

NAME = "official"
FAMILY = "official DPT"
METRIC = {
    "dpt_hybrid_nyu": ({"scale": 0.000305, "shift": 0.1378}, [480, 640]),
    "dpt_hybrid_kitti": ({"scale": 0.00006016, "shift": 0.00579}, [352, 1216]),
}
"""Released metric models: from inverse depth to metres, and their input size."""

MODEL = "pretrained.model."
DEPTH_CONVS = {"1": "0", "2": "2", "3": "4"}
RULES: list[Rule] = [
    (r"encoder\.(.+)", r"pretrained.model.\1"),
    (
        r"decoder\.reassemble\.(\d)\.read\.linear\.(.+)",
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.0.project.0.{m[2]}",
    ),
    (
        r"decoder\.reassemble\.(\d)\.project\.(.+)",
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.3.{m[2]}",
    ),
    (
        r"decoder\.reassemble\.(\d)\.resample\.conv\.(.+)",
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.4.{m[2]}",
    ),
    (r"decoder\.layer_rn\.(\d)\.(.+)", lambda m: f"scratch.layer{int(m[1]) + 1}_rn.{m[2]}"),
    (
        r"decoder\.fusion\.(\d)\.project\.(.+)",
        lambda m: f"scratch.refinenet{int(m[1]) + 1}.out_conv.{m[2]}",
    ),
    (
        r"decoder\.fusion\.(\d)\.rcu(\d)\.(.+)",
        lambda m: f"scratch.refinenet{int(m[1]) + 1}.resConfUnit{m[2]}.{m[3]}",
    ),
    (r"heads\.depth\.conv(\d)\.(.+)", lambda m: f"scratch.output_conv.{DEPTH_CONVS[m[1]]}.{m[2]}"),
    (r"heads\.segmentation\.layers\.(.+)", r"scratch.output_conv.\1"),
    (r"heads\.segmentation\.auxiliary_layers\.(.+)", r"auxlayer.\1"),
]
UNUSED = (  # the final norm and the ImageNet head of the ViT; the deepest unit for a lateral
    r"pretrained\.model\.(norm|head|head_drop|pre_logits)\.",
    r"scratch\.refinenet4\.resConfUnit1\.",
)


def matches(source: Source) -> bool:
    if source.config is not None:
        return False
    names = unwrap(source.content)
    return any(k.startswith(MODEL) for k in names) and any(k.startswith("scratch.") for k in names)


def read(source: Source) -> tuple[Spec, dict[str, Tensor]]:
    tensors = unwrap(source.content)
    spec = _infer(source, tensors)
    state, left = gather(spec, tensors, RULES)
    _, unexpected = split_unused(left, UNUSED)
    return spec, state | {k: tensors[k] for k in unexpected}


def unused(source: Source) -> list[str]:
    """Tensors of the file that take no part in a prediction."""
    return split_unused(unwrap(source.content), UNUSED)[0]


def taps(num_blocks: int, *, hybrid: bool) -> list[int]:
    """Blocks that are tapped: the ends of the quarters, of which the hybrid takes the last two."""
    ends = [num_blocks * (i + 1) // 4 - 1 for i in range(4)]
    return ends[2:] if hybrid else ends


def _infer(source: Source, tensors: dict[str, Tensor]) -> Spec:
    path = source.path

    def channels(name: str) -> int:
        return shape_of(tensors, name, path=path, family=FAMILY)[0]

    strangers = {
        "relative_position_bias_table": "BEiT (MiDaS 3.1)",
        ".gamma_1": "BEiT (MiDaS 3.1)",
        f"{MODEL}layers.": "Swin (MiDaS 3.1)",
        f"{MODEL}dist_token": "distilled DeiT",
    }
    for part, family in strangers.items():
        if any(part in name for name in tensors):
            raise ValueError(f"{path}: official DPT over a {family} encoder, which is not read")
    hybrid = any(k.startswith(f"{MODEL}patch_embed.backbone.") for k in tensors)
    encoder = infer_vit(tensors, MODEL, path=path, family=FAMILY)
    dim, num_blocks, native = (encoder[k] for k in ("embed_dim", "num_blocks", "image_size"))
    if "pretrained.act_postprocess4.0.project.0.weight" not in tensors:
        raise ValueError(
            f"{path}: official DPT without weights of a readout ('project'), so of readout "
            "'ignore' or 'add', whose files hold the same tensors: nothing tells which, so neither "
            "is read"
        )
    segmentation = "scratch.output_conv.1.running_mean" in tensors
    size = native
    head: dict[str, Any]
    if segmentation:
        head = {"num_classes": channels("scratch.output_conv.4.weight")}
        head["auxiliary"] = "auxlayer.0.weight" in tensors
        size = [480, 480] if native == [384, 384] else native  # what the released models take
    else:
        head = {"kind": "relative", "hidden_channels": channels("scratch.output_conv.2.weight")}
        for name, (constants, metric_size) in METRIC.items():
            if path.name.startswith(name):
                head.update(kind="metric", activation="inverse", **constants)
                size = metric_size
    if encoder["patch_size"] != 16:
        head["upsample"] = "double"
    unit = "scratch.refinenet1.resConfUnit1"
    levels = range(2, 4) if hybrid else range(4)
    reassemble = [channels(f"pretrained.act_postprocess{i + 1}.3.weight") for i in levels]
    encoder["out_indices"] = taps(num_blocks, hybrid=hybrid)
    encoder["position_resize"] = "bilinear"
    if hybrid:
        encoder["weight_standardization"] = "official"
    released = {(768, 12): "dpt_base", (1024, 24): "dpt_large"}
    return make_spec(
        "dpt_hybrid" if hybrid else released.get((dim, num_blocks), "dpt_base"),
        heads={"segmentation" if segmentation else "depth": head},
        encoder=encoder,
        decoder={
            "reassemble_channels": [None] * (4 - len(reassemble)) + reassemble,
            "fusion_channels": channels("scratch.layer1_rn.weight"),
            "readout": "project",
            "batch_norm": f"{unit}.bn1.weight" in tensors,
            "unit_bias": f"{unit}.conv1.bias" in tensors,
            "align": "to_lateral",  # doubling, at the multiples of 32 that official code takes
        },
        preprocessing={
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "image_size": size,
            "resize": "minimal",
            "multiple_of": 32,
            "interpolation": "cubic",
        },
    )


def write(spec: Spec, state: dict[str, Tensor], path: str | Path) -> list[str]:
    """Writes a bare ``.pt``, with zeros for the tensors that official code has but never runs.

    Returns:
        What a user should know of the result.

    Raises:
        ValueError: an option of the model that official code has no place for.
    """
    full = complete(spec)
    encoder, decoder = full["encoder"], full["decoder"]
    name, head = one_dense_head(NAME, full)
    if encoder["kind"] not in ("vit", "hybrid"):
        raise ValueError(f"the {NAME} format has no {encoder['kind']} encoder: vit or hybrid")
    hybrid = encoder["kind"] == "hybrid"
    needed = {
        **PLAIN_ENCODER,
        "norm_eps": 1e-6,
        "num_heads": encoder["embed_dim"] // 64,
        "out_indices": taps(encoder["num_blocks"], hybrid=hybrid),
    }
    given = {**encoder, "out_indices": list(encoder["out_indices"])}
    refuse_unless(NAME, "encoder", given, needed)
    height, width = encoder["image_size"]
    if height != width:
        raise ValueError(f"the {NAME} format has square position grids, not {height}x{width}")
    scales = [1, 1, 1, 0.5] if hybrid else [4, 2, 1, 0.5]
    refuse_unless(
        NAME,
        "decoder",
        {**decoder, "scales": list(decoder["scales"])},
        {"readout": "project", "scales": scales, "output_project": False, "deepest_unit": False},
    )
    notes = []
    if decoder["align"] == "resize_lateral":
        notes.append("official code takes sides that are multiples of 32 alone")
    upsample = "image" if encoder["patch_size"] == 16 else "double"
    if encoder["patch_size"] != 16 and head["upsample"] != upsample:
        raise ValueError(
            "official heads double the map, which is not the image's size at patch size "
            f"{encoder['patch_size']}: only a head with upsample='double' can be expressed"
        )
    if name == "depth" and head["kind"] == "metric":
        constants = {"scale": head["scale"], "shift": head["shift"]}
        released = [n for n, (known, _) in METRIC.items() if known == constants]
        if head["activation"] != "inverse":
            raise ValueError(f"the {NAME} format has no {head['activation']} metric depth head")
        if not released or not Path(path).name.startswith(released[0]):
            raise ValueError(
                f"the {NAME} format stores no scale and shift; only files called "
                f"{' or '.join(f'{n}*.pt' for n in METRIC)} are read as metric, with theirs"
            )
    if hybrid and encoder["weight_standardization"] != "official":
        state = restandardize(state, "official")
        notes.append("the CNN's weights were scaled for official weight standardisation")
    tensors = scatter(state, RULES)
    _add_unused(tensors, encoder["embed_dim"])
    if name == "segmentation" and not head["auxiliary"]:
        notes.append("official segmentation models have an auxiliary head; this one had none")
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    torch.save(plain, path)
    return notes


def _add_unused(tensors: dict[str, Tensor], dim: int) -> None:
    """What official code would miss, though it never runs."""
    unit = "scratch.refinenet4.resConfUnit"
    for name in [n for n in tensors if n.startswith(f"{unit}2.")]:
        tensors[name.replace(f"{unit}2.", f"{unit}1.")] = torch.zeros_like(tensors[name])
    tensors[f"{MODEL}norm.weight"] = torch.ones(dim)
    tensors[f"{MODEL}norm.bias"] = torch.zeros(dim)
    tensors[f"{MODEL}head.weight"] = torch.zeros(1000, dim)
    tensors[f"{MODEL}head.bias"] = torch.zeros(1000)
