"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from dpt.data.formats import bands
from dpt.data.formats.cameras import CameraSource
from dpt.data.formats.pictures import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.encoding import Style, paint_with_legend
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import FrameCamera, known_camera, part_of
from dpt.predict.prediction import Prediction
from dpt.predict.predictor import Predictor, PreparedImage, batches
from dpt.predict.rasters import RasterFile, RasterPrediction
from dpt.predict.sources import InputFile
from dpt.predict.writers import FileKind, facts_of, raster_facts, unit_facts, videos_of
from dpt.validation import Plain

S = TypeVar("S")
Finished = Generator[tuple[S, ValueError | None], None, None]

LARGE = 2**25  # pixels of an image above which it is predicted alone, which bounds the memory
STEADINESS = 0.9  # weight of the previous colour range in a video, which follows within 20 frames


class PartlyWrittenError(ValueError):
    """Some files of an image are written, and others cannot be."""


@dataclass(frozen=True)
class Pipeline:
    """Predicts many images and videos, and writes the files of each.

    ``workers`` threads read and resize ahead, and as many encode and write behind. Decoding,
    resizing and compressing release Python's lock, so the network computes at the same time.
    """

    predictor: Predictor
    folder: OutputFolder
    kinds: Sequence[FileKind]
    style: Style
    workers: int
    rasters: Sequence[FileKind] = ()
    """The files of each image that is predicted by windows."""
    only_rasters: bool = False  # whether other files are refused
    cameras: CameraSource | None = None  # of all images and videos; None: of their EXIF tags
    prompt: Path | None = None  # sparse depth of the only image

    def is_done(self, input_file: InputFile) -> bool:
        """Whether the files of an input were written since it changed, and exist."""
        kinds = videos_of(self.kinds) if input_file.is_video else self.kinds
        kinds = self.rasters if self.is_raster(input_file) else kinds
        return self.folder.is_done(input_file, kinds)

    def is_raster(self, input_file: InputFile) -> bool:
        """Whether a file is predicted by windows.

        These are all TIFF files if that is the only format, and otherwise georeferenced ones, and
        TIFF, PNG and JPEG files with too many pixels for a picture.
        """
        if not self.rasters:
            return False
        is_tiff = bands.is_tiff(input_file.path)
        if input_file.is_remote and not is_tiff:  # its header would need the whole file
            return False
        input_file.fetch()
        return (self.only_rasters and is_tiff) or bands.needs_windows(input_file.path)

    def windows(self, input_file: InputFile) -> Generator[int, None, None]:
        """Predicts an image by windows; yields the number of steps first, and after each."""
        if self.prompt is not None:
            raise ValueError(f"--prompt {self.prompt}: images predicted by windows take none")
        part = part_of(self.predictor.preprocessing)
        outputs = self.predictor.outputs
        files = {kind.name: RasterFile(outputs[kind.name]) for kind in self.rasters}
        with ExitStack() as stack:
            source = stack.enter_context(bands.open_raster(input_file.fetch(), part))
            known = None
            if self.predictor.needs_camera and self.cameras is not None:
                known = known_camera(input_file.path, source.size, self.cameras)
            elif self.predictor.needs_camera:
                known = self.predictor.guessed(source.size)
            camera = None if known is None else known.camera
            prediction = RasterPrediction(self.predictor, source, files, camera)
            yield len(prediction)
            facts = raster_facts(prediction.outputs) | ({} if known is None else known.facts)
            paths = stack.enter_context(self.folder.files(input_file, self.rasters, facts))
            with ExitStack() as written:
                writers = {
                    kind.name: written.enter_context(files[kind.name].writing(source, path))
                    for kind, path in paths.items()
                }
                for _ in prediction.write(writers):
                    yield len(prediction)

    def images(self, inputs: Iterable[InputFile]) -> Finished[InputFile]:
        """Predicts images; yields each at its end, with the error if it failed."""
        keep_image = any(kind.needs_image for kind in self.kinds)

        def prepare(input_file: InputFile) -> PreparedImage:
            if self.only_rasters:
                raise ValueError("--format tif is for TIFF files: name another format, too")
            return self.predictor.prepare(
                input_file.fetch(), keep_image=keep_image, camera=self.cameras, prompt=self.prompt
            )

        for _, group in groupby(inputs, _if_large):
            yield from _Stages(self.predictor, prepare, self._write, self.workers).run(group)

    def _write(self, input_file: InputFile, image: PreparedImage, prediction: Prediction) -> None:
        """Writes an image's files.

        Raises:
            PartlyWrittenError: the image cannot have some of them; the others are written.
            ValueError: it can have none of them.
        """
        prediction.require_finite()
        facts = facts_of(prediction)
        missing: dict[FileKind, str] = {}  # with the reason
        for kind in self.kinds:
            try:
                facts |= kind.facts(prediction)
            except ValueError as error:
                missing[kind] = str(error)
        kinds = [kind for kind in self.kinds if kind not in missing]
        if kinds or not missing:
            with self.folder.files(input_file, kinds, facts) as paths:
                for kind, path in paths.items():
                    path.write_bytes(kind.encode(prediction, input_file, image.image, self.style))
        if missing:
            fault = f"no {', '.join(kind.folder for kind in missing)}"
            reasons = "; ".join(dict.fromkeys(missing.values()))
            if kinds:
                raise PartlyWrittenError(f"{fault}, the other files are written: {reasons}")
            raise ValueError(f"{fault}: {reasons}")

    def frames(self, input_file: InputFile, video: VideoReader) -> Generator[None, None, None]:
        """Predicts a video; yields after each frame. ValueError if a frame fails."""
        kinds, style = videos_of(self.kinds), self.style
        if not kinds:
            raise ValueError(
                "a video needs pictures: add color or overlay to --format, or predict its frames "
                "as images"
            )
        facts: Plain = {"frames": 0, "fps": video.fps}
        with self.folder.files(input_file, kinds, facts) as paths:
            writers = {kind: VideoWriter(path, fps=video.fps) for kind, path in paths.items()}

            def write(_: np.ndarray, frame: PreparedImage, prediction: Prediction) -> None:
                nonlocal style
                prediction.require_finite()
                style = next_style(style, prediction)
                facts.update(unit_facts(prediction.outputs))
                if prediction.known_camera is not None:
                    facts.update(prediction.known_camera.facts)
                for kind, writer in writers.items():
                    writer.write(paint_with_legend(kind.name, prediction, frame.image, style))

            camera = self.cameras and FrameCamera(self.cameras, input_file.path)
            prepare = partial(self.predictor.prepare, keep_image=True, camera=camera)
            for _, error in _Stages(self.predictor, prepare, write, workers=1).run(video):
                if error is not None:
                    raise error
                facts["frames"] += 1
                yield
            for writer in writers.values():
                writer.close()


