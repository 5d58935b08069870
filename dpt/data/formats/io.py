"""Reads images, depth maps and label files. No other package decodes them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpt.data.formats import arrays, pictures, rules
from dpt.data.formats.bands import Bands, FilePart, read_bands
from dpt.files import DataError, check_pixels, few, read_bytes

JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".jpe", ".mpo")
IMAGE_SUFFIXES = (*JPEG_SUFFIXES, ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
BAND_SUFFIXES = (*IMAGE_SUFFIXES, ".npy")  # of images whose bands are chosen
UNREAD_SUFFIXES = (
    *(".heic", ".heif", ".avif", ".gif", ".jp2", ".jxl", ".exr", ".hdr", ".psd", ".svg", ".pdf"),
    *(".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2", ".raw"),
)
"""Pictures, also raw ones of cameras, in formats that are not read as images."""
_ARRAY_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5", ".mat")
_MAP_SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", *_ARRAY_SUFFIXES, ".pgm")
# A new format needs its suffix here and its decoder in ARRAY_READERS (arrays.py) or, for
# pictures, in _FORMATS (pictures.py).
LABEL_SUFFIXES = (*_MAP_SUFFIXES, ".gif", ".webp", ".ppm")
DEPTH_SUFFIXES = (*_MAP_SUFFIXES, ".pfm", ".exr")

WITHOUT_DATA = rules.TRANSPARENT + 1
"""Stands for pixels that are unlabelled as their image has no data, in counts of label files."""

_FEW_BITS = 14
"""Images of 16 bits with smaller values only were probably made by a camera of fewer bits."""


_WHOLE = FilePart()


def read_image(
    path: str | Path,
    *,
    exif: bool = False,
    data: bytes | None = None,
    part: FilePart = _WHOLE,
) -> np.ndarray:
    """Reads a JPEG, PNG, WebP, BMP, TIFF or PPM file as uint8 (H, W, 3) RGB, or its bands.

    Transparent pixels are shown over white. With ``part.bands``, also of a NumPy file, the image is
    float32 (H, W, C) unless it is 8-bit RGB, see :mod:`dpt.data.formats.bands`.

    Args:
        exif: turn the picture upright by its EXIF orientation, as viewers do.
        data: the file's content, if known; ``path`` is then for messages only.
        part: bands and range of files that hold more than 8-bit grey or RGB.
    """
    data = data or read_bytes(path)
    if part.bands is None:
        image = _read_rgb(path, data, part)
    else:
        image = image_of_bands(read_bands(path, part, data=data), part)
    return pictures.turned_upright(image, pictures.orientation_of(data)) if exif else image


def _read_rgb(path: str | Path, data: bytes, part: FilePart) -> np.ndarray:
    """Returns a picture as uint8 RGB (H, W, 3)."""
    picture = pictures.decode_picture(path, data)
    colors, alpha = picture.colors if part.image_max is None else picture.own_values, picture.alpha
    rgb = colors if colors.ndim == 3 else np.repeat(colors[..., None], 3, axis=2)
    image = _eight_bits(path, rgb, part.image_max)
    if alpha is None or alpha.min() == np.iinfo(alpha.dtype).max:
        return image
    return pictures.over_white(np.dstack([image, alpha >> 8 * (alpha.itemsize - 1)]))


def image_of_bands(bands: Bands, part: FilePart) -> np.ndarray:
    """Returns bands as uint8 RGB (H, W, 3), or float32 (H, W, C), NaN where there is no data."""
    count = bands.values.shape[2]
    if not bands.is_rgb and part.image_max is None:
        return bands.own_values()
    if count not in (1, 3):
        raise DataError(f"{bands.path}: data.image_max is for one or three bands, not {count}")
    return _eight_bits(bands.path, np.repeat(bands.values, 3 // count, axis=2), part.image_max)


def _eight_bits(path: str | Path, image: np.ndarray, image_max: float | None) -> np.ndarray:
    """Returns RGB as uint8; DataError if it is not certain which value is white."""
    if image.dtype == np.uint8:
        return image
    if image_max is not None:
        scaled = np.nan_to_num(image.astype(np.float32)) * np.float32(255 / image_max)
        return np.rint(scaled.clip(0, 255)).astype(np.uint8)
    largest = image.max()
    if image.dtype != np.uint16:
        fault = f"pixels are {image.dtype}, not 8-bit"
    elif (image == image[..., :1]).all():
        fault = "a 16-bit single-channel file looks like depth, not like an image"
    elif largest < 1 << _FEW_BITS:
        fault = f"largest value is {largest}, as of {max(9, int(largest).bit_length())} bits"
    else:
        return (image >> 8).astype(np.uint8)
    remedy = "data.bands=all to use the values as they are, or data.image_max to that of white"
    raise DataError(f"{path}: {fault}: set {remedy}")


def read_depth(
    path: str | Path,
    *,
    key: str | None = None,
    scale: float = 1.0,
    invalid: Sequence[float] = (0.0,),
    min_depth: float = 0.0,
    max_depth: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns depth, float32 (H, W) in metres, 0 where invalid, and its validity, bool (H, W).

    :func:`read_raw_depth` explains ``key``, :class:`DepthRule` the other options.
    """
    rule = rules.DepthRule(scale=scale, invalid=invalid, min_depth=min_depth, max_depth=max_depth)
    return rule(read_raw_depth(path, key=key))


