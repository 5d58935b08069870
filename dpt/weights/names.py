"""Tensors of another format: their names, by a table of rows, and what their shapes tell.

A row is (our name, its name in another format). ``*`` is the rest of a name and ``{n}`` a number;
the other format's name may hold the number shifted: ``{n+1}``, ``{3-n}``. ``{query,key,value}``
stands for several tensors whose rows our one tensor holds. The first row that matches a name
applies.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dpt.nn.vit import gated_width
from dpt.validation import Plain

Tensors = Mapping[str, Tensor]
Table = Sequence[tuple[str, str]]
SAME_NAMES: Table = (("*", "*"),)
_PLACEHOLDER = re.compile(r"\{(?:(\d)-)?([a-z])([+-]\d)?\}")


@dataclass(frozen=True)
class Row:
    """A row of a table, parsed.

    Attributes:
        ours: matches our names; its groups are the numbers by their letters, and ``rest``.
        theirs: the other format's names, with the placeholders of numbers and ``*``.
    """

    ours: re.Pattern[str]
    theirs: tuple[str, ...]

    @staticmethod
    @cache
    def parse(ours: str, theirs: str) -> "Row":
        pattern = re.escape(ours).replace(r"\*", "(?P<rest>.+)")
        pattern = re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", pattern)
        choice = re.search(r"\{(\w+(?:,\w+)+)\}", theirs)
        words = choice[1].split(",") if choice else []
        names = [theirs.replace(choice[0], word) for word in words] if choice else [theirs]
        return Row(re.compile(pattern), tuple(names))

    def translate(self, name: str) -> list[str]:
        """Returns the names of our tensor in the other format; none if the row is of others."""
        match = self.ours.fullmatch(name)
        if match is None:
            return []
        values = match.groupdict()
        return [
            _PLACEHOLDER.sub(lambda p: _number(p, values), theirs).replace(
                "*", values.get("rest", "")
            )
            for theirs in self.theirs
        ]


def _number(placeholder: re.Match[str], values: Mapping[str, str]) -> str:
    base, letter, shift = placeholder.groups()
    number = int(values[letter])
    return str(int(base) - number if base else number + int(shift or 0))


def gated_rows(encoder: Plain, first: str, second: str) -> Table:
    """Returns the rows of the two layers of gated MLPs, if our encoder has them."""
    if not encoder.get("swiglu"):
        return []
    return [("encoder.blocks.{i}.mlp.fc1.*", first), ("encoder.blocks.{i}.mlp.fc2.*", second)]


def their_names(name: str, table: Table) -> list[str]:
    """Returns the names of our tensor in another format.

    There are several where it holds the rows of several tensors, and none without a row.
    """
    names = (Row.parse(ours, theirs).translate(name) for ours, theirs in table)
    return next(filter(None, names), [])


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

    def vit(self, prefix: str) -> Plain:
        """Returns the options of our ViT for one under ``prefix``, with timm's or DINOv2's names.

        Assumed, not derived from shapes: 64 channels per head, a LayerNorm eps of 1e-6, and 16
        pixels for a hybrid's patches.
        """
        slots, dim = self(f"{prefix}pos_embed")[1:]
        if dim % 64:
            raise ValueError(f"{dim} channels; {self.family} has 64 a head")
        hybrid = any(k.startswith(f"{prefix}patch_embed.backbone.") for k in self.tensors)
        patch = 16 if hybrid else self(f"{prefix}patch_embed.proj.weight")[-1]
        block = f"{prefix}blocks.0."
        gated = f"{block}mlp.w12.weight" in self.tensors
        mlp_ratio = self(f"{block}mlp.{'w12' if gated else 'fc1'}.weight")[0] / dim
        if gated:
            mlp_ratio = 4.0 if mlp_ratio * dim == 2 * gated_width(4 * dim) else 0.75 * mlp_ratio
        registers = f"{prefix}register_tokens"
        return {
            "image_size": [math.isqrt(slots - 1) * patch] * 2,
            "patch_size": patch,
            "embed_dim": dim,
            "num_blocks": self.count(f"{prefix}blocks."),
            "num_heads": dim // 64,
            "mlp_ratio": mlp_ratio,
            "swiglu": gated,
            "qkv_bias": f"{block}attn.qkv.bias" in self.tensors,
            "norm_eps": 1e-6,
            "num_register_tokens": self(registers)[1] if registers in self.tensors else 0,
        }


def quarter_ends(num_blocks: int) -> list[int]:
    """Returns the zero-based indices of the last block of each quarter of an encoder."""
    return [num_blocks * (i + 1) // 4 - 1 for i in range(4)]
