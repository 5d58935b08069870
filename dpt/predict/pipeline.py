"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpt.data.formats import bands
from dpt.data.formats.cameras import CameraSource
from dpt.data.formats.pictures import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict import writers
from dpt.predict.encoding import Style
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import FrameCamera, known_camera, part_of
from dpt.predict.prediction import Prediction
from dpt.predict.predictor import Predictor, PreparedImage, batches
from dpt.predict.rasters import RasterPrediction
from dpt.predict.sources import InputFile
from dpt.validation import Plain

S = TypeVar("S")
T = TypeVar("T")
Finished = Generator[tuple[S, ValueError | None], None, None]

LARGE = 2**25  # pixels of an image above which it is predicted alone, which bounds the memory
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
    style: Style
    workers: int
    rasters: Sequence[writers.FileKind] = ()
    """The files of each image that is predicted by windows."""
    cameras: CameraSource | None = None  # of all images and videos; None: of their EXIF tags
    prompt: Path | None = None  # sparse depth of the only image

    @property
    def only_rasters(self) -> bool:
        """Whether other files are refused: TIFF is the only format."""
        return bool(self.rasters) and not self.kinds

    def is_done(self, input_file: InputFile) -> bool:
        """Whether the files of an input were written since it changed, and exist."""
        kinds = writers.videos_of(self.kinds) if input_file.is_video else self.kinds
        kinds = self.rasters if self.is_raster(input_file) else kinds
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
        return (self.only_rasters and is_tiff) or bands.needs_windows(input_file.fetch())

    def windows(self, input_file: InputFile) -> Generator[int, None, None]:
        """Predicts an image by windows; yields the number of steps first, and after each."""
        if self.prompt is not None:
            raise ValueError(f"--prompt {self.prompt}: images predicted by windows take none")
        part = part_of(self.predictor.preprocessing)
        with bands.open_raster(input_file.fetch(), part) as source:
            known = None
            if self.predictor.needs_camera and self.cameras is not None:
                known = known_camera(input_file.path, source.size, self.cameras)
            elif self.predictor.needs_camera:
                known = self.predictor.guessed(source.size)
            prediction = RasterPrediction(self.predictor, source, known and known.camera)
            yield len(prediction)
            facts = writers.depth_facts(prediction.outputs, scale=1.0, offset=0.0)
            facts |= {} if known is None else known.facts
            with self.folder.files(input_file, self.rasters, facts) as paths:
                for _ in prediction.write({kind.name: path for kind, path in paths.items()}):
                    yield len(prediction)

    def frames(self, input_file: InputFile) -> Generator[int, None, None]:
        """Predicts a video; yields the number of frames first, and after each. ValueError if a
        frame fails."""
        kinds, style = writers.videos_of(self.kinds), self.style
        if not kinds:
            fault = f"{input_file.source}: a video needs pictures"
            raise ValueError(f"{fault}: add color or overlay to --format")
        video = VideoReader(input_file.fetch())
        total = max(1, video.announced)
        yield total
        facts: Plain = {"frames": 0, "fps": video.fps}
        with self.folder.files(input_file, kinds, facts) as paths:
            targets = {kind: VideoWriter(path, fps=video.fps) for kind, path in paths.items()}

            def write(_: np.ndarray, frame: PreparedImage, prediction: Prediction) -> None:
                nonlocal style
                prediction.require_finite()
                style = next_style(style, prediction)
                facts.update(writers.depth_facts(prediction.outputs))
                if prediction.known_camera is not None:
                    facts.update(prediction.known_camera.facts)
                predicted = writers.Predicted(input_file, prediction, frame.image, style)
                for kind, target in targets.items():
                    target.write(kind.paint(predicted))

            camera = self.cameras and FrameCamera(self.cameras, input_file.path)
            prepare = partial(self.predictor.prepare, keep_image=True, camera=camera)
            for _, error in run_stages(self.predictor, prepare, write, video, workers=1):
                if error is not None:
                    raise error
                facts["frames"] += 1
                yield total
            for target in targets.values():
                target.close()

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
            yield from run_stages(self.predictor, prepare, self._write, group, workers=self.workers)

    def _write(self, input_file: InputFile, image: PreparedImage, prediction: Prediction) -> None:
        """Writes an image's files; ValueError names those that it cannot have, after the others."""
        prediction.require_finite()
        facts = writers.facts_of(prediction)
        missing: dict[writers.FileKind, str] = {}  # with the reason
        for kind in self.kinds:
            try:
                facts |= kind.facts(prediction)
            except ValueError as error:
                missing[kind] = str(error)
        kinds = [kind for kind in self.kinds if kind not in missing]
        predicted = writers.Predicted(input_file, prediction, image.image, self.style)
        if kinds or not missing:
            with self.folder.files(input_file, kinds, facts) as paths:
                for kind, path in paths.items():
                    path.write_bytes(kind.encode(predicted))
        if missing:
            reasons = "; ".join(dict.fromkeys(missing.values()))
            raise ValueError(f"no {', '.join(kind.folder for kind in missing)}: {reasons}")


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


