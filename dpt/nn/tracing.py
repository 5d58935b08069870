"""Asking for sizes while torch.export looks on: there a size is a symbol that stands for any.

A branch taken by the size of the example would be the graph's only one. So each question about
sizes goes through here, and a graph gets the branch that is right for every size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def exporting() -> bool:
    """Whether torch.export is tracing; torch.compile may branch, as it compiles again."""
    asks = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch 2.6
    return asks()


def same_size(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two sizes are equal; while exporting, whether they are for images of every size."""
    if not exporting():
        return tuple(one) == tuple(other)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))
