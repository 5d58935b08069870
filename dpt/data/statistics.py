"""Statistics of a data set: its bands, by which images are normalised, and weights of classes."""

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dpt.data.base import Dataset
from dpt.files import DataError
from dpt.types.preprocessing import Preprocessing

log = logging.getLogger("dpt")

IMAGES = 64  # evenly spaced in the data set
_PIXELS = 2**14  # of each image, evenly spaced
_PERCENTILES = (1, 99)
_USUAL_NODATA = (-999, -9999, -99999, -32768, float(np.finfo(np.float32).min))


def class_weights(counts: Sequence[int], power: float = 0.25) -> list[float]:
    """Returns (fraction of the pixels)^-power divided by the mean; 1 for classes without pixels."""
    weights = np.array([count or np.nan for count in counts], float) ** -power
    return np.nan_to_num(weights / np.nanmean(weights), nan=1.0).round(2).tolist()


def measure_bands(dataset: Dataset, *, images: int = IMAGES) -> Preprocessing | None:
    """Returns a preprocessing with mean and standard deviation of each band; None for RGB images.

    Values beyond the 1st and the 99th percentile count as these: a few saturated pixels, or some
    of an undeclared "no data", would change a plain deviation by orders of magnitude, and for other
    data the result is nearly the plain one. It depends on the data set alone.
    """
    rows: list[np.ndarray] = []
    for index in dataset.some_indices(images):
        with suppress(DataError):  # raised where training reads the file
            sample = dataset[index]
            dataset.check(sample)
            image = sample["image"]
            if image.dtype == np.uint8:
                return None
            step = max(1, round((image.shape[0] * image.shape[1] / _PIXELS) ** 0.5))
            rows.append(image[::step, ::step].reshape(-1, image.shape[2]))
    if not rows:
        return None
    if len({values.shape[1] for values in rows}) > 1:
        counts = sorted({values.shape[1] for values in rows})
        raise DataError(f"images have {counts} bands: train on images of one kind")
    pixels = np.concatenate(rows)
    for value in _USUAL_NODATA:
        fraction = np.mean(pixels == value)
        if fraction > 0.001:
            text = "%.1f %% of the values of bands are %g: set data.nodata if that means no data"
            log.warning(text, 100 * fraction, value)
    pairs = [_robust(values, k) for k, values in enumerate(pixels.T)]
    mean, std = zip(*pairs, strict=True)
    return Preprocessing(mean=mean, std=std, pixels="bands")


def _robust(values: np.ndarray, band: int) -> tuple[float, float]:
    """Returns mean and standard deviation of a band, to six digits; 1 for a constant band."""
    known = values[np.isfinite(values)].astype(np.float64)
    if not known.size:
        fault = f"band {band} has no data in the images that were read"
        raise DataError(f"{fault}: check data.nodata, or leave the band out by data.bands")
    usual = known.clip(*np.percentile(known, _PERCENTILES))
    if usual.min() == usual.max():  # measured at few pixels, and one value at all others
        usual = known
    mean, std = float(f"{usual.mean():.6g}"), float(f"{usual.std():.6g}")
    return mean, std if std > 0 else 1.0
