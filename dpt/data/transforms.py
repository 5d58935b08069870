"""From a raw sample to a training or evaluation sample. The only user of albumentations."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import cv2
import numpy as np
from pydantic import Field

from dpt.data.resize import resize_image, resize_map, whole_factor
from dpt.types import IGNORE_INDEX, Preprocessing, Sample
from dpt.validation import Probability

# Otherwise albumentations asks PyPI for its newest version on every import, in every worker.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

GREY = 128
"""The value of image pixels outside the photo."""
LUMA = np.array([0.299, 0.587, 0.114])
"""Weights of R, G and B in the luma (ITU-R BT.601)."""
_YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""RGB to luma and the two axes of hue (NTSC)."""


@dataclass(kw_only=True, eq=False)
class TrainTransform:
    """A random window, resized to one size, then flipped, rotated and recoloured.

    The window has the aspect ratio of ``image_size``. At zoom 1 it is the largest that fits into
    the image, so the photo is scaled as by ``Preprocessing.resize="lower_bound"``; at zoom z its
    sides are z times shorter.

    Args:
        image_size: [H, W] of the result.
        zoom: (smallest, largest), drawn log-uniformly. Below 1 the window is larger than the
            image: grey, unlabelled and without depth outside it.
        hflip: probability of a horizontal flip.
        rotate: largest angle, in degrees, to either side.
        color: strength in 0..1 of changes of brightness, contrast, saturation and hue, made with
            probability 0.8; see :func:`change_colors`.
        gamma: probability of a gamma correction, exponent 0.5 to 2.5, mostly darker.
        grayscale: probability of a grey picture.
        blur: probability of a Gaussian blur.
        strong: strength in 0..1 of :func:`strongly_changed` for images without labels; ``weak``
            holds the image with its own colours. Images with labels get ``part``, the mask of
            pixels to paste on images without labels, see :func:`part_to_paste`. 0: neither.
        targets: labels that are trained; ``strong`` treats images with none of these as images
            without labels.
        views: number of random views of at least a quarter of the photo, see :func:`random_view`.
        crops: number of random views of at most a quarter (DINO's local crops).
        crop_size: [h, w] of the crops; None is half of ``image_size``.
        zoom_scales_depth: divide depth by the zoom: an unchanged camera would see an object z times
            larger at a z times shorter distance (Eigen et al. 2014, section 3.4).
    """

    image_size: Sequence[int]
    zoom: Sequence[float] = (1.0, 1.0)
    hflip: Probability = 0.5
    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0
    color: Probability = 0.0
    gamma: Probability = 0.0
    grayscale: Probability = 0.0
    blur: Probability = 0.0
    strong: Probability = 0.0
    targets: Sequence[str | None] = ("labels", "depth")
    views: Annotated[int, Field(ge=0, le=64)] = 0
    crops: Annotated[int, Field(ge=0, le=64)] = 0
    crop_size: Sequence[int] | None = None
    zoom_scales_depth: bool = True

    def __post_init__(self) -> None:
        size, zoom = self.image_size, self.zoom
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"image_size={list(size)} must be [height, width] in pixels")
        if len(zoom) != 2 or not 0 < zoom[0] <= zoom[1]:
            raise ValueError(f"augment.zoom={list(zoom)} must be [smallest, largest], above 0")
        crop_size = self.crop_size or [max(1, side // 2) for side in size]
        if len(crop_size) != 2 or min(crop_size) < 1 or max(crop_size) > max(size):
            limit = f"[height, width], at most {max(size)} pixels"
            raise ValueError(f"augment.crop_size={list(crop_size)} must be {limit}")
        self._size = self.image_size = (size[0], size[1])
        small = (crop_size[0], crop_size[1])
        self._views = {"views": (self.views, self._size, (0.25, 1.0)),
                       "crops": (self.crops, small, (0.05, 0.25))}  # fmt: skip
        self._moves = _compose(hflip=self.hflip, rotate=self.rotate)
        self._colors = _compose(gamma=self.gamma, grayscale=self.grayscale, blur=self.blur)

    def __call__(self, sample: Sample, *, seed: int) -> Sample:
        """The same seed gives the same result; the arrays of ``sample`` are not written to."""
        random = np.random.default_rng(seed)
        unlabelled = self.strong and not {*self.targets} & sample.keys()
        if unlabelled:
            sample = cast(Sample, {k: v for k, v in sample.items() if k in ("image", "name")})
        height, width = sample["image"].shape[:2]
        zoom = float(np.exp(random.uniform(*np.log(self.zoom))))
        scale = max(self._size[0] / height, self._size[1] / width) * zoom
        cut = _window((height, width), self._size, scale, random.random(2))
        arrays = {"image": cut(resize_image, sample["image"], GREY)}
        # so that 0 fills all maps: labels are stored plus one (255 wraps to 0), invalid depth is 0
        if "labels" in sample:
            labels = cut(resize_map, sample["labels"], IGNORE_INDEX)
            arrays["labels"] = labels + np.uint8(1)
        if "objects" in sample:
            arrays["objects"] = cut(resize_map, sample["objects"], 0)
        if "depth" in sample:
            depth = cut(resize_map, sample["depth"], 0)
            valid = cut(resize_map, sample["valid"], False)
            factor = np.float32(1 / zoom if self.zoom_scales_depth else 1.0)
            arrays["depth"] = np.where(valid, depth * factor, np.float32(0))
        if unlabelled:  # to know what is padding
            arrays["labels"] = cut(resize_map, np.ones((height, width), np.uint8), 0)
        arrays = _apply(self._moves, arrays, random)
        image = arrays["image"]
        if self.color and random.random() < 0.8:
            image = change_colors(image, **draw_colors(random, self.color))
        image = _apply(self._colors, {"image": image}, random)["image"]
        out = sample.copy()
        out.pop("masks", None)  # of the whole image
        if "labels" in sample:
            out["labels"] = arrays["labels"] - np.uint8(1)
        if "objects" in sample:
            out["objects"] = arrays["objects"]
        if "depth" in sample:
            out["depth"], out["valid"] = arrays["depth"], arrays["depth"] > 0
        if unlabelled:
            out["weak"] = arrays["image"]
            out["part"] = arrays["labels"] == 0
            image = strongly_changed(image, random, self.strong)
        elif self.strong:
            out["part"] = part_to_paste(out, random)
        shared = np.may_share_memory(image, sample["image"])
        out["image"] = image.copy() if shared else image
        for key, (count, size, area) in self._views.items():
            found = [random_view(sample["image"], random, size, area) for _ in range(count)]
            if found:
                # the keys are "views" and "crops", which mypy does not see
                out[key] = np.stack(found)  # type: ignore[literal-required]
        return out


@dataclass(eq=False)
class EvalTransform:
    """The image resized as ``preprocessing`` says; labels and depth at their own resolution."""

    preprocessing: Preprocessing

    def __call__(self, sample: Sample, *, seed: int = 0) -> Sample:
        height, width = sample["image"].shape[:2]
        size = self.preprocessing.bounded_size(height, width, sample.get("name", "an image"))
        out = sample.copy()
        out["image"] = resize_image(sample["image"], size, rule=self.preprocessing.interpolation)
        return out


def _window(
    image: tuple[int, int], out: tuple[int, int], scale: float, position: np.ndarray
) -> Callable[[Any, np.ndarray, float], np.ndarray]:
    """A function of (resize, array, fill) that cuts a rectangle and resizes it to ``out`` (H, W).

    ``position`` (2,), uniform in [0, 1), chooses one of the rectangle's possible places in
    ``image`` (H, W). Where the rectangle reaches beyond the image, the result is ``fill``.
    """
    sides = (max(1, round(out[0] / scale)), max(1, round(out[1] / scale)))
    factor = whole_factor(sides, out)  # resizing is fast if it divides the sides
    inside: list[slice] = []
    target: list[slice] = []
    for axis in (0, 1):
        side = sides[axis] // factor * factor
        slack = image[axis] - side
        start = int(position[axis] * (abs(slack) + 1)) + min(slack, 0)
        first, last = max(start, 0), min(start + side, image[axis])
        inside.append(slice(first, last))
        ratio = out[axis] / side
        low = round((first - start) * ratio)
        target.append(slice(low, max(low + 1, round((last - start) * ratio))))

    def cut(resize: Any, array: np.ndarray, fill: float) -> np.ndarray:
        part = resize(array[*inside], tuple(s.stop - s.start for s in target))
        if target == [slice(0, length) for length in out]:
            return part
        whole = np.full((*out, *part.shape[2:]), fill, part.dtype)
        whole[*target] = part
        return whole

    return cut


def draw_colors(random: np.random.Generator, strength: float) -> dict[str, float]:
    """Arguments of :func:`change_colors`, for a strength in 0..1."""
    factors = (1 + 0.4 * strength * random.uniform(-1, 1, 3)).tolist()
    hue = 0.1 * strength * random.uniform(-1, 1)
    return dict(zip(("brightness", "contrast", "saturation"), factors, strict=True)) | {"hue": hue}


def change_colors(
    image: np.ndarray, *, brightness: float, contrast: float, saturation: float, hue: float
) -> np.ndarray:
    """A copy of an image, uint8 RGB (H, W, 3), with other colours.

    The four changes are affine maps of a pixel's colour, made in one pass and clipped once.

    Args:
        brightness: factor of every value.
        contrast: factor of the distance to the picture's mean luma.
        saturation: factor of the distance to a pixel's own luma; 0 makes it grey.
        hue: turns about the grey axis (``hueRotate`` of SVG); a third maps red to about green.
    """
    angle = -2 * np.pi * hue  # the axes I and Q are in the opposite order of hues
    turn = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    matrix = np.linalg.inv(_YIQ) @ turn @ _YIQ
    matrix = matrix @ (saturation * np.eye(3) + (1 - saturation) * np.tile(LUMA, (3, 1)))
    middle = brightness * float(LUMA @ cv2.mean(image)[:3])
    # saturation and hue do not change greys, so this is all that contrast adds
    shift = np.full((3, 1), (1 - contrast) * middle)
    return cv2.transform(image, np.hstack([brightness * contrast * matrix, shift]))


def strongly_changed(image: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """A recoloured copy, uint8 RGB (H, W, 3), sometimes grey or blurred.

    Similar to strong views of UniMatch (Yang et al. 2023, section 3.1): at strength 1, 20 % grey,
    50 % blur. Here every image is recoloured (there 80 %), and its hue less (0.125; there 0.25).
    """
    colors = draw_colors(random, 1.25 * strength)  # factors of 0.5 to 1.5
    if random.random() < 0.2 * strength:
        colors["saturation"] = 0.0
    changed = change_colors(image, **colors)
    if random.random() < 0.5 * strength:
        changed = cv2.GaussianBlur(changed, (0, 0), random.uniform(0.1, 2.0))
    return changed


def part_to_paste(sample: Sample, random: np.random.Generator) -> np.ndarray:
    """A part of an image with labels, bool (H, W), for :func:`dpt.data.collate_train`.

    It has half of the classes (ClassMix, Olsson et al. 2021). Without classes it is empty, or a
    rectangle of 2 % to 40 % of the image with an aspect ratio of 0.3 to 3.3 (CutMix, by UniMatch's
    numbers).
    """
    if "labels" in sample:
        classes = np.setdiff1d(sample["labels"], [IGNORE_INDEX])
        return np.isin(sample["labels"], random.permutation(classes)[: (len(classes) + 1) // 2])
    height, width = sample["depth"].shape
    part = np.zeros((height, width), bool)
    if random.random() < 0.5:
        return part
    share, ratio = random.uniform(0.02, 0.4), np.exp(random.uniform(-1.2, 1.2))
    h = min(height, max(1, round(height * np.sqrt(share * ratio))))
    w = min(width, max(1, round(width * np.sqrt(share / ratio))))
    top, left = random.integers(height - h + 1), random.integers(width - w + 1)
    part[top : top + h, left : left + w] = True
    return part


def random_view(
    image: np.ndarray, random: np.random.Generator, size: tuple[int, int], area: Sequence[float]
) -> np.ndarray:
    """A random crop of a photo, resized to ``size``: uint8 RGB (h, w, 3).

    Similar to SimCLR (Chen et al. 2020, appendix A) and DINO: mirrored with probability 0.5, then
    :func:`strongly_changed`, solarised with probability 0.1. ``area`` is the range of the crop's
    share of the photo; its aspect ratio is that of ``size`` times 3/4 to 4/3, as far as it fits."""
    height, width = image.shape[:2]
    pixels = random.uniform(area[0], area[1]) * height * width
    ratio = size[0] / size[1] * np.exp(random.uniform(-1, 1) * np.log(4 / 3))
    h = min(height, max(1, round(np.sqrt(pixels * ratio))))
    w = min(width, max(1, round(np.sqrt(pixels / ratio))))
    top, left = random.integers(height - h + 1), random.integers(width - w + 1)
    view = resize_image(image[top : top + h, left : left + w], size)
    if random.random() < 0.5:
        view = view[:, ::-1]
    view = strongly_changed(np.ascontiguousarray(view), random, 1.0)
    return np.where(view < GREY, view, 255 - view) if random.random() < 0.1 else view


def _compose(**strengths: float) -> Any:
    """One albumentations pipeline, for image and maps together, of the steps with a strength above
    0; None if there are none."""
    if not any(strengths.values()):
        return None
    import albumentations as A  # takes two seconds, and prediction does not need it

    steps: dict[str, Callable[[float], Any]] = {
        "hflip": lambda p: A.HorizontalFlip(p=p),
        "rotate": lambda angle: A.Rotate(limit=(-angle, angle), fill=GREY, fill_mask=0, p=1.0),
        "gamma": lambda p: A.RandomGamma(gamma_limit=(50, 250), p=p),
        "grayscale": lambda p: A.ToGray(p=p),
        "blur": lambda p: A.GaussianBlur(sigma_limit=(0.1, 1.5), p=p),
    }
    # strict: an undeclared key would otherwise be passed on without the geometric changes
    return A.Compose(
        [steps[name](strength) for name, strength in strengths.items() if strength],
        additional_targets={"labels": "mask", "objects": "mask", "depth": "mask"},
        strict=True,
    )


def _apply(compose: Any, arrays: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    if compose is None:
        return arrays
    # Compose.set_random_seed would give all steps one seed, so that they draw equal numbers
    for step in compose.transforms:
        step.set_random_seed(int(random.integers(2**32)))
    return compose(**arrays)
