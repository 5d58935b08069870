"""Data types shared by all packages: samples, batches, tokens, outputs, preprocessing.

Data flow: file -> sample -> batch -> tokens -> maps -> output -> loss, metric, picture.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from typing import ClassVar, Generic, Literal, NamedTuple, Self, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from dpt.files import MAX_PIXELS, DataError
from dpt.validation import MAX_METRES, PlainMapping

IGNORE_INDEX = 255
"""Label of unlabelled pixels in memory. Files may use another value, which readers convert."""
NO_CLASS = -1  # class_id of an image without one (a missing ``value`` is NaN)

Palette = Sequence[tuple[int, int, int]]
"""An RGB row (0..255) for each class; empty for the default colours."""
Target = Literal["depth", "normals", "labels", "objects", "class_id", "value", "caption", "K"]


class ObjectMask(NamedTuple):
    """An object of the ground truth with its mask, which may overlap other masks."""

    class_id: int
    counts: str  # run lengths of the mask at the labels' size, compressed as COCO does
    is_crowd: bool
    area: float  # by which COCO calls it small, medium or large


ArrayT = TypeVar("ArrayT")


class RandomViews(NamedTuple, Generic[ArrayT]):
    """Random crops of images, which self-supervision compares (``augment.views``)."""

    large: ArrayT  # of a sample (N, H, W, C), of a batch (B, N, C, H, W)
    small: ArrayT | None  # of a sample (M, h, w, C), of a batch (B, M, C, h, w); ``augment.crops``


class PasteSource(NamedTuple):
    """What semi-supervision needs of an image with labels (``augment.strong``)."""

    part: np.ndarray  # bool (H, W), the pixels to paste on images without labels


class PasteTarget(NamedTuple):
    """What semi-supervision needs of an image without labels (``augment.strong``)."""

    weak: np.ndarray  # (H, W, C), the image in its own colours
    padding: np.ndarray  # bool (H, W), pixels of the crop that lie outside the image


class Mixed(NamedTuple):
    """Parts of images with labels, pasted on the images without labels of a batch."""

    weak: Tensor  # (B, C, H, W), images without labels in their own colours, nothing pasted
    unlabelled: Tensor  # bool (B,)
    kept: Tensor  # bool (B, H, W), where a teacher gives no label: pasted parts and padding


class Sample(TypedDict, total=False):
    """One image and whatever labels it has, as NumPy arrays at one common size.

    A missing label is a missing key. Sizes of the maps equal the image's unless a transform for
    evaluation says otherwise.
    """

    image: np.ndarray  # uint8 (H, W, 3), RGB; or float32 (H, W, C), bands, NaN without data
    depth: np.ndarray  # float32 (H, W), metres; 0 where invalid
    valid: np.ndarray  # bool (H, W), True where depth was measured
    inside: np.ndarray  # bool (H, W), in training False where a crop is outside the image; absent
    # if no pixel is
    normals: np.ndarray  # float32 (H, W, 3), unit vectors in the camera's frame (x right, y down,
    # z forward) that face the camera, so that a wall ahead has (0, 0, -1); zeros where unknown
    labels: np.ndarray  # uint8 (H, W), class ids; IGNORE_INDEX where unlabelled
    objects: np.ndarray  # uint16 (H, W), tells objects of one class apart; 0 where there is none
    masks: list[ObjectMask]  # the objects, where they can overlap; absent in training
    prompt: np.ndarray  # float32 (H, W), metres at a few pixels, 0 at others; input of the model
    K: np.ndarray  # float64 (3, 3), the camera of the image, see dpt.geometry.Camera
    class_id: int  # image-level class
    value: float  # image-level number
    caption: str  # what the image shows, never empty
    mixing: PasteSource | PasteTarget  # of ``augment.strong``
    views: RandomViews[np.ndarray]  # of ``augment.views``
    index: int  # position in the data set
    name: str  # what to call it in messages, usually the file's path
    failed: list[str]  # why files could not be read, see data.on_error
    is_blank: bool  # whether the image stands for one that could not be read; absent otherwise


class Batch(TypedDict, total=False):
    """Samples of one size, stacked. A sample without a label is wholly ignored, never missing.

    In training every map has the image's size. In evaluation ``depth``, ``valid``, ``normals``,
    ``labels`` and ``objects`` are lists, one tensor an image at the label's own resolution, and so
    may ``image`` be.
    """

    image: Tensor  # uint8 (B, 3, H, W), RGB, or float32 (B, C, H, W), bands; channels-last in
    # memory; Preprocessing normalises it.
    # RGB is float32 in evaluation if the model's images are resized by ``cubic_float``
    depth: Tensor  # float32 (B, H, W), metres
    valid: Tensor  # bool (B, H, W)
    inside: Tensor  # bool (B, H, W), in training False outside the image; absent if no pixel is
    normals: Tensor  # float32 (B, 3, H, W), unit vectors, zeros where unknown
    labels: Tensor  # uint8 (B, H, W)
    objects: Tensor  # int32 (B, H, W), -1 in images that lack them
    masks: list[list[ObjectMask] | None]  # in evaluation, if a sample has them
    prompt: Tensor  # float32 (B, H, W), at the size of ``image``; absent if no sample has one
    K: Tensor  # float32 (B, 3, 3), cameras of ``image``, NaN where unknown; absent if all are and
    # the task does not need them
    fov: Tensor  # float32 (B,), their horizontal fields of view in degrees; absent without K
    class_id: Tensor  # int64 (B,), NO_CLASS where missing
    value: Tensor  # float32 (B,), NaN where missing
    caption: list[str]  # empty where missing
    index: Tensor  # int64 (B,)
    mixed: Mixed  # if there are images without labels, with ``augment.strong``
    views: RandomViews[Tensor]  # which the model sees in place of ``image``
    teacher: "EmbeddingOutput"  # a teacher's output for the B·N large ``views``
    hidden: Tensor  # bool (B, H, W), pixels that the task hides from the model; or of its views
    name: list[str]
    failed: list[str]  # why files could not be read; absent where all could
    blank: list[int]  # positions of images that could not be read, which are not scored


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set gives, known before any file is read."""

    targets: tuple[Target, ...]  # the labels its samples can carry
    class_names: tuple[str, ...] = ()  # of ``labels``, or of ``class_id``
    palette: tuple[tuple[int, int, int], ...] = ()  # RGB (0..255) by class; empty: the default
    min_depth: float = 1e-3  # smallest depth that counts as valid, in metres
    max_depth: float | None = None  # largest such depth; None if the set has no depth
    things: tuple[bool, ...] = ()  # for each class, whether it is a thing; the others are stuff

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(self.class_names).items() if count > 1]:
            raise DataError(
                f"data.class_names has {twice[0]!r} twice: give each class a name of its own, by "
                "which it is scored"
            )
        if not all(0 <= limit <= MAX_METRES for limit in (self.min_depth, self.max_depth or 0)):
            raise DataError(
                f"data.min_depth={self.min_depth}, data.max_depth={self.max_depth}: must be in "
                f"0..{MAX_METRES:g} metres"
            )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def has_only_things(self) -> bool:
        """Whether an image without a labelled pixel is one without objects."""
        return bool(self.things) and all(self.things)


