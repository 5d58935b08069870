"""Which depths count, in which window, and what is done to a prediction before it is scored.

Numbers of one name differ by these details between papers, so each set of them has a name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from dpt.depthmath import valid_range

Alignment = Literal["none", "median", "scale_shift"]
Space = Literal["depth", "inverse_depth"]
Crop = Literal["none", "eigen_nyu", "eigen_kitti", "garg"]
Box = tuple[int, int, int, int]
ValidRule = Literal["strict", "inclusive"]

NYU_SIZE, NYU_BOX = (480, 640), (45, 471, 41, 601)
_COLUMNS = (0.03594771, 0.96405229)
_SHARES: dict[Crop, tuple[tuple[float, float], tuple[float, float]]] = {
    "garg": ((0.40810811, 0.99189189), _COLUMNS),
    "eigen_kitti": ((0.3324324, 0.91351351), _COLUMNS),
}
"""Rows and columns as shares of height and width, as the BTS evaluation has them."""
KB_SIZE = (352, 1216)


@dataclass(frozen=True, kw_only=True)
class DepthProtocol:
    """How depth is scored.

    The truth counts where it was measured, between ``min_depth`` and ``max_depth``, inside the
    crop. The prediction is aligned, if it is, on the pixels that count; then it is clamped to
    [``min_depth``, ``max_depth``], NaN becoming ``min_depth`` and infinity ``max_depth``.

    Attributes:
        max_depth: metres.
        min_depth: metres, > 0.
        crop: ``none``; ``garg`` (Garg et al. 2016) and ``eigen_kitti`` (Eigen et al. 2014), shares
            of the map's sides; ``eigen_nyu``, rows 45:471 and columns 41:601 of 480 × 640; or a
            box [top, bottom, left, right] in pixels of the truth, ends excluded.
        kb_crop: count only the 352 × 1216 pixels at the bottom centre, which the KITTI benchmark
            and BTS feed to the network: top = H - 352, left = (W - 1216) // 2. The crop above is
            still of the whole map.
        valid_rule: ``strict``: the bounds themselves do not count (BTS); ``inclusive``: they do.
        alignment: what is fitted to each image's truth. ``none``: nothing; ``median``: a factor
            that makes the medians equal; ``scale_shift``: least squares.
        space: where it is fitted; None: where the prediction is (depth for metric predictions,
            inverse depth for relative ones).
    """

    max_depth: float
    min_depth: float = 1e-3
    crop: Crop | Box = "none"
    kb_crop: bool = False
    valid_rule: ValidRule = "strict"
    alignment: Alignment = "none"
    space: Space | None = None

    def __post_init__(self) -> None:
        if not 0 < self.min_depth < self.max_depth:
            raise ValueError(
                f"0 < min_depth < max_depth is needed, got min_depth={self.min_depth}, "
                f"max_depth={self.max_depth}"
            )
        for name, choices in (("valid_rule", ValidRule), ("alignment", Alignment)):
            if getattr(self, name) not in get_args(choices):
                allowed = get_args(choices)
                raise ValueError(f"{name} {getattr(self, name)!r} is unknown; allowed: {allowed}")
        if self.space is not None and self.space not in get_args(Space):
            raise ValueError(f"space {self.space!r} is unknown; allowed: {get_args(Space)}")
        if isinstance(self.crop, str):
            if self.crop not in get_args(Crop):
                allowed = get_args(Crop)
                raise ValueError(
                    f"crop {self.crop!r} is unknown; allowed: {allowed} or [top, bottom, left, "
                    "right] in pixels"
                )
        elif len(self.crop) != 4 or not (
            0 <= self.crop[0] < self.crop[1] and 0 <= self.crop[2] < self.crop[3]
        ):
            raise ValueError(
                f"crop {list(self.crop)}: must be [top, bottom, left, right] in pixels, with "
                "top < bottom and left < right"
            )

    def box(self, height: int, width: int) -> Box:
        """(top, bottom, left, right) of what counts in a map of that size, ends excluded.

        Raises:
            ValueError: the crop is meant for maps of another size.
        """
        top, bottom, left, right = _crop_box(self.crop, height, width)
        if self.kb_crop:
            kb_top, kb_bottom, kb_left, kb_right = kb_box(height, width)
            top, bottom = max(top, kb_top), min(bottom, kb_bottom)
            left, right = max(left, kb_left), min(right, kb_right)
        return top, bottom, left, right

    def counted(self, depth: Tensor, valid: Tensor) -> Tensor:
        """Narrows ``valid``, bool (..., H, W), to the pixels of ``depth`` (metres) that count."""
        low, high = self.min_depth, self.max_depth
        if self.valid_rule == "strict":
            inside = valid_range(depth, valid, min_depth=low, max_depth=high)
        else:
            inside = valid & (depth >= low) & (depth <= high)
        height, width = depth.shape[-2:]
        top, bottom, left, right = self.box(height, width)
        if (top, bottom, left, right) == (0, height, 0, width):
            return inside
        window = torch.zeros_like(inside)
        window[..., top:bottom, left:right] = True
        return inside & window

    def clamp(self, depth: Tensor) -> Tensor:
        """Metres within [min_depth, max_depth]: NaN becomes the smallest, infinity the largest."""
        low, high = self.min_depth, self.max_depth
        return depth.nan_to_num(nan=low, posinf=high, neginf=low).clamp(low, high)

    def words(self) -> str:
        """The protocol as sentences."""
        between = "strictly between" if self.valid_rule == "strict" else "from"
        joint = "and" if self.valid_rule == "strict" else "to"
        where = {
            "none": "anywhere in the picture",
            "garg": "inside Garg's crop (rows 0.408 to 0.992 of the height, columns 0.036 to 0.964 "
            "of the width)",
            "eigen_kitti": "inside Eigen's crop for KITTI (rows 0.332 to 0.914 of the height, "
            "columns 0.036 to 0.964 of the width)",
            "eigen_nyu": "inside Eigen's crop for NYU (rows 45:471, columns 41:601 of 480x640)",
        }
        crop = self.crop
        place = where[crop] if isinstance(crop, str) else "rows {}:{}, columns {}:{}".format(*crop)
        if self.kb_crop:
            place += " and inside the bottom centre 352x1216 pixels"
        space = "" if self.space is None else f" in {self.space.replace('_', ' ')}"
        fitted = {
            "none": "Predictions are scored as they are",
            "median": f"Each prediction is multiplied to have the truth's median{space}",
            "scale_shift": f"Each prediction is fitted to the truth by scale and shift{space}",
        }[self.alignment]
        return (
            f"Measured depths {between} {self.min_depth:g} {joint} {self.max_depth:g} m count, "
            f"{place}. {fitted}, clamped to {self.min_depth:g}..{self.max_depth:g} m."
        )


DEPTH_PROTOCOLS = {
    "nyu_eigen": DepthProtocol(max_depth=10.0, crop="eigen_nyu"),
    "kitti_eigen": DepthProtocol(max_depth=80.0, crop="eigen_kitti"),
    "kitti_garg": DepthProtocol(max_depth=80.0, crop="garg"),
}
"""Those of the literature, as the BTS evaluation (Lee et al. 2019) computes them."""


def changes(protocol: DepthProtocol, name: str) -> dict[str, object]:
    """Settings in which ``protocol`` differs from the published one of that name, if there is."""
    published = DEPTH_PROTOCOLS.get(name)
    if published is None:
        return {}
    pairs = {
        f.name: (getattr(protocol, f.name), getattr(published, f.name)) for f in fields(protocol)
    }
    return {key: mine for key, (mine, theirs) in pairs.items() if mine != theirs}


def kb_box(height: int, width: int) -> Box:
    """(top, bottom, left, right) of the KITTI benchmark's crop."""
    if height < KB_SIZE[0] or width < KB_SIZE[1]:
        raise ValueError(
            f"kb_crop cuts {KB_SIZE[0]}x{KB_SIZE[1]} pixels (height x width), but a map has only "
            f"{height}x{width}"
        )
    top, left = height - KB_SIZE[0], (width - KB_SIZE[1]) // 2
    return top, height, left, left + KB_SIZE[1]


def _crop_box(crop: Crop | Box, height: int, width: int) -> Box:
    if crop == "none":
        return 0, height, 0, width
    if isinstance(crop, str) and crop in _SHARES:
        (top, bottom), (left, right) = _SHARES[crop]
        return int(top * height), int(bottom * height), int(left * width), int(right * width)
    if crop == "eigen_nyu" and (height, width) != NYU_SIZE:
        raise ValueError(
            f"crop=eigen_nyu is of maps of {NYU_SIZE[0]}x{NYU_SIZE[1]} pixels (height x width), "
            f"but one has {height}x{width}: choose another protocol or protocol.crop"
        )
    box = NYU_BOX if isinstance(crop, str) else crop
    if box[1] > height or box[3] > width:
        raise ValueError(
            f"crop {list(box)} ([top, bottom, left, right]) reaches beyond a map of "
            f"{height}x{width} pixels (height x width)"
        )
    return box
