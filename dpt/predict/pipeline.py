"""Many images, and videos: reading ahead, prediction in batches, writing behind.

Files of any size are predicted tile by tile into TIFF files with the same georeference. The tiles
are those of :mod:`dpt.tiling`, at the file's own resolution. A panel of columns is predicted from
top to bottom and written as it is finished, so that the memory does not depend on the file's size.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data.formats import bands, io, pictures, video
from dpt.data.formats.cameras import CameraSource
from dpt.data.view import GREY, resize_image
from dpt.files import DataError
from dpt.functional import resize
from dpt.geometry import Camera
from dpt.predict import encoding, writers
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import KnownCamera, part_of
from dpt.predict.prediction import Prediction, first_output, require_finite
from dpt.predict.predictor import Predictor, PreparedImage, batches
from dpt.predict.sources import InputFile
from dpt.predict.steady import Steady
from dpt.tiling import Blend, tile_spans
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Plain
from dpt.viz import output_palette

S = TypeVar("S")
T = TypeVar("T")
Finished = Generator[tuple[S, ValueError | None], None, None]

LARGE = 2**25  # pixels of an image above which it is predicted alone, which bounds the memory
PANEL = 2048  # columns that are predicted from top to bottom
STEADINESS = 0.9  # weight of the previous colour range in a video, which follows within 20 frames


@dataclass(frozen=True)
class Pipeline:
    """Predicts many images and videos, and writes the files of each.

    ``workers`` threads read and resize ahead, and as many encode and write behind. Decoding,
    resizing and compressing release Python's lock, so the network computes at the same time.
    """

    predictor: Predictor
    folder: OutputFolder
    kinds: Sequence[writers.FileKind]
    style: encoding.Style
    workers: int
    rasters: Sequence[writers.FileKind] = ()
    """The files of each image that is predicted by windows."""
    cameras: CameraSource | None = None  # of all images and videos; None: of their EXIF tags
    prompt: Path | None = None  # sparse depth of the only image
    sequences: Sequence[writers.FileKind] = ()
    """The files of each frame of a video."""
    steady: bool = False  # average what the frames of a video show of the same point

    def is_done(self, input_file: InputFile) -> bool:
        """Whether the files of an input were written since it changed, and exist."""
        if input_file.is_video:
            videos = writers.videos_of(self.kinds)
            return self.folder.is_done(input_file, videos, self.sequences)
        kinds = self.rasters if self.is_raster(input_file) else self.kinds
        return self.folder.is_done(input_file, kinds)

    def is_raster(self, input_file: InputFile) -> bool:
        """Whether a file is predicted by windows.

        These are all TIFF files if that is the only format, and otherwise georeferenced ones, and
        TIFF, PNG and JPEG files with too many pixels for a picture.
        """
        is_tiff = bands.is_tiff(input_file.path)
        # the header of a remote file would need the whole file
        if not self.rasters or (input_file.address and not is_tiff):
            return False
        return (is_tiff and not self.kinds) or bands.needs_windows(input_file.fetch())

    def windows(self, input_file: InputFile) -> Generator[int, None, None]:
        """Predicts an image by windows; yields the number of steps first, and after each."""
        if self.prompt is not None:
            raise ValueError(f"--prompt {self.prompt}: images predicted by windows take none")
        part = part_of(self.predictor.preprocessing)
        with bands.open_raster(input_file.fetch(), part) as source:
            known = None
            if self.predictor.needs_camera and self.cameras is not None:
                camera = self.cameras.camera(input_file.path, source.size)
                known = KnownCamera(camera, "given")
            prediction = RasterPrediction(self.predictor, source, known and known.camera)
            yield len(prediction)
            facts = writers.depth_facts(prediction.outputs, known, scale=1.0, offset=0.0)
            with self.folder.files(input_file, self.rasters, facts) as paths:
                for _ in prediction.write({kind.name: path for kind, path in paths.items()}):
                    yield len(prediction)

    def frames(self, input_file: InputFile) -> Generator[int, None, None]:
        """Predicts a video; yields the number of frames first, and after each. ValueError if a
        frame fails."""
        kinds = writers.videos_of(self.kinds)
        if not (kinds or self.sequences):
            fault = f"{input_file.source}: a video needs pictures, or a format of single frames"
            raise ValueError(f"{fault}: add color, overlay, png, npy or exr to --format")
        painter = FramePainter(kinds, self.style, self.steady)
        reader = video.VideoReader(input_file.fetch())
        total = max(1, reader.announced)
        yield total
        facts: Plain = {"frames": 0, "fps": reader.fps}
        steady = Steady(self.predictor.runtime.outputs) if self.steady else None
        self.predictor.steady = steady
        frames: list[str] = []  # names of their files
        with self.folder.files(input_file, kinds, facts, frames) as paths:
            targets = {k: video.VideoWriter(path, fps=reader.fps) for k, path in paths.items()}

            def write(_: np.ndarray, frame: PreparedImage, prediction: Prediction) -> None:
                pictures = painter.paint(prediction, frame.image)
                facts.update(writers.depth_facts(prediction.outputs, prediction.known_camera))
                for target, picture in zip(targets.values(), pictures, strict=True):
                    target.write(picture)
                predicted = encoding.Predicted(prediction, frame.image, painter.style)
                frames.extend(self._write_frame(input_file, predicted, facts))

            prepare = partial(
                self.predictor.prepare, name=input_file.path, keep_image=True, camera=self.cameras
            )
            for _, error in run_stages(self.predictor, prepare, write, reader, workers=1):
                if error is not None:
                    raise error
                facts["frames"] += 1
                yield total
            self.predictor.steady = None
            if steady is not None:
                facts["cuts"] = steady.cuts
            for target in targets.values():
                target.close()

    def _write_frame(
        self, input_file: InputFile, predicted: encoding.Predicted, facts: Plain
    ) -> list[str]:
        """Writes the files of the next frame of a video, and adds to the facts of the video how to
        read them; returns their names."""
        if not self.sequences:
            return []
        of_frames = facts.setdefault("each_frame", [])
        names = []
        for kind in self.sequences:
            names.append(f"{kind.frames(input_file)}{len(of_frames):06}{kind.suffix}")
            self.folder.write_frame(names[-1], kind.encoder(kind.name, predicted))
        of_frames.append(writers.facts_of(predicted.prediction))
        return names

    def images(self, inputs: Iterable[InputFile]) -> Finished[InputFile]:
        """Predicts images; yields each at its end, with the error if it failed."""
        keep_image = any(kind.needs_image for kind in self.kinds)

        def prepare(input_file: InputFile) -> PreparedImage:
            if self.rasters and not self.kinds:
                raise ValueError("--format tif is for TIFF files: name another format, too")
            return self.predictor.prepare(
                input_file.fetch(), keep_image=keep_image, camera=self.cameras, prompt=self.prompt
            )

        for _, group in groupby(inputs, _if_large):
            yield from run_stages(self.predictor, prepare, self._write, group, workers=self.workers)

    def _write(self, input_file: InputFile, image: PreparedImage, prediction: Prediction) -> None:
        """Writes an image's files; ValueError names those that it cannot have, after the others."""
        prediction.require_finite()
        facts, kinds = writers.facts_of(prediction), []
        missing: dict[str, str] = {}  # the reason by folder
        for kind in self.kinds:
            try:
                facts |= kind.facts(prediction)
                kinds.append(kind)
            except ValueError as error:
                missing[kind.folder] = str(error)
        predicted = encoding.Predicted(prediction, image.image, self.style)
        if kinds or not missing:
            with self.folder.files(input_file, kinds, facts) as paths:
                for kind, path in paths.items():
                    path.write_bytes(kind.encoder(kind.name, predicted))
        if missing:
            reasons = "; ".join(dict.fromkeys(missing.values()))
            raise ValueError(f"no {', '.join(missing)}: {reasons}")


