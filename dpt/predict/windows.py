"""TIFF files of any size, predicted window by window into TIFF files with the same georeference.

The windows are tiles at the file's own resolution, which overlap and are blended as those of
:mod:`dpt.predict.tiling`. A panel of columns is predicted from top to bottom and written as it is
finished, so that the memory does not depend on the size of the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data.formats.bands import Raster, RasterWriter
from dpt.data.formats.io import image_of_bands
from dpt.data.resize import resize_image
from dpt.data.view import GREY
from dpt.files import DataError, plural
from dpt.functional import resize
from dpt.geometry import Camera, Window
from dpt.predict.prediction import Prediction, first_output
from dpt.predict.predictor import Predictor, batches
from dpt.predict.tiling import Blend, tile_spans
from dpt.types.outputs import OutputSpec
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX
from dpt.viz import output_palette

PANEL = 2048  # columns that are predicted from top to bottom


@dataclass(frozen=True)
class RasterFile:
    """How an output is stored in a TIFF file."""

    spec: OutputSpec

    @property
    def dtype(self) -> str:
        if self.spec.kind != "logits":
            return "float32"
        return "uint8" if (self.spec.num_classes or 0) <= IGNORE_INDEX else "uint16"

    @property
    def nodata(self) -> float:
        """The value of pixels without data: the largest of an integer type, or NaN."""
        return np.nan if self.dtype == "float32" else float(np.iinfo(self.dtype).max)

    @contextmanager
    def writing(self, source: Raster, path: Path) -> Iterator[RasterWriter]:
        """Opens the file for writing, with the size and the georeference of ``source``."""
        count = self.spec.channels or 1 if self.spec.kind == "map" else 1
        with source.writing(path, count=count, dtype=self.dtype, nodata=self.nodata) as writer:
            if self.dtype == "uint8":
                writer.set_colors(output_palette(self.spec))
            yield writer

    def encode(self, mean: Tensor, missing: np.ndarray) -> np.ndarray:
        """Returns what is stored of an output (1, C, h, w): class ids (h, w), or (C, h, w)."""
        array = mean[0].cpu().numpy()
        values = array.argmax(axis=0) if self.spec.kind == "logits" else array
        return np.where(missing, self.nodata, values).astype(self.dtype)


class RasterPrediction:
    """The prediction of a raster, computed in steps: a row of tiles of a panel each.

    Args:
        files: for each output that is written, its TIFF file. Depth without sky needs that of the
            sky, too.
        camera: of the raster, whose focal length canonical depth needs.
    """

    def __init__(
        self,
        predictor: Predictor,
        raster: Raster,
        files: Mapping[str, RasterFile],
        camera: Camera | None = None,
    ) -> None:
        self.predictor, self.raster, self.files = predictor, raster, files
        _check_bands(raster, predictor.preprocessing)
        size = predictor.preprocessing.image_size
        self.tile = size if predictor.tile is None else (predictor.tile, predictor.tile)
        self.input_size = predictor.preprocessing.input_size(*self.tile)
        height, width = raster.size
        self._rows = tile_spans(max(height, self.tile[0]), self.tile[0])
        self._columns = tile_spans(max(width, self.tile[1]), self.tile[1])
        self._panels = [slice(left, min(left + PANEL, width)) for left in range(0, width, PANEL)]
        self._camera = camera and Camera(camera.K, self.tile).resized(self.input_size)
        self.outputs = predictor.outputs_for(self._camera)
        specs = [self.outputs[name] for name, file in files.items() if file.spec.kind == "depth"]
        is_relative = any(spec.depth_kind != "metric" for spec in specs)
        if is_relative and len(self._rows) * len(self._columns) > 1:
            fault = "relative depth has another scale in every window"
            remedy = "name --format png, or calibrate the model (dpt calibrate)"
            if predictor.needs_camera:
                remedy = f"give --fov, --focal or --intrinsics, {remedy}"
            raise DataError(f"{raster.path}: {fault}: {remedy}")
        self._sky = predictor.sky_output
        depth = first_output(self.outputs, "depth")
        self._depth_name = "" if depth is None else depth.name
        if self._sky is not None and predictor.sky == "far":
            remedy = "choose invalid or keep, or name --format png"
            raise DataError(f"{raster.path}: sky=far needs the depth of whole images: {remedy}")

    def __len__(self) -> int:
        return len(self._panels) * len(self._rows)

    @torch.inference_mode()
    def write(self, writers: Mapping[str, RasterWriter]) -> Iterator[None]:
        """Predicts and writes everything; yields after each step."""
        for panel in self._panels:
            tiles = [c for c in self._columns if c.start < panel.stop and c.stop > panel.start]
            strip = slice(tiles[0].start, tiles[-1].stop)
            inside = slice(panel.start - strip.start, panel.stop - strip.start)
            blends: dict[str, Blend] = {}
            for rows, following in zip_longest(self._rows, self._rows[1:]):
                pixels, missing = self._read(rows, strip)
                self._add_tiles(blends, pixels, [tile.start - strip.start for tile in tiles])
                stop = self.raster.size[0] if following is None else following.start
                count = stop - rows.start
                window = Window(rows.start, panel.start, count, panel.stop - panel.start)
                missing_of = dict.fromkeys(blends, missing[:count, inside])
                for name in sorted(blends, key=lambda name: not self._is_sky(name)):
                    mean = blends[name].take_rows(count)[..., inside]
                    if self._is_sky(name):
                        sky = self.files[name].spec.threshold <= mean[0, 0].cpu().numpy()
                        missing_of[self._depth_name] = missing[:count, inside] | sky
                    if name in writers:
                        writers[name].write(self._encode(name, mean, missing_of[name]), window)
                yield

    def _is_sky(self, name: str) -> bool:
        """Whether an output is the map of the sky that is cut out of depth."""
        return self._sky is not None and self._sky.name == name

    def _encode(self, name: str, mean: Tensor, missing: np.ndarray) -> np.ndarray:
        """Returns what is stored of an output."""
        if self.files[name].spec.is_direction:
            mean = F.normalize(mean, dim=1)
        self._require_finite(name, mean, missing)
        return self.files[name].encode(mean, missing)

    def _require_finite(self, name: str, mean: Tensor, missing: np.ndarray) -> None:
        is_finite = mean[0].isfinite().all(dim=0).cpu().numpy()
        if not (is_finite | missing).all():
            Prediction({}, self.predictor.outputs, not_finite=(name,)).require_finite()

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pixels (h, w, C) of a strip, and where no band has data, bool (h, w).

        A raster that is smaller than a tile is enlarged as a view outside an image.
        """
        height, width = self.raster.size
        inside = (
            slice(rows.start, min(rows.stop, height)),
            slice(columns.start, min(columns.stop, width)),
        )
        preprocessing = self.predictor.preprocessing
        bands = self.raster.read(*inside)
        own_values = bands.own_values()
        image = image_of_bands(bands, self.raster.part) if preprocessing.is_rgb else own_values
        missing = np.isnan(own_values).all(axis=2)
        margins = (0, rows.stop - inside[0].stop), (0, columns.stop - inside[1].stop)
        fill = GREY if preprocessing.is_rgb else np.nan
        return np.pad(image, (*margins, (0, 0)), constant_values=fill), np.pad(missing, margins)

    def _add_tiles(
        self, blends: dict[str, Blend], pixels: np.ndarray, starts: Sequence[int]
    ) -> None:
        """Predicts the tiles of a strip, which begin at the columns ``starts``, and blends them."""
        rule = self.predictor.preprocessing
        for positions in batches(starts, self.predictor.batch_size, key=lambda _: None):
            tiles = [pixels[:, start : start + self.tile[1]] for start in positions]
            inputs = [resize_image(x, self.input_size, rule=rule.interpolation) for x in tiles]
            for start, outputs in zip(positions, self.predictor.run(inputs), strict=True):
                for name, file in self.files.items():
                    values = outputs[name]
                    if file.spec.kind == "logits":  # as in evaluation
                        values = resize(values, self.input_size, "bilinear_aligned")
                    values = resize(values, self.tile, rule.output_interpolation)
                    if name not in blends:
                        blends[name] = Blend(values, pixels.shape[:2])
                    values = self.predictor.in_range(name, values, self._camera)
                    blends[name].add(values, 0, start)


def _check_bands(raster: Raster, preprocessing: Preprocessing) -> None:
    """Raises DataError if a file has not the bands that a model takes."""
    count = len(preprocessing.mean)
    fits = raster.count == count
    if preprocessing.is_rgb:
        is_scaled = raster.dtype == "uint8" or preprocessing.image_max is not None
        fits = raster.count in (1, 3) and is_scaled
    if not fits:
        form = f"{plural(raster.count, 'band')} of {raster.dtype}"
        expected = "8-bit RGB" if preprocessing.is_rgb else plural(count, "band")
        raise DataError(f"{raster.path}: holds {form}, and the model takes {expected}")
