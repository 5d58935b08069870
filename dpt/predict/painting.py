"""Pictures of predictions, with legends."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dpt.predict.prediction import Prediction
from dpt.viz import COLORMAPS, Limits, color_limits, colorize_output, legend, overlay, stack

PIXELS_AT_ONCE = 2**20  # larger images are painted in bands of rows of this many pixels


@dataclass(frozen=True)
class Style:
    """The colormap of depth, and the limits of the colours by output; without limits those of each
    image, see :func:`dpt.viz.color_limits`."""

    colormap: str = "inferno"
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.colormap not in COLORMAPS:
            raise ValueError(f"colormap {self.colormap}: choose from {', '.join(COLORMAPS)}")

    def limits_of(self, name: str, prediction: Prediction) -> Limits:
        """Returns the limits of an output's colours."""
        if name in self.limits:
            return self.limits[name]
        return color_limits(prediction.arrays[name], prediction.outputs[name])


def paint(name: str, prediction: Prediction, image: np.ndarray | None, style: Style) -> np.ndarray:
    """Returns the picture of a dense output, uint8 (H, W, 3): classes and segments over the image,
    other outputs as :func:`dpt.viz.colorize_output` draws them.

    ``image`` is uint8 (H, W, 3), or None where the output has neither classes nor segments.
    """
    values, spec = prediction.arrays[name], prediction.outputs[name]
    limits = style.limits_of(name, prediction)
    count = max(1, PIXELS_AT_ONCE // values.shape[1])
    bands = []
    for start in range(0, len(values), count):
        rows = slice(start, start + count)
        maps = values[rows].transpose(2, 0, 1) if values.ndim == 3 else values[rows]
        picture = colorize_output(maps, spec, limits=limits, colormap=style.colormap)
        if spec.kind in ("logits", "masks"):
            assert image is not None
            picture = overlay(image[rows], picture)
        bands.append(picture)
    return np.concatenate(bands)


def paint_legend(name: str, prediction: Prediction, style: Style, *, width: int) -> np.ndarray:
    """Returns the legend of an output's picture, see :func:`dpt.viz.legend`."""
    limits = style.limits_of(name, prediction)
    values, spec = prediction.arrays[name], prediction.outputs[name]
    return legend(values, spec, width=width, limits=limits, colormap=style.colormap)


def paint_with_legend(
    name: str, prediction: Prediction, image: np.ndarray | None, style: Style
) -> np.ndarray:
    """Returns the picture of a dense output above its legend: uint8 (H + h, max(W, 240), 3)."""
    style = replace(style, limits={name: style.limits_of(name, prediction)})
    picture = paint(name, prediction, image, style)
    return stack([picture, paint_legend(name, prediction, style, width=picture.shape[1])])
