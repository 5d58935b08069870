"""What encoders and heads return, and what heads declare of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from torch import Tensor


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
            units = ", ".join(DEPTH_UNITS.values())
            raise ValueError(f"output {self.name}: unit={self.unit!r}: choose from {units}")

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
        arrays = [tensor.array for tensor in spec.tensors.values()]
        maps |= {name: spec} if spec.kind == "masks" else {array.name: array for array in arrays}
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
