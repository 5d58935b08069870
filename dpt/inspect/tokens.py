"""Tokens of the tapped levels: principal components, norms, and what the CLS token adds to them.

Every function takes float images (B, 3, H, W), normalised, pads them as the model does and gives
one array a level, shallow to deep, on that level's own grid h × w. Any encoder will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpt.nn import DPT
from dpt.types import Tokens


def token_pca(model: DPT, images: Tensor) -> list[np.ndarray]:
    """The first three principal components of each level's patch tokens, to be seen as RGB.

    The components are those of all images together, so that one colour means one thing in all of
    them. Signs are fixed (a component's largest loading is positive) and each component runs from
    its 2 % to its 98 % quantile, cut off beyond.

    Returns:
        (B, h, w, 3) in 0..1 of each level.
    """
    return [components(patches) for patches in patches_of(model, encode(model, images))]


def feature_norms(model: DPT, images: Tensor) -> list[np.ndarray]:
    """Length of each patch token: (B, h, w) of each level.

    A few tokens many times longer than the rest are what Darcet et al. 2024 call outliers or
    artifacts, which registers take up.
    """
    return [np.linalg.norm(p, axis=-1) for p in patches_of(model, encode(model, images))]


def readout_contribution(model: DPT, images: Tensor) -> list[np.ndarray]:
    """How much the CLS token changes what is read of each patch: (B, h, w) of each level.

    With r(p, c) what :class:`dpt.nn.reassemble.Read` makes of patch token p and CLS token c, this
    is ‖r(p, c) - r(p, 0)‖ / ‖r(p, 0)‖: for readout ``add`` ‖c‖ / ‖p‖, for ``ignore`` 0.

    Raises:
        ValueError: the model has no decoder, which is what reads.
    """
    return contribution_of_cls(model, encode(model, images))


@torch.no_grad()
def encode(model: DPT, images: Tensor) -> Tokens:
    """The tokens on which the functions below work."""
    return model.encoder(model.pad(images)[0])


@contextmanager
def caught(model: DPT) -> Iterator[list[Tokens]]:
    """The tokens of every pass of the model inside the ``with`` block."""
    found: list[Tokens] = []
    hook = model.encoder.register_forward_hook(lambda module, args, out: found.append(out))
    try:
        yield found
    finally:
        hook.remove()


def patches_of(model: DPT, tokens: Tokens) -> list[np.ndarray]:
    """(B, h, w, D) of each level, without the prefix tokens."""
    prefixes = model.encoder.num_prefix_tokens
    return [
        level[:, prefix:].unflatten(1, grid).float().cpu().numpy()
        for level, grid, prefix in zip(tokens.levels, tokens.grids, prefixes, strict=True)
    ]


@torch.no_grad()
def contribution_of_cls(model: DPT, tokens: Tokens) -> list[np.ndarray]:
    """See :func:`readout_contribution`."""
    if model.decoder is None:
        raise ValueError("this model reads no map from its tokens: it has no dense head")
    reads: list[Any] = [reassemble.read for reassemble in model.decoder.reassemble]
    shares = []
    for read, level, grid in zip(reads, tokens.levels, tokens.grids, strict=True):
        without = level.clone()
        if read.num_prefix_tokens:
            without[:, 0] = 0
        alone = read(without)
        added = (read(level) - alone).norm(dim=-1)
        share = added / alone.norm(dim=-1).clamp_min(1e-12)
        shares.append(share.unflatten(1, grid).float().cpu().numpy())
    return shares


def components(patches: np.ndarray) -> np.ndarray:
    """(B, h, w, D) to (B, h, w, 3), see :func:`token_pca`."""
    rows = patches.reshape(-1, patches.shape[-1]).astype(np.float64)
    rows -= rows.mean(axis=0)
    _, axes = np.linalg.eigh(rows.T @ rows)  # ascending
    axes = axes[:, :-4:-1]
    largest = np.abs(axes).argmax(axis=0)
    axes = axes * np.sign(np.take_along_axis(axes, largest[None], axis=0))
    scores = rows @ axes
    low, high = np.quantile(scores, [0.02, 0.98], axis=0)
    scores = np.clip((scores - low) / np.maximum(high - low, 1e-12), 0, 1)
    return scores.reshape(*patches.shape[:-1], -1).astype(np.float32)
