"""Random changes of an image's colours, or of its bands. The only user of albumentations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import cv2
import numpy as np

from dpt.data.resize import by_four_bands
from dpt.validation import PlainMapping

if TYPE_CHECKING:
    from albumentations import ImageOnlyTransform

# Otherwise albumentations asks PyPI for its newest version on every import, in every worker.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

LUMA = np.array([0.299, 0.587, 0.114])
"""Weights of R, G and B in the luma (ITU-R BT.601)."""
_YIQ = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
"""RGB to luma and the two axes of hue (NTSC)."""


def draw_colors(random: np.random.Generator, strength: float) -> dict[str, float]:
    """Draws the arguments of :func:`change_colors`, for a strength in 0..1."""
    factors = (1 + 0.4 * strength * random.uniform(-1, 1, 3)).tolist()
    hue = 0.1 * strength * random.uniform(-1, 1)
    return dict(zip(("brightness", "contrast", "saturation"), factors, strict=True)) | {"hue": hue}


def change_colors(
    image: np.ndarray, *, brightness: float, contrast: float, saturation: float, hue: float
) -> np.ndarray:
    """Returns a copy of an image, uint8 RGB (H, W, 3), with other colours.

    The four changes are affine maps of a pixel's colour, made in one pass and clipped once.

    Args:
        brightness: factor of every value.
        contrast: factor of the distance to the image's mean luma.
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


def change_bands(image: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """Returns a copy of bands, float32 (H, W, C), with other brightness and contrast of each band.

    The unit of brightness is the band's standard deviation in this image, so that both changes are
    the same for all units. The ranges are those of :func:`draw_colors`.
    """
    contrast, brightness = 0.4 * strength * random.uniform(-1, 1, (2, image.shape[2]))
    flat = image.reshape(-1, image.shape[2])
    known = flat[~np.isnan(flat).any(axis=1)]
    if not known.size:
        return image.copy()
    mean, std = known.mean(axis=0, dtype=np.float64), known.std(axis=0, dtype=np.float64)
    gain = (1 + contrast).astype(np.float32)
    return image * gain + (brightness * std - contrast * mean).astype(np.float32)


def blur_sometimes(
    image: np.ndarray, random: np.random.Generator, probability: float
) -> np.ndarray:
    """Returns bands, float32 (H, W, C), with the probability blurred as RGB by ``blur``."""
    if random.random() >= probability:
        return image
    sigma = random.uniform(0.1, 1.5)
    return by_four_bands(image, lambda bands: cv2.GaussianBlur(bands, (0, 0), sigma))


def change_strongly(image: np.ndarray, random: np.random.Generator, strength: float) -> np.ndarray:
    """Returns a recoloured copy, uint8 RGB (H, W, 3), sometimes grey or blurred; or changed bands.

    Similar to strong views of UniMatch (Yang et al. 2023, section 3.1): at strength 1, 20 % grey,
    50 % blur. Here every image is recoloured (there 80 %), and its hue less (0.125; there 0.25).
    """
    if image.dtype != np.uint8:
        return blur_sometimes(change_bands(image, random, 1.25 * strength), random, 0.5 * strength)
    colors = draw_colors(random, 1.25 * strength)  # factors of 0.5 to 1.5
    if random.random() < 0.2 * strength:
        colors["saturation"] = 0.0
    changed = change_colors(image, **colors)
    if random.random() < 0.5 * strength:
        changed = cv2.GaussianBlur(changed, (0, 0), random.uniform(0.1, 2.0))
    return changed


def make_color_steps(
    *, gamma: float, grayscale: float, blur: float, extra: Sequence[PlainMapping]
) -> list[ImageOnlyTransform]:
    """Returns the albumentations transforms with a probability above 0, in this order.

    Args:
        extra: further ones, see :func:`make_pixel_transform`.
    """
    if not (gamma or grayscale or blur or extra):
        return []
    import albumentations  # takes two seconds, and prediction does not need it

    steps: list[ImageOnlyTransform] = []
    if gamma:
        steps.append(albumentations.RandomGamma(gamma_limit=(50, 250), p=gamma))
    if grayscale:
        steps.append(albumentations.ToGray(p=grayscale))
    if blur:
        steps.append(albumentations.GaussianBlur(sigma_limit=(0.1, 1.5), p=blur))
    for i, settings in enumerate(extra):
        steps.append(make_pixel_transform(settings, f"augment.extra.{i}"))
    return steps


def make_pixel_transform(settings: PlainMapping, where: str) -> ImageOnlyTransform:
    """Returns the pixel transform of albumentations that ``settings`` describe.

    Args:
        settings: ``kind`` (the name of a class of albumentations, as ``RandomFog``) and the
            transform's arguments.
        where: key of the settings, for messages.

    Raises:
        ValueError: it is no pixel transform of albumentations, its arguments are wrong, or its
            result is not an RGB image of 8 bits.
    """
    import albumentations

    name = str(settings.get("kind"))
    where = f"{where}.kind={name[:200]}"
    transform = vars(albumentations).get(name)
    base = albumentations.ImageOnlyTransform
    if not (isinstance(transform, type) and issubclass(transform, base)) or transform is base:
        raise ValueError(f"{where}: must be a pixel transform, as albumentations.RandomFog")
    arguments = {key: value for key, value in settings.items() if key != "kind"}
    image = np.full((64, 64, 3), 100, np.uint8)
    try:
        step = transform(**arguments, strict=True)
        result = step(image=image, force_apply=True)["image"]
    except Exception as error:  # of any of 60 classes
        raise ValueError(f"{where}: {' '.join(str(error).split())[:400]}") from error
    if result.shape != image.shape or result.dtype != image.dtype:
        raise ValueError(
            f"{where}: its result is {result.dtype} {result.shape}, must be an RGB image of 8 bits"
        )
    return step


def apply_color_steps(
    steps: Sequence[ImageOnlyTransform], image: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Returns a uint8 RGB image (H, W, 3) after all steps, each with a seed of its own."""
    # Compose.set_random_seed would give all steps one seed, so that they draw equal numbers
    for step in steps:
        step.set_random_seed(int(random.integers(2**32)))
        image = step(image=image)["image"]
    return image
