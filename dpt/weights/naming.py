"""What the formats share: names of tensors there and back, and what a spec leaves to defaults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dpt.nn import Decoder
from dpt.zoo import ENCODERS, HEADS, Spec, build, is_linear

Rule = tuple[str, str | Callable[[re.Match[str]], str]]
QKV = ("query", "key", "value")


def own_shapes(spec: Spec) -> dict[str, torch.Size]:
    """Every tensor of the model that ``spec`` describes, by name; nothing is allocated."""
    with torch.device("meta"):
        encoder, decoder, heads = build(spec)
    parts: dict[str, Any] = {"encoder": encoder, "decoder": decoder}
    parts |= {f"heads.{k}": head for k, head in heads.items()}
    return {
        f"{part}.{k}": v.shape
        for part, module in parts.items()
        if module is not None
        for k, v in module.state_dict().items()
    }


def check_tensors(spec: Spec, state: Mapping[str, Tensor], *, where: str) -> None:
    """Every tensor of the spec is there, of its shape, and no other; or one error lists them."""
    try:
        shapes = own_shapes(spec)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{where}: its spec describes no model ({type(error).__name__}: {reason})"
        ) from error
    faults = list_faults(shapes, state)
    if faults:
        raise ValueError(f"{where} does not fit its own spec: {faults}")


def list_faults(shapes: Mapping[str, torch.Size], state: Mapping[str, Tensor]) -> str:
    """What is missing, unexpected or misshapen in ``state``; empty where all is well."""
    faults = [f"missing {k}" for k in shapes if k not in state]
    faults += [f"unexpected {k}" for k in state if k not in shapes]
    faults += [
        f"{k} is {tuple(state[k].shape)}, not {tuple(shape)}"
        for k, shape in shapes.items()
        if k in state and state[k].shape != shape
    ]
    return "; ".join(faults[:8]) + (f" and {len(faults) - 8} more" if len(faults) > 8 else "")


def their_names(name: str, rules: Sequence[Rule]) -> list[str]:
    """The name or names (query, key and value apart) in another format of our tensor ``name``."""
    for pattern, replacement in rules:
        match = re.fullmatch(pattern, name)
        if match:
            new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
            return [new.replace("{qkv}", p) for p in QKV] if "{qkv}" in new else [new]
    raise ValueError(f"this format has no place for {name}")


def gather(
    spec: Spec, tensors: Mapping[str, Tensor], rules: Sequence[Rule]
) -> tuple[dict[str, Tensor], list[str]]:
    """Another format's tensors under our names, and the names of those that found no place."""
    state: dict[str, Tensor] = {}
    left = dict.fromkeys(tensors)
    for name in own_shapes(spec):
        names = their_names(name, rules)
        if all(n in tensors for n in names):
            rows = [tensors[n] for n in names]
            state[name] = torch.cat(rows) if len(rows) > 1 else rows[0]
            for n in names:
                left.pop(n, None)
    return state, list(left)


def scatter(state: Mapping[str, Tensor], rules: Sequence[Rule]) -> dict[str, Tensor]:
    """Our tensors under another format's names."""
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        names = their_names(name, rules)
        parts = value.chunk(len(names)) if len(names) > 1 else (value,)
        tensors.update(zip(names, parts, strict=True))
    return tensors


def split_unused(names: Iterable[str], patterns: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of tensors that never run, by ``patterns``, and the others."""
    unused: list[str] = []
    other: list[str] = []
    for name in names:
        (unused if any(re.match(p, name) for p in patterns) else other).append(name)
    return unused, other


def defaults(target: type) -> dict[str, Any]:
    """Arguments of a class that have one, those of its parents included."""
    found: dict[str, Any] = {}
    for cls in reversed(target.__mro__):
        if "__init__" in vars(cls) and cls.__module__.startswith("dpt."):
            parameters = inspect.signature(vars(cls)["__init__"]).parameters.values()
            found |= {p.name: p.default for p in parameters if p.default is not p.empty}
    return found


def complete(spec: Spec) -> Spec:
    """The spec with every default written out, so that a writer can check what it needs."""
    encoder = {**defaults(ENCODERS[spec["encoder"]["kind"]]), **spec["encoder"]}
    decoder = {**defaults(Decoder), **spec["decoder"]}
    if "scales" not in spec["decoder"]:
        hybrid = encoder["kind"] == "hybrid"
        decoder["scales"] = [1, 1, 1, 0.5] if hybrid else [4, 2, 1, 0.5]
    if decoder["unit_bias"] is None:
        decoder["unit_bias"] = not decoder["batch_norm"]
    heads = {k: {**defaults(HEADS[k]), **v} for k, v in spec["heads"].items()}
    return {**spec, "encoder": encoder, "decoder": decoder, "heads": heads}


def refuse_unless(
    where: str, part: str, given: Mapping[str, Any], needed: Mapping[str, Any]
) -> None:
    """One error that lists the options that a format has no place for."""
    wrong = [
        f"{part}.{k}={given.get(k)!r} (only {v!r})" for k, v in needed.items() if given.get(k) != v
    ]
    if wrong:
        raise ValueError(f"the {where} format cannot express {'; '.join(wrong)}")


def one_dense_head(where: str, spec: Spec) -> tuple[str, dict[str, Any]]:
    """The name and arguments of the only head of a format that has room for one."""
    heads = spec["heads"]
    if len(heads) != 1:
        raise ValueError(
            f"the {where} format holds one head, and this model has {len(heads)}: "
            f"{', '.join(heads)}"
        )
    ((name, options),) = heads.items()
    if name not in ("depth", "segmentation"):
        raise ValueError(f"the {where} format has no {name} head: depth or segmentation")
    if is_linear(name, options):
        raise ValueError(f"the {where} format has no linear {name} head")
    return name, options


PLAIN_ENCODER: dict[str, Any] = {
    "in_channels": 3,
    "position": "learned",
    "cls_position": True,
    "norm_order": "pre",
    "gelu": "exact",
    "num_register_tokens": 0,
    "swiglu": False,
    "layer_scale": None,
    "final_norm": False,
    "padding": "bottom_right",
    "position_resize": "bilinear",
}
"""What the ViT of official DPT, and of transformers' DPT, is."""


def standardize_as(weight: Tensor, kind: str) -> Tensor:
    """A weight that, standardised as ``kind``, is what ``weight`` is under the other form.

    Official DPT divides w - mean by std + 1e-5, timm today and transformers by sqrt(var + 1e-8);
    a gain a filter makes up for it exactly, up to rounding.
    """
    w = weight.double()
    var, mean = torch.var_mean(w, dim=(1, 2, 3), keepdim=True, unbiased=False)
    std = var.sqrt()
    if kind == "sqrt":  # a·std / sqrt(a²·var + 1e-8) = std / (std + 1e-5)
        gain = 1e-4 / (2e-5 * std + 1e-10).sqrt()
    else:  # a·std / (a·std + 1e-5) = std / sqrt(var + 1e-8)
        gain = 1e3 * ((var + 1e-8).sqrt() + std)
    return (gain * (w - mean)).to(weight.dtype)


def restandardize(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The state dict of a hybrid whose CNN shall standardise its weights in another form."""
    cnn = "encoder.patch_embed.backbone."
    return {
        k: standardize_as(v, kind) if k.startswith(cnn) and v.ndim == 4 else v
        for k, v in state.items()
    }
