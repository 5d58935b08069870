"""Steady predictions for consecutive frames: what they show of the same point is averaged."""

from collections.abc import Mapping
from typing import NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.functional import resize
from dpt.types.outputs import OutputSpec

MEMORY = 0.7  # weight of the previous frames in each mean
TREND = 0.9  # weight of the previous frames in the change of scale and shift that is kept
_WIDTH = 256  # of the images in which motion is found
_SAME = 12.0  # largest difference of brightness, in 0..255, of a point that is the same
_LEAST = 0.5  # fraction of such points, below which a new shot begins


class Motion(NamedTuple):
    """Where the pixels of a frame were in the previous one."""

    grid: Tensor  # (1, h, w, 2): x and y in -1..1, see ``torch.nn.functional.grid_sample``
    is_same: Tensor  # bool (1, 1, h, w): the image looks the same there

    def at_size(self, size: tuple[int, int]) -> "Motion":
        """Returns the motion of maps of another size (H, W)."""
        grid = resize(self.grid.permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
        return Motion(grid, resize(self.is_same.float(), size) > 0.5)


class Steady:
    """Averages the dense outputs of consecutive frames along the motion of the image.

    Optical flow (DIS, Kroeger et al. 2016) gives the place of each pixel in the previous frame. If
    the image looks the same there, and depth is alike, the result is 0.3 of the new values and 0.7
    of the previous result: a mean over about three frames. Of classes, probabilities are averaged.
    The previous depth is first multiplied by the change of scale between frames (for relative
    inverse depth also shifted), smoothed over ten frames: the camera may come closer, but a single
    frame of another scale has little effect. There is no delay.

    Attributes:
        cuts: number of frames so far that began a new shot, for which nothing is averaged.
    """

    def __init__(self, outputs: Mapping[str, OutputSpec]) -> None:
        self.outputs = {
            name: spec
            for name, spec in outputs.items()
            if spec.dense and spec.kind in ("depth", "logits", "map")
        }
        self.cuts = 0
        self._image: np.ndarray | None = None
        self._raw: dict[str, Tensor] = {}  # of the previous frame, as are the following ones
        self._means: dict[str, Tensor] = {}
        self._trends: dict[str, Tensor] = {}  # log of the scale, and shift

    @torch.inference_mode()
    def __call__(self, tensors: Mapping[str, Tensor], image: np.ndarray) -> dict[str, Tensor]:
        """Returns the tensors of a frame, (1, C, h, w) float32 by output, with averaged ones.

        Args:
            image: of the frame, (H, W, 3) in 0..255.
        """
        grey, previous = _grey(image), self._image
        self._image = grey
        motion = None
        if previous is not None and previous.shape == grey.shape:
            motion = find_motion(previous, grey)
        if motion is None:
            self.cuts += previous is not None
            self._raw, self._means, self._trends = {}, {}, {}
        averaged = {k: self._mean(k, tensors[k], motion) for k in self.outputs}
        return {**tensors, **averaged}

    def _mean(self, name: str, values: Tensor, motion: Motion | None) -> Tensor:
        spec = self.outputs[name]
        new = values.softmax(1) if spec.kind == "logits" else values
        mean = new
        if motion is not None:
            here = motion.at_size((new.shape[-2], new.shape[-1]))
            grid, is_same = here.grid.to(new.device), here.is_same.to(new.device)
            earlier, weight = _sample(self._means[name], grid), MEMORY * is_same
            if spec.kind == "depth":
                change = _change(_sample(self._raw[name], grid), new, is_same, spec)
                trend = torch.lerp(change, self._trends.get(name, torch.zeros_like(change)), TREND)
                self._trends[name] = trend
                earlier = earlier * trend[0].exp() + trend[1]
                weight = weight * ((earlier - new).abs() < 0.3 * new.abs())
            mean = torch.lerp(new, earlier, F.avg_pool2d(weight, 5, 1, 2))
        self._raw[name], self._means[name] = new, mean
        return mean.clamp_min(1e-12).log() if spec.kind == "logits" else mean


def _grey(image: np.ndarray) -> np.ndarray:
    """Returns brightness, uint8, of at most ``_WIDTH`` columns."""
    grey = cv2.cvtColor(image.clip(0, 255).astype(np.uint8), cv2.COLOR_RGB2GRAY)
    scale = min(1.0, _WIDTH / grey.shape[1])
    size = (round(grey.shape[1] * scale), max(16, round(grey.shape[0] * scale)))
    return cv2.resize(grey, size, interpolation=cv2.INTER_AREA)


def find_motion(previous: np.ndarray, image: np.ndarray) -> Motion | None:
    """Returns the motion between two frames, uint8 (h, w); None if they show different scenes."""
    height, width = image.shape
    method = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    flow = method.calc(image, previous, np.zeros((height, width, 2), np.float32))
    x, y = (flow[..., 0] + np.arange(width), flow[..., 1] + np.arange(height)[:, None])
    pixels = np.stack((x, y), axis=2).astype(np.float32)
    moved = cv2.remap(previous, pixels[..., 0], pixels[..., 1], cv2.INTER_LINEAR).astype(np.float32)
    is_inside = ((pixels >= 0) & (pixels < (width, height))).all(axis=2)
    exposure = (np.median(image) + 1) / (np.median(moved[is_inside]) + 1) if is_inside.any() else 1
    is_same = is_inside & (np.abs(image - exposure * moved) < _SAME)
    if is_same.mean() < _LEAST:
        return None
    grid = (2 * pixels + 1) / np.array((width, height), np.float32) - 1
    return Motion(torch.from_numpy(grid)[None], torch.from_numpy(is_same)[None, None])


def _sample(values: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(values, grid, padding_mode="border", align_corners=False)


def _change(earlier: Tensor, new: Tensor, is_same: Tensor, spec: OutputSpec) -> Tensor:
    """Returns log scale and shift, (2,), from the depth of a frame to that of the next."""
    a, b = earlier[is_same], new[is_same]
    if not spec.is_inverse_depth:
        ratio = (b.clamp_min(1e-6) / a.clamp_min(1e-6)).median()
        return torch.stack((ratio.log(), torch.zeros_like(ratio)))
    middle, other = a.median(), b.median()
    spreads = [(x - x.median()).abs().median().clamp_min(1e-6) for x in (a, b)]
    scale = spreads[1] / spreads[0]
    return torch.stack((scale.log(), other - scale * middle))
