"""Tokens of the feature levels: principal components, norms, and the CLS token's contribution.

Every function returns one array for each level, shallow to deep, on that level's grid h × w. All
encoders are supported.
"""

import numpy as np
import torch
from torch import Tensor

from dpt.nn import Decoder, Network, Read


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

    Raises:
        ValueError: the model has no decoder.
    """
    decoder = decoder or next(iter(model.named_decoders().values()), None)
    if decoder is None:
        raise ValueError("this model has no readout: it has no dense head")
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
