"""The Dense Prediction Transformer (Ranftl et al. 2021): encoder, decoder, heads."""

from __future__ import annotations

from collections.abc import Mapping
from types import EllipsisType
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.nn.enlarge import Enlarged
from dpt.nn.fusion import Decoder
from dpt.nn.heads import ClassMapHead, DenseHead, TokenHead
from dpt.nn.inpainting import InpaintingHead
from dpt.nn.tracing import same_size
from dpt.rowwise import enlarged_argmax
from dpt.types import OutputSpec, Tokens

Window = tuple[EllipsisType, slice, slice]


def pad_to_centre(images: Tensor, multiple: int) -> tuple[Tensor, int, int]:
    """Zeros on all sides, as DINOv2's heads were trained with; also the rows and columns before."""
    height, width = images.shape[-2:]
    rows, columns = _up_to(height, multiple), _up_to(width, multiple)
    if same_size((rows, columns), (0, 0)):
        return images, 0, 0
    top, left = rows // 2, columns // 2
    return F.pad(images, (left, columns - left, top, rows - top)), top, left


def pad_to_multiple(images: Tensor, multiple: int) -> Tensor:
    """Repeats the last row and column until both sides are multiples of ``multiple`` pixels."""
    height, width = images.shape[-2:]
    bottom, right = _up_to(height, multiple), _up_to(width, multiple)
    if same_size((bottom, right), (0, 0)):
        return images
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


def _up_to(length: int, multiple: int) -> int:
    """How much is missing to the next multiple; written so that symbols cancel in the sum."""
    return (length + multiple - 1) // multiple * multiple - length


class DPT(nn.Module):
    """One encoder, one decoder, any set of heads.

    Args:
        encoder: images to :class:`dpt.types.Tokens`; says ``embed_dims``, ``num_prefix_tokens``,
            ``strides`` and ``pad_multiple``.
        decoder: tokens to a feature map; None where every head reads the encoder's tokens.
        heads: by the name under which their output is returned.
    """

    encoder: Any
    decoder: Decoder | None
    predicts_only = False
    """Whether this is a copy for prediction alone, see :mod:`dpt.nn.inference`."""

    def __init__(
        self, *, encoder: nn.Module, decoder: Decoder | None, heads: Mapping[str, nn.Module]
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.heads = nn.ModuleDict(heads)

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        """What each head predicts, by its name."""
        return {name: cast(Any, head).output for name, head in self.heads.items()}

    @property
    def pad_multiple(self) -> int:
        """Images are padded to sides that are multiples of this many pixels."""
        even = self.decoder is not None and self.decoder.align == "double"
        return self.encoder.pad_multiple * (2 if even else 1)

    def forward(
        self, images: Tensor, *, enlarge_logits: bool = True, with_features: bool = False
    ) -> dict[str, Tensor]:
        """Predicts for images of any size.

        Args:
            images: float (B, 3, H, W), normalised. Sides off the encoder's grid are padded, and
                dense outputs cropped back.
            enlarge_logits: False leaves the logits of images that need no padding at the head's
                own size, for a loss or an argmax that enlarges them itself (:mod:`dpt.rowwise`).
            with_features: also return the patch tokens of the deepest level, as a map
                ``features`` (B, D, h, w) of the padded image.

        Returns:
            A tensor a head: ``depth`` (B, H, W), ``segmentation`` logits (B, K, H, W),
            ``classification`` logits (B, C), ``regression`` (B,), ``inpainting`` RGB
            (B, 3, H, W). In training also ``<name>_auxiliary`` where a head has one.
        """
        padded, window = self.pad(images)
        tokens, maps = self._maps(padded)
        size = (padded.shape[-2], padded.shape[-1])
        small = not enlarge_logits and padded is images
        outputs: dict[str, Tensor] = {}
        if with_features:
            outputs["features"] = self._features(tokens)
        for name, head in self.heads.items():
            if isinstance(head, TokenHead):
                outputs[name] = head(tokens.levels[-1])
                extra = head.auxiliary(tokens.levels[-1]) if self.training else None
                if extra is not None:
                    outputs[f"{name}_auxiliary"] = extra
                continue
            if isinstance(head, InpaintingHead):
                outputs[name] = head(tokens.levels[-1], tokens.grids[-1])[window]
                continue
            assert isinstance(head, DenseHead)
            given = head.reads(tokens, maps)
            if small and isinstance(head, ClassMapHead):
                outputs[name] = head.logits(given[-1], size).low
                small_extra = head.auxiliary_logits(given, size) if self.training else None
                auxiliary = None if small_extra is None else small_extra.low
            else:
                outputs[name] = head(given[-1], size)[window]
                auxiliary = head.auxiliary(given, size) if self.training else None
                auxiliary = None if auxiliary is None else auxiliary[window]
            if auxiliary is not None:
                outputs[f"{name}_auxiliary"] = auxiliary
        return outputs

    def predict_labels(self, images: Tensor) -> Tensor:
        """Class ids (B, H, W) of the segmentation head: its logits' argmax, never held full-size.

        Args:
            images: as for :meth:`forward`.
        """
        padded, window = self.pad(images)
        size = (padded.shape[-2], padded.shape[-1])
        return enlarged_argmax(self.small_logits(padded), size)[window]

    def small_logits(self, images: Tensor) -> Tensor:
        """Segmentation logits (B, K, h, w), to be enlarged; image sides are on the grid already."""
        head = dict(self.heads.items()).get("segmentation")
        if not isinstance(head, ClassMapHead):
            raise ValueError(f"no segmentation head: this model has {', '.join(self.heads)}")
        given = head.reads(*self._maps(images))
        return head.logits(given[-1], (images.shape[-2], images.shape[-1])).low

    def pad(self, images: Tensor) -> tuple[Tensor, Window]:
        """Images (B, 3, H, W) brought to the encoder's grid, and where they lie in the result."""
        height, width = images.shape[-2:]
        top = left = 0
        if getattr(self.encoder, "padding", "bottom_right") == "center":
            images, top, left = pad_to_centre(images, self.pad_multiple)
        else:
            images = pad_to_multiple(images, self.pad_multiple)
        return images, (..., slice(top, top + height), slice(left, left + width))

    def _features(self, tokens: Tokens) -> Tensor:
        patches = tokens.levels[-1][:, self.encoder.num_prefix_tokens[-1] :]
        return patches.transpose(1, 2).unflatten(2, tokens.grids[-1])

    def _maps(self, images: Tensor) -> tuple[Tokens, list[Enlarged]]:
        tokens = self.encoder(images)
        return tokens, [] if self.decoder is None else self.decoder.fuse(tokens)