class Tokens(NamedTuple):
    """The token matrices that an encoder exposes, one for each block in ``out_indices``.

    A level is (B, P + h·w, D): P prefix tokens (CLS first, registers after it), then the patches
    row by row. P and D may differ between levels.
    """

    levels: list[Tensor]
    grids: list[tuple[int, int]]  # (h, w) of each level's patch tokens


HeadPrediction = Tensor | tuple[Tensor | None, ...]
"""What a head predicts: a tensor, or a NamedTuple of several, as its OutputSpec declares.

Fields with the default None are those that not every head of the kind predicts.
"""


def tensors_in(prediction: HeadPrediction) -> tuple[Tensor, ...]:
    """Returns the tensors of a prediction."""
    if isinstance(prediction, Tensor):
        return (prediction,)
    return tuple(tensor for tensor in prediction if tensor is not None)


class Masks(NamedTuple):
    """The prediction of a head of kind ``masks``: a mask and a class for each of Q queries.

    In a :class:`QueryOutput` there are those of L layers, (B, L, Q, h, w) and (B, L, Q, K + 1).
    """

    masks: Tensor  # (B, Q, H, W), logits
    classes: Tensor  # (B, Q, K + 1), logits; the last class is "no object"


class Objects(NamedTuple):
    """Objects that another program found, which may overlap."""

    masks: Tensor  # bool (B, N, H, W)
    classes: Tensor  # int64 (B, N), class ids
    scores: Tensor  # (B, N)


