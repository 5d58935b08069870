"""Whether two models are the same one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn


def fingerprint(model: Any) -> str:
    """A short code of a model's spec and of every number in it, wherever it was loaded from.

    Args:
        model: a module with a ``spec`` of plain data.
    """
    assert isinstance(model, nn.Module)
    code = hashlib.blake2b(json.dumps(model.spec, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        code.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        code.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return code.hexdigest()
