"""From a raw sample to a training or evaluation sample. The only user of albumentations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpt.data.formats.color import change_colors, draw_colors
from dpt.data.resize import resize_image, resize_map, whole_factor
from dpt.types import IGNORE_INDEX, Preprocessing, Sample

# Otherwise albumentations asks PyPI for its newest version on every import, in every worker.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

GREY = 128
"""What fills image pixels that lie outside the photo."""


class TrainTransform:
    """A random window, resized to one size, then flipped, rotated and recoloured.

    The window has the shape of ``image_size``. At zoom 1 it is the largest that fits into the
    image, so the photo is scaled as ``Preprocessing.resize="lower_bound"`` scales it; at zoom z
    its sides are z times shorter. It is cut out before anything else is done, so that a large
    photo costs no more than a small one.

    Args:
        image_size: [H, W] of what comes out.
        zoom: (smallest, largest), drawn log-uniformly. Below 1 the window is larger than the
            image: grey, unlabelled, without depth outside it.
        hflip: probability of a horizontal flip.
        rotate: largest angle, in degrees, to either side.
        color: strength in 0..1 of brightness, contrast, saturation and hue changes, made in four
            of five pictures; see :mod:`dpt.data.formats.color`.
        grayscale: probability of a grey picture.
        blur: probability of a Gaussian blur.
        zoom_scales_depth: divide depth by the zoom. The camera keeps its focal length as far as
            the network can know, so what looks z times larger is z times nearer (Eigen et al.
            2014, section 3.4).
    """

    def __init__(
        self,
        *,
        image_size: Sequence[int],
        zoom: Sequence[float] = (1.0, 1.0),
        hflip: float = 0.5,
        rotate: float = 0.0,
        color: float = 0.0,
        grayscale: float = 0.0,
        blur: float = 0.0,
        zoom_scales_depth: bool = True,
    ) -> None:
        shares = {"hflip": hflip, "color": color, "grayscale": grayscale, "blur": blur}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"augment.{name}={value} must lie in 0..1")
        if len(image_size) != 2 or min(image_size) < 1:
            raise ValueError(f"image_size={list(image_size)} must be [height, width] in pixels")
        if len(zoom) != 2 or not 0 < zoom[0] <= zoom[1]:
            raise ValueError(f"augment.zoom={list(zoom)} must be [smallest, largest], above 0")
        if not 0 <= rotate <= 180:
            raise ValueError(f"augment.rotate={rotate} must lie in 0..180 degrees")
        self.image_size = (int(image_size[0]), int(image_size[1]))
        self.zoom = (float(zoom[0]), float(zoom[1]))
        self.zoom_scales_depth = zoom_scales_depth
        self.color = float(color)
        self._compose = _compose(hflip=hflip, rotate=rotate, grayscale=grayscale, blur=blur)

    def __call__(self, sample: Sample, *, seed: int) -> Sample:
        """The same seed gives the same result; the arrays of ``sample`` are not written to."""
        random = np.random.default_rng(seed)
        height, width = sample["image"].shape[:2]
        zoom = float(np.exp(random.uniform(*np.log(self.zoom))))
        scale = max(self.image_size[0] / height, self.image_size[1] / width) * zoom
        window = _Window(
            image=(height, width), out=self.image_size, scale=scale, position=random.random(2)
        )
        arrays = {"image": window.cut_image(sample["image"])}
        # Zero means "nothing here" in every map, so that one fill value serves them all: labels
        # are stored plus one (255 wraps to 0), depth is 0 where invalid.
        if "labels" in sample:
            labels = window.cut_map(sample["labels"], fill=IGNORE_INDEX)
            arrays["labels"] = labels + np.uint8(1)
        if "depth" in sample:
            depth = window.cut_map(sample["depth"], fill=0)
            valid = window.cut_map(sample["valid"], fill=False)
            factor = np.float32(1 / zoom if self.zoom_scales_depth else 1.0)
            arrays["depth"] = np.where(valid, depth * factor, np.float32(0))
        if self.color and random.random() < 0.8:
            changes = draw_colors(random, self.color)
            arrays["image"] = change_colors(arrays["image"], **changes)
        elif np.may_share_memory(arrays["image"], sample["image"]):
            arrays["image"] = arrays["image"].copy()
        if self._compose is not None:
            self._compose.set_random_seed(seed)
            arrays = self._compose(**arrays)

        out = sample.copy()
        out["image"] = arrays["image"]
        if "labels" in sample:
            out["labels"] = arrays["labels"] - np.uint8(1)
        if "depth" in sample:
            out["depth"] = arrays["depth"]
            out["valid"] = arrays["depth"] > 0
        return out


class EvalTransform:
    """The image resized as ``preprocessing`` says; labels and depth at their own resolution."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        self.preprocessing = preprocessing

    def __call__(self, sample: Sample, *, seed: int = 0) -> Sample:
        size = self.preprocessing.input_size(*sample["image"].shape[:2])
        out = sample.copy()
        out["image"] = resize_image(sample["image"], size, rule=self.preprocessing.interpolation)
        return out