def _if_large(input_file: InputFile) -> InputFile | None:
    """Returns the input if it must be predicted alone; None for smaller images."""
    with suppress(ValueError):  # reading it will name the fault
        return input_file if math.prod(read_size(input_file.path)) > LARGE else None
    return None


def next_style(style: Style, prediction: Prediction) -> Style:
    """Returns a style whose depth range follows the frames slowly, so that colours do not
    flicker."""
    limits = {}
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        new = np.array(Style().limits_of(name, prediction))
        low, high = STEADINESS * np.array(style.limits.get(name, new)) + (1 - STEADINESS) * new
        limits[name] = float(low), float(high)
    return replace(style, limits=limits)


class _Queue(Generic[S]):
    """Items in the order in which they were added, with their last task: writing, or reading if
    that failed."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[S, Future[None] | Future[PreparedImage]]] = deque()

    def add(self, item: S, task: Future[None] | Future[PreparedImage]) -> None:
        self._tasks.append((item, task))

    def finish(self, *, leave: int = 0) -> Finished[S]:
        """Waits for the first items until ``leave`` remain; yields each, with the error if its task
        failed."""
        while len(self._tasks) > leave:
            item, task = self._tasks.popleft()
            error = task.exception()
            if error is not None and not isinstance(error, ValueError):
                raise error
            yield item, error


@dataclass(frozen=True)
class _Stages(Generic[S]):
    """Three stages that work at the same time: preparation in threads, the network, and writing in
    threads. At most ``workers`` and a batch of items wait before and after the network."""

    predictor: Predictor
    prepare: Callable[[S], PreparedImage]
    write: Callable[[S, PreparedImage, Prediction], None]
    workers: int

    def run(self, items: Iterable[S]) -> Finished[S]:
        """Yields each item at its end, with the error if it failed."""
        size = self.predictor.batch_size
        queue: _Queue[S] = _Queue()
        with ExitStack() as stack:
            readers, writers = ThreadPoolExecutor(self.workers), ThreadPoolExecutor(self.workers)
            for pool in (readers, writers):  # at the end, tasks that still wait are not started
                stack.callback(pool.shutdown, cancel_futures=True)
            prepared = self._prepared(readers, items, queue)
            for batch in batches(prepared, size, key=lambda pair: pair[1].input.shape):
                results = self._predict([image for _, image in batch])
                for (item, image), result in zip(batch, results, strict=True):
                    if isinstance(result, ValueError):
                        yield item, result
                        continue
                    yield from queue.finish(leave=self.workers + size - 1)
                    queue.add(item, writers.submit(self.write, item, image, result))
            yield from queue.finish()

    def _prepared(
        self, pool: ThreadPoolExecutor, items: Iterable[S], queue: _Queue[S]
    ) -> Iterator[tuple[S, PreparedImage]]:
        """Reads ahead, and yields the items that succeed; the others are added to ``queue``."""
        items = iter(items)
        reading: deque[tuple[S, Future[PreparedImage]]] = deque()
        while True:
            for item in islice(items, self.workers + self.predictor.batch_size - len(reading)):
                reading.append((item, pool.submit(self.prepare, item)))
            if not reading:
                return
            item, task = reading.popleft()
            if task.exception() is None:
                yield item, task.result()
            else:
                queue.add(item, task)

    def _predict(self, images: Sequence[PreparedImage]) -> list[Prediction | ValueError]:
        """Returns the prediction for each image, or its error."""
        try:
            return [*self.predictor.predict(images)]
        except ValueError as error:
            if len(images) == 1:
                return [error.with_traceback(None)]  # its frames would keep tensors
        # together they may not fit into memory
        return [result for image in images for result in self._predict([image])]
