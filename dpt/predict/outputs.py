"""Kinds of output files. Each is written to a temporary path; :mod:`dpt.predict.folder` places it.

===========  ======================  =============================================================
``png``      depth/NAME.png          16-bit: value = (depth - offset) / scale, 0 where invalid
``png``      labels/NAME.png         class ids with a palette (16-bit without one above 256 classes)
``npy``      depth_npy/, labels_npy/ the arrays as they are
``exr``      depth_exr/NAME.exr      float32, channel Z
``color``    depth_color/NAME.png    depth coloured
``overlay``  overlay/NAME.png        classes over the photo
``panel``    panel/NAME.png          photo, depth and classes side by side
===========  ======================  =============================================================
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from dpt.predict.paint import (
    Painter,
    Style,
    label_palette,
    paint_depth,
    paint_overlay,
    paint_panel,
)
from dpt.predict.predictor import Prediction

MILLIMETRE = 0.001
KITTI_SCALE = 1 / 256
_LARGEST = 65535

Save = Callable[[Path, Prediction, np.ndarray | None, Style], None]


@dataclass(frozen=True)
class Product:
    """One kind of file.

    Attributes:
        folder: of the output folder; file names are the inputs' there.
        suffix: of the files.
        needs: the heads of which one must be there.
        save: writes the file.
        paint: what it shows, where it is a picture; videos become videos of it.
    """

    folder: str
    suffix: str
    needs: tuple[str, ...]
    save: Save
    paint: Painter | None = None


def depth_coding(prediction: Prediction) -> tuple[float, float]:
    """(scale, offset) of a 16-bit PNG: depth = value × scale + offset.

    Metres have one scale for all pictures and no offset: millimetres, or 1/256 m (KITTI's, up to
    256 m) for models that see farther than 65.5 m. Relative depth is stretched from its smallest
    to its largest value in each picture.
    """
    assert prediction.depth is not None
    if prediction.unit == "metres":
        return metric_scale(prediction.valid_range), 0.0
    known = prediction.depth[np.isfinite(prediction.depth)]
    if not known.size:
        return 1.0, 0.0
    low, high = float(known.min()), float(known.max())
    return (high - low) / _LARGEST or 1.0, low


def metric_scale(valid_range: tuple[float, float] | None) -> float:
    largest = valid_range[1] if valid_range else np.inf
    return MILLIMETRE if largest == np.inf or largest <= _LARGEST * MILLIMETRE else KITTI_SCALE


def encode_depth(prediction: Prediction) -> np.ndarray:
    """Depth as uint16 (H, W), see :func:`depth_coding`.

    What is not finite is 0, and so are metres too many for 16 bits: they would read as less.
    """
    assert prediction.depth is not None
    scale, offset = depth_coding(prediction)
    with np.errstate(invalid="ignore"):
        value = np.subtract(prediction.depth, np.float32(offset))
        value /= np.float32(scale)
        np.rint(value, out=value)
        if prediction.unit != "metres":  # the largest may be rounded up
            np.minimum(value, _LARGEST, out=value)
        value[~((value >= 0) & (value <= _LARGEST))] = 0  # NaN too
    return value.astype(np.uint16)


def encode_labels(labels: np.ndarray, palette: np.ndarray) -> bytes:
    """Class ids as a PNG that shows their colours and holds the ids."""
    if labels.dtype != np.uint8:
        return _png(labels)
    picture = Image.fromarray(labels)
    picture.putpalette(palette.astype(np.uint8).tobytes())  # of mode L this makes mode P
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _png(array: np.ndarray) -> bytes:
    if array.ndim == 3:
        array = cv2.cvtColor(array, cv2.COLOR_RGB2BGR)
    return cv2.imencode(".png", array)[1].tobytes()


def _save_depth_png(path: Path, prediction: Prediction, photo: object, style: Style) -> None:
    path.write_bytes(_png(encode_depth(prediction)))


def _save_labels_png(path: Path, prediction: Prediction, photo: object, style: Style) -> None:
    assert prediction.labels is not None
    path.write_bytes(encode_labels(prediction.labels, label_palette(prediction)))


def _save_depth_npy(path: Path, prediction: Prediction, photo: object, style: Style) -> None:
    assert prediction.depth is not None
    _save_npy(path, prediction.depth)


def _save_labels_npy(path: Path, prediction: Prediction, photo: object, style: Style) -> None:
    assert prediction.labels is not None
    _save_npy(path, prediction.labels)


def _save_npy(path: Path, array: np.ndarray) -> None:
    file = io.BytesIO()  # written to a file directly, NumPy's errors do not say that it is full
    np.save(file, array, allow_pickle=False)
    path.write_bytes(file.getbuffer())


def _save_exr(path: Path, prediction: Prediction, photo: object, style: Style) -> None:
    import OpenEXR

    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    try:
        OpenEXR.File(header, {"Z": prediction.depth}).write(str(path))
    except RuntimeError as error:  # of its own kind, a full disk among others
        raise OSError(errno.EIO, str(error)) from error


def _picture(paint: Painter) -> Save:
    def save(path: Path, prediction: Prediction, photo: np.ndarray | None, style: Style) -> None:
        path.write_bytes(_png(paint(prediction, photo, style)))

    return save


_DEPTH, _LABELS = ("depth",), ("segmentation",)
FORMATS: dict[str, tuple[Product, ...]] = {
    "png": (
        Product("depth", ".png", _DEPTH, _save_depth_png),
        Product("labels", ".png", _LABELS, _save_labels_png),
    ),
    "npy": (
        Product("depth_npy", ".npy", _DEPTH, _save_depth_npy),
        Product("labels_npy", ".npy", _LABELS, _save_labels_npy),
    ),
    "exr": (Product("depth_exr", ".exr", _DEPTH, _save_exr),),
    "color": (Product("depth_color", ".png", _DEPTH, _picture(paint_depth), paint_depth),),
    "overlay": (Product("overlay", ".png", _LABELS, _picture(paint_overlay), paint_overlay),),
    "panel": (Product("panel", ".png", _DEPTH + _LABELS, _picture(paint_panel), paint_panel),),
}
FOLDERS = tuple(dict.fromkeys(p.folder for products in FORMATS.values() for p in products))
"""Of the output folder, those with files."""
VIDEO_FORMATS = ("color", "overlay")
"""What a video becomes where no format that is a picture was asked for."""


def products_of(formats: Sequence[str], heads: Collection[str]) -> list[Product]:
    """The files that each picture gives.

    Args:
        formats: keys of ``FORMATS``; none takes ``png``, and ``color`` and ``overlay`` as far as
            the heads allow.
        heads: names of the model's heads.

    Raises:
        ValueError: an unknown format, one that the model has no head for, or a missing package.
    """
    chosen: list[Product] = []
    for name in formats or ("png", "color", "overlay"):
        if name not in FORMATS:
            raise ValueError(f"--format {name}: choose from {', '.join(FORMATS)}")
        fitting = [p for p in FORMATS[name] if set(p.needs) & set(heads)]
        if formats and not fitting:
            needed = " or ".join(dict.fromkeys(n for p in FORMATS[name] for n in p.needs))
            raise ValueError(
                f"--format {name} needs a {needed} head: this model has {', '.join(heads)}"
            )
        chosen += [p for p in fitting if p not in chosen]
    if "exr" in formats and find_spec("OpenEXR") is None:
        raise ValueError(
            '--format exr needs a package: pip install "dense-prediction-transformers[exr]"'
        )
    return chosen


def videos_of(products: Sequence[Product], heads: Collection[str]) -> list[Product]:
    """The files that each video gives: of every kind of picture asked for, or the usual ones."""
    chosen = [p for p in products if p.paint] or [
        p for name in VIDEO_FORMATS for p in FORMATS[name] if set(p.needs) & set(heads)
    ]
    return [Product(p.folder, ".mp4", p.needs, p.save, p.paint) for p in chosen]
