"""From a raw sample to a training or evaluation sample. The only user of albumentations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Annotated, cast

import cv2
import numpy as np
import torch
from pydantic import Field

from dpt.data import view as views
from dpt.geometry import Camera, View, Window, mirrored_classes
from dpt.process import log
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import Batch, Mixed, PasteSource, PasteTarget, RandomViews, Sample
from dpt.validation import Count, PlainMapping, Positive, Probability

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
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
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
    return views.by_four_bands(image, lambda bands: cv2.GaussianBlur(bands, (0, 0), sigma))


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
    steps = {
        "augment.gamma": {"kind": "RandomGamma", "gamma_limit": (50, 250), "p": gamma},
        "augment.grayscale": {"kind": "ToGray", "p": grayscale},
        "augment.blur": {"kind": "GaussianBlur", "sigma_limit": (0.1, 1.5), "p": blur},
    }
    steps = {where: settings for where, settings in steps.items() if settings["p"]}
    steps |= {f"augment.extra.{i}": {**settings} for i, settings in enumerate(extra)}
    return [make_pixel_transform(settings, where) for where, settings in steps.items()]


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
    import albumentations  # takes two seconds, and prediction does not need it

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
        raise ValueError(f"{where}: its result must be an RGB image of 8 bits and the same size")
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


# --- transforms -------------------------------------------------------------------------------


def draw_points(
    depth: np.ndarray, valid: np.ndarray, count: int, random: np.random.Generator
) -> np.ndarray:
    """Returns the depth of ``count`` random valid pixels, or of all: float32 (H, W), else 0."""
    places = np.flatnonzero(valid)
    chosen = random.choice(places, min(count, len(places)), replace=False)
    prompt = np.zeros(depth.shape, np.float32)
    prompt.flat[chosen] = depth.flat[chosen]
    return prompt


def draw_part(sample: Sample, random: np.random.Generator) -> np.ndarray:
    """Draws the pixels of an image with labels that :func:`paste_parts` takes, bool (H, W).

    They have half of the classes (ClassMix, Olsson et al. 2021). Without classes there are none, or
    a rectangle of 2 % to 40 % of the image with an aspect ratio of 0.3 to 3.3 (CutMix, by
    UniMatch's numbers).
    """
    if "labels" in sample:
        classes = np.setdiff1d(sample["labels"], [views.MAP_FILLS["labels"]])
        return np.isin(sample["labels"], random.permutation(classes)[: (len(classes) + 1) // 2])
    height, width = sample["image"].shape[:2]
    part = np.zeros((height, width), bool)
    if random.random() < 0.5:
        return part
    area, ratio = random.uniform(0.02, 0.4), np.exp(random.uniform(-1.2, 1.2))
    h = min(height, max(1, round(height * np.sqrt(area * ratio))))
    w = min(width, max(1, round(width * np.sqrt(area / ratio))))
    top, left = random.integers(height - h + 1), random.integers(width - w + 1)
    part[top : top + h, left : left + w] = True
    return part


def paste_parts(batch: Batch, samples: Sequence[Sample]) -> Batch:
    """Pastes a part of an image with labels, and of its maps, on each image without labels.

    Images with labels are used in turn. The maps of ``batch`` are changed in place.

    Returns:
        The batch with ``mixed``, if it has an image without labels; otherwise as it was.
    """
    mixing = [sample.get("mixing") for sample in samples]
    targets = {k: m for k, m in enumerate(mixing) if isinstance(m, PasteTarget)}
    sources = [(k, m.part) for k, m in enumerate(mixing) if isinstance(m, PasteSource)]
    if not targets:
        return batch
    weak = batch["image"].clone()
    kept = torch.zeros(len(samples), *weak.shape[-2:], dtype=torch.bool)
    for turn, (k, target) in enumerate(targets.items()):
        weak[k] = torch.from_numpy(target.weak).permute(2, 0, 1)
        kept[k] = torch.from_numpy(target.padding)
        if sources:
            source, pixels = sources[turn % len(sources)]
            part = torch.from_numpy(pixels)
            kept[k] |= part
            for key in ("image", "labels", "depth", "valid", "normals"):
                if key in batch:
                    batch[key][k] = torch.where(part, batch[key][source], batch[key][k])
    unlabelled = torch.tensor([k in targets for k in range(len(samples))])
    batch["mixed"] = Mixed(weak, unlabelled, kept)
    return batch


Points = Annotated[int, Field(ge=0, le=10**6)]


@dataclass(kw_only=True, eq=False)
class TrainTransform:
    """A random :class:`dpt.geometry.View` of a sample, in other colours.

    The view is a window with the aspect ratio of ``image_size``, resized to that size, then flipped
    and rotated. At zoom 1 the window is the largest that fits into the image, which is therefore
    scaled as by ``Preprocessing.resize="lower_bound"``; at zoom z its sides are z times shorter.

    Args:
        image_size: [H, W] of the result.
        zoom: (smallest, largest), drawn log-uniformly. Below 1 the window is larger than the
            image: grey, unlabelled and without depth outside it.
        hflip: probability of a horizontal flip.
        vflip: probability of a vertical flip.
        turn: probability of a turn by a random number of quarters, for data without an upright.
        rotate: largest angle, in degrees, to either side.
        color: strength in 0..1 of changes of brightness, contrast, saturation and hue, made with
            probability 0.8; see :func:`dpt.data.transforms.change_colors`. Images of bands have
            brightness and contrast alone, for each band. Of the following ones they have ``blur``.
        gamma: probability of a gamma correction, exponent 0.5 to 2.5, mostly darker.
        grayscale: probability of a grey picture.
        blur: probability of a Gaussian blur.
        extra: pixel transforms of albumentations, applied last and in this order; each is a mapping
            of ``kind`` and arguments: ``{"kind": "RandomFog", "p": 0.1}``.
        strong: strength in 0..1 of :func:`dpt.data.transforms.change_strongly` for images
            without labels, on which :func:`dpt.data.transforms.paste_parts` then pastes parts of
            images with labels; 0: neither.
        targets: labels that are trained; ``strong`` treats images with none of these as images
            without labels.
        views: number of random views of at least a quarter of the image, see
            :func:`draw_recolored_crop`.
        crops: number of smaller random views, of at most a quarter of the image (DINO's local
            crops); only with ``views``.
        crop_size: [h, w] of the crops; None is half of ``image_size``.
        prompt_points: (fewest, most) pixels, of which a random number is drawn, whose depth becomes
            the ``prompt`` of a sample that has none.
        prompts: whether that is done: the model takes prompts.
        zoom_scales_depth: divide depth by the zoom: an unchanged camera would see an object z times
            larger at a z times shorter distance (Eigen et al. 2014, section 3.4). Normals stay
            those of the depth before the division. Where cameras are trained, depth is left as it
            is: they are those of the zoomed images.
        class_names: of ``labels``, or of ``class_id``. In a mirrored view ``left_arm`` becomes
            ``right_arm``; if no class is the other side of one, no view is mirrored.
    """

    image_size: tuple[Count, Count]
    zoom: tuple[Positive, Positive] = (1.0, 1.0)
    hflip: Probability = 0.5
    vflip: Probability = 0.0
    turn: Probability = 0.0
    rotate: Annotated[float, Field(ge=0, le=180)] = 0.0
    color: Probability = 0.0
    gamma: Probability = 0.0
    grayscale: Probability = 0.0
    blur: Probability = 0.0
    extra: Sequence[PlainMapping] = ()
    strong: Probability = 0.0
    targets: Sequence[str | None] = ("labels", "depth")
    views: Annotated[int, Field(ge=0, le=64)] = 0
    crops: Annotated[int, Field(ge=0, le=64)] = 0
    crop_size: tuple[Count, Count] | None = None
    prompt_points: tuple[Points, Points] = (0, 500)
    prompts: bool = False
    zoom_scales_depth: bool = True
    class_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        height, width = self.image_size
        self.image_size = (height, width)
        for name in ("prompt_points", "zoom"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"augment.{name}={[low, high]} must ascend")
        h, w = self._crop_size = self.crop_size or (max(1, height // 2), max(1, width // 2))
        if max(h, w) > max(height, width):
            raise ValueError(f"augment.crop_size={[h, w]} must not exceed data.image_size")
        self._color_steps = make_color_steps(
            gamma=self.gamma, grayscale=self.grayscale, blur=self.blur, extra=self.extra
        )
        ids = mirrored_classes(self.class_names)
        self._has_sides = ids != [*range(len(ids))]
        is_of_image = self._has_sides and "class_id" in self.targets
        if (is_of_image or -1 in ids) and (self.hflip or self.vflip):
            self.hflip = self.vflip = 0.0
            text = "augment.hflip=0 and augment.vflip=0, since classes are sides (left, right)"
            log.warning("%s that a mirrored image would not have", text)
        self._classes_in_mirror = np.array([*ids, *range(len(ids), 256)]).astype(np.uint8)

    def __call__(self, sample: Sample, *, seed: int) -> Sample:
        """Returns a new sample, the same for the same seed; ``sample`` is not written to."""
        random = np.random.default_rng(seed)
        is_unlabelled = self.strong > 0 and not {*self.targets} & sample.keys()
        source = sample["image"]
        if is_unlabelled:
            sample = cast(Sample, {k: v for k, v in sample.items() if k in ("image", "name", "K")})
        if "normals" in sample and "normals" not in self.targets:  # saves time
            sample = sample.copy()
            del sample["normals"]
        view, zoom = self.draw_view(source.shape[:2], random)
        out = views.view_sample(sample, view)
        if self._has_sides and "labels" in out and np.linalg.det(view.matrix[:, :2]) < 0:
            out["labels"] = self._classes_in_mirror[out["labels"]]
        out.pop("masks", None)  # of the whole image
        inside = views.view_map(np.ones(source.shape[:2], bool), view, fill=False)
        if not inside.all():
            out["inside"] = inside
        if "depth" in out:
            self._scale_depth(out, zoom, random)
        image = self._change_colors(out["image"], random)
        if is_unlabelled:
            out["mixing"] = PasteTarget(out["image"], ~inside)
            image = change_strongly(image, random, self.strong)
        elif self.strong:
            out["mixing"] = PasteSource(draw_part(out, random))
        out["image"] = image
        if self.views:
            out["views"] = self._draw_views(source, random)
        return out

    def _scale_depth(self, out: Sample, zoom: float, random: np.random.Generator) -> None:
        """Changes depth as ``zoom_scales_depth`` says, and draws a prompt if there is none."""
        is_scaled = self.zoom_scales_depth and "K" not in self.targets
        factor = np.float32(1 / zoom if is_scaled else 1.0)
        out["depth"] = np.where(out["valid"], out["depth"] * factor, np.float32(0))
        out["valid"] = out["depth"] > 0
        if "prompt" in out:
            out["prompt"] = out["prompt"] * factor
        elif self.prompts:
            count = int(random.integers(self.prompt_points[0], self.prompt_points[1] + 1))
            out["prompt"] = draw_points(out["depth"], out["valid"], count, random)
        if "K" in out:  # of the unchanged camera, which depth now belongs to
            out["K"] = out["K"] * np.array([[factor, factor, 1], [1, factor, 1], [1, 1, 1]])

    def _change_colors(self, image: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns an RGB image in other colours, or bands of other brightness and contrast."""
        is_changed = self.color and random.random() < 0.8
        if image.dtype != np.uint8:
            image = change_bands(image, random, self.color) if is_changed else image
            return blur_sometimes(image, random, self.blur)
        if is_changed:
            image = change_colors(image, **draw_colors(random, self.color))
        return apply_color_steps(self._color_steps, image, random)

    def draw_view(self, source: tuple[int, ...], random: np.random.Generator) -> tuple[View, float]:
        """Draws a view of an image of size ``source`` (H, W).

        Returns:
            The view and its zoom, which rounding to whole pixels makes differ from the drawn one.
        """
        zoom = float(np.exp(random.uniform(*np.log(self.zoom))))
        quarters = 0
        if self.turn and random.random() < self.turn:
            quarters = int(random.integers(4))
        size = self.image_size[::-1] if quarters % 2 else self.image_size
        covering = max(size[0] / source[0], size[1] / source[1])
        rows, columns = (max(1, round(side / (covering * zoom))) for side in size)
        factor = views.whole_factor((rows, columns), size)
        height, width = rows // factor * factor, columns // factor * factor  # are resized faster
        y, x = random.random(2).tolist()
        top, left = _start(y, source[0] - height), _start(x, source[1] - width)
        view = View.of_window(Window(top, left, height, width), size).turned(quarters)
        # flip and angle have random generators of their own
        if self.hflip and Random(int(random.integers(2**32))).random() < self.hflip:
            view = view.flipped()
        if self.vflip and random.random() < self.vflip:
            view = view.turned(2).flipped()
        if self.rotate:
            angle = Random(int(random.integers(2**32))).uniform(-self.rotate, self.rotate)
            view = view.rotated(angle)
        return view, 1 / (covering * view.shrinks_by)

    def _draw_views(
        self, image: np.ndarray, random: np.random.Generator
    ) -> RandomViews[np.ndarray]:
        def draw(count: int, size: tuple[int, int], area: tuple[float, float]) -> np.ndarray:
            return np.stack([draw_recolored_crop(image, random, size, area) for _ in range(count)])

        large = draw(self.views, self.image_size, (0.25, 1.0))
        small = draw(self.crops, self._crop_size, (0.05, 0.25)) if self.crops else None
        return RandomViews(large, small)


def _start(position: float, slack: int) -> int:
    """Returns where a window begins that is ``slack`` pixels shorter than the image.

    Args:
        position: in [0, 1); chooses one of the possible starts, which are equally likely.
        slack: below 0 if the window is longer than the image.
    """
    return int(position * (abs(slack) + 1)) + min(slack, 0)


@dataclass(eq=False)
class EvalTransform:
    """Resizes the image as ``preprocessing`` says; labels and depth keep their own resolution.

    The depth of ``prompt_points`` random pixels becomes the ``prompt`` of a sample that has none:
    these pixels are not scored. They are the same for the same ``seed``.
    """

    preprocessing: Preprocessing
    prompt_points: int = 0

    def __call__(self, sample: Sample, *, seed: int = 0) -> Sample:
        height, width = sample["image"].shape[:2]
        size = self.preprocessing.bounded_size(height, width, sample.get("name", "an image"))
        out = sample.copy()
        rule = self.preprocessing.interpolation
        out["image"] = views.resize_image(sample["image"], size, rule=rule)
        if "K" in sample:
            out["K"] = Camera(sample["K"], (height, width)).resized(size).K
        if self.prompt_points and "depth" in sample and "prompt" not in sample:
            random = np.random.default_rng(seed)
            drawn = draw_points(sample["depth"], sample["valid"], self.prompt_points, random)
            out["prompt"], out["valid"] = drawn, sample["valid"] & (drawn == 0)
        if "prompt" in out:
            whole = Window(0, 0, *out["prompt"].shape)
            out["prompt"] = views.view_points(out["prompt"], View.of_window(whole, size))
        return out


def draw_recolored_crop(
    image: np.ndarray, random: np.random.Generator, size: tuple[int, int], area: tuple[float, float]
) -> np.ndarray:
    """Returns a random crop of an image, resized to ``size``: uint8 RGB (h, w, 3), or bands.

    Similar to SimCLR (Chen et al. 2020, appendix A) and DINO: mirrored with probability 0.5, then
    :func:`dpt.data.transforms.change_strongly`, solarised with probability 0.1. ``area`` is the
    range of the crop's fraction of the image; its aspect ratio is that of ``size`` times 3/4 to
    4/3, as far as it fits.
    """
    height, width = image.shape[:2]
    pixels = random.uniform(area[0], area[1]) * height * width
    ratio = size[0] / size[1] * np.exp(random.uniform(-1, 1) * np.log(4 / 3))
    h = min(height, max(1, round(np.sqrt(pixels * ratio))))
    w = min(width, max(1, round(np.sqrt(pixels / ratio))))
    top, left = int(random.integers(height - h + 1)), int(random.integers(width - w + 1))
    view = View.of_window(Window(top, left, h, w), size)
    if random.random() < 0.5:
        view = view.flipped()
    crop = change_strongly(views.view_image(image, view), random, 1.0)
    is_solarised = random.random() < 0.1 and crop.dtype == np.uint8
    return np.where(crop < views.GREY, crop, 255 - crop) if is_solarised else crop