def read_raw_depth(path: str | Path, *, key: str | None = None) -> np.ndarray:
    """Returns the numbers of a depth file as stored, (H, W); 0 where it is transparent, or where
    the mask of valid pixels beside it is 0, as ``a_depth_mask.npy`` of DIODE's ``a_depth.npy``.

    Args:
        path: PNG, TIFF or PGM of any number of bits, PFM, NPY, NPZ, EXR, HDF5 or MATLAB.
        key: name of the array in files that hold several: an EXR channel, an HDF5 data set, a
            variable of a ``.mat`` or ``.npz`` file. None: the only map.
    """
    stored = _read_stored(path, FilePart(key=key))
    raw = stored.pixels if stored.palette is None else stored.colors
    if raw.ndim == 3 and (raw == raw[..., :1]).all():  # grey in three channels
        raw = raw[..., 0]
    if "near" in stored.texts:
        raise DataError(f"{path}: MoGe's logarithms of depth: save metres, as TIFF or NPY")
    if raw.ndim != 2 or raw.dtype.kind not in "uif":
        fault = f"depth must be numbers of (H, W), found {raw.dtype} {raw.shape}"
        raise DataError(f"{path}: {fault}: check data.depth, or convert colours to one channel")
    check_pixels(path, *raw.shape)
    if stored.alpha is not None:
        raw = np.where(stored.alpha == 0, raw.dtype.type(0), raw)
    mask = mask_of_depth(path)
    if mask is not None:
        raw = np.where(_read_stored(mask, _WHOLE).pixels > 0, raw, raw.dtype.type(0))
    return raw


def mask_of_depth(path: str | Path) -> Path | None:
    """Returns the mask of valid pixels beside a depth file, if there is one."""
    name = Path(path)
    mask = name.with_name(f"{name.stem}_mask{name.suffix}")
    return mask if name.stem.lower().endswith("depth") and mask.is_file() else None


def _read_stored(path: str | Path, part: FilePart) -> pictures.Picture:
    """Reads a depth or label file: a picture, or an array as one."""
    reader = arrays.ARRAY_READERS.get(Path(path).suffix.lower())
    if reader is not None:
        array = _without_one_hot(_without_single_axes(reader(path, part.key)))
        if array.ndim == 3 and array.shape[2] == 4:
            return pictures.Picture(pixels=array[..., :3], alpha=array[..., 3])
        return pictures.Picture(pixels=array)
    return pictures.decode_picture(path, read_bytes(path))


