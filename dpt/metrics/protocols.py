"""Evaluation protocols. Scores of one name differ between papers by these details."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from dpt.types.preprocessing import OutputResize
from dpt.validation import Metres, Settings

Crop = Literal["none", "eigen_nyu", "eigen_kitti", "garg"]
Side = Annotated[int, Field(ge=0)]
Box = tuple[Side, Side, Side, Side]
Alignment = Literal["none", "median", "scale_shift"]
Note = str | float | bool
"""A fact in ``metrics.json`` about how scores were computed."""

_COLUMNS = (0.03594771, 0.96405229)
_FRACTIONS: dict[Crop, tuple[tuple[float, float], tuple[float, float]]] = {
    "garg": ((0.40810811, 0.99189189), _COLUMNS),
    "eigen_kitti": ((0.3324324, 0.91351351), _COLUMNS),
}
"""Rows and columns as fractions of height and width, as in the BTS evaluation (Lee et al. 2019)."""


@dataclass(frozen=True, kw_only=True)
class Protocol(Settings):
    """How predictions are made, and how depth is scored: the keys of ``conf/protocol``.

    A pixel counts if its depth was measured, lies strictly between ``min_depth`` and ``max_depth``
    and inside the crop. The prediction is aligned on these pixels, if at all, then clamped to
    [``min_depth``, ``max_depth``]; NaN becomes ``min_depth`` and infinity ``max_depth``.

    Attributes:
        min_depth: metres, > 0.
        max_depth: metres; None for the data's.
        crop: ``none``; ``garg`` (Garg et al. 2016) and ``eigen_kitti`` (Eigen et al. 2014),
            fractions of the map's sides; ``eigen_nyu``, rows 45:471 and columns 41:601 of
            480 × 640; or a box [top, bottom, left, right] in pixels of the ground truth, ends
            excluded.
        alignment: fit of each prediction to its ground truth. ``none``; ``median``: a factor that
            makes the medians equal; ``scale_shift``: least squares. None is ``none`` for metric
            predictions, ``scale_shift`` for relative ones and ``median`` for those up to scale.
        space: of the fit; None for the space of the prediction (inverse depth for relative
            predictions, depth for others).
        rules: whether depth and segmentation are also scored by the rules of other projects, see
            :mod:`dpt.metrics.rules.all_rules`.
        resize: how predictions (of class scores the logits) get the size of their labels, and
            those of several scales the size of the image: papers differ. ``bilinear_aligned`` as in
            AdaBins and Depth Anything V2; ``bilinear``, without aligned corners, as in
            mmsegmentation; ``bicubic``, without aligned corners, as in the official DPT code. None
            is the ``output_interpolation`` of the model's preprocessing, by which ``dpt predict``
            resizes too.
        flip, scales, window, stride: test-time augmentation, see :func:`dpt.nn.tta.augmented`.
    """

    name: str = ""
    min_depth: Metres = 1e-3
    max_depth: Metres | None = None
    crop: Crop | Box = "none"
    alignment: Alignment | None = None
    space: Literal["inverse_depth"] | None = None
    rules: bool = False
    resize: OutputResize | None = None
    flip: bool = False
    scales: tuple[float, ...] = (1.0,)
    window: tuple[int, int] | None = None
    stride: tuple[int, int] | None = None

    def box(self, height: int, width: int) -> Box:
        """Returns (top, bottom, left, right) of the pixels that count, ends excluded.

        Raises:
            ValueError: the crop is for maps of another size.
        """
        crop = self.crop
        if crop == "none":
            return 0, height, 0, width
        size = f"{height}x{width} pixels (height x width)"
        if crop == "eigen_nyu":
            if (height, width) != (480, 640):
                fault = f"crop=eigen_nyu is for maps of 480x640, but one has {size}"
                raise ValueError(f"{fault}: choose another protocol or protocol.crop")
            return 45, 471, 41, 601
        if isinstance(crop, str):
            (top, bottom), (left, right) = _FRACTIONS[crop]
            return int(top * height), int(bottom * height), int(left * width), int(right * width)
        if crop[1] > height or crop[3] > width:
            fault = f"reaches beyond a map of {size}"
            raise ValueError(f"crop {list(crop)} ([top, bottom, left, right]) {fault}")
        return crop

    def depth_notes(self) -> dict[str, Note]:
        """Returns how depth is scored, as ``protocol/<key>`` for ``metrics.json``."""
        return self._notes("min_depth", "max_depth", "crop", "alignment", "space")

    def view_notes(self) -> dict[str, Note]:
        """Returns how the model is run, as ``protocol/<key>`` for ``metrics.json``."""
        return self._notes("resize", "flip", "scales", "window", "stride")

    def _notes(self, *keys: str) -> dict[str, Note]:
        values = {f"protocol/{key}": getattr(self, key) for key in keys}
        return {
            key: str(list(value)) if isinstance(value, tuple) else value
            for key, value in values.items()
            if value is not None
        }