class DepthMaps(NamedTuple):
    """The prediction of a depth head that predicts more than depth; each (B, H, W)."""

    depth: Tensor  # in the unit of the output
    sky: Tensor | None = None  # larger in the sky, as the head's threshold says
    log_variance: Tensor | None = None  # of ln(depth), or of relative depth that is normalised


@dataclass
class HeadOutput:
    """What one head gives to its objective.

    A subclass adds what only one kind of head has: tensors with a batch axis, or records of them.

    Attributes:
        prediction: as ``model(images)`` returns it, but in training dense logits may have the
            head's own size; losses upsample them.
        auxiliary: a second prediction for training, of any size if dense.
        crops: the output of the head for the smaller views (``augment.crops``) of the same images.
    """

    prediction: HeadPrediction
    auxiliary: Tensor | None = None
    crops: "HeadOutput | None" = None

    @property
    def tensor(self) -> Tensor:
        """The prediction, or the first tensor of one that has several."""
        return tensors_in(self.prediction)[0]

    def with_tensor(self, tensor: Tensor) -> Self:
        """Returns the output with ``tensor`` in place of :attr:`tensor`."""
        if isinstance(self.prediction, Tensor):
            return replace(self, prediction=tensor)
        record: Callable[..., HeadPrediction] = type(self.prediction)
        return replace(self, prediction=record(tensor, *self.prediction[1:]))

    def tensors(self) -> Iterator[Tensor]:
        """Yields every tensor of the output."""
        for value in vars(self).values():
            if isinstance(value, HeadOutput):
                yield from value.tensors()
            elif value is not None:
                yield from tensors_in(value)

    def image(self, k: int) -> Self:
        """Returns the output for image ``k`` of an evaluation batch, with a batch axis of 1."""
        output = copy(self)
        rows = {name: _rows(value, k) for name, value in vars(self).items() if value is not None}
        vars(output).update(rows)
        return output


def _rows(prediction: HeadPrediction, k: int) -> HeadPrediction:
    if isinstance(prediction, Tensor):
        return prediction[k : k + 1]
    rows = (None if tensor is None else tensor[k : k + 1] for tensor in prediction)
    record: Callable[..., HeadPrediction] = type(prediction)
    return record(*rows)


@dataclass
class QueryOutput(HeadOutput):
    """The output of a head with queries, in training.

    Attributes:
        layers: predictions of all layers, shallow to deep, for deep supervision.
    """

    layers: Masks = field(kw_only=True)


@dataclass
class EmbeddingOutput(HeadOutput):
    """The output of a head that compares views of images, in training.

    Attributes:
        projection: (B, E), of the embeddings that are the prediction.
        patches: (B, T, E), of the patch tokens; None if the head does not project them.
    """

    projection: Tensor = field(kw_only=True)
    patches: Tensor | None = None


@dataclass
class ClipOutput(HeadOutput):
    """The output of a head that compares images with texts, with the texts of the batch.

    Attributes:
        text: (B, E), embeddings of the captions times the inverse temperature.
        ids: int64 (B,), equal for equal captions, -1 without one.
        classes: (B, C), cosines to the names of the image-level classes; in evaluation alone.
    """

    text: Tensor = field(kw_only=True)
    ids: Tensor = field(kw_only=True)
    classes: Tensor | None = None


OutputKind = Literal["logits", "depth", "map", "vector", "masks", "fov", "log_variance"]
DepthKind = Literal["metric", "relative", "up_to_scale"]
DEPTH_UNITS: dict[DepthKind, str] = {
    "metric": "m",
    "relative": "relative inverse depth",
    "up_to_scale": "relative depth",
}
"""Units by the kind of depth. ``relative`` is 1 / depth up to an unknown scale and shift: larger
is nearer; ``up_to_scale`` is depth up to an unknown scale: larger is farther."""


