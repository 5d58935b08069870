"""Files of any size, predicted tile by tile into TIFF files with the same georeference.

The tiles are those of :mod:`dpt.tiling`, at the file's own resolution. A panel of columns is
predicted from top to bottom and written as it is finished, so that the memory does not depend on
the size of the file.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from dpt.types.samples import IGNORE_INDEX
from dpt.viz import output_palette

PANEL = 2048  # columns that are predicted from top to bottom


class RasterPrediction:
    """The prediction of a raster, computed in steps: a row of tiles of a panel each.

    Args:
        camera: of the raster, whose focal length canonical depth needs.

    Attributes:
        outputs: declaration of the outputs that are predicted: the dense ones but segments.

    Raises:
        DataError: the file lacks the bands that the model takes, or its depth cannot be predicted
            tile by tile.
    """

    def __init__(self, predictor: Predictor, raster: Raster, camera: Camera | None = None) -> None:
        self.predictor, self.raster = predictor, raster
        size = predictor.preprocessing.image_size
        self.tile = size if predictor.tile is None else (predictor.tile, predictor.tile)
        self.input_size = predictor.preprocessing.input_size(*self.tile)
        height, width = raster.size
        self._rows = tile_spans(max(height, self.tile[0]), self.tile[0])
        self._columns = tile_spans(max(width, self.tile[1]), self.tile[1])
        self._panels = [slice(left, min(left + PANEL, width)) for left in range(0, width, PANEL)]
        self._camera = camera and Camera(camera.K, self.tile).resized(self.input_size)
        outputs = predictor.outputs_for(self._camera).items()
        self.outputs = {name: s for name, s in outputs if s.dense and s.kind != "masks"}
        depth = first_output(self.outputs, "depth")
        self._depth_name = "" if depth is None else depth.name
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
        kinds = {spec.depth_kind for spec in self.outputs.values() if spec.kind == "depth"}
        if kinds - {"metric"} and len(self._rows) * len(self._columns) > 1:
            remedy = "give --fov, --focal or --intrinsics if the model has a canonical focal length"
            fault = "relative depth has another scale in every window"
            return f"{fault}: {remedy}, name --format png, or calibrate it (dpt calibrate)"
        if self.predictor.sky_output is not None and self.predictor.sky == "far":
            return "sky=far needs whole images: choose invalid or keep, or name --format png"
        return ""

    def _dtype(self, name: str) -> str:
        """Returns the type of an output's file."""
        if self.outputs[name].kind != "logits":
            return "float32"
        return "uint8" if (self.outputs[name].num_classes or 0) <= IGNORE_INDEX else "uint16"

    def _nodata(self, name: str) -> float:
        """Returns the value of pixels without data: the largest of an integer type, or NaN."""
        dtype = self._dtype(name)
        return np.nan if dtype == "float32" else float(np.iinfo(dtype).max)

    def __len__(self) -> int:
        return len(self._panels) * len(self._rows)

    @torch.inference_mode()
    def write(self, paths: Mapping[str, Path]) -> Iterator[None]:
        """Predicts everything, and writes the outputs named to TIFF files with the georeference of
        the raster; yields after each step."""
        with ExitStack() as stack:
            writers: dict[str, RasterWriter] = {}
            for name, path in paths.items():
                spec, dtype = self.outputs[name], self._dtype(name)
                count = spec.channels or 1 if spec.kind == "map" else 1
                form = self.raster.writing(
                    path, count=count, dtype=dtype, nodata=self._nodata(name)
                )
                writers[name] = stack.enter_context(form)
                if dtype == "uint8":
                    writers[name].set_colors(output_palette(spec))
            for panel in self._panels:
                yield from self._write_panel(panel, writers)

    def _write_panel(self, panel: slice, writers: Mapping[str, RasterWriter]) -> Iterator[None]:
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
            empty = missing[:count, inside]
            without_depth, sky = empty, self.predictor.sky_output
            if sky is not None:
                without_depth = empty | (sky.threshold <= means[sky.name][0, 0].cpu().numpy())
            for name, writer in writers.items():
                without = without_depth if name == self._depth_name else empty
                writer.write(self._encoded(name, means[name], without), window)
            yield

    def _encoded(self, name: str, mean: Tensor, missing: np.ndarray) -> np.ndarray:
        """Returns what is stored of an output (1, C, h, w): class ids (h, w), or (C, h, w), without
        the ``missing`` pixels, bool (h, w)."""
        spec = self.outputs[name]
        if spec.is_direction:
            mean = F.normalize(mean, dim=1)
        array = mean[0].cpu().numpy()
        if not (np.isfinite(array).all(axis=0) | missing).all():
            require_finite([name])
        values = array.argmax(axis=0) if spec.kind == "logits" else array
        return np.where(missing, self._nodata(name), values).astype(self._dtype(name))

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
                for name, spec in self.outputs.items():
                    values = outputs[name]
                    if spec.kind == "logits":  # as in evaluation
                        values = resize(values, self.input_size, "bilinear_aligned")
                    values = resize(values, self.tile, rule.output_interpolation)
                    values = self.predictor.in_range(name, values, self._camera)
                    blend.add(name, values, (pixels.shape[0], pixels.shape[1]), left=start)
