"""Large images by overlapping tiles, blended without seams.

The network sees more detail in each tile than in the whole image shrunk to its input size. The
image is resized so that a tile is as large as a network input (h, w); the depth of each window is
aligned with that of the whole image, and the outputs are averaged with Hann weights at the
network's resolution, so that logits are never held at the size of the image.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import align_median, align_scale_shift
from dpt.functional import upsample
from dpt.nn.tta import spans
from dpt.types.outputs import OutputSpec

OVERLAP = 0.25  # fraction of a tile's side that it has in common with the next tile, at least


def tile_spans(length: int, tile: int) -> list[slice]:
    """Returns the tiles along one side."""
    return list(spans(length, tile, tile - int(tile * OVERLAP)))


def align_tile(depth: Tensor, whole: Tensor, *, inverse: bool) -> Tensor:
    """Returns a tile's depth in the scale of the pass over the whole image, both (1, 1, h, w).

    Inverse depth has an unknown scale and shift in every pass: both are fitted. Metric depth is
    fitted in scale only. A tile is a zoomed view: the network takes objects that appear larger for
    nearer ones, by one factor for the whole tile (Eigen et al. 2014, section 3.4), and a shift
    would move depths that it places at 0 m. A tile whose depth runs against that of the whole image
    (a fitted scale of 0 or less) is replaced by it.
    """
    valid = depth[0].isfinite() & whole[0].isfinite()
    if inverse:
        scale, shift = align_scale_shift(depth[0], whole[0], valid)
    else:
        scale, shift = align_median(depth[0], whole[0], valid), depth.new_zeros(1)
    return torch.where(scale > 0, depth * scale + shift, whole)


def predict_tiles(
    image: np.ndarray,
    whole: Mapping[str, Tensor],
    *,
    window: tuple[int, int],
    predict: Callable[[Sequence[np.ndarray]], Iterable[dict[str, Tensor]]],
    outputs: Mapping[str, OutputSpec],
) -> dict[str, Tensor]:
    """Returns dense outputs (1, C, h', w') for an image by windows, which ``predict`` is given.

    Args:
        image: (H', W', C), resized so that a tile has the size of ``window``.
        whole: outputs (1, C, h, w) of a pass over the whole image.
        window: (h, w) of the network's input.
    """
    height, width = image.shape[:2]
    windows = [*product(tile_spans(height, window[0]), tile_spans(width, window[1]))]
    depths = [name for name, spec in outputs.items() if spec.kind == "depth"]
    coarse = {name: upsample(whole[name], (height, width)) for name in depths}
    blends: dict[str, Blend] = {}
    results = predict([image[position] for position in windows])
    for (rows, columns), result in zip(windows, results, strict=True):
        for name, spec in outputs.items():
            maps = result[name]
            h, w = maps.shape[2], maps.shape[3]
            if name in coarse:
                reference = upsample(coarse[name][..., rows, columns], (h, w))
                maps = align_tile(maps, reference, inverse=spec.is_inverse_depth)
            if name not in blends:
                size = height * h // window[0], width * w // window[1]
                blends[name] = Blend(maps, size)
            top, left = rows.start * h // window[0], columns.start * w // window[1]
            blends[name].add(maps, top, left)
    return {name: blend.mean() for name, blend in blends.items()}


class Blend:
    """The weighted mean of overlapping maps (1, C, h, w), whose weights fall to their borders.

    Args:
        like: one of the maps.
        size: (H, W) of the mean.
    """

    def __init__(self, like: Tensor, size: tuple[int, int]) -> None:
        self._total = like.new_zeros((1, like.shape[1] + 1, *size))  # weights are the last channel

    def add(self, maps: Tensor, top: int, left: int) -> None:
        """Adds a map whose first pixel is at row ``top`` and column ``left``."""
        h, w = maps.shape[2], maps.shape[3]
        weight = _hann(h).to(maps)[:, None] * _hann(w).to(maps)
        total = self._total[..., top : top + h, left : left + w]
        total[:, :-1] += maps * weight
        total[:, -1] += weight

    def mean(self) -> Tensor:
        """Returns the mean (1, C, H, W); nothing can be added after it."""
        return self._total[:, :-1].div_(self._total[:, -1:])

    def take_rows(self, count: int) -> Tensor:
        """Returns the mean of the first ``count`` rows; the others move up into their place."""
        done, others = self._total.split((count, self._total.shape[2] - count), dim=2)
        self._total = torch.cat((others, torch.zeros_like(done)), dim=2)
        return done[:, :-1].div_(done[:, -1:])


def _hann(length: int) -> Tensor:
    """Returns a positive Hann window: result and slope are continuous at the borders of tiles."""
    return torch.hann_window(length + 2, periodic=False)[1:-1]
