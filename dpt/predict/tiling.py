"""Large images by overlapping tiles, blended without seams.

The network sees each tile as an image of its own, so that it sees more detail than in the whole
image shrunk to its input size. :func:`dpt.nn.tta.slide` averages windows of the network's input and
holds every output at full size; here each tile is resized to the network's input, its depth is
aligned with that of the whole image, and logits are never held at the image's size.

Shapes: (H, W) the image, (h, w) an output of the network, C channels or classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import align_median, align_scale_shift
from dpt.functional import source_rows, upsample, upsample_rows
from dpt.nn.tta import spans
from dpt.types import OutputSpec

OVERLAP = 0.25
"""Share of a tile's side that it has in common with the next tile, at least."""
VALUES_AT_ONCE = 2**24
"""Full-size values in a band of rows: 64 MB."""


def label_dtype(num_classes: int) -> torch.dtype:
    """The smallest type that holds every class id."""
    return torch.uint8 if num_classes <= 256 else torch.int32


def tile_spans(length: int, tile: int) -> list[slice]:
    """The tiles along one side."""
    return list(spans(length, tile, tile - int(tile * OVERLAP)))


def blend_weights(pieces: Sequence[slice], length: int) -> Tensor:
    """Weight of each tile at each place of one side, (tiles, length); columns sum to 1.

    Weights are Hann windows: neither the result nor its slope jumps where a tile ends.
    """
    weights = torch.zeros(len(pieces), length)
    for row, piece in zip(weights, pieces, strict=True):
        row[piece] = torch.hann_window(piece.stop - piece.start + 2, periodic=False)[1:-1]
    return weights / weights.sum(0)


def align_tile(depth: Tensor, whole: Tensor, *, inverse: bool) -> Tensor:
    """A tile's depth in the scale of the pass over the whole image.

    Inverse depth has an unknown scale and shift in every pass: both are fitted. Metric depth is
    fitted in scale only. A tile is a zoomed view: the network takes objects that appear larger for
    nearer ones, by one factor for the whole tile (Eigen et al. 2014, section 3.4), and a shift
    would move depths that it places at 0 m.

    A tile whose depth runs against that of the whole image (a fitted scale of 0 or less) is
    replaced by it.

    Args:
        depth: (1, 1, h, w), the tile's own prediction.
        whole: (1, 1, h, w), the prediction for the same place from the whole image.
    """
    own, other = depth[0], whole[0]
    valid = own.isfinite() & other.isfinite()
    if inverse:
        scale, shift = align_scale_shift(own, other, valid)
    else:
        scale, shift = align_median(own, other, valid), own.new_zeros(1)
    return torch.where(scale > 0, depth * scale + shift, whole)


def predict_tiles(
    image: np.ndarray,
    *,
    tile: int,
    whole: Mapping[str, Tensor],
    predict: Callable[[list[np.ndarray]], list[dict[str, Tensor]]],
    outputs: Mapping[str, OutputSpec],
) -> dict[str, Tensor]:
    """Dense outputs for an image larger than a tile: class ids (H, W) of logits, else (H, W, C).

    The outputs of a row of tiles wait, at the network's size, for the next row. Then they are
    upsampled and blended, a band of image rows at a time.

    Args:
        image: uint8 (H, W, 3) RGB.
        tile: side of a tile in pixels of the image.
        whole: outputs (1, C, h, w) of a pass over the whole image.
        predict: gives the outputs of tiles of one size.
        outputs: the dense outputs.
    """
    height, width = image.shape[:2]
    down, across = tile_spans(height, tile), tile_spans(width, tile)
    weights = blend_weights(down, height), blend_weights(across, width)
    depths = [name for name, spec in outputs.items() if spec.kind == "depth"]
    coarse = {name: upsample(whole[name], (height, width)) for name in depths}
    result: dict[str, Tensor] = {}
    for name, spec in outputs.items():
        channels = whole[name].shape[1]
        if spec.kind == "logits":
            dtype = label_dtype(channels)
            result[name] = whole[name].new_empty((height, width), dtype=dtype)
        else:
            result[name] = whole[name].new_empty((height, width, channels))
    waiting: dict[int, list[dict[str, Tensor]]] = {}
    for i, rows in enumerate(down):
        waiting[i] = predict([image[rows, columns] for columns in across])
        for name, depth in coarse.items():
            for columns, found in zip(across, waiting[i], strict=True):
                own = found[name]
                other = upsample(depth[..., rows, columns], (own.shape[2], own.shape[3]))
                found[name] = align_tile(own, other, inverse=outputs[name].is_inverse_depth)
        stop = height if i + 1 == len(down) else down[i + 1].start  # later tiles begin here
        for name, spec in outputs.items():
            tiles = {k: [found[name] for found in row] for k, row in waiting.items()}
            step = max(1, VALUES_AT_ONCE // (width * whole[name].shape[1]))
            for first in range(rows.start, stop, step):
                band = slice(first, min(first + step, stop))
                blended = _blend(tiles, down, across, weights, band)
                result[name][band] = blended.argmax(-1) if spec.kind == "logits" else blended
        waiting = {k: row for k, row in waiting.items() if down[k].stop > stop}
    return result


def _blend(
    tiles: Mapping[int, Sequence[Tensor]],
    down: Sequence[slice],
    across: Sequence[slice],
    weights: tuple[Tensor, Tensor],
    band: slice,
) -> Tensor:
    """An output in a band of image rows, (rows, W, C), from rows of tiles (1, C, h, w)."""
    some = next(iter(tiles.values()))[0]
    weight_rows, weight_columns = (w.to(some) for w in weights)
    total = some.new_zeros((band.stop - band.start, weight_columns.shape[1], some.shape[1]))
    for i, row in tiles.items():
        rows = slice(max(band.start, down[i].start), min(band.stop, down[i].stop))
        if rows.start >= rows.stop:
            continue
        inside = slice(rows.start - down[i].start, rows.stop - down[i].start)
        here = slice(rows.start - band.start, rows.stop - band.start)
        for j, (columns, maps) in enumerate(zip(across, row, strict=True)):
            source, upper, share = source_rows(inside, maps.shape[2], down[i].stop - down[i].start)
            part = upsample_rows(maps[:, :, source], upper, share, columns.stop - columns.start)[0]
            weight = weight_rows[i, rows, None] * weight_columns[j, None, columns]
            total[here, columns] += part * weight[..., None]
    return total