def _without_single_axes(array: np.ndarray) -> np.ndarray:
    """Returns (H, W) of arrays (1, H, W) or (H, W, 1)."""
    while array.ndim > 2 and 1 in (array.shape[0], array.shape[-1]):
        array = array[0] if array.shape[0] == 1 else array[..., 0]
    return array


def _without_one_hot(array: np.ndarray) -> np.ndarray:
    """Returns the class (H, W) of each pixel of a one-hot array (H, W, K) or (K, H, W)."""
    if array.ndim == 3 and np.isin(array, (0, 1)).all():
        for axis in (2, 0):
            if (array.sum(axis=axis) == 1).all():
                return array.argmax(axis=axis)
    return array


def read_labels(
    path: str | Path,
    *,
    colors: Sequence[Sequence[int]] | None = None,
    distance: int | None = None,
    part: FilePart = _WHOLE,
) -> np.ndarray:
    """Returns class ids, an integer array (H, W) of the file's own type.

    If some pixels are transparent, it is int64 with ``TRANSPARENT`` there.

    Args:
        path: PNG (also with a palette, whose indices are the ids), TIFF, BMP, GIF, PGM, lossless
            WebP, or arrays as in :func:`read_raw_depth`.
        colors: an RGB row for each id, for RGB files. A colour for "unlabelled" goes after the
            last class; its row number is the ignore index. None: the ids of an RGB file are in all
            three channels, or in R alone with 0 in the others.
        distance: a colour that ``colors`` lacks becomes the nearest row if no channel differs by
            more than this, and ``OTHER_COLOR`` otherwise. Then the colours of palettes count, not
            their indices, and those of files that are black and white alone. None: a colour that
            ``colors`` lacks is an error.
        part: the name of the array.
    """
    use_palette = distance is not None
    labels, clear = _read_stored_labels(path, part, use_palette=use_palette, code=part.code)
    ids = labels if clear is None else labels[~clear][None]
    if ids.ndim == 3:
        ids = ids_of_colors(path, ids, colors or (), distance)
    if clear is None:
        return ids
    every_id = np.full(clear.shape, rules.TRANSPARENT)
    every_id[~clear] = ids[0]
    return every_id


def read_ids(path: str | Path, rule: rules.LabelRule, part: FilePart) -> np.ndarray:
    """Returns ids of a label file as stored, or of its colours, (H, W), for a rule to convert."""
    return read_labels(path, colors=rule.colors, distance=rule.color_distance, part=part)


def read_classes(
    path: Path, num_classes: int, *, colors: Sequence[Sequence[int]] | None = None
) -> np.ndarray:
    """Returns predicted class ids (H, W): those of :func:`read_labels`, or of an array (K, H, W) or
    (H, W, K) of real numbers, logits or probabilities, the class with the largest."""
    reader = arrays.ARRAY_READERS.get(path.suffix.lower())
    scores = None if reader is None else reader(path, None)
    if scores is None or scores.ndim != 3 or scores.dtype.kind != "f":
        return read_labels(path, colors=colors)
    axes = [axis for axis in (0, 2) if scores.shape[axis] == num_classes]
    if not axes or np.isnan(scores).any():
        fault = f"{scores.dtype} {scores.shape}, not scores of {num_classes} classes without NaN"
        raise DataError(f"{path}: holds {fault}: save (K, H, W), or class ids")
    return scores.argmax(axes[0])


