"""Pictures of images, depth, labels and other outputs: NumPy arrays to uint8 RGB (H, W, 3)."""

from dpt.viz.color import (
    COLORMAPS,
    colorize_depth,
    colorize_labels,
    colorize_output,
    default_palette,
    heatmap,
    overlay,
)
from dpt.viz.panel import (
    depth_panel,
    inpainting_panel,
    output_panel,
    save_png,
    segmentation_panel,
    side_by_side,
    stack,
)
