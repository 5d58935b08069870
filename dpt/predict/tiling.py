"""Large pictures a tile at a time: overlapping windows, blended without a seam.

The network sees each tile as a picture of its own, so that more detail of a large photo reaches it
than when the whole is shrunk to its input size. What a tile cannot know is the rest of the scene;
how its depth is brought in line with the others is told at :func:`align_tile`.

Shapes: (H, W) the picture, (t, u) a tile, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import align_median, align_scale_shift
from dpt.predict.network import Maps, label_dtype
from dpt.rowwise import enlarge_rows, source_rows

OVERLAP = 0.25
"""Share of a tile's side that it has in common with the next one, at least."""
VALUES_AT_ONCE = 2**24
"""Full-size logits held at once: 64 MB."""

FITTED_PIXELS = 256
"""Of a tile's side, at least so many places decide how it is aligned."""


def spans(length: int, tile: int) -> list[slice]:
    """Where tiles lie along one side: evenly spread, all of one length, none beyond the end."""
    if length <= tile:
        return [slice(0, length)]
    common = int(tile * OVERLAP)
    count = -(-(length - common) // (tile - common))
    return [slice(int(start), int(start) + tile) for start in np.linspace(0, length - tile, count)]


def blend_weights(pieces: Sequence[slice], length: int) -> Tensor:
    """How much each tile counts at each place of one side, (tiles, length); columns sum to 1.

    Weights rise and fall as sin² over the overlap, so that neither the result nor its slope jumps.
    """
    place = torch.arange(length, dtype=torch.float64) + 0.5
    rows = []
    for before, piece, after in zip([None, *pieces[:-1]], pieces, [*pieces[1:], None], strict=True):
        weight = ((place > piece.start) & (place < piece.stop)).double()
        if before is not None:
            weight *= _rise((place - piece.start) / (before.stop - piece.start))
        if after is not None:
            weight *= _rise((piece.stop - place) / (piece.stop - after.start))
        rows.append(weight)
    weights = torch.stack(rows)
    return (weights / weights.sum(0)).float()


def _rise(share: Tensor) -> Tensor:
    return torch.sin(share.clamp(0, 1) * (torch.pi / 2)).square()


def align_tile(depth: Tensor, whole: Tensor, *, kind: Literal["relative", "metric"]) -> Tensor:
    """A tile's depth in the scale of the pass over the whole picture.

    Relative depth has an unknown scale and shift in every pass: both are fitted. Metric depth gets
    a scale alone. A tile is a zoomed view: the network takes what is enlarged for near, by one
    factor for all of the tile (Eigen et al. 2014, section 3.4), and a shift would move what it
    knows to be at 0 m. The whole picture was seen at the zoom that the model was trained for.

    A tile whose depth runs against the whole pass (a fitted scale of 0 or less) is replaced by it.

    Args:
        depth: (t, u), the tile's own prediction.
        whole: (t, u), what the pass over the whole picture says of the same place.
    """
    step = max(1, min(depth.shape) // FITTED_PIXELS)
    own, other = depth[None, ::step, ::step], whole[None, ::step, ::step]
    valid = own.isfinite() & other.isfinite()
    if kind == "metric":
        scale, shift = align_median(own, other, valid), own.new_zeros(1)
    else:
        scale, shift = align_scale_shift(own, other, valid)
    return torch.where(scale > 0, depth * scale + shift, whole)


def predict_tiles(
    photo: np.ndarray,
    *,
    tile: int,
    whole: Maps,
    predict: Callable[[list[np.ndarray]], list[Maps]],
    kind: Literal["relative", "metric"],
) -> tuple[Tensor | None, Tensor | None]:
    """Depth (H, W) and class ids (H, W) of a picture larger than a tile; None where no such head.

    Full-size logits are never held: those of a row of tiles wait, at the network's size, for the
    next row, and then a band of picture rows at a time is enlarged, blended and decided.

    Args:
        photo: uint8 (H, W, 3) RGB.
        tile: side of a tile in pixels of the picture.
        whole: a pass over the whole picture.
        predict: gives maps for tiles of one size.
        kind: of the depth.
    """
    height, width = photo.shape[:2]
    down, across = spans(height, tile), spans(width, tile)
    depth = labels = coarse = None
    if whole.depth is not None:
        coarse = whole.depth_at((height, width))
        depth = torch.zeros_like(coarse)
        device = coarse.device
    if whole.logits is not None:
        device = whole.logits.device
        dtype = label_dtype(whole.logits.shape[1])
        labels = torch.empty((height, width), dtype=dtype, device=device)
    if depth is None and labels is None:
        return None, None
    weight_rows = blend_weights(down, height).to(device)
    weight_columns = blend_weights(across, width).to(device)
    rows_of_logits: dict[int, list[Tensor]] = {}
    for i, rows in enumerate(down):
        maps = predict([photo[rows, columns] for columns in across])
        if depth is not None and coarse is not None:
            for j, columns in enumerate(across):
                size = (rows.stop - rows.start, columns.stop - columns.start)
                part = align_tile(maps[j].depth_at(size), coarse[rows, columns], kind=kind)
                weight = weight_rows[i, rows, None] * weight_columns[j, None, columns]
                depth[rows, columns] += part.mul_(weight)
        if labels is not None and whole.logits is not None:
            rows_of_logits[i] = [m.logits for m in maps if m.logits is not None]
            # picture rows that lie in no later row of tiles
            start = rows.start
            stop = height if i + 1 == len(down) else down[i + 1].start
            for band in _bands(start, stop, width * whole.logits.shape[1]):
                blended = _blend(
                    rows_of_logits, down, across, weight_rows[:, band], weight_columns, band
                )
                labels[band] = blended.argmax(-1).to(labels.dtype)
            rows_of_logits = {k: v for k, v in rows_of_logits.items() if down[k].stop > stop}
    return depth, labels


def _bands(start: int, stop: int, values_per_row: int) -> Iterator[slice]:
    step = max(1, VALUES_AT_ONCE // values_per_row)
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))


def _blend(
    rows_of_logits: dict[int, list[Tensor]],
    down: Sequence[slice],
    across: Sequence[slice],
    weight_rows: Tensor,
    weight_columns: Tensor,
    band: slice,
) -> Tensor:
    """Blended logits of a band of picture rows, (rows, W, K)."""
    some = next(iter(rows_of_logits.values()))[0]
    width = weight_columns.shape[1]
    total = some.new_zeros((band.stop - band.start, width, some.shape[1]))
    for i, tiles in rows_of_logits.items():
        rows = slice(max(band.start, down[i].start), min(band.stop, down[i].stop))
        if rows.start >= rows.stop:
            continue
        inside = slice(rows.start - down[i].start, rows.stop - down[i].start)
        here = slice(rows.start - band.start, rows.stop - band.start)
        for j, logits in enumerate(tiles):
            source, upper, share = source_rows(
                inside, logits.shape[2], down[i].stop - down[i].start
            )
            side = across[j].stop - across[j].start
            part = enlarge_rows(logits[:, :, source], upper, share, side)[0]
            weight = weight_rows[i, here, None] * weight_columns[j, None, across[j]]
            total[here, across[j]] += part * weight[..., None]
    return total
