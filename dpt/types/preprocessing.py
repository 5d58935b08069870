"""From the pixels of a file to the network's input, and from its output to metres."""

from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpt.files import MAX_PIXELS, DataError
from dpt.validation import Metres, Positive, Settings

ResizeRule = Literal[
    "lower_bound", "upper_bound", "longest_side", "minimal", "stretch", "none", "pad", "windows"
]
Interpolation = Literal[
    "bilinear",
    "cubic",
    "cubic_float",
    "cubic_area_twice",
    "bilinear_antialias",
    "cubic_antialias",
    "area",
]
OutputResize = Literal["bilinear_aligned", "bilinear", "bicubic", "bilinear_scores"]
"""How dense outputs get another size. Only the first aligns the corners, as in DPT's decoder."""

MAX_ELONGATION = 16
"""Largest ratio of an input's pixels to the usual number. For an image of 32 × 10,000 pixels the
network's input would be 384 × 120,000."""


@dataclass(frozen=True)
class Preprocessing(Settings):
    """Preprocessing of an image for a model. Plain data, saved with the weights.

    Attributes:
        mean, std: of each channel: of RGB for pixel values in 0..1, of bands in their own unit.
        pixels: ``rgb`` are 8-bit images. ``bands`` are images of any number of bands in the files'
            own values; pixels without data get the mean.
        bands, image_max, nodata: how files were read in training, see
            :class:`dpt.data.formats.bands.FilePart`. Without ``bands`` all of them are taken.
        image_size: the [H, W] that ``resize`` aims at.
        resize: ``lower_bound`` scales the image to cover ``image_size`` and ``upper_bound`` to fit
            into it, both keeping the aspect; ``longest_side`` is ``upper_bound``, but with sides
            rounded to whole pixels before they are rounded to ``multiple_of``, where half a
            multiple goes up (Depth Anything 3); ``minimal`` takes whichever of the two side ratios
            is closer to 1, of equal ones the height's (MiDaS, official DPT); ``stretch`` takes
            ``image_size`` as it is; ``none`` keeps the image's size, but for ``multiple_of``. By
            ``pad`` and ``windows`` (EoMT) the network sees squares of ``image_size`` alone: images
            that fit into it, with black pixels at their right or lower side, or overlapping windows
            of images that cover it, whose class scores are averaged.
        multiple_of: both sides are rounded to a multiple of this many pixels: to the nearest one,
            but never below ``image_size`` by ``lower_bound`` or above it by ``upper_bound``.
        interpolation: of the image, when resized, see :func:`dpt.data.view.resize_image`.
        output_interpolation: how dense outputs, of class scores the logits, get the image's size:
            ``bilinear_aligned`` as in Depth Anything v2; ``bilinear``, without aligned corners, as
            in Depth Anything v1, transformers' segmentation and mmsegmentation; ``bicubic``,
            without aligned corners, as in official DPT, MiDaS and transformers' depth;
            ``bilinear_scores`` is ``bilinear``, but of the exponentials of logits (EoMT).
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[Positive, ...] = (0.5, 0.5, 0.5)
    pixels: Literal["rgb", "bands"] = "rgb"
    bands: tuple[int, ...] | None = None
    image_max: float | None = None
    nodata: float | None = None
    image_size: tuple[int, int] = (384, 384)
    resize: ResizeRule = "lower_bound"
    multiple_of: Annotated[int, Field(ge=1, le=1000)] = 16
    interpolation: Interpolation = "cubic"
    output_interpolation: OutputResize = "bilinear_aligned"

    def __post_init__(self) -> None:
        height, width = self.image_size
        if min(height, width) < 1 or height * width > MAX_PIXELS:
            limit = f"must be [H, W], of at most {MAX_PIXELS} pixels"
            raise ValueError(f"preprocessing.image_size={[height, width]}: {limit}")
        counts = len(self.mean), len(self.std)
        if counts[0] != counts[1] or (self.is_rgb and counts[0] != 3):
            fault = f"{counts[0]} and {counts[1]} numbers"
            raise ValueError(f"preprocessing.mean and std: {fault}: give one a channel, 3 for RGB")

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns (H, W) to which an image of ``height`` × ``width`` pixels is resized."""
        if self.is_framed:
            return self._framed_size(height, width)
        target_h, target_w = self.image_size
        scales = (target_h / height, target_w / width)
        scale = {
            "lower_bound": max(scales),
            "upper_bound": min(scales),
            "longest_side": min(scales),
            "minimal": min(scales, key=lambda s: abs(1 - s)),  # the first of equal ones
            "none": 1.0,
        }.get(self.resize)

        def to_multiple(length: float, target: int) -> int:
            count = round(length / self.multiple_of)
            if self.resize == "longest_side":
                count = (round(length) + self.multiple_of // 2) // self.multiple_of
            if self.resize == "lower_bound":
                count = max(count, ceil(target / self.multiple_of))
            if self.resize in ("upper_bound", "longest_side"):
                count = min(count, target // self.multiple_of)
            return max(1, count) * self.multiple_of

        if scale is None:
            return to_multiple(target_h, target_h), to_multiple(target_w, target_w)
        return to_multiple(scale * height, target_h), to_multiple(scale * width, target_w)

    def _framed_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns :meth:`input_size` of ``pad`` and ``windows``, rounded as in transformers."""
        short, long = sorted((height, width))
        target = self.image_size[0]
        side = target if self.resize == "windows" else target * short / long
        sides = max(1, round(side)), int(side * long / short)
        return sides if height <= width else sides[::-1]

    def bounded_size(self, height: int, width: int, name: object) -> tuple[int, int]:
        """Returns :meth:`input_size`; raises DataError with ``name`` if it is far too large."""
        size = self.input_size(height, width)
        usual = self.image_size[0] * self.image_size[1]
        if size[0] * size[1] > (MAX_PIXELS if self.resize == "none" else MAX_ELONGATION * usual):
            fault = f"{width}x{height} pixels are too elongated for an input of {size[1]}x{size[0]}"
            raise DataError(f"{name}: {fault}: crop it")
        return size

    @property
    def is_framed(self) -> bool:
        """Whether the network sees squares of ``image_size``, which is one, alone."""
        return self.resize in ("pad", "windows")

    @property
    def is_rgb(self) -> bool:
        return self.pixels == "rgb"

    def normalize(self, images: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to the model's float32 input, on the same device.

        RGB is in 0..255, bands are in their own unit. What has no data (NaN) becomes 0, the mean.
        """
        if images.shape[-3] != len(self.mean):
            fault = f"images have {images.shape[-3]} channels, the model takes {len(self.mean)}"
            raise ValueError(f"{fault}: choose them by data.bands, or another model")
        mean, std = (
            (255 if self.is_rgb else 1) * torch.tensor(values, device=images.device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        normalized = (images.float() - mean) * std.reciprocal()
        return normalized if self.is_rgb else normalized.nan_to_num(nan=0.0)

    def picture(self, image: Tensor | np.ndarray) -> np.ndarray:
        """Returns an image (C, H, W), as :meth:`normalize` takes it, as uint8 RGB (H, W, 3).

        Of bands the first three are red, green and blue, or the first is grey; the range is two
        standard deviations to either side of the mean.
        """
        channels = torch.as_tensor(image).cpu().float()
        if not self.is_rgb:
            shown = [0, 1, 2] if len(self.mean) >= 3 else [0, 0, 0]
            channels = 127.5 + 63.75 * self.normalize(channels[None])[0, shown]
        return channels.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


CalibrationSpace = Literal["inverse_depth", "depth"]


@dataclass(frozen=True)
class Calibration(Settings):
    """From what a model predicts to metres, by one scale and one shift. Plain data.

    Attributes:
        scale, shift: ``scale · prediction + shift`` is 1/metres for ``inverse_depth``, metres for
            ``depth``; scale is above 0.
        space: what was fitted: ``inverse_depth`` for predictions of inverse depth up to scale and
            shift, ``depth`` for those of depth, in metres or up to scale.
        min_depth, max_depth: limits of the result, in metres.
    """

    scale: Positive
    shift: float = 0.0
    space: CalibrationSpace = "inverse_depth"
    min_depth: Metres = 1e-3
    max_depth: Metres = 1e3

    def __post_init__(self) -> None:
        if not self.min_depth < self.max_depth:
            limits = f"calibration.min_depth={self.min_depth}, max_depth={self.max_depth}"
            raise ValueError(f"{limits}: must ascend")

    def to_metres(self, prediction: Tensor) -> Tensor:
        """Returns depth in metres, within ``min_depth`` and ``max_depth``, of a prediction.

        float32, or float64 if ``prediction`` is; NaN stays NaN.
        """
        exact = prediction if prediction.dtype == torch.float64 else prediction.float()
        fitted = self.scale * exact + self.shift
        if self.space == "inverse_depth":  # whose rounded reciprocals may be beyond the limits
            fitted = fitted.clamp(1 / self.max_depth, 1 / self.min_depth).reciprocal()
        return fitted.clamp(self.min_depth, self.max_depth)