def _if_large(input_file: InputFile) -> InputFile | None:
    """Returns the input if it must be predicted alone; None for smaller images."""
    with suppress(ValueError):  # reading it will name the fault
        return input_file if math.prod(pictures.read_size(input_file.path)) > LARGE else None
    return None


@dataclass
class FramePainter:
    """Paints the frames of a video. The colour range of depth is that of the first frame if they
    are steady; otherwise it follows the frames slowly."""

    kinds: Sequence[writers.FileKind]  # of the pictures
    style: encoding.Style
    is_steady: bool

    def paint(self, prediction: Prediction, image: np.ndarray | None) -> list[np.ndarray]:
        """Returns the pictures of a frame with their legends; ValueError if it is not finite."""
        prediction.require_finite()
        if not (self.is_steady and self.style.limits):
            self.style = next_style(self.style, prediction)
        predicted = encoding.Predicted(prediction, image, self.style)
        return [encoding.paint_with_legend(kind.name, predicted) for kind in self.kinds]


def next_style(style: encoding.Style, prediction: Prediction) -> encoding.Style:
    """Returns a style whose depth range follows the frames slowly, so that colours do not
    flicker."""
    limits = {}
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        new = np.array(encoding.Predicted(prediction).limits(name))
        low, high = STEADINESS * np.array(style.limits.get(name, new)) + (1 - STEADINESS) * new
        limits[name] = float(low), float(high)
    return replace(style, limits=limits)


