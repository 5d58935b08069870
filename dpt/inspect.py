"""What an encoder computes: attention weights, tokens of the feature levels, all of it on a sheet.

Shapes: B images (B, 3, H, W), normalised, which are padded as the model pads them; T = P + h·w
tokens of which P are prefix tokens (CLS first, then registers), h × w the grid of patches.
``blocks`` are zero-based; None takes all of them. The blocks of EoMT that also process queries are
not included. Functions return float32 arrays; the model should be in evaluation mode.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from dpt.model import DPT
from dpt.nn import Decoder, Network, VisionTransformer
from dpt.nn.reassemble import Read
from dpt.nn.vit import Attention, Rotation
from dpt.predict import Predictor, encoding, inputs, writers
from dpt.viz import heading, heatmap, stack, tiles

Ids = Sequence[int] | None
Grid = tuple[int, int]


@torch.no_grad()
def attention_maps(
    model: Network, images: Tensor, *, blocks: Ids = None, queries: Ids = None
) -> list[np.ndarray]:
    """Returns softmax(Q Kᵀ / √d + bias) of each block: (B, heads, T, T), whose rows sum to 1.

    A full map of ``dpt_large`` takes 21 MB for one image of 384 × 384 and grows with the square of
    the image's area: name the ``blocks``, or ``queries``, the tokens whose rows are wanted.

    Raises:
        ValueError: the encoder has no such attention.
    """
    encoder = _encoder(model)
    layers = [m for m in encoder.blocks.modules() if isinstance(m, Attention)]
    layers = layers[: encoder.config.out_indices[-1] + 1]
    blocks = range(len(layers)) if blocks is None else blocks
    maps: dict[nn.Module, np.ndarray] = {}

    def keep(attention: Any, args: tuple[Tensor], options: Any) -> None:
        maps[attention] = attention_rows(attention, *args, queries=queries, **options).cpu().numpy()

    with ExitStack() as hooks:  # which are removed at its end
        for block in set(blocks):
            hooks.enter_context(layers[block].register_forward_pre_hook(keep, with_kwargs=True))
        encoder(model.pad(images)[0])
    return [maps[layers[block]] for block in blocks]


def cls_attention(model: Network, images: Tensor) -> list[np.ndarray]:
    """Returns the attention of the CLS token to each patch (Caron et al. 2021, DINO, figure 1).

    (B, heads, h, w) of each block; a map sums to 1 minus the weight of the prefix tokens.
    """
    return _patch_maps(model, images, query=0)


def patch_attention(model: Network, images: Tensor, *, patch: Grid) -> list[np.ndarray]:
    """Returns the attention of the ``patch`` at (row, column) of the grid, from 0, to each patch.

    Raises:
        ValueError: the patch lies outside the grid.
    """
    (height, width), (row, column) = patch_grid(model, images), patch
    if not (0 <= row < height and 0 <= column < width):
        grid = f"the grid of {height} rows and {width} columns, counted from 0"
        raise ValueError(f"patch {row} {column} lies outside {grid}")
    query = model.encoder.num_prefix_tokens[-1] + row * width + column
    return _patch_maps(model, images, query=query)


def attention_rows(
    attention: Attention,
    tokens: Tensor,
    *,
    queries: Ids,
    norm: nn.Module | None = None,
    bias: Tensor | None = None,
    rotation: Rotation | None = None,
) -> Tensor:
    """Computes the weights of ``attention(tokens, ...)`` for ``queries``: (B, heads, Q or T, T)."""
    rows = slice(None) if queries is None else list(queries)
    q, k, _ = attention.split_heads(attention.project_qkv(tokens, norm), rotation)
    scores = q[:, :, rows] @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias[:, :, rows]
    return scores.softmax(dim=-1, dtype=torch.float32)


def patch_grid(model: Network, images: Tensor) -> Grid:
    """Returns (h, w), the grid of the patches of padded ``images``."""
    (height, width), side = model.pad(images)[0].shape[-2:], _encoder(model).config.patch_size
    return height // side, width // side


def _patch_maps(model: Network, images: Tensor, *, query: int) -> list[np.ndarray]:
    """Returns one token's attention to the patches, (B, heads, h, w) of each block."""
    grid, prefix = patch_grid(model, images), model.encoder.num_prefix_tokens[-1]
    rows = attention_maps(model, images, queries=[query])
    return [r[:, :, 0, prefix:].reshape(*r.shape[:2], *grid) for r in rows]


