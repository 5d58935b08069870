"""Windows of an image that overlap, and the means of what is predicted for them.

Evaluation averages windows evenly, as mmsegmentation does (:func:`dpt.nn.tta.slide`). Prediction of
large images gives weights that fall to the borders of a window, so that there are no seams
(:func:`predict_tiles`, and :mod:`dpt.predict.pipeline` for files of any size).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import align_median, align_scale_shift
from dpt.functional import upsample
from dpt.types.outputs import OutputSpec

OVERLAP = 0.25  # fraction of a tile's side that it has in common with the next tile, at least


def spans(length: int, window: int, stride: int | None = None) -> Iterator[slice]:
    """Yields the positions of the windows along one side.

    The last one is moved back inside. Without ``stride``, as few windows as cover the side lie at
    equal distances. A side shorter than ``window`` is one window.
    """
    step: float = stride or window
    count = int(max(length - window + step - 1, 0) // step) + 1
    if stride is None and count > 1:  # as transformers rounds it
        step = window - (count * window - length) / (count - 1)
    for k in range(count):
        stop = int(k * step) + window if k < count - 1 else length
        yield slice(max(stop - window, 0), stop)


def tile_spans(length: int, tile: int) -> list[slice]:
    """Returns the tiles along one side, which overlap by :data:`OVERLAP`."""
    return list(spans(length, tile, tile - int(tile * OVERLAP)))


class Blend:
    """Means of overlapping maps (..., h, w) by name.

    Args:
        smooth: whether the weights of a map fall to its borders (Hann); otherwise all are 1.
    """

    def __init__(self, *, smooth: bool) -> None:
        self._smooth = smooth
        self._totals: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}

    def add(
        self, name: str, maps: Tensor, size: tuple[int, int], *, top: int = 0, left: int = 0
    ) -> None:
        """Adds a map at row ``top`` and column ``left`` of a mean of ``size`` (H, W)."""
        if name not in self._totals:
            self._totals[name] = maps.new_zeros((*maps.shape[:-2], *size))
            self._weights[name] = maps.new_zeros(size)
        h, w = maps.shape[-2:]
        total = self._totals[name][..., top : top + h, left : left + w]
        weights = self._weights[name][top : top + h, left : left + w]
        weight: Tensor | int = 1
        if self._smooth:
            weight = _hann(h).to(maps)[:, None] * _hann(w).to(maps)
        total += maps * weight
        weights += weight

    def means(self) -> dict[str, Tensor]:
        """Returns the means (..., H, W); nothing can be added after it."""
        return {name: total.div_(self._weights[name]) for name, total in self._totals.items()}

    def take_rows(self, count: int) -> dict[str, Tensor]:
        """Returns the means of the first ``count`` rows; the others move up into their place."""
        means = {}
        for name, total in self._totals.items():
            means[name] = total[..., :count, :] / self._weights[name][:count]
            self._totals[name] = _moved_up(total, count)
            self._weights[name] = _moved_up(self._weights[name], count)
        return means


def _moved_up(values: Tensor, count: int) -> Tensor:
    done, others = values.split((count, values.shape[-2] - count), dim=-2)
    return torch.cat((others, torch.zeros_like(done)), dim=-2)


def _hann(length: int) -> Tensor:
    """Returns a positive Hann window: result and slope are continuous at the borders of tiles."""
    return torch.hann_window(length + 2, periodic=False)[1:-1]


def predict_tiles(
    image: np.ndarray,
    whole: Mapping[str, Tensor],
    *,
    window: tuple[int, int],
    predict: Callable[[Sequence[np.ndarray]], Iterable[dict[str, Tensor]]],
    outputs: Mapping[str, OutputSpec],
) -> dict[str, Tensor]:
    """Returns dense outputs (1, C, h', w') for an image by tiles, which ``predict`` is given.

    The network sees more detail in each tile than in the whole image shrunk to its input size. The
    depth of each tile is aligned with that of the whole image, and the outputs are averaged at the
    network's resolution, so that logits are never held at the size of the image.

    Args:
        image: (H', W', C), resized so that a tile has the size of ``window``.
        whole: outputs (1, C, h, w) of a pass over the whole image.
        window: (h, w) of the network's input.
    """
    height, width = image.shape[:2]
    tiles = [*product(tile_spans(height, window[0]), tile_spans(width, window[1]))]
    depths = [name for name, spec in outputs.items() if spec.kind == "depth"]
    coarse = {name: upsample(whole[name], (height, width)) for name in depths}
    blend = Blend(smooth=True)
    results = predict([image[position] for position in tiles])
    for (rows, columns), result in zip(tiles, results, strict=True):
        for name, spec in outputs.items():
            maps = result[name]
            h, w = maps.shape[2:]
            if name in coarse:
                reference = upsample(coarse[name][..., rows, columns], (h, w))
                maps = align_tile(maps, reference, inverse=spec.is_inverse_depth)
            size = height * h // window[0], width * w // window[1]
            top, left = rows.start * h // window[0], columns.start * w // window[1]
            blend.add(name, maps, size, top=top, left=left)
    return blend.means()


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
