"""Files of any size, predicted tile by tile into TIFF files with the same georeference.

The tiles are those of :mod:`dpt.tiling`, at the file's own resolution. A panel of columns is
predicted from top to bottom and written as it is finished, so that the memory does not depend on
the size of the file.
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
from dpt.predict.prediction import first_output, require_finite
from dpt.predict.predictor import Predictor, batches
from dpt.tiling import Blend, tile_spans
from dpt.types.outputs import OutputSpec
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
        if self.spec.is_direction:
            mean = F.normalize(mean, dim=1)
        array = mean[0].cpu().numpy()
        if not (np.isfinite(array).all(axis=0) | missing).all():
            require_finite([self.spec.name])
        values = array.argmax(axis=0) if self.spec.kind == "logits" else array
        return np.where(missing, self.nodata, values).astype(self.dtype)


class RasterPrediction:
    """The prediction of a raster, computed in steps: a row of tiles of a panel each.

    Args:
        files: for each output that is written, its TIFF file. Depth without sky needs that of the
            sky, too.
        camera: of the raster, whose focal length canonical depth needs.

    Raises:
        DataError: the file lacks the bands that the model takes, or its depth cannot be predicted
            tile by tile.
    """

    def __init__(
        self,
        predictor: Predictor,
        raster: Raster,
        files: Mapping[str, RasterFile],
        camera: Camera | None = None,
    ) -> None:
        self.predictor, self.raster, self.files = predictor, raster, files
        size = predictor.preprocessing.image_size
        self.tile = size if predictor.tile is None else (predictor.tile, predictor.tile)
        self.input_size = predictor.preprocessing.input_size(*self.tile)
        height, width = raster.size
        self._rows = tile_spans(max(height, self.tile[0]), self.tile[0])
        self._columns = tile_spans(max(width, self.tile[1]), self.tile[1])
        self._panels = [slice(left, min(left + PANEL, width)) for left in range(0, width, PANEL)]
        self._camera = camera and Camera(camera.K, self.tile).resized(self.input_size)
        self.outputs = predictor.outputs_for(self._camera)
        depth = first_output(self.outputs, "depth")
        self._depth_name = "" if depth is None else depth.name
        self._sky_name = "" if predictor.sky_output is None else predictor.sky_output.name
        fault = self._fault()
        if fault:
            raise DataError(f"{raster.path}: {fault}")

    def _fault(self) -> str:
        """Returns why the raster cannot be predicted; empty if it can."""
        rule, raster = self.predictor.preprocessing, self.raster
        fits = raster.count == len(rule.mean)
        if rule.is_rgb:
            is_scaled = raster.dtype == "uint8" or rule.image_max is not None
            fits = raster.count in (1, 3) and is_scaled
        if not fits:
            form = f"{plural(raster.count, 'band')} of {raster.dtype}"
            expected = "8-bit RGB" if rule.is_rgb else plural(len(rule.mean), "band")
            return f"holds {form}, and the model takes {expected}"
        specs = [self.outputs[n] for n, file in self.files.items() if file.spec.kind == "depth"]
        is_metric = all(spec.depth_kind == "metric" for spec in specs)
        if not is_metric and len(self._rows) * len(self._columns) > 1:
            remedy = "name --format png, or calibrate the model (dpt calibrate)"
            if self.predictor.needs_camera:
                remedy = f"give --fov, --focal or --intrinsics, {remedy}"
            return f"relative depth has another scale in every window: {remedy}"
        if self._sky_name and self.predictor.sky == "far":
            remedy = "choose invalid or keep, or name --format png"
            return f"sky=far needs the depth of whole images: {remedy}"
        return ""

    def __len__(self) -> int:
        return len(self._panels) * len(self._rows)

    @torch.inference_mode()
    def write(self, writers: Mapping[str, RasterWriter]) -> Iterator[None]:
        """Predicts and writes everything; yields after each step."""
        for panel in self._panels:
            tiles = [c for c in self._columns if c.start < panel.stop and c.stop > panel.start]
            strip = slice(tiles[0].start, tiles[-1].stop)
            inside = slice(panel.start - strip.start, panel.stop - strip.start)
            blend = Blend(smooth=True)
            for rows, following in zip_longest(self._rows, self._rows[1:]):
                pixels, missing = self._read(rows, strip)
                self._add_tiles(blend, pixels, [tile.start - strip.start for tile in tiles])
                stop = self.raster.size[0] if following is None else following.start
                count = stop - rows.start
                window = Window(rows.start, panel.start, count, panel.stop - panel.start)
                means = {name: mean[..., inside] for name, mean in blend.take_rows(count).items()}
                self._write(writers, means, missing[:count, inside], window)
                yield

    def _write(
        self,
        writers: Mapping[str, RasterWriter],
        means: Mapping[str, Tensor],
        missing: np.ndarray,
        window: Window,
    ) -> None:
        """Writes outputs (1, C, h, w) of a window, in which pixels are ``missing``, bool (h, w)."""
        without_depth = missing
        if self._sky_name in means:
            sky = means[self._sky_name][0, 0].cpu().numpy()
            without_depth = missing | (self.files[self._sky_name].spec.threshold <= sky)
        for name, writer in writers.items():
            empty = without_depth if name == self._depth_name else missing
            writer.write(self.files[name].encode(means[name], empty), window)

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pixels (h, w, C) of a strip, and where no band has data, bool (h, w).

        A raster that is smaller than a tile is enlarged as a view outside an image.
        """
        height, width = self.raster.size
        bands = self.raster.read(
            slice(rows.start, min(rows.stop, height)),
            slice(columns.start, min(columns.stop, width)),
        )
        is_rgb = self.predictor.preprocessing.is_rgb
        own_values = bands.own_values()
        image = image_of_bands(bands, self.raster.part) if is_rgb else own_values
        missing = np.isnan(own_values).all(axis=2)
        margins = (0, max(rows.stop - height, 0)), (0, max(columns.stop - width, 0))
        fill = GREY if is_rgb else np.nan
        return np.pad(image, (*margins, (0, 0)), constant_values=fill), np.pad(missing, margins)

    def _add_tiles(self, blend: Blend, pixels: np.ndarray, starts: Sequence[int]) -> None:
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
                    values = self.predictor.in_range(name, values, self._camera)
                    blend.add(name, values, (pixels.shape[0], pixels.shape[1]), left=start)
