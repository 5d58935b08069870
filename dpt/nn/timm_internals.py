"""Names of timm that are not in its documentation, each with the reason for its use.

Tested with timm 1.0.31. Everything else in the package uses timm's public names. timm takes two
seconds to import, so it is imported inside the functions.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def pad_before_shift(model: nn.Module, name: str) -> None:
    """Makes Swin blocks pad their maps to whole windows before the shift.

    So do the official DPT models; timm pads after the shift.

    Raises:
        ValueError: the timm model ``name`` has no such blocks.
    """
    from timm.models.swin_transformer import SwinTransformerBlock
    from timm.models.swin_transformer_v2 import SwinTransformerV2Block

    kinds = (SwinTransformerBlock, SwinTransformerV2Block)
    blocks: list[Any] = [module for module in model.modules() if isinstance(module, kinds)]
    if not blocks:
        raise ValueError(
            f"pad_windows='before_shift' is for Swin and SwinV2; {name} has no windows"
        )
    for block in blocks:
        block._attn = partial(_attend_to_padded, block)  # unlike a method, it can be pickled


def _attend_to_padded(block: Any, map_BhwD: Tensor) -> Tensor:
    """Attends within the windows of a Swin block, with zeros below and right of the map."""
    height, width = map_BhwD.shape[1:3]
    bottom, right = -height % block.window_size[0], -width % block.window_size[1]
    padded = F.pad(map_BhwD, (0, 0, 0, right, 0, bottom))
    attended: Tensor = type(block)._attn(block, padded)
    return attended[:, :height, :width]


def compute_buffers(model: nn.Module, device: torch.device) -> None:
    """Computes the buffers of a timm model that no file holds, if they are on the meta device.

    Args:
        model: a timm model built on the meta device, whose parameters have got their values.
        device: that of the parameters.
    """
    for module in model.modules():
        compute = getattr(module, "init_non_persistent_buffers", None)
        if compute is not None:
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, name, torch.empty_like(buffer, device=device))
            compute()
