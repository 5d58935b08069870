"""Tensors of another format: their names, by a table of rows, and what their shapes tell.

A row is (our name, its name in another format). ``*`` is the rest of a name and ``{n}`` a number;
the other format's name may hold the number shifted: ``{n+1}``, ``{3-n}``. ``{query,key,value}``
stands for several tensors whose rows our one tensor holds. The first row that matches a name
applies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from dpt.nn.vit import gated_width
from dpt.validation import Plain

Tensors = Mapping[str, Tensor]
Table = Sequence[tuple[str, str]]
SAME_NAMES: Table = (("*", "*"),)
IMAGENET: Plain = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SCALES = [4, 2, 1, 0.5]
_PLACEHOLDER = re.compile(r"\{(?:(\d)-)?([a-z])([+-]\d)?\}")


@cache
def _parse(ours: str, theirs: str) -> tuple[re.Pattern[str], list[str]]:
    """Returns a pattern of our names, and the other format's names.

    The groups of the pattern are the numbers by their letters, and ``rest``.
    """
    pattern = re.escape(ours).replace(r"\*", "(?P<rest>.+)")
    pattern = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", pattern)
    choice = re.search(r"\{(\w+(?:,\w+)+)\}", theirs)
    names = [theirs.replace(choice[0], word) for word in choice[1].split(",")] if choice else []
    return re.compile(pattern), names or [theirs]


def _number(values: Mapping[str, str], placeholder: re.Match[str]) -> str:
    base, letter, shift = placeholder.groups()
    number = int(values[letter])
    return str(int(base) - number if base else number + int(shift or 0))


def gated_rows(encoder: Plain, mlp: str, first: str, second: str) -> Table:
    """Returns the rows of the layers ``first`` and ``second`` of gated MLPs, if our encoder has
    them; ``mlp`` is the module's name."""
    if not encoder.get("swiglu"):
        return []
    ours = "encoder.blocks.{i}.mlp"
    return [(f"{ours}.fc1.*", f"{mlp}.{first}.*"), (f"{ours}.fc2.*", f"{mlp}.{second}.*")]


def their_names(name: str, table: Table) -> list[str]:
    """Returns the names of our tensor in another format.

    There are several where it holds the rows of several tensors, and none without a row.
    """
    for ours, theirs in table:
        pattern, names = _parse(ours, theirs)
        match = pattern.fullmatch(name)
        if match is not None:
            values = {"rest": "", **match.groupdict()}
            names = [_PLACEHOLDER.sub(partial(_number, values), n) for n in names]
            return [n.replace("*", values["rest"]) for n in names]
    return []


def to_theirs(tensors: Tensors, table: Table, deepest_unit: str | None = None) -> dict[str, Tensor]:
    """Returns our tensors under another format's names.

    Args:
        tensors: by our names; those without a row are left out.
        table: rows of the format.
        deepest_unit: the format's name, without the number, of the residual units of the deepest
            fusion block. Unit 1 never runs and gets zeros.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = their_names(name, table)
        rows = tensor.chunk(len(names)) if len(names) > 1 else (tensor,)
        renamed.update(zip(names, rows, strict=False))
    if deepest_unit is not None:
        for name in [n for n in renamed if n.startswith(f"{deepest_unit}2.")]:
            unit1 = name.replace(f"{deepest_unit}2.", f"{deepest_unit}1.")
            renamed[unit1] = torch.zeros_like(renamed[name])
    return renamed


class Shapes:
    """Shapes of the tensors of a file, for readers; one that is missing is a ValueError.

    Args:
        tensors: by the file's names.
        family: of the model, for messages.
    """

    def __init__(self, tensors: Tensors, family: str) -> None:
        self.tensors, self.family = tensors, family

    def __call__(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise ValueError(f"looks like {self.family}, but {name} is missing")
        return tuple(self.tensors[name].shape)

    def count(self, prefix: str) -> int:
        """Returns the number of items under ``prefix``, such as ``pretrained.blocks.``."""
        return len({n[len(prefix) :].split(".")[0] for n in self.tensors if n.startswith(prefix)})

    def vit(self, prefix: str, head_dim: int = 64) -> Plain:
        """Returns the options of our ViT for one under ``prefix``, with timm's or DINO's names.

        Assumed, not derived from shapes: the channels of a head, a LayerNorm eps of 1e-6, and 16
        pixels for a hybrid's patches.
        """
        dim, _, patch, _ = self(f"{prefix}patch_embed.proj.weight")
        if dim % head_dim:
            raise ValueError(f"{dim} channels; {self.family} has {head_dim} a head")
        patch = 16 if self.count(f"{prefix}patch_embed.backbone.") else patch
        block = f"{prefix}blocks.0."
        layers = ("w12", "w1", "fc1")  # joined gates, separate gates, no gates
        first = next((n for n in layers if f"{block}mlp.{n}.weight" in self.tensors), "fc1")
        width = self(f"{block}mlp.{first}.weight")[0] // (2 if first == "w12" else 1)
        mlp_ratio = width / dim
        if first != "fc1":
            mlp_ratio = 4.0 if width == gated_width(4 * dim) else 1.5 * mlp_ratio
        registers = [prefix + n for n in ("register_tokens", "storage_tokens")]
        options: Plain = {
            "patch_size": patch,
            "embed_dim": dim,
            "num_blocks": self.count(f"{prefix}blocks."),
            "num_heads": dim // head_dim,
            "mlp_ratio": mlp_ratio,
            "swiglu": first != "fc1",
            "qkv_bias": self.count(f"{block}attn.qkv.b") + self.count(f"{block}attn.q_b") > 0,
            "norm_eps": 1e-6,
            "num_register_tokens": sum(self(n)[1] for n in registers if n in self.tensors),
        }
        if f"{prefix}pos_embed" in self.tensors:
            slots = self(f"{prefix}pos_embed")[1]
            options["image_size"] = [math.isqrt(slots - 1) * patch] * 2
        return options


def quarter_ends(num_blocks: int) -> list[int]:
    """Returns the zero-based indices of the last block of each quarter of an encoder."""
    return [num_blocks * (i + 1) // 4 - 1 for i in range(4)]


def spread_blocks(num_blocks: int) -> list[int]:
    """Returns the blocks of the feature levels of Depth Anything v2 and DINOv2's heads."""
    return [4, 11, 17, 23] if num_blocks == 24 else quarter_ends(num_blocks)