def _encoder(model: Network) -> VisionTransformer:
    if not isinstance(model.encoder, VisionTransformer):
        name = type(model.encoder).__name__
        raise ValueError(f"no attention maps of {name}: only ViT, hybrid and BEiT have them")
    return model.encoder


def token_pca(model: Network, images: Tensor) -> list[np.ndarray]:
    """Returns three principal components of the patch tokens as RGB: (B, h, w, 3) of each level.

    The components are computed over all images together, with a positive largest loading. Each is
    scaled from its 2 % and 98 % quantiles to 0..1 and clipped.
    """
    return [components(patches) for patches in patch_tokens(model, images)]


def feature_norms(model: Network, images: Tensor) -> list[np.ndarray]:
    """Returns the length of each patch token: (B, h, w) of each level.

    Tokens many times longer than the rest are the outliers (artifacts) of Darcet et al. 2024,
    which registers prevent.
    """
    return [np.linalg.norm(patches, axis=-1) for patches in patch_tokens(model, images)]


@torch.no_grad()
def readout_contribution(
    model: Network, images: Tensor, *, decoder: Decoder | None = None
) -> list[np.ndarray]:
    """Measures how the CLS token changes the readout of each patch: (B, h, w) of each level.

    With r(p, c) the output of :class:`dpt.nn.reassemble.Read` for patch token p and CLS token c,
    this is ‖r(p, c) - r(p, 0)‖ / ‖r(p, 0)‖: for readout ``add`` ‖c‖ / ‖p‖, for ``ignore`` 0.
    ``decoder`` is one of ``model.named_decoders()``; None takes the first.
    """
    decoder = decoder or next(iter(model.named_decoders().values()))
    tokens = model.encoder(model.pad(images)[0])
    reads = [module for module in decoder.reassemble.modules() if isinstance(module, Read)]
    changes = []
    for read, level, grid in zip(reads, tokens.levels, tokens.grids, strict=True):
        without_cls = level.clone()
        if read.num_prefix_tokens:
            without_cls[:, 0] = 0
        alone = read(without_cls)
        change = (read(level) - alone).norm(dim=-1) / alone.norm(dim=-1).clamp_min(1e-12)
        changes.append(change.unflatten(1, grid).float().cpu().numpy())
    return changes


@torch.no_grad()
def patch_tokens(model: Network, images: Tensor) -> list[np.ndarray]:
    """Returns the patch tokens (B, h, w, D) of each level."""
    tokens = model.encoder(model.pad(images)[0])
    prefixes = model.encoder.num_prefix_tokens
    return [
        level[:, prefix:].unflatten(1, grid).float().cpu().numpy()
        for level, grid, prefix in zip(tokens.levels, tokens.grids, prefixes, strict=True)
    ]


def components(patches: np.ndarray) -> np.ndarray:
    """Projects (B, h, w, D) to (B, h, w, 3), see :func:`token_pca`."""
    rows = patches.reshape(-1, patches.shape[-1]).astype(np.float64)
    rows -= rows.mean(axis=0)
    axes = np.linalg.eigh(rows.T @ rows)[1][:, :-4:-1]  # eigenvalues ascend
    largest = np.abs(axes).argmax(axis=0)
    scores = rows @ (axes * np.sign(np.take_along_axis(axes, largest[None], axis=0)))
    low, high = np.quantile(scores, [0.02, 0.98], axis=0)
    scores = np.clip((scores - low) / np.maximum(high - low, 1e-12), 0, 1)
    return scores.reshape(*patches.shape[:-1], -1).astype(np.float32)


WIDTH = 1280  # of a sheet, in pixels; many attention heads make it wider


