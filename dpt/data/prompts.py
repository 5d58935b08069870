"""Sparse depth as an input of a model: points drawn from measured depth."""

import numpy as np


def draw_points(
    depth: np.ndarray, valid: np.ndarray, count: int, random: np.random.Generator
) -> np.ndarray:
    """Returns the depth of ``count`` random valid pixels, or of all: float32 (H, W), else 0."""
    places = np.flatnonzero(valid)
    chosen = random.choice(places, min(count, len(places)), replace=False)
    prompt = np.zeros(depth.shape, np.float32)
    prompt.flat[chosen] = depth.flat[chosen]
    return prompt
