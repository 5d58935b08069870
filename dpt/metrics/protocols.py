"""Evaluation protocols: which pixels count and how predictions are made and scored.

Scores of one name differ between papers by these details, so each set of them has a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from dpt.depthmath import valid_range

Alignment = Literal["none", "median", "scale_shift"]
Space = Literal["depth", "inverse_depth"]
Crop = Literal["none", "eigen_nyu", "eigen_kitti", "garg"]
Box = tuple[int, int, int, int]
ValidRule = Literal["strict", "inclusive"]
PredictionKind = Literal["metric", "relative"]

_COLUMNS = (0.03594771, 0.96405229)
_SHARES: dict[Crop, tuple[tuple[float, float], tuple[float, float]]] = {
    "garg": ((0.40810811, 0.99189189), _COLUMNS),
    "eigen_kitti": ((0.3324324, 0.91351351), _COLUMNS),
}
"""Rows and columns as shares of height and width, as in the BTS evaluation."""
KB_SIZE = (352, 1216)


@dataclass(frozen=True, kw_only=True)
class DepthProtocol:
    """How depth is scored.

    A pixel counts if its depth was measured, lies between ``min_depth`` and ``max_depth`` and
    inside the crop. The prediction is aligned on these pixels, if at all, then clamped to
    [``min_depth``, ``max_depth``]; NaN becomes ``min_depth`` and infinity ``max_depth``.

    Attributes:
        max_depth: metres.
        min_depth: metres, > 0.
        crop: ``none``; ``garg`` (Garg et al. 2016) and ``eigen_kitti`` (Eigen et al. 2014), shares
            of the map's sides; ``eigen_nyu``, rows 45:471 and columns 41:601 of 480 × 640; or a
            box [top, bottom, left, right] in pixels of the truth, ends excluded.
        kb_crop: count only the 352 × 1216 pixels at the bottom centre, the input of networks on the
            KITTI benchmark and in BTS: top = H - 352, left = (W - 1216) // 2. ``crop`` still refers
            to the whole map.
        valid_rule: ``strict``: depths equal to the bounds do not count (BTS); ``inclusive``: they
            count.
        alignment: fit of each prediction to its truth. ``none``; ``median``: a factor that makes
            the medians equal; ``scale_shift``: least squares.
        space: of the fit; None for the space of the prediction (depth for metric predictions,
            inverse depth for relative ones).
        name: of the published protocol that this one is or was made from.
    """

    max_depth: float
    min_depth: float = 1e-3
    crop: Crop | Box = "none"
    kb_crop: bool = False
    valid_rule: ValidRule = "strict"
    alignment: Alignment = "none"
    space: Space | None = None
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.min_depth < self.max_depth:
            raise ValueError(
                f"0 < min_depth < max_depth is needed, got min_depth={self.min_depth}, "
                f"max_depth={self.max_depth}"
            )
        crop = self.crop
        if not isinstance(crop, str) and not (0 <= crop[0] < crop[1] and 0 <= crop[2] < crop[3]):
            raise ValueError(
                f"crop {list(crop)}: must be [top, bottom, left, right] in pixels, with "
                "top < bottom and left < right"
            )

    def box(self, height: int, width: int) -> Box:
        """(top, bottom, left, right) of the pixels that count, ends excluded.

        Raises:
            ValueError: the crop is for maps of another size.
        """
        size, crop = f"{height}x{width}", self.crop
        box = 0, height, 0, width
        if isinstance(crop, str) and crop in _SHARES:
            (top, bottom), (left, right) = _SHARES[crop]
            box = int(top * height), int(bottom * height), int(left * width), int(right * width)
        elif crop == "eigen_nyu":
            if (height, width) != (480, 640):
                raise ValueError(
                    "crop=eigen_nyu is for maps of 480x640 pixels (height x width), but one has "
                    f"{size}: choose another protocol or protocol.crop"
                )
            box = 45, 471, 41, 601
        elif not isinstance(crop, str):
            box = crop
            if box[1] > height or box[3] > width:
                raise ValueError(
                    f"crop {list(box)} ([top, bottom, left, right]) reaches beyond a map of "
                    f"{size} pixels (height x width)"
                )
        if self.kb_crop:
            kb = kb_box(height, width)
            box = (max(box[0], kb[0]), min(box[1], kb[1]), max(box[2], kb[2]), min(box[3], kb[3]))
        return box

    def counted(self, depth: Tensor, valid: Tensor) -> Tensor:
        """Restricts ``valid``, bool (..., H, W), to the pixels of ``depth`` (metres) that count."""
        low, high = self.min_depth, self.max_depth
        if self.valid_rule == "strict":
            inside = valid_range(depth, valid, min_depth=low, max_depth=high)
        else:
            inside = valid & (depth >= low) & (depth <= high)
        top, bottom, left, right = self.box(*depth.shape[-2:])
        window = torch.zeros_like(inside)
        window[..., top:bottom, left:right] = True
        return inside & window

    def clamp(self, depth: Tensor) -> Tensor:
        """Metres within [min_depth, max_depth]: NaN becomes the smallest, infinity the largest."""
        low, high = self.min_depth, self.max_depth
        return depth.nan_to_num(nan=low, posinf=high, neginf=low).clamp(low, high)

    def changes(self) -> str:
        """Settings that differ from the published protocol of this name; empty without one."""
        published = DEPTH_PROTOCOLS.get(self.name, self)
        pairs = {f.name: (getattr(self, f.name), getattr(published, f.name)) for f in fields(self)}
        return ", ".join(f"{key}={own}" for key, (own, theirs) in pairs.items() if own != theirs)

    def description(self) -> str:
        """The protocol in sentences."""
        bounds = "strictly between {:g} and" if self.valid_rule == "strict" else "from {:g} to"
        crop = self.crop
        place = (
            f"crop={crop}" if isinstance(crop, str) else "rows {}:{}, columns {}:{}".format(*crop)
        )
        kitti = ", bottom centre 352x1216 pixels" if self.kb_crop else ""
        space = "" if self.space is None else f" in {self.space.replace('_', ' ')}"
        fitted = {
            "none": "scored without a fit",
            "median": f"scaled to the truth's median{space}",
            "scale_shift": f"fitted to the truth by scale and shift{space}",
        }[self.alignment]
        return (
            f"Measured depths {bounds.format(self.min_depth)} {self.max_depth:g} m count ({place}"
            f"{kitti}). Predictions are {fitted}, and clamped to this range."
        )


DEPTH_PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        DepthProtocol(name="nyu_eigen", max_depth=10.0, crop="eigen_nyu"),
        DepthProtocol(name="kitti_eigen", max_depth=80.0, crop="eigen_kitti"),
        DepthProtocol(name="kitti_garg", max_depth=80.0, crop="garg"),
    )
}
"""The protocols of the literature, as the BTS evaluation (Lee et al. 2019) computes them."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The keys of ``conf/protocol/_base.yaml``, which describes them."""

    name: str
    min_depth: float
    max_depth: float | None
    crop: Crop | Box
    kb_crop: bool
    valid_rule: ValidRule
    alignment: Alignment | None
    space: Space | None
    flip: bool
    scales: tuple[float, ...]
    window: tuple[int, int] | None
    stride: tuple[int, int] | None
    boundary: float | None

    def depth(self, *, kind: PredictionKind, max_depth: float) -> DepthProtocol:
        """How depth is scored; ``max_depth`` is the data's, for a protocol without one."""
        values = {f.name: getattr(self, f.name) for f in fields(DepthProtocol)}
        values["max_depth"] = self.max_depth or max_depth
        values["alignment"] = self.alignment or ("none" if kind == "metric" else "scale_shift")
        return DepthProtocol(**values)

    @property
    def augmentation(self) -> dict[str, Any]:
        """The test-time augmentation, as arguments of :func:`dpt.nn.tta.augmented`."""
        return {k: getattr(self, k) for k in ("flip", "scales", "window", "stride")}

    def description(self) -> str:
        """How the model is run, as a sentence."""
        views = ["at one scale" if self.scales == (1.0,) else f"at scales {list(self.scales)}"]
        if self.window is not None:
            views.append("with a sliding window of {}x{} pixels".format(*self.window))
        if self.flip:
            views.append("and mirrored")
        return f"The model sees images {' '.join(views)}; maps are scored at the label's own size."


def protocol_notes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as ``protocol/<key>`` for ``metrics.json``, those without a value left out."""
    return {
        f"protocol/{key}": str(list(value)) if isinstance(value, tuple) else value
        for key, value in settings.items()
        if value not in (None, "")
    }


def kb_box(height: int, width: int) -> Box:
    """(top, bottom, left, right) of the KITTI benchmark's crop."""
    if height < KB_SIZE[0] or width < KB_SIZE[1]:
        raise ValueError(
            f"kb_crop needs {KB_SIZE[0]}x{KB_SIZE[1]} pixels (height x width), but a map has only "
            f"{height}x{width}"
        )
    top, left = height - KB_SIZE[0], (width - KB_SIZE[1]) // 2
    return top, height, left, left + KB_SIZE[1]
