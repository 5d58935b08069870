"""``Prediction``: what a model predicts for one image, with units and class names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np

from dpt.geometry import Camera, unproject
from dpt.predict.inputs import KnownCamera
from dpt.segments import OBJECT_IDS
from dpt.types.outputs import OutputKind, OutputSpec


@dataclass(frozen=True, eq=False)
class Segment:
    """A predicted object, or an area of stuff."""

    id: int  # 1, 2, ... in an image
    class_id: int
    class_name: str
    is_thing: bool  # whether the class is a thing; otherwise the class is stuff
    score: float  # probability of the class
    mask: np.ndarray  # bool (H, W)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The smallest box around the mask: left, top, width and height in pixels."""
        left, top, width, height = cv2.boundingRect(self.mask.astype(np.uint8))
        return left, top, width, height


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model predicts for one image.

    ``depth``, ``labels``, ``class_id`` and ``value`` are the first output of their kind, and None
    if the model has no such head.

    ``arrays`` holds every prediction by the output's name. Dense outputs have the image's size:
    float32 (H, W) or (H, W, C), and class ids (H, W) in uint8, or uint16 for more than 256 classes.
    Segments: int32 (H, W), class · ``dpt.segments.OBJECT_IDS`` + number of the segment, -1 where
    there is none. Outputs for the whole image: probabilities float32 (C,), or values float32 () or
    (C,).
    """

    arrays: Mapping[str, np.ndarray]
    outputs: Mapping[str, OutputSpec]
    not_finite: tuple[str, ...] = ()  # outputs for which the network gave NaN or infinity
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)  # (N,), of segments 1, 2, ...
    known_camera: KnownCamera | None = None  # with how it is known
    min_confidence: float = 0.0  # of points, see ``confidence``

    @property
    def camera(self) -> Camera | None:
        """The image's camera, at its own size; None if unknown."""
        return None if self.known_camera is None else self.known_camera.camera

    def require_finite(self) -> None:
        """Raises ValueError if the network gave NaN or infinity."""
        require_finite(self.not_finite)

    def _first(self, kind: OutputKind, *, dense: bool = True) -> np.ndarray | None:
        spec = first_output(self.outputs, kind, dense=dense)
        return None if spec is None else self.arrays[spec.name]

    @property
    def depth(self) -> np.ndarray | None:
        """float32 (H, W) in ``unit``; NaN in the sky, if the model predicts where it is."""
        return self._first("depth")

    @property
    def confidence(self) -> np.ndarray | None:
        """float32 (H, W) in 0..1, of ``depth``, see ``confidence``; None unless the
        depth head has a ``log_variance``."""
        spec = first_output(self.outputs, "depth")
        return None if spec is None else self.arrays.get(f"{spec.name}_confidence")

    @property
    def unit(self) -> str | None:
        """Unit of ``depth``, see :func:`depth_unit`."""
        return depth_unit(first_output(self.outputs, "depth"))

    @property
    def valid_range(self) -> tuple[float, float] | None:
        """Smallest and largest meaningful ``depth``; values outside or not finite are invalid."""
        spec = first_output(self.outputs, "depth")
        return None if spec is None else spec.value_range or (0.0, float("inf"))

    @property
    def points(self) -> np.ndarray:
        """float32 (H, W, 3), the point that each pixel sees in the camera's frame, in ``unit``: x
        to the right, y down, z forward; NaN where depth is invalid, or less certain than
        ``min_confidence``.

        Raises:
            ValueError: depth is relative inverse depth or absent, or the camera is unknown.
        """
        return unproject(self.valid_depth(), self.require_camera().K)

    def valid_depth(self) -> np.ndarray:
        """Returns ``depth`` with NaN where it gives no point; ValueError if it never does."""
        spec = require_points(first_output(self.outputs, "depth"))
        depth = self.arrays[spec.name]
        low, high = spec.value_range or (0.0, np.inf)
        valid = (depth > 0) & (depth >= low) & (depth <= high)
        if self.confidence is not None:
            valid &= self.confidence >= self.min_confidence
        return np.where(valid, depth, np.float32(np.nan))

    def require_camera(self) -> Camera:
        """Returns the camera; ValueError if it is unknown."""
        if self.camera is None:
            options = "--fov, --focal or --intrinsics (cameras=... in Python)"
            raise ValueError(f"points need the image's camera, which is unknown: give {options}")
        return self.camera

    @property
    def labels(self) -> np.ndarray | None:
        """Class ids (H, W)."""
        return self._first("logits")

    @property
    def probabilities(self) -> np.ndarray | None:
        """float32 (C,), of the classes of the whole image."""
        return self._first("logits", dense=False)

    @property
    def class_id(self) -> int | None:
        """The most probable class of the whole image."""
        return None if self.probabilities is None else int(self.probabilities.argmax())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of ``labels``, or of ``class_id`` without labels; empty if
        unknown."""
        dense = first_output(self.outputs, "logits")
        spec = dense or first_output(self.outputs, "logits", dense=False)
        return () if spec is None else spec.class_names

    @property
    def panoptic(self) -> np.ndarray | None:
        """Segments as int32 codes (H, W), see ``arrays``."""
        return self._first("masks")

    @property
    def segments(self) -> list[Segment]:
        """The objects and the areas of stuff."""
        spec = first_output(self.outputs, "masks")
        return [] if spec is None else self.segments_of(spec.name)

    @property
    def instances(self) -> list[Segment]:
        """The objects."""
        return [segment for segment in self.segments if segment.is_thing]

    def segments_of(self, name: str) -> list[Segment]:
        """Returns the segments of an output, in the order of their ids."""
        codes, spec, segments = self.arrays[name], self.outputs[name], []
        for code in np.unique(codes[codes >= 0]).tolist():
            k, number = divmod(code, OBJECT_IDS)
            score, label = float(self.scores[name][number - 1]), spec.class_name(k)
            segments.append(Segment(number, k, label, spec.things[k], score, codes == code))
        return sorted(segments, key=lambda segment: segment.id)

    @property
    def value(self) -> float | None:
        """The number that a regression head predicts for the whole image."""
        values = self._first("vector", dense=False)
        return float(values.item()) if values is not None and values.size == 1 else None


def require_finite(broken: Sequence[str]) -> None:
    """Raises ValueError if the network gave NaN or infinity for outputs, ``broken``."""
    if broken:
        fault = f"the model's {' and '.join(broken)} holds NaN or infinity"
        raise ValueError(f"{fault}: use precision fp32, or an earlier checkpoint")


def first_output(
    outputs: Mapping[str, OutputSpec], kind: OutputKind, *, dense: bool = True
) -> OutputSpec | None:
    """Returns the first output of a kind; None if there is none."""
    return next((s for s in outputs.values() if (s.kind, s.dense) == (kind, dense)), None)


def require_points(spec: OutputSpec | None) -> OutputSpec:
    """Returns the declaration of a depth that gives points; ValueError if there is none."""
    if spec is None or spec.is_inverse_depth:  # with its unknown shift, every shape is distorted
        remedy = "calibrate the model (dpt calibrate), or take one for metric depth"
        raise ValueError(f"points need depth, and not relative inverse depth: {remedy}")
    return spec


def depth_unit(spec: OutputSpec | None) -> str | None:
    """Returns the unit of a depth output: ``metres``; ``relative inverse depth``, 1 / depth up to
    an unknown scale and shift (larger is nearer); ``relative depth``, depth up to an unknown scale
    (larger is farther); None without such an output."""
    if spec is None:
        return None
    return "metres" if spec.depth_kind == "metric" else spec.unit