def inspection_sheet(model: DPT, image: inputs.Image, *, patch: Grid | None = None) -> np.ndarray:
    """Draws image and outputs, tokens and readout of each level, attention of each block.

    Args:
        image: a path, an array, a PIL image or a tensor, see :meth:`dpt.Predictor.__call__`.
        patch: (row, column) of the patch whose attention is shown, from 0; None takes the middle.

    Returns:
        uint8 (H', W', 3) RGB.

    Raises:
        ValueError: ``patch`` is outside the grid, or given for an encoder without attention maps,
            or an output is NaN or infinite.
    """
    device = next(model.parameters()).device
    predictor = Predictor(model, device=device)
    pixels = inputs.as_pixels(image, model.preprocessing)
    rgb = model.preprocessing.picture(pixels.transpose(2, 0, 1))
    scaled = torch.from_numpy(predictor.prepare(pixels).input).permute(2, 0, 1)[None]
    images = model.pad(model.preprocessing.normalize(scaled.to(device)))[0]
    prediction, shape = predictor(pixels), images.shape[-2:]
    prediction.require_finite()
    attention, caption = [], "image"
    if isinstance(model.encoder, VisionTransformer) or patch is not None:
        grid = patch_grid(model, images)
        patch = patch or (grid[0] // 2, grid[1] // 2)
        of_patch = patch_attention(model, images, patch=patch)
        attention = _attention("the CLS token", cls_attention(model, images), shape)
        attention += _attention("the framed patch", of_patch, shape)
        height, width = rgb.shape[0] / grid[0], rgb.shape[1] / grid[1]
        first = round(patch[1] * width), round(patch[0] * height)
        last = round((patch[1] + 1) * width), round((patch[0] + 1) * height)
        rgb = cv2.rectangle(rgb.copy(), first, last, (255, 50, 50), max(2, rgb.shape[1] // 200))
        caption = f"framed: patch {patch[0]} {patch[1]}"
    # dense outputs as pictures, others in the title
    size = f"network input {shape[0]} x {shape[1]} (height x width)"
    dense = [name for name, spec in prediction.outputs.items() if spec.dense]
    predicted = encoding.Predicted(prediction, rgb)
    pictures = [rgb, *(encoding.paint(name, predicted) for name in dense)]
    title = "; ".join([size, *writers.image_lines(prediction)])
    outputs = _section(title, pictures, [caption, *dense], rgb.shape)
    legends = [encoding.paint_legend(name, predicted, width=WIDTH) for name in dense]
    return stack([*outputs, *legends, *_levels(model, images, shape), *attention])


def _levels(model: DPT, images: Tensor, shape: Sequence[int]) -> list[np.ndarray]:
    """Draws a row of cells for each quantity, a column for each feature level."""
    names = [f"level {i}, stride {s}" for i, s in enumerate(model.encoder.strides)]
    pca = [np.rint(level[0] * 255).astype(np.uint8) for level in token_pca(model, images)]
    norms = [level[0] for level in feature_norms(model, images)]
    rows = _section("Tokens: principal components as red, green, blue", pca, names, shape)
    captions = [f"median {np.median(norm):.3g}, largest {norm.max():.3g}" for norm in norms]
    title = "Tokens: norm; single bright patches are outliers"
    rows += _section(title, [heatmap(norm) for norm in norms], captions, shape)
    for name, decoder in model.named_decoders().items():
        changes = [level[0] for level in readout_contribution(model, images, decoder=decoder)]
        captions = [f"median {np.median(change):.2f}" for change in changes]
        high = max(*(float(np.quantile(change, 0.99)) for change in changes), 1e-6)
        title = f"Readout of {name}: relative change by the CLS token, 0 to {high:.2f}"
        rows += _section(title, [heatmap(c, high=high) for c in changes], captions, shape)
    return rows


def _attention(token: str, maps: Sequence[np.ndarray], shape: Sequence[int]) -> list[np.ndarray]:
    """Draws maps (1, heads, h, w) of each block: a column for each block, a row for each head."""
    cells = [(block, head) for head in range(maps[0].shape[1]) for block in range(len(maps))]
    title = f"Attention of {token} by block (b) and head (h), each map from 0 to its 99 % quantile"
    pictures = [heatmap(maps[block][0, head]) for block, head in cells]
    captions = [f"b{block} h{head}" for block, head in cells]
    return _section(title, pictures, captions, shape, len(maps))


def _section(
    title: str, pictures: Any, captions: Any, shape: Sequence[int], columns: int = 0
) -> list[np.ndarray]:
    """Draws a heading, and cells of the aspect ratio of ``shape``; by default in one row."""
    columns = columns or max(3, len(pictures))
    width = min(max(WIDTH // columns - 4, 72), 420)
    size = (max(8, round(width * shape[0] / shape[1])), width)
    return [heading(title, width=WIDTH), tiles(pictures, captions, size=size, columns=columns)]
