"""Translation of tensor names by a table of rows (our name, its name in another format).

``*`` is the rest of a name and ``{n}`` a number; the other format's name may hold the number
shifted: ``{n+1}``, ``{3-n}``. ``{query,key,value}`` stands for several tensors whose rows our one
tensor holds. The first row that matches a name applies.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from dpt.validation import Plain

Tensors = Mapping[str, Tensor]
Table = Sequence[tuple[str, str]]
SAME_NAMES: Table = (("*", "*"),)


@cache
def _pattern(our_name: str) -> re.Pattern[str]:
    pattern = re.escape(our_name).replace(r"\*", "(?P<rest>.+)")
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", pattern))


def gated_rows(encoder: Plain, first: str, second: str) -> Table:
    """Returns the rows of the two layers of gated MLPs, if our encoder has them."""
    if not encoder.get("swiglu"):
        return []
    return [("encoder.blocks.{i}.mlp.fc1.*", first), ("encoder.blocks.{i}.mlp.fc2.*", second)]


def their_names(name: str, table: Table) -> list[str]:
    """Returns the names of our tensor in another format.

    There are several where it holds the rows of several tensors, and none without a row.
    """

    def number(placeholder: re.Match[str]) -> str:
        base, letter, shift = placeholder.groups()
        n = int(values[letter])
        return str(int(base) - n if base else n + int(shift or 0))

    for ours, theirs in table:
        match = _pattern(ours).fullmatch(name)
        if match:
            values = match.groupdict()
            new_name = re.sub(r"\{(?:(\d)-)?([a-z])([+-]\d)?\}", number, theirs)
            new_name = new_name.replace("*", values.get("rest", ""))
            choice = re.search(r"\{(\w+(?:,\w+)+)\}", new_name)
            if choice is None:
                return [new_name]
            return [new_name.replace(choice[0], word) for word in choice[1].split(",")]
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
