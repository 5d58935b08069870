"""Sizes by name: the one table, and how a row becomes encoder, decoder and heads.

A model is described by a *spec*, plain data that travels with its weights:
``{"name", "encoder": {...}, "decoder": {...}, "heads": {name: {...}}, "preprocessing": {...}}``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import deepcopy
from fnmatch import fnmatch
from typing import Any

from torch import nn

from dpt.nn import (
    Beit,
    ClassificationHead,
    Decoder,
    DenseHead,
    DepthHead,
    HybridVisionTransformer,
    InpaintingHead,
    LinearSegmentationHead,
    RegressionHead,
    SegmentationHead,
    TimmEncoder,
    VisionTransformer,
)
from dpt.types import Preprocessing

Spec = dict[str, Any]

# A user's own class joins a table under a name of its own: ENCODERS["mine"] = MyEncoder
ENCODERS: dict[str, type[nn.Module]] = {
    "vit": VisionTransformer,
    "hybrid": HybridVisionTransformer,
    "timm": TimmEncoder,
    "beit": Beit,
}
HEADS: dict[str, type[nn.Module]] = {
    "depth": DepthHead,
    "segmentation": SegmentationHead,
    "classification": ClassificationHead,
    "regression": RegressionHead,
    "inpainting": InpaintingHead,
}
LINEAR_HEADS: dict[str, type[nn.Module]] = {"segmentation": LinearSegmentationHead}
"""In place of the above where a head is of ``kind: linear``."""


def _size(
    embed_dim: int,
    num_blocks: int,
    num_heads: int,
    out_indices: list[int],
    reassemble_channels: list[int | None],
    fusion_channels: int,
    kind: str = "vit",
) -> Spec:
    return {
        "encoder": {
            "kind": kind,
            "embed_dim": embed_dim,
            "num_blocks": num_blocks,
            "num_heads": num_heads,
            "out_indices": out_indices,
        },
        "decoder": {
            "reassemble_channels": reassemble_channels,
            "fusion_channels": fusion_channels,
        },
    }


# dpt_base, dpt_large and dpt_hybrid are the paper's; the smaller two follow ViT-Ti and ViT-S
SIZES: dict[str, Spec] = {
    "dpt_tiny": _size(192, 12, 3, [2, 5, 8, 11], [24, 48, 96, 192], 64),
    "dpt_small": _size(384, 12, 6, [2, 5, 8, 11], [48, 96, 192, 384], 128),
    "dpt_base": _size(768, 12, 12, [2, 5, 8, 11], [96, 192, 384, 768], 256),
    "dpt_large": _size(1024, 24, 16, [5, 11, 17, 23], [256, 512, 1024, 1024], 256),
    "dpt_hybrid": _size(768, 12, 12, [8, 11], [None, None, 768, 768], 256, kind="hybrid"),
}


def list_models(pattern: str = "*") -> list[str]:
    """Names that :func:`dpt.create_model` knows, filtered by a glob such as ``dpt_*``."""
    return [name for name in sorted(SIZES) if fnmatch(name, pattern)]


def takes(target: type, name: str) -> bool:
    """Whether a part is made with a keyword argument of that name."""
    return name in _arguments(target)


def find_part(table: Mapping[str, type[nn.Module]], name: Any, what: str) -> type[nn.Module]:
    """The class of that name in ``ENCODERS`` or ``HEADS``; ``what`` says which, for the message."""
    if name not in table:
        raise ValueError(
            f"{what} {name!r}: choose from {', '.join(table)}; one of your own is known once its "
            f"module is imported (DPT_PLUGINS=MODULE for commands)"
        )
    return table[name]


def is_linear(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a head with these options reads the encoder alone, and needs no decoder."""
    return name in LINEAR_HEADS and options.get("kind") == "linear"


def is_dense(name: str, options: Mapping[str, Any]) -> bool:
    """Whether a head with these options reads the decoder's maps, not tokens."""
    is_decoded = issubclass(find_part(HEADS, name, "head"), DenseHead)
    return is_decoded and not is_linear(name, options)


def _arguments(target: type) -> set[str]:
    """Keyword arguments of a class, those its parents take through ``**arguments`` included."""
    names: set[str] = set()
    for cls in target.__mro__:
        if cls is nn.Module:
            break
        if "__init__" in vars(cls):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return names