def run_stages(
    predictor: Predictor,
    prepare: Callable[[S], PreparedImage],
    write: Callable[[S, PreparedImage, Prediction], None],
    items: Iterable[S],
    *,
    workers: int,
) -> Finished[S]:
    """Yields each item at its end, with the error if it failed.

    Three stages work at the same time: preparation in threads, the network, and writing in threads.
    At most ``workers`` and a batch of items wait before and after the network.
    """
    readers, finishers = ThreadPoolExecutor(workers), ThreadPoolExecutor(workers)
    ahead = workers + predictor.batch_size

    def predicted() -> Iterator[tuple[S, PreparedImage | ValueError, Prediction | ValueError]]:
        read = _ahead(readers, prepare, items, ahead)
        for group in batches(read, predictor.batch_size, key=lambda pair: _input_shape(pair[1])):
            images = [image for _, image in group if not isinstance(image, ValueError)]
            errors = [image for _, image in group if isinstance(image, ValueError)]
            results = errors or _predict(predictor, images)
            for (item, image), result in zip(group, results, strict=True):
                yield item, image, result

    def finish(entry: tuple[S, PreparedImage | ValueError, Prediction | ValueError]) -> None:
        item, image, result = entry
        if isinstance(result, ValueError):
            raise result
        assert not isinstance(image, ValueError)
        write(item, image, result)

    try:
        for (item, _, _), error in _ahead(finishers, finish, predicted(), ahead):
            yield item, error
    finally:  # tasks that still wait are not started
        for pool in (readers, finishers):
            pool.shutdown(cancel_futures=True)


def _ahead(
    pool: ThreadPoolExecutor, function: Callable[[S], T], items: Iterable[S], count: int
) -> Iterator[tuple[S, T | ValueError]]:
    """Yields the items in order with the results of ``function``, or its ValueErrors; ``count``
    tasks are begun ahead."""
    tasks: deque[tuple[S, Future[T]]] = deque()

    def finished() -> tuple[S, T | ValueError]:
        item, task = tasks.popleft()
        try:
            return item, task.result()
        except ValueError as error:
            return item, error

    for item in items:
        tasks.append((item, pool.submit(function, item)))
        if len(tasks) == count:
            yield finished()
    while tasks:
        yield finished()


def _input_shape(image: PreparedImage | ValueError) -> tuple[int, ...]:
    return () if isinstance(image, ValueError) else image.input.shape


def _predict(
    predictor: Predictor, images: Sequence[PreparedImage]
) -> Sequence[Prediction | ValueError]:
    """Returns the prediction for each image, or its error."""
    try:
        return predictor.predict(images)
    except ValueError as error:
        if len(images) == 1:
            return [error.with_traceback(None)]  # its frames would keep tensors
    # together they may not fit into memory
    return [result for image in images for result in _predict(predictor, [image])]