@dataclass
class Task(Generic[T]):
    """An item on its way through the stages, which end at an error."""

    item: T
    image: PreparedImage | None = None
    prediction: Prediction | None = None
    error: ValueError | None = None


def run_stages(
    predictor: Predictor,
    prepare: Callable[[T], PreparedImage],
    write: Callable[[T, PreparedImage, Prediction], None],
    items: Iterable[T],
    *,
    workers: int,
) -> Finished[T]:
    """Yields each item at its end, with the error if it failed.

    Three stages work at the same time: preparation in threads, the network, and writing in threads.
    At most ``workers`` and a batch of items wait before and after the network.
    """
    readers, finishers = ThreadPoolExecutor(workers), ThreadPoolExecutor(workers)
    ahead = workers + predictor.batch_size

    def read(item: T) -> Task[T]:
        try:
            return Task(item, prepare(item))
        except ValueError as error:
            return Task(item, error=error)

    def predicted() -> Iterator[Task[T]]:
        tasks = _ahead(readers, read, items, ahead)
        for group in batches(
            tasks, predictor.batch_size, key=lambda t: t.image.input.shape if t.image else ()
        ):
            if group[0].image is not None:
                _predict(predictor, group)
            yield from group

    def finish(task: Task[T]) -> Task[T]:
        if task.image is not None and task.prediction is not None:
            try:
                write(task.item, task.image, task.prediction)
            except ValueError as error:
                task.error = error
        return task

    try:
        for task in _ahead(finishers, finish, predicted(), ahead):
            yield task.item, task.error
    finally:  # tasks that still wait are not started
        for pool in (readers, finishers):
            pool.shutdown(cancel_futures=True)


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[S], T], items: Iterable[S], count: int
) -> Iterator[T]:
    """Yields the results of ``function`` in order; ``count`` calls are begun ahead."""
    begun: deque[Future[T]] = deque()
    for item in items:
        begun.append(pool.submit(function, item))
        if len(begun) == count:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _predict(predictor: Predictor, tasks: Sequence[Task[T]]) -> None:
    """Adds the prediction or the error to tasks with images of equal input size."""
    images = [task.image for task in tasks if task.image is not None]
    try:
        for task, prediction in zip(tasks, predictor.predict(images), strict=True):
            task.prediction = prediction
    except ValueError as error:
        if len(tasks) == 1:
            tasks[0].error = error.with_traceback(None)  # its frames would keep tensors
        else:  # together they may not fit into memory
            for task in tasks:
                _predict(predictor, [task])