def _check_keys(where: str, given: Mapping[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise ValueError(f"{where} has no {', '.join(unknown)}; it takes {sorted(allowed)}")


def make_spec(
    name: str,
    *,
    heads: Mapping[str, Mapping[str, Any]],
    encoder: Mapping[str, Any] | None = None,
    decoder: Mapping[str, Any] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Spec:
    """A row of the table with overrides, as a complete spec.

    Args:
        name: one of :func:`list_models`.
        heads: arguments of each head by its name, one or more of ``HEADS``: depth,
            segmentation, classification, regression, inpainting.
        encoder, decoder, preprocessing: overrides of each part. ``encoder={"kind": "timm",
            "name": ...}`` replaces the encoder as a whole.
        **overrides: the same without the nesting, as ``patch_size=8`` or ``readout="add"``.

    Raises:
        ValueError: an unknown name or argument; the message lists what is allowed.
    """
    if name not in SIZES:
        raise ValueError(f"no model {name!r}; there are {', '.join(list_models())}")
    if not heads:
        raise ValueError(f"a model needs at least one head of {', '.join(HEADS)}")
    if not isinstance(heads, Mapping) or not all(isinstance(h, Mapping) for h in heads.values()):
        raise ValueError(f"heads={heads!r}: give each head its arguments, as {{'depth': {{...}}}}")
    _check_keys("heads", heads, set(HEADS))
    row = deepcopy(SIZES[name])
    encoder = {"kind": row["encoder"]["kind"], **(encoder or {})}
    encoder_class = find_part(ENCODERS, encoder["kind"], "encoder kind")
    decoder = dict(decoder or {})
    for key, value in overrides.items():
        part = encoder if key in _arguments(encoder_class) else decoder
        part[key] = value
    if encoder["kind"] == row["encoder"]["kind"]:
        encoder = {**row["encoder"], **encoder}
    if encoder["kind"] != "timm":  # timm checks its own
        _check_keys(f"{name}'s encoder", encoder, _arguments(encoder_class) | {"kind"})
    decoder = {**row["decoder"], **decoder}
    derived = {"embed_dims", "num_prefix_tokens"}
    _check_keys(f"{name} (decoder)", decoder, _arguments(Decoder) - derived)
    # official DPT normalises the residual units of its segmentation models alone
    decoder.setdefault("batch_norm", "segmentation" in heads)
    settings = {"image_size": encoder.get("image_size", (384, 384)), **(preprocessing or {})}
    _check_keys("preprocessing", settings, set(Preprocessing.__dataclass_fields__))
    default = Preprocessing().to_dict()
    # the stride of an encoder without patches is known once it is built
    default.pop("multiple_of")
    if takes(encoder_class, "patch_size"):
        default["multiple_of"] = encoder.get("patch_size", 16)
    settings = {**default, **settings}
    return {
        "name": name,
        "encoder": _plain(encoder),
        "decoder": _plain(decoder),
        "heads": {k: _plain(v) for k, v in heads.items()},
        "preprocessing": _plain(settings),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def build(spec: Spec) -> tuple[nn.Module, Decoder | None, dict[str, nn.Module]]:
    """The encoder, decoder and heads that a spec describes, randomly initialised."""
    arguments = dict(spec["encoder"])
    kind = arguments.pop("kind")
    encoder_class = find_part(ENCODERS, kind, "encoder kind")
    encoder: Any = _construct(f"the {kind} encoder", encoder_class, **arguments)
    decoder = None
    if any(is_dense(name, options) for name, options in spec["heads"].items()):
        arguments = dict(spec["decoder"])
        base = min(encoder.strides[0], encoder.strides[-1] / 4)
        arguments.setdefault("scales", [s / (base * 2**i) for i, s in enumerate(encoder.strides)])
        arguments.setdefault("readout", "project")
        decoder = Decoder(
            embed_dims=encoder.embed_dims,
            num_prefix_tokens=encoder.num_prefix_tokens,
            **arguments,
        )
    heads: dict[str, nn.Module] = {}
    for name, options in spec["heads"].items():
        cls = HEADS[name]
        if is_dense(name, options):
            parts: dict[str, Any] = {"in_channels": spec["decoder"]["fusion_channels"]}
        elif is_linear(name, options):
            cls = LINEAR_HEADS[name]
            parts = {
                "embed_dims": encoder.embed_dims,
                "num_prefix_tokens": encoder.num_prefix_tokens,
            }
            options = {k: v for k, v in options.items() if k != "kind"}
        else:
            parts = {
                "dim": encoder.embed_dims[-1],
                "num_prefix_tokens": encoder.num_prefix_tokens[-1],
            }
            if takes(cls, "stride"):
                parts["stride"] = encoder.strides[-1]
        _check_keys(f"the {name} head", options, _arguments(cls) - set(parts))
        heads[name] = _construct(f"the {name} head", cls, **parts, **options)
    return encoder, decoder, heads


def _construct(where: str, target: type[nn.Module], **arguments: Any) -> nn.Module:
    parameters = inspect.signature(target).parameters.values()
    needed = {p.name for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    if absent := sorted(needed - set(arguments)):
        raise ValueError(f"{where} needs {', '.join(absent)}")
    return target(**arguments)
