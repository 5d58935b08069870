"""Parameter groups: the learning rate by part and depth, and what is decayed."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd


def parameter_groups(
    model: nn.Module,
    *,
    lr: float,
    encoder_lr: float | None,
    weight_decay: float,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: encoder or rest, with decay or without.

    Weight matrices and kernels are decayed; norms, biases, tokens, position codes and gains are
    not.

    Args:
        model: has an attribute ``encoder``.
        lr: learning rate of everything outside the encoder.
        encoder_lr: of the encoder; None means ``lr``.
        layer_decay: 0 < d <= 1, an encoder layer at depth k has ``encoder_lr`` · d^(top - k): see
            :func:`layer_depths`. None means one rate for the whole encoder.

    Raises:
        ValueError: ``layer_decay`` is out of range, or the encoder has no known order of layers.
    """
    if layer_decay is not None and not 0 < layer_decay <= 1:
        raise ValueError(f"optim.layer_decay={layer_decay}: must lie in 0..1, 0 excluded")
    encoder: Any = model.encoder
    depths = {} if layer_decay is None else layer_depths(encoder)
    top = max(depths.values(), default=0) + 1
    spared = {f"encoder.{name}" for name in _spared(encoder)}
    linear = {n for n, m in model.named_modules() if isinstance(m, (nn.Linear, _ConvNd))}
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part, rate = "decoder", lr
        if name.startswith("encoder."):
            part, rate = "encoder", lr if encoder_lr is None else encoder_lr
            if layer_decay is not None:
                depth = depths[name.removeprefix("encoder.")]
                part, rate = f"encoder_{depth}", rate * layer_decay ** (top - depth)
        # of a weight that fsdp has sharded, this process sees a flat piece
        is_matrix = parameter.ndim > 1 or name.rpartition(".")[0] in linear
        decayed = is_matrix and name.endswith("weight") and name not in spared
        label = part if decayed else f"{part}_no_decay"
        empty = {"params": [], "lr": rate, "weight_decay": weight_decay * decayed, "name": label}
        groups.setdefault(label, empty)["params"].append(parameter)
    return list(groups.values())


def layer_depths(encoder: nn.Module) -> dict[str, int]:
    """Depth of each of an encoder's parameters, by name (Clark et al. 2020, ELECTRA; BEiT, MAE).

    Embeddings, tokens and codes are at 0, block i at i + 1. As in timm, which is asked for the
    order of its backbones, a last norm counts to the last block, a hybrid's CNN to the embedding.

    Raises:
        ValueError: neither ours nor a timm backbone that knows the order of its layers.
    """
    backbone = _backbone(encoder)
    prefix = "" if backbone is encoder else "model."
    if hasattr(backbone, "group_matcher"):
        from timm.models import group_parameters

        matcher = backbone.group_matcher(coarse=False)
        found: dict[str, int] = group_parameters(backbone, matcher, reverse=True)
        return {f"{prefix}{name}": depth for name, depth in found.items()}
    blocks = getattr(backbone, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        name = type(backbone).__name__
        raise ValueError(f"optim.layer_decay: {name} does not say how its layers follow each other")

    def depth(name: str) -> int:
        if block := re.match(r"blocks\.(\d+)\.", name):
            return int(block[1]) + 1
        return len(blocks) if name.startswith("norm.") else 0

    return {f"{prefix}{name}": depth(name) for name, _ in backbone.named_parameters()}


def _backbone(encoder: nn.Module) -> Any:
    """The timm backbone inside of an encoder, or the encoder itself."""
    return getattr(encoder, "model", encoder)


def _spared(encoder: nn.Module) -> set[str]:
    """What a timm backbone wants not to be decayed, such as the MLPs of its positions."""
    backbone = _backbone(encoder)
    names = backbone.no_weight_decay() if hasattr(backbone, "no_weight_decay") else ()
    return {f"model.{name}" for name in names}