@dataclass(frozen=True)
class OutputSpec:
    """What a head predicts: all that prediction, panels, export and the demo know of a head.

    Attributes:
        name: key of the output in the dictionary that the model returns.
        kind: ``logits`` are class scores, averaged as probabilities; ``depth`` is one value for
            each pixel, depth or inverse depth as ``unit`` says; ``map`` and ``vector`` are real
            values, averaged as they are; ``masks`` are :class:`Masks`; ``fov`` is the horizontal
            field of view of each image in degrees; ``log_variance`` is that of a depth, see
            :func:`confidence`.
        channels: length of the channel axis; None if the output has none.
        dense: True if there is a value for each pixel, (B, [channels], H, W); False if for each
            image, (B, [channels]).
        unit: of the values, as shown to people; of ``depth`` one of :data:`DEPTH_UNITS`.
        canonical_focal: of depth in metres that the network gives for a camera of this focal
            length: metres = value · f / ``canonical_focal``, f in pixels of the network's input
            (Yin et al. 2023, Metric3D, section 3.1). None: the values are metres as they are.
        value_range: smallest and largest possible value; None if unbounded.
        flip_signs: factor of each channel when the image is mirrored, such as (-1, 1, 1) for
            surface normals; None if mirroring only mirrors the map.
        is_direction: whether the three channels of a ``map`` are unit vectors in the camera's
            frame, whose length is restored after resizing and averaging, and which are drawn as
            RGB with x to the right, y up and z towards the viewer.
        class_names: names of the classes of ``logits``; empty if unknown.
        palette: an RGB row (0..255) for each class; empty for the default colours.
        things: of ``masks``, for each class, whether it is a thing; the others are stuff.
        threshold, overlap: of ``masks``, see :func:`dpt.segments.panoptic_segments`. Of the map
            ``sky``, the smallest value of a pixel of the sky.
        record: the NamedTuple of a prediction of several tensors. This declaration is that of its
            first tensor.
        extra: declarations of the further tensors of ``record``, by the names of its fields. Where
            each tensor has a name, as in files, it is ``<name>_<name of the extra>``.
    """

    name: str
    kind: OutputKind
    channels: int | None = None
    dense: bool = True
    unit: str = ""
    canonical_focal: float | None = None
    value_range: tuple[float, float] | None = None
    flip_signs: tuple[float, ...] | None = None
    is_direction: bool = False
    class_names: tuple[str, ...] = ()
    palette: tuple[tuple[int, int, int], ...] = ()
    things: tuple[bool, ...] = ()
    threshold: float = 0.8
    overlap: float = 0.8
    record: Callable[..., tuple[Tensor | None, ...]] | None = None
    extra: tuple["OutputSpec", ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "depth" and self.unit not in DEPTH_UNITS.values():
            units = ", ".join(map(repr, DEPTH_UNITS.values()))
            raise ValueError(f"output {self.name!r}: unit={self.unit!r} of depth: one of {units}")

    @property
    def num_classes(self) -> int | None:
        """K of ``logits`` and ``masks``; None if there are no classes."""
        return len(self.things) if self.kind == "masks" else self.channels

    @property
    def depth_kind(self) -> DepthKind:
        """What the values of ``depth`` are."""
        return next(kind for kind, unit in DEPTH_UNITS.items() if unit == self.unit)

    @property
    def has_metres(self) -> bool:
        """Whether the values are depth in metres, of every camera or of the canonical one."""
        return (self.kind, self.unit) == ("depth", "m")

    @property
    def is_inverse_depth(self) -> bool:
        """Whether larger values are nearer."""
        return self.kind == "depth" and self.depth_kind == "relative"

    def class_name(self, class_id: int) -> str:
        """Returns the name of a class, or its number if it has none."""
        is_named = class_id < len(self.class_names)
        return self.class_names[class_id] if is_named else f"class {class_id}"

    @property
    def array(self) -> "OutputSpec":
        """What a :class:`dpt.Prediction` holds of a tensor: of a log-variance the confidence."""
        if self.kind != "log_variance":
            return self
        name = self.name.replace("log_variance", "confidence")
        return replace(self, name=name, kind="map", value_range=(0.0, 1.0))

    @property
    def tensors(self) -> dict[str, "OutputSpec"]:
        """The declaration of each tensor of a prediction, by name."""
        first = replace(self, record=None, extra=())
        further = [replace(spec, name=f"{self.name}_{spec.name}") for spec in self.extra]
        return {spec.name: spec for spec in (first, *further)}

    def extra_named(self, name: str) -> "OutputSpec":
        """Returns the declaration of a further tensor by the name of its field."""
        return next(spec for spec in self.extra if spec.name == name)

    def join(self, tensors: Sequence[Tensor]) -> HeadPrediction:
        """Returns the prediction that consists of ``tensors``."""
        if self.record is None:
            return tensors[0]
        further = {spec.name: t for spec, t in zip(self.extra, tensors[1:], strict=True)}
        return self.record(tensors[0], **further)


def array_specs(outputs: Mapping[str, OutputSpec]) -> dict[str, OutputSpec]:
    """Returns the declaration of each array of a :class:`dpt.Prediction`, by name.

    They are those of :func:`tensor_specs`, but masks and their classes become one map of segments,
    and log-variances become confidences.
    """
    maps: dict[str, OutputSpec] = {}
    for name, spec in outputs.items():
        tensors = [tensor.array for tensor in spec.tensors.values()]
        maps |= (
            {name: spec} if spec.kind == "masks" else {tensor.name: tensor for tensor in tensors}
        )
    return maps


def prompt_focal(outputs: Mapping[str, OutputSpec]) -> float | None:
    """Returns the canonical focal length of depth in metres, to which sparse depth is scaled, too;
    None if there is none."""
    return next((spec.canonical_focal for spec in outputs.values() if spec.has_metres), None)


def confidence(log_variance: Tensor) -> Tensor:
    """Returns exp(-σ), in 0..1, of the logarithm of a variance σ².

    If σ is the standard deviation of ln(depth), the true depth lies between depth · confidence and
    depth / confidence with a probability of 68 %.
    """
    return (0.5 * log_variance).exp().neg().exp()


def tensor_specs(outputs: Mapping[str, OutputSpec]) -> dict[str, OutputSpec]:
    """Returns the declaration of each tensor of a model's predictions, by name."""
    return {name: spec for output in outputs.values() for name, spec in output.tensors.items()}


def tensors_of(
    predictions: Mapping[str, HeadPrediction], outputs: Mapping[str, OutputSpec]
) -> dict[str, Tensor]:
    """Returns each tensor of a model's predictions, by the names of :func:`tensor_specs`."""
    tensors: dict[str, Tensor] = {}
    for key, prediction in predictions.items():
        tensors |= zip(outputs[key].tensors, tensors_in(prediction), strict=True)
    return tensors


ResizeRule = Literal["lower_bound", "upper_bound", "longest_side", "minimal", "stretch", "none"]
Interpolation = Literal[
    "bilinear",
    "cubic",
    "cubic_float",
    "cubic_area_twice",
    "bilinear_antialias",
    "cubic_antialias",
    "area",
]
OutputResize = Literal["bilinear_aligned", "bilinear", "bicubic"]
"""How dense outputs get another size. Only the first aligns the corners, as in DPT's decoder."""

MAX_ELONGATION = 16
"""Largest ratio of an input's pixels to the usual number. For an image of 32 × 10,000 pixels the
network's input would be 384 × 120,000."""


@dataclass(frozen=True)
class Preprocessing:
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
            ``image_size`` as it is; ``none`` keeps the image's size, but for ``multiple_of``.
        multiple_of: both sides are rounded to a multiple of this many pixels: to the nearest one,
            but never below ``image_size`` by ``lower_bound`` or above it by ``upper_bound``.
        interpolation: of the image, when resized, see :func:`dpt.data.resize.resize_image`.
        output_interpolation: how dense outputs, of class scores the logits, get the image's size:
            ``bilinear_aligned`` as in Depth Anything v2; ``bilinear``, without aligned corners, as
            in Depth Anything v1, transformers' segmentation and mmsegmentation; ``bicubic``,
            without aligned corners, as in official DPT, MiDaS and transformers' depth.
    """

    __pydantic_config__: ClassVar[PlainMapping] = {"extra": "forbid"}

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    pixels: Literal["rgb", "bands"] = "rgb"
    bands: tuple[int, ...] | None = None
    image_max: float | None = None
    nodata: float | None = None
    image_size: tuple[int, int] = (384, 384)
    resize: ResizeRule = "lower_bound"
    multiple_of: int = 16
    interpolation: Interpolation = "cubic"
    output_interpolation: OutputResize = "bilinear_aligned"

    def __post_init__(self) -> None:
        height, width = self.image_size
        if min(height, width) < 1 or height * width > MAX_PIXELS:
            raise ValueError(
                f"preprocessing.image_size={[height, width]}: must be [H, W] in pixels, of at most "
                f"{MAX_PIXELS} pixels"
            )
        if not 1 <= self.multiple_of <= 1000:
            raise ValueError(f"preprocessing.multiple_of={self.multiple_of}: must be 1 to 1000")
        if not all(map(isfinite, self.mean)):
            raise ValueError(f"preprocessing.mean={list(self.mean)}: must be finite")
        if not all(isfinite(s) and s > 0 for s in self.std):
            raise ValueError(f"preprocessing.std={list(self.std)}: must be finite and above 0")
        if len(self.mean) != len(self.std) or (self.is_rgb and len(self.mean) != 3):
            counts = f"{len(self.mean)} and {len(self.std)} numbers"
            allowed = "3 each for RGB" if self.is_rgb else "one for each band"
            raise ValueError(f"preprocessing.mean and std: {counts}, must be {allowed}")

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns (H, W) to which an image of ``height`` × ``width`` pixels is resized."""
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

    def bounded_size(self, height: int, width: int, name: object) -> tuple[int, int]:
        """Returns :meth:`input_size`; raises DataError with ``name`` if it is far too large."""
        size = self.input_size(height, width)
        usual = self.image_size[0] * self.image_size[1]
        if size[0] * size[1] > (MAX_PIXELS if self.resize == "none" else MAX_ELONGATION * usual):
            raise DataError(
                f"{name}: {width}x{height} pixels are too elongated, the network's input would "
                f"have {size[1]}x{size[0]}: crop it"
            )
        return size

    @property
    def is_rgb(self) -> bool:
        return self.pixels == "rgb"

    def normalize(self, images: Tensor) -> Tensor:
        """Maps images (B, C, H, W) to the model's float32 input, on the same device.

        RGB is in 0..255, bands are in their own unit. What has no data (NaN) becomes 0, the mean.
        """
        if images.shape[-3] != len(self.mean):
            found, expected = images.shape[-3], len(self.mean)
            fault = f"images have {found} channels, and the model takes {expected}"
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
            normalized = self.normalize(channels[None])[0, shown]
            channels = 127.5 + 63.75 * normalized
        return channels.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


CalibrationSpace = Literal["inverse_depth", "depth"]


@dataclass(frozen=True)
class Calibration:
    """From what a model predicts to metres, by one scale and one shift. Plain data.

    Attributes:
        scale, shift: ``scale · prediction + shift`` is 1/metres for ``inverse_depth``, metres for
            ``depth``; scale is above 0.
        space: what was fitted: ``inverse_depth`` for predictions of inverse depth up to scale and
            shift, ``depth`` for those of depth, in metres or up to scale.
        min_depth, max_depth: limits of the result, in metres.
    """

    __pydantic_config__: ClassVar[PlainMapping] = {"extra": "forbid"}

    scale: float
    shift: float = 0.0
    space: CalibrationSpace = "inverse_depth"
    min_depth: float = 1e-3
    max_depth: float = 1e3

    def __post_init__(self) -> None:
        if not (0 < self.scale < inf and isfinite(self.shift)):
            raise ValueError(
                f"calibration.scale={self.scale}, shift={self.shift}: must be finite, scale above 0"
            )
        if not 0 < self.min_depth < self.max_depth <= MAX_METRES:
            raise ValueError(
                f"calibration.min_depth={self.min_depth}, max_depth={self.max_depth}: must be "
                f"above 0, ascend and reach at most {MAX_METRES:g}"
            )

    def to_metres(self, prediction: Tensor) -> Tensor:
        """Returns depth in metres, within ``min_depth`` and ``max_depth``, of a prediction.

        float32, or float64 if ``prediction`` is; NaN stays NaN.
        """
        exact = prediction if prediction.dtype == torch.float64 else prediction.float()
        fitted = self.scale * exact + self.shift
        if self.space == "inverse_depth":  # whose rounded reciprocals may be beyond the limits
            fitted = fitted.clamp(1 / self.max_depth, 1 / self.min_depth).reciprocal()
        return fitted.clamp(self.min_depth, self.max_depth)
