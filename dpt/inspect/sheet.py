"""All that can be inspected of one image, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.inspect.attention import (
    has_attention,
    patch_grid,
    patch_query,
    to_patches,
    watched,
)
from dpt.inspect.tokens import caught, components, contribution_of_cls, patches_of
from dpt.model import DPT
from dpt.types import Tokens
from dpt.viz.color import colorize_depth, colorize_labels, heatmap
from dpt.viz.panel import heading, stack, tiles

WIDTH = 1280
"""Of a sheet, in pixels, unless very many heads make it wider."""

_MARK = (255, 50, 50)


def inspection_sheet(
    model: DPT,
    images: Tensor,
    *,
    patch: tuple[int, int] | None = None,
    block: int | None = None,
) -> np.ndarray:
    """Photo and outputs, tokens and read-out of each level, attention of each block.

    Args:
        images: float (1, 3, H, W), normalised.
        patch: (row, column) of the patch whose attention is shown, from 0; None takes the middle.
        block: the one block whose attention is shown, larger and head by head; None shows all.

    Returns:
        uint8 (H', W', 3) RGB.

    Raises:
        ValueError: there is no such patch or block, or the encoder shows no attention and a patch
            or block was asked for.
    """
    if model.predicts_only:
        raise ValueError("an optimised copy cannot be inspected: take the model it was made of")
    images = model.pad(images)[0]
    photo, caption = _photo(model, images), "photo"
    watching: AbstractContextManager[dict[int, np.ndarray]] = nullcontext({})
    attends = has_attention(model) or patch is not None or block is not None
    if attends:
        grid = patch_grid(model, images)
        patch = (grid[0] // 2, grid[1] // 2) if patch is None else patch
        queries = [0, patch_query(model, images, patch)]
        watching = watched(model, queries=queries, blocks=None if block is None else [block])
        photo, caption = _marked(photo, patch, grid), f"photo; framed: patch {patch[0]} {patch[1]}"
    with torch.no_grad(), watching as rows, caught(model) as tokens:
        outputs = model(images)
    sections = [
        *_outputs(model, outputs, photo, caption),
        *_levels(model, tokens[0], photo.shape),
    ]
    for i, who in enumerate(["CLS", "the framed patch"]) if attends else ():
        maps = {k: to_patches(model, images, r[0, :, i]) for k, r in sorted(rows.items())}
        sections += _attention(who, maps, photo.shape)
    return stack(sections)


def _photo(model: DPT, images: Tensor) -> np.ndarray:
    """What the model sees: the input brought back to colours, uint8 (H, W, 3)."""
    shape = (3, 1, 1)
    mean = torch.tensor(model.preprocessing.mean).view(shape)
    std = torch.tensor(model.preprocessing.std).view(shape)
    pixels = (images[0].float().cpu() * std + mean) * 255
    return pixels.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def _marked(photo: np.ndarray, patch: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    """The photo with a frame round one patch."""
    height, width = photo.shape[0] // grid[0], photo.shape[1] // grid[1]
    top, left = patch[0] * height, patch[1] * width
    corners = (left - 1, top - 1), (left + width, top + height)
    return cv2.rectangle(photo.copy(), *corners, _MARK, thickness=2)


def _outputs(
    model: DPT, outputs: Mapping[str, Tensor], photo: np.ndarray, caption: str
) -> list[np.ndarray]:
    """The photo and what each head makes of it."""
    pictures, captions = [photo], [caption]
    numbers = []
    for name, output in outputs.items():
        values = output[0].float().cpu().numpy()
        if name == "depth":
            metric = getattr(model.heads[name], "kind", "") == "metric"
            span = f"{values.min():.3g} to {values.max():.3g}"
            pictures.append(colorize_depth(values, inverse=metric))
            captions.append(f"depth, {span} m" if metric else f"inverse depth, {span} (relative)")
        elif name == "segmentation":
            pictures.append(colorize_labels(values.argmax(axis=0)))
            captions.append(f"segmentation, {len(values)} classes")
        elif values.ndim == 2:  # of a head of one's own
            pictures.append(heatmap(values - values.min()))
            captions.append(f"{name}, {values.min():.3g} to {values.max():.3g}")
        elif values.ndim == 1:
            numbers.append(f"{name}: class {values.argmax()}")
        elif values.ndim == 0:
            numbers.append(f"{name}: {values:.4g}")
    columns = max(3, len(pictures))
    title = "; ".join(
        [f"{model.spec['name']}, input {photo.shape[1]} x {photo.shape[0]}", *numbers]
    )
    return _section(title, pictures, captions, columns=columns, shape=photo.shape)


def _levels(model: DPT, tokens: Tokens, shape: Sequence[int]) -> list[np.ndarray]:
    """A row of cells for each quantity, a column for each tapped level."""
    names = _level_names(model)
    patches = patches_of(model, tokens)
    pca = [np.rint(components(level)[0] * 255).astype(np.uint8) for level in patches]
    norms = [np.linalg.norm(level[0], axis=-1) for level in patches]
    captions = [
        f"{name}: median {np.median(n):.3g}, largest {n.max():.3g}"
        for name, n in zip(names, norms, strict=True)
    ]
    lengths = [heatmap(n) for n in norms]
    section = partial(_section, columns=len(names), shape=shape)
    rows = [
        *section("Tokens: principal components as red, green, blue", pca, names),
        *section("Tokens: length; single bright patches are outliers", lengths, captions),
    ]
    if model.decoder is not None:
        shares = [maps[0] for maps in contribution_of_cls(model, tokens)]
        levels: Any = model.decoder.reassemble
        modes = [level.read.mode for level in levels]
        captions = [
            f"{name}: {mode}, median {np.median(s):.2f}"
            for name, mode, s in zip(names, modes, shares, strict=True)
        ]
        high = max(*(float(np.quantile(s, 0.99)) for s in shares), 1e-6)
        pictures = [heatmap(s, high=high) for s in shares]
        title = f"Read-out: length of what CLS adds over length of the patch, 0 to {high:.2f}"
        rows += section(title, pictures, captions)
    return rows


def _level_names(model: DPT) -> list[str]:
    """The block or stage that each level taps."""
    taps: Any = getattr(model.encoder, "out_indices", ())  # an encoder of one's own has stages
    stages = len(model.encoder.strides) - len(taps)  # of the hybrid's CNN
    return [f"CNN stage {i}" for i in range(stages)] + [f"block {k}" for k in taps]


def _attention(who: str, maps: Mapping[int, np.ndarray], shape: Sequence[int]) -> list[np.ndarray]:
    """Blocks from left to right and heads from top to bottom; of one block, its heads in rows.

    Args:
        maps: (heads, h, w) of each block.
    """
    heads = len(next(iter(maps.values())))
    places = [(block, head) for head in range(heads) for block in maps]
    return _section(
        f"Attention of {who} by block (b) and head (h), each map from 0 to its 99 % quantile",
        [heatmap(maps[block][head]) for block, head in places],
        [f"b{block} h{head}" for block, head in places],
        columns=len(maps) if len(maps) > 1 else min(heads, 6),
        shape=shape,
    )


def _section(
    title: str,
    pictures: Sequence[np.ndarray],
    captions: Sequence[str],
    *,
    columns: int,
    shape: Sequence[int],
) -> list[np.ndarray]:
    """A heading and its cells, which have the photo's aspect."""
    width = min(max(WIDTH // columns - 4, 72), 420)
    height = max(8, round(width * shape[0] / shape[1]))
    return [
        heading(title, width=WIDTH),
        tiles(pictures, captions, size=(height, width), columns=columns),
    ]