# --- windows of large images ----------------------------------------------------------------------


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

    def __init__(
        self, predictor: Predictor, raster: bands.Raster, camera: Camera | None = None
    ) -> None:
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
        kinds = {spec.depth_kind for spec in self.outputs.values() if spec.kind == "depth"}
        if kinds - {"metric"} and len(self._rows) * len(self._columns) > 1:
            remedy = "give --fov, --focal or --intrinsics if the model has a canonical focal length"
            fault = "relative depth has another scale in every window"
            return f"{fault}: {remedy}, name --format png, or calibrate it (dpt calibrate)"
        if self.predictor.sky_output is not None and self.predictor.sky == "far":
            return "sky=far needs whole images: choose invalid or keep, or name --format png"
        return ""

    def _nodata(self, name: str) -> np.generic:
        """Returns the value of pixels without data, in the type of the output's file."""
        if self.outputs[name].kind != "logits":
            return np.float32(np.nan)
        is_small = (self.outputs[name].num_classes or 0) <= IGNORE_INDEX
        return np.uint8(2**8 - 1) if is_small else np.uint16(2**16 - 1)

    def __len__(self) -> int:
        return len(self._panels) * len(self._rows)

    @torch.inference_mode()
    def write(self, paths: Mapping[str, Path]) -> Iterator[None]:
        """Predicts everything, and writes the outputs named to TIFF files with the georeference of
        the raster; yields after each step."""
        with ExitStack() as stack:
            targets: dict[str, Any] = {}
            for name, path in paths.items():
                spec, nodata = self.outputs[name], self._nodata(name)
                count = spec.channels or 1 if spec.kind == "map" else 1
                palette = output_palette(spec) if nodata.dtype == np.uint8 else None
                form = self.raster.writing(path, count=count, nodata=nodata, palette=palette)
                targets[name] = stack.enter_context(form)
            for panel in self._panels:
                yield from self._write_panel(panel, targets)

    def _write_panel(self, panel: slice, targets: Mapping[str, Any]) -> Iterator[None]:
        """Writes the windows of a panel to TIFF files that rasterio has opened."""
        tiles = [c for c in self._columns if c.start < panel.stop and c.stop > panel.start]
        strip = slice(tiles[0].start, tiles[-1].stop)
        inside = slice(panel.start - strip.start, panel.stop - strip.start)
        blend = Blend(smooth=True)
        for rows, following in zip_longest(self._rows, self._rows[1:]):
            pixels, missing = self._read(rows, strip)
            self._add_tiles(blend, pixels, [tile.start - strip.start for tile in tiles])
            stop = self.raster.size[0] if following is None else following.start
            count = stop - rows.start
            window = ((rows.start, stop), (panel.start, panel.stop))
            means = {name: mean[..., inside] for name, mean in blend.take_rows(count).items()}
            empty = missing[:count, inside]
            without_depth, sky = empty, self.predictor.sky_output
            if sky is not None:
                without_depth = empty | (sky.threshold <= means[sky.name][0, 0].cpu().numpy())
            for name, target in targets.items():
                without = without_depth if name == self._depth_name else empty
                target.write(self._encoded(name, means[name], without), window=window)
            yield

    def _encoded(self, name: str, mean: Tensor, missing: np.ndarray) -> np.ndarray:
        """Returns what is stored of an output (1, C, h, w): class ids (1, h, w), or (C, h, w),
        without the ``missing`` pixels, bool (h, w)."""
        spec = self.outputs[name]
        if spec.is_direction:
            mean = F.normalize(mean, dim=1)
        array = mean[0].cpu().numpy()
        if not (np.isfinite(array).all(axis=0) | missing).all():
            require_finite([name])
        values = array.argmax(axis=0, keepdims=True) if spec.kind == "logits" else array
        nodata = self._nodata(name)
        return np.where(missing, nodata, values).astype(nodata.dtype)

    def _read(self, rows: slice, columns: slice) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pixels (h, w, C) of a strip, and where no band has data, bool (h, w).

        A raster that is smaller than a tile is enlarged as a view outside an image.
        """
        height, width = self.raster.size
        strip = self.raster.read(
            slice(rows.start, min(rows.stop, height)),
            slice(columns.start, min(columns.stop, width)),
        )
        is_rgb = self.predictor.preprocessing.is_rgb
        own_values = strip.own_values()
        image = io.image_of_bands(strip, self.raster.part) if is_rgb else own_values
        if is_rgb and image.dtype != np.uint8:
            fault = f"holds {strip.form}, and the model takes 8-bit RGB"
            raise DataError(f"{self.raster.path}: {fault}")
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
