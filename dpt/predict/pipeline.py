"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import Generic, TypeVar

import numpy as np

from dpt.data.formats.pictures import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import InputFile
from dpt.predict.painting import Style, paint_with_legend
from dpt.predict.prediction import Prediction
from dpt.predict.predictor import Predictor, PreparedImage, batches
from dpt.predict.products import Product, facts_of, videos_of
from dpt.run_log import tracked

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
    products: Sequence[Product]
    style: Style
    workers: int

    def is_done(self, input_file: InputFile) -> bool:
        """Whether the files of an input were written since it changed, and exist."""
        products = videos_of(self.products) if input_file.is_video else self.products
        return self.folder.is_done(input_file, products)

    def run(self, inputs: Sequence[InputFile]) -> Finished[InputFile]:
        """Predicts images, then videos; yields the input after each image and each frame, with the
        error if it failed."""
        images = [input_file for input_file in inputs if not input_file.is_video]
        with closing(self._images(images)) as finished:
            yield from tracked(finished, len(images), title="images")
        for input_file in (input_file for input_file in inputs if input_file.is_video):
            try:
                video = VideoReader(input_file.path)
                with closing(self._frames(input_file, video)) as frames:
                    for _ in tracked(frames, max(1, video.announced), title=input_file.name):
                        yield input_file, None
            except ValueError as error:
                yield input_file, error

    def _images(self, inputs: Sequence[InputFile]) -> Finished[InputFile]:
        keep_image = any(product.encoder is None for product in self.products)

        def prepare(input_file: InputFile) -> PreparedImage:
            return self.predictor.prepare(input_file.path, keep_image=keep_image)

        def write(input_file: InputFile, image: PreparedImage, prediction: Prediction) -> None:
            prediction.require_finite()
            with self.folder.files(input_file, self.products, facts_of(prediction)) as paths:
                for product, path in paths.items():
                    path.write_bytes(product.encode(prediction, image.image, self.style))

        for _, group in groupby(inputs, _if_large):
            yield from _Stages(self.predictor, prepare, write, self.workers).run(group)

    def _frames(self, input_file: InputFile, video: VideoReader) -> Generator[None, None, None]:
        products, style = videos_of(self.products), self.style
        if not products:
            raise ValueError(
                "a video needs pictures: add color or overlay to --format, or predict its frames "
                "as images"
            )
        facts = {"frames": 0, "fps": video.fps}
        with self.folder.files(input_file, products, facts) as paths:
            writers = {product: VideoWriter(path, fps=video.fps) for product, path in paths.items()}

            def write(_: np.ndarray, frame: PreparedImage, prediction: Prediction) -> None:
                nonlocal style
                prediction.require_finite()
                style = next_style(style, prediction)
                for product, writer in writers.items():
                    writer.write(paint_with_legend(product.name, prediction, frame.image, style))

            prepare = partial(self.predictor.prepare, keep_image=True)
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


@dataclass(frozen=True)
class _Stages(Generic[S]):
    """Three stages that work at the same time: preparation in threads, the network, and writing in
    threads."""

    predictor: Predictor
    prepare: Callable[[S], PreparedImage]
    write: Callable[[S, PreparedImage, Prediction], None]
    workers: int

    def run(self, items: Iterable[S]) -> Finished[S]:
        """Yields each item at its end, with the error if it failed."""
        pending = self.workers + self.predictor.batch_size
        failed: list[tuple[S, ValueError]] = []
        with ExitStack() as stack:
            readers, writers = ThreadPoolExecutor(self.workers), ThreadPoolExecutor(self.workers)
            for pool in (readers, writers):  # at the end, tasks that still wait are not started
                stack.callback(pool.shutdown, cancel_futures=True)
            reading = ((item, partial(self.prepare, item)) for item in items)
            prepared = _succeeded(_in_threads(readers, reading, pending), failed)
            writing = self._predicted(prepared, failed)
            for item, future in _in_threads(writers, writing, pending):
                try:
                    future.result()
                    yield item, None
                except ValueError as error:
                    yield item, error
                while failed:
                    yield failed.pop(0)
            yield from failed

    def _predicted(
        self, prepared: Iterable[tuple[S, PreparedImage]], failed: list[tuple[S, ValueError]]
    ) -> Iterator[tuple[S, Callable[[], None]]]:
        """Yields each item with the task that writes its files; other items are added to
        ``failed``."""
        size = self.predictor.batch_size
        for batch in batches(prepared, size, key=lambda pair: pair[1].input.shape):
            predictions = self._predict([image for _, image in batch])
            for (item, image), result in zip(batch, predictions, strict=True):
                if isinstance(result, ValueError):
                    failed.append((item, result))
                else:
                    yield item, partial(self.write, item, image, result)

    def _predict(self, images: Sequence[PreparedImage]) -> list[Prediction | ValueError]:
        """Returns a prediction, or its error, for each image. What does not fit into memory
        together is predicted one by one."""
        try:
            return [*self.predictor.predict(images)]
        except ValueError as error:
            fault = error.with_traceback(None)  # its frames would keep tensors in memory
        if len(images) == 1:
            return [fault]
        return [result for image in images for result in self._predict([image])]


def _succeeded(
    results: Iterable[tuple[S, Future[T]]], failed: list[tuple[S, ValueError]]
) -> Iterator[tuple[S, T]]:
    """Yields the results of the items that succeed; the other items are added to ``failed``."""
    for item, future in results:
        try:
            yield item, future.result()
        except ValueError as error:
            failed.append((item, error))


def _in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[S, Callable[[], T]]], count: int
) -> Iterator[tuple[S, Future[T]]]:
    """Runs tasks in a pool, and yields their futures in order; at most ``count`` are pending."""
    tasks = iter(tasks)
    waiting = deque((item, pool.submit(task)) for item, task in islice(tasks, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend((item, pool.submit(task)) for item, task in islice(tasks, 1))
