"""Tiny models and photos."""

import numpy as np
import torch
from PIL import Image

import dpt

TINY = {
    "image_size": [48, 64],
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 4,
    "out_indices": [0, 1, 2, 3],
    "reassemble_channels": [8, 8, 16, 16],
    "fusion_channels": 16,
}


def tiny(heads, *, seed=6):
    """A model whose random weights tell places and classes apart."""
    torch.manual_seed(seed)
    model = dpt.create_model("dpt_tiny", heads=heads, **TINY).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("heads.segmentation") and parameter.ndim > 1:
                parameter.mul_(20)
    return model


def photo_of(height, width, *, seed=0):
    """Smooth colours, a little noise: uint8 (H, W, 3)."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + random.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def save_picture(path, array, **options):
    """Writes a picture, in new folders where they are needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def save_photo(path, height=40, width=57, *, seed=0):
    return save_picture(path, photo_of(height, width, seed=seed))


def save_dense(root, counts, *sizes, lacking=None, suffix=".png"):
    """Photos, masks of three classes and depth in millimetres, as data=folder reads them.

    Args:
        counts: of each split.
        sizes: (H, W), used in turn.
        lacking: numbers of the images without masks, and of those without depth.
        suffix: of the photos.
    """
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for i in range(count):
            size = sizes[i % len(sizes)]
            for kind, shape, bounds, dtype in (
                ("images", (*size, 3), (0, 255), np.uint8),
                ("masks", size, (0, 3), np.uint8),
                ("depth", size, (500, 9000), np.int64),
            ):
                if i not in (lacking or {}).get(kind, ()):
                    values = random.integers(*bounds, shape, dtype)
                    values = values.astype(np.uint16) if kind == "depth" else values
                    path = root / kind / split / f"{i}{suffix if kind == 'images' else '.png'}"
                    save_picture(path, values)
