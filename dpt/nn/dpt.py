"""The Dense Prediction Transformer (Ranftl et al. 2021): encoder, decoder, heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.fusion import Decoder
from dpt.nn.heads import DenseHead, TokenHead


def pad_to_multiple(images: Tensor, multiple: int) -> Tensor:
    """Repeats the last row and column until both sides are multiples of ``multiple`` pixels."""
    height, width = images.shape[-2:]
    bottom, right = -height % multiple, -width % multiple
    if not bottom and not right:
        return images
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


class DPT(nn.Module):
    """One encoder, one decoder, any set of heads.

    Args:
        encoder: images to :class:`dpt.types.Tokens`; says ``embed_dims``, ``num_prefix_tokens``,
            ``strides`` and ``pad_multiple``.
        decoder: tokens to a feature map; None where every head reads the CLS token.
        heads: by the name under which their output is returned.
    """

    encoder: Any
    decoder: Decoder | None

    def __init__(
        self, *, encoder: nn.Module, decoder: Decoder | None, heads: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Predicts for images of any size.

        Args:
            images: float (B, 3, H, W), normalised. Sides off the encoder's grid are padded, and
                dense outputs cropped back.

        Returns:
            A tensor a head: ``depth`` (B, H, W), ``segmentation`` logits (B, K, H, W),
            ``classification`` logits (B, C), ``regression`` (B,). In training also
            ``<name>_auxiliary`` where a head has one.
        """
        height, width = images.shape[-2:]
        images = pad_to_multiple(images, self.encoder.pad_multiple)
        size = (images.shape[-2], images.shape[-1])
        tokens = self.encoder(images)
        maps = [] if self.decoder is None else self.decoder.fuse(tokens)
        outputs: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            if isinstance(head, TokenHead):
                outputs[name] = head(tokens.levels[-1])
                continue
            assert isinstance(head, DenseHead)
            outputs[name] = head(maps[-1], size)[..., :height, :width]
            auxiliary = head.auxiliary(maps, size) if self.training else None
            if auxiliary is not None:
                outputs[f"{name}_auxiliary"] = auxiliary[..., :height, :width]
        return outputs
