"""Everything that can be inspected of one image, as one picture."""

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from dpt.inspect.attention import cls_attention, patch_attention, patch_grid
from dpt.inspect.tokens import feature_norms, readout_contribution, token_pca
from dpt.model import DPT
from dpt.nn import VisionTransformer
from dpt.predict.inputs import Image, as_pixels
from dpt.predict.painting import Style, paint, paint_legend
from dpt.predict.prediction import Prediction
from dpt.predict.predictor import Predictor
from dpt.predict.products import image_lines
from dpt.viz import heading, heatmap, stack, tiles

WIDTH = 1280  # of a sheet, in pixels; many attention heads make it wider


def inspection_sheet(
    model: DPT, image: Image, *, patch: tuple[int, int] | None = None
) -> np.ndarray:
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
    device, preprocessing = next(model.parameters()).device, model.preprocessing
    pixels = as_pixels(image, preprocessing)
    rgb = preprocessing.picture(pixels.transpose(2, 0, 1))
    predictor = Predictor(model, device=device)
    inputs = torch.from_numpy(predictor.prepare(pixels).input).permute(2, 0, 1)[None]
    images = model.pad(preprocessing.normalize(inputs.to(device)))[0]
    prediction, shape = predictor(pixels), images.shape[-2:]
    prediction.require_finite()
    attention, caption = [], "image"
    if isinstance(model.encoder, VisionTransformer) or patch is not None:
        grid = patch_grid(model, images)
        patch = patch or (grid[0] // 2, grid[1] // 2)
        of_patch = patch_attention(model, images, patch=patch)
        attention = _attention("the CLS token", cls_attention(model, images), shape)
        attention += _attention("the framed patch", of_patch, shape)
        rgb = _framed(rgb, patch, grid)
        caption = f"framed: patch {patch[0]} {patch[1]}"
    first = _outputs(rgb, prediction, caption, shape)
    return stack([*first, *_levels(model, images, shape), *attention])


def _framed(rgb: np.ndarray, patch: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    height, width = rgb.shape[0] / grid[0], rgb.shape[1] / grid[1]
    first = round(patch[1] * width), round(patch[0] * height)
    last = round((patch[1] + 1) * width), round((patch[0] + 1) * height)
    thickness = max(2, rgb.shape[1] // 200)
    return np.asarray(cv2.rectangle(rgb.copy(), first, last, (255, 50, 50), thickness))


def _outputs(
    rgb: np.ndarray, prediction: Prediction, caption: str, shape: Sequence[int]
) -> list[np.ndarray]:
    """Draws the image and the outputs: dense ones as pictures, others in the title."""
    size = f"network input {shape[0]} x {shape[1]} (height x width)"
    title = "; ".join([size, *image_lines(prediction)])
    dense = [name for name, spec in prediction.outputs.items() if spec.dense]
    pictures = [rgb, *(paint(name, prediction, rgb, Style()) for name in dense)]
    legends = [paint_legend(name, prediction, Style(), width=WIDTH) for name in dense]
    return [*_section(title, pictures, [caption, *dense], rgb.shape), *legends]


def _levels(model: DPT, images: Tensor, shape: Sequence[int]) -> list[np.ndarray]:
    """Draws a row of cells for each quantity, a column for each feature level."""
    names = [f"level {i}, stride {s}" for i, s in enumerate(model.encoder.strides)]
    pca = [np.rint(level[0] * 255).astype(np.uint8) for level in token_pca(model, images)]
    norms = [level[0] for level in feature_norms(model, images)]
    captions = [
        f"{name}: median {np.median(n):.3g}, largest {n.max():.3g}"
        for name, n in zip(names, norms, strict=True)
    ]
    rows = _section("Tokens: principal components as red, green, blue", pca, names, shape)
    title = "Tokens: norm; single bright patches are outliers"
    rows += _section(title, [heatmap(n) for n in norms], captions, shape)
    for name, decoder in model.named_decoders().items():
        changes = [level[0] for level in readout_contribution(model, images, decoder=decoder)]
        captions = [f"{n}: median {np.median(c):.2f}" for n, c in zip(names, changes, strict=True)]
        high = max(*(float(np.quantile(c, 0.99)) for c in changes), 1e-6)
        title = (
            f"Readout of {name}: relative change of each patch by the CLS token, 0 to {high:.2f}"
        )
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
    title: str,
    pictures: Sequence[np.ndarray],
    captions: Sequence[str],
    shape: Sequence[int],
    columns: int | None = None,
) -> list[np.ndarray]:
    """Draws a heading, and cells of the aspect ratio of ``shape``; by default in one row."""
    columns = columns or max(3, len(pictures))
    width = min(max(WIDTH // columns - 4, 72), 420)
    size = (max(8, round(width * shape[0] / shape[1])), width)
    return [heading(title, width=WIDTH), tiles(pictures, captions, size=size, columns=columns)]
