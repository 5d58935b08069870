"""Pictures of depth and labels. Everything here takes NumPy and gives uint8 RGB (H, W, 3)."""

from dpt.viz.color import COLORMAPS, colorize_depth, colorize_labels, default_palette, overlay
from dpt.viz.panel import (
    depth_panel,
    inpainting_panel,
    save_png,
    segmentation_panel,
    side_by_side,
    stack,
)

__all__ = [
    "COLORMAPS",
    "colorize_depth",
    "colorize_labels",
    "default_palette",
    "depth_panel",
    "inpainting_panel",
    "overlay",
    "save_png",
    "segmentation_panel",
    "side_by_side",
    "stack",
]