class _Window:
    """A rectangle of the image, perhaps reaching beyond it, that is resized to ``out``."""

    def __init__(
        self,
        *,
        image: tuple[int, int],
        out: tuple[int, int],
        scale: float,
        position: np.ndarray,
    ) -> None:
        self.out = out
        sides = (max(1, round(out[0] / scale)), max(1, round(out[1] / scale)))
        factor = whole_factor(sides, out)  # sides that it divides are averaged fast
        self.inside: list[slice] = []
        self.target: list[slice] = []
        for axis in (0, 1):
            side = sides[axis] // factor * factor
            slack = image[axis] - side
            start = round(position[axis] * slack) if slack else 0
            first, last = max(start, 0), min(start + side, image[axis])
            self.inside.append(slice(first, last))
            ratio = out[axis] / side
            low = round((first - start) * ratio)
            self.target.append(slice(low, max(low + 1, round((last - start) * ratio))))
        self.pads = self.target != [slice(0, out[0]), slice(0, out[1])]
        self.size = tuple(s.stop - s.start for s in self.target)

    def cut_image(self, image: np.ndarray) -> np.ndarray:
        return self._place(resize_image(image[*self.inside], self.size), GREY)

    def cut_map(self, values: np.ndarray, *, fill: float) -> np.ndarray:
        return self._place(resize_map(values[*self.inside], self.size), fill)

    def _place(self, part: np.ndarray, fill: float) -> np.ndarray:
        if not self.pads:
            return part
        whole = np.full((*self.out, *part.shape[2:]), fill, part.dtype)
        whole[*self.target] = part
        return whole


def _compose(*, hflip: float, rotate: float, grayscale: float, blur: float) -> Any:
    """One albumentations pipeline for image and maps together, or None if nothing is asked for."""
    if not (hflip or rotate or grayscale or blur):
        return None
    import albumentations as A  # takes two seconds: not for those who only predict
    import cv2

    steps: list[Any] = []
    if hflip:
        steps.append(A.HorizontalFlip(p=hflip))
    if rotate:
        steps.append(
            A.Rotate(
                limit=(-rotate, rotate),
                interpolation=cv2.INTER_LINEAR,
                mask_interpolation=cv2.INTER_NEAREST,
                border_mode=cv2.BORDER_CONSTANT,
                fill=GREY,
                fill_mask=0,
                p=1.0,
            )
        )
    if grayscale:
        steps.append(A.ToGray(p=grayscale))
    if blur:
        steps.append(A.GaussianBlur(sigma_limit=(0.1, 1.5), p=blur))
    # strict: a key that is not declared would pass through unflipped, silently
    targets = {"labels": "mask", "depth": "mask"}
    return A.Compose(steps, additional_targets=targets, strict=True)