def _read_stored_labels(
    path: str | Path,
    part: FilePart,
    *,
    use_palette: bool = False,
    code: rules.LabelCode | None = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the integers (H, W), or the colours uint8 (H, W, 3), of a label file, and where it
    is transparent, bool (H, W); None if it is nowhere.

    Args:
        use_palette: see :func:`_with_colors`.
        code: how the values tell objects, whose classes are returned.
    """
    stored = _read_stored(path, part)
    labels = _with_colors(stored) if use_palette else stored.pixels
    if code is not None:
        values = labels if labels.ndim == 3 else labels[..., None]
        if code != "object" and (code in ("ade20k", "red")) != (values.shape[2] == 3):
            fault = f"data.label_code={code} does not fit {labels.dtype} {labels.shape}"
            raise DataError(f"{path}: {fault}: ade20k and red are for RGB, class1000 etc. for ids")
        labels = rules.classes_of_code(values, code)
    labels = labels.astype(np.uint8) if labels.dtype == bool else labels
    levels = [] if stored.alpha is None else np.unique(stored.alpha).tolist()
    if fault := _fault_of_labels(labels, levels, stored.lossy):
        raise DataError(f"{path}: {fault}: save labels as single-channel PNG")
    check_pixels(path, *labels.shape[:2])
    return labels, None if stored.alpha is None or 0 not in levels else stored.alpha == 0


def _fault_of_labels(labels: np.ndarray, alpha_levels: Sequence[int], lossy: str) -> str:
    """Returns why the pixels of a file are no labels; empty if they are."""
    is_color = labels.shape[2:] == (3,) and labels.dtype == np.uint8
    if lossy:
        return f"{lossy} compression changes class ids"
    if not is_color and (labels.ndim != 2 or labels.dtype.kind not in "ui"):
        return f"found {labels.dtype} {labels.shape}, not one class id per pixel"
    if alpha_levels == [0] or len({*alpha_levels} - {0}) > 1:
        # clear everywhere, or of several values, which may be a part of the ids
        return f"its alpha is {few([str(level) for level in alpha_levels], 6)}, not opaque or 0"
    return ""


def _with_colors(stored: pictures.Picture) -> np.ndarray:
    """Returns the colours of a palette in place of its indices, and RGB of grey that is black and
    white alone: programs save pictures so that have no other colours."""
    colors = stored.colors
    if colors.ndim == 2 and colors.dtype == np.uint8 and np.isin(colors, (0, 255)).all():
        return np.repeat(colors[..., None], 3, axis=2)
    return stored.pixels if stored.palette is None else colors


def read_objects(path: str | Path, *, part: FilePart = _WHOLE) -> np.ndarray:
    """Returns object ids, int64 (H, W), 0 where the file is transparent.

    The file holds whole numbers, or R + 256 G + 65536 B as an RGB picture.
    """
    labels, clear = _read_stored_labels(path, part)
    ids = labels.astype(np.int64)
    if ids.ndim == 3:
        ids = ids @ np.array([1, 256, 65536])
    return ids if clear is None else np.where(clear, 0, ids)


def label_values(
    path: str | Path,
    *,
    part: FilePart = _WHOLE,
    use_palette: bool = False,
) -> dict[tuple[int, ...], int]:
    """Counts the opaque pixels of a label file by class id ``(i,)`` or by colour ``(r, g, b)``.

    Args:
        use_palette: see :func:`_with_colors`.
    """
    labels, clear = _read_stored_labels(path, part, use_palette=use_palette, code=part.code)
    labels = labels if clear is None else labels[~clear][None]
    if labels.ndim == 3:
        return count_colors(path, labels)
    values, counts = np.unique(labels, return_counts=True)
    return {(i,): n for i, n in zip(values.tolist(), counts.tolist(), strict=True)}


def palettes_disagree(
    paths: Sequence[Path], part: FilePart, colors: Sequence[Sequence[int]] = ()
) -> bool:
    """Returns whether an index has several colours in label files and the table ``colors``, and
    one of these several indices, as of programs that make a palette for each picture."""
    if len({pictures.palette_of(path) for path in paths} - {b""}) + bool(colors) < 2:
        return False
    pairs = {(i, tuple(color)) for i, color in enumerate(colors)}
    for path in paths:
        stored = _read_stored(path, part)
        if stored.palette is not None:
            pairs |= {(i, tuple(stored.palette[i].tolist())) for i in np.unique(stored.pixels)}
    colors_of_index, indices_of_color = Counter(i for i, _ in pairs), Counter(c for _, c in pairs)
    return any(colors_of_index[i] > 1 and indices_of_color[color] > 1 for i, color in pairs)


MAX_COLORS = 1 << 16
"""Largest number of colours of a label file whose colours stand for classes."""
MAX_RED_ID = 63
"""Largest id in the red channel of an RGB label file; larger values are those of red colours."""
_PACKED = np.array([65536, 256, 1], np.int32)  # from R, G and B to one number


def count_colors(path: str | Path, rgb: np.ndarray) -> dict[tuple[int, ...], int]:
    """Returns the number of pixels of each colour; DataError if a picture has too many."""
    packed = (rgb.astype(np.int32) @ _PACKED).ravel()
    starts = np.flatnonzero(np.append(True, packed[1:] != packed[:-1]))  # of runs of one colour
    codes, positions = np.unique(packed[starts], return_inverse=True)  # much faster than of pixels
    counts = np.bincount(positions, np.diff(starts, append=packed.size)).astype(int)
    if len(codes) > MAX_COLORS:
        raise DataError(f"{path}: a picture of {len(codes)} colours, not labels: check data.labels")
    colors = map(tuple, _unpacked(codes).tolist())
    return dict(zip(colors, counts.tolist(), strict=True))


def _unpacked(codes: np.ndarray) -> np.ndarray:
    """Returns R, G and B, (N, 3), of packed colours."""
    return np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)


def ids_of_colors(
    path: str | Path, rgb: np.ndarray, colors: Sequence[Sequence[int]], distance: int | None
) -> np.ndarray:
    """Returns the id of each pixel's colour: its row in ``colors``.

    Args:
        rgb: uint8 (H, W, 3).
        colors: without rows, the ids are in all three channels, or in R alone with 0 in the others.
        distance: a colour that ``colors`` lacks becomes the nearest row if no channel differs by
            more than this, and ``OTHER_COLOR`` otherwise. None: such a colour is an error.
    """
    if not colors:
        return _ids_in_channels(path, rgb)
    codes = np.asarray(colors, np.int32) @ _PACKED
    if len(np.unique(codes)) < len(codes):
        raise DataError("data.label_colors has a colour twice: give each id its own")
    packed = rgb.astype(np.int32) @ _PACKED
    order = np.argsort(codes)
    ids = order[np.searchsorted(codes, packed, sorter=order).clip(max=len(codes) - 1)]
    unknown = codes[ids] != packed
    if not unknown.any():
        return ids.astype(np.uint8 if len(codes) <= 256 else np.uint16)
    if distance is None:
        fault = f"colour {rgb[unknown][0].tolist()} ({int(unknown.sum())} pixels) has no class"
        raise DataError(f"{path}: {fault}: add it to data.label_colors")
    from scipy.spatial.distance import cdist  # slow to import

    count_colors(path, rgb)  # refuses pictures
    strange, positions = np.unique(packed[unknown], return_inverse=True)
    distances = cdist(_unpacked(strange), np.asarray(colors), "chebyshev")
    is_near = distances.min(axis=1) <= distance
    nearest = np.where(is_near, distances.argmin(axis=1), rules.OTHER_COLOR)
    ids[unknown] = nearest[positions]
    return ids


def _ids_in_channels(path: str | Path, rgb: np.ndarray) -> np.ndarray:
    """Returns the ids that an RGB file holds as numbers."""
    red, green, blue = np.moveaxis(rgb, 2, 0)
    is_dark_red = red.max() <= MAX_RED_ID and not green.any() and not blue.any()
    if is_dark_red or ((green == red).all() and (blue == red).all()):
        return red
    colors = [list(color) for color in count_colors(path, rgb)]
    shown = str(colors).replace(" ", "") if len(colors) <= 12 else "[[r,g,b],...]"
    fault = f"an RGB picture of {len(colors)} colours, not of class ids"
    raise DataError(f"{path}: {fault}: set data.label_colors={shown}, a row for each id")
