"""The Dense Prediction Transformer (Ranftl et al. 2021): encoder, decoder, heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.fusion import Decoder
from dpt.nn.heads import DenseHead, TokenHead


def pad_to_centre(images: Tensor, multiple: int) -> tuple[Tensor, int, int]:
    """Zeros on all sides, as DINOv2's heads were trained with; also the rows and columns before."""
    height, width = images.shape[-2:]
    rows, columns = -height % multiple, -width % multiple
    top, left = rows // 2, columns // 2
    return F.pad(images, (left, columns - left, top, rows - top)), top, left


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

    @property
    def pad_multiple(self) -> int:
        """Images are padded to sides that are multiples of this many pixels."""
        even = self.decoder is not None and self.decoder.align == "double"
        return self.encoder.pad_multiple * (2 if even else 1)

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
        top = left = 0
        if getattr(self.encoder, "padding", "bottom_right") == "center":
            images, top, left = pad_to_centre(images, self.pad_multiple)
        else:
            images = pad_to_multiple(images, self.pad_multiple)
        size = (images.shape[-2], images.shape[-1])
        tokens = self.encoder(images)
        maps = [] if self.decoder is None else self.decoder.fuse(tokens)
        outputs: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            if isinstance(head, TokenHead):
                outputs[name] = head(tokens.levels[-1])
                continue
            assert isinstance(head, DenseHead)
            outputs[name] = head(maps[-1], size)[..., top : top + height, left : left + width]
            auxiliary = head.auxiliary(maps, size) if self.training else None
            if auxiliary is not None:
                auxiliary = auxiliary[..., top : top + height, left : left + width]
                outputs[f"{name}_auxiliary"] = auxiliary
        return outputs
