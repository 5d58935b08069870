"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

import numpy as np

from dpt.data.formats.pictures import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product, Style, facts, videos_of
from dpt.predict.predictor import Prediction, Predictor, Prepared, batches
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

    def run(self, sources: Sequence[Source]) -> Finished[Source]:
        """Predicts images, then videos; yields the source after each image and each frame, with the
        error if it failed."""
        images = [source for source in sources if not source.is_video]
        with closing(self._images(images)) as finished:
            yield from tracked(finished, len(images), title="images")
        for source in (source for source in sources if source.is_video):
            try:
                video = VideoReader(source.path)
                with closing(self._frames(source, video)) as frames:
                    for _ in tracked(frames, max(1, video.announced), title=source.name):
                        yield source, None
            except ValueError as error:
                yield source, error

    def _images(self, sources: Sequence[Source]) -> Finished[Source]:
        keep_image = any(product.is_picture for product in self.products)

        def prepare(source: Source) -> Prepared:
            return self.predictor.prepare(source.path, keep_image=keep_image)

        def group_of(source: Source) -> Source | None:
            with suppress(ValueError):  # reading it will name the fault
                return source if math.prod(read_size(source.path)) > LARGE else None
            return None

        def save(source: Source, image: Prepared, prediction: Prediction) -> None:
            prediction.require_finite()
            with self.folder.files(source, self.products, facts(prediction)) as paths:
                for product, path in paths.items():
                    path.write_bytes(product.encode(prediction, image.image, self.style))

        for _, group in groupby(sources, group_of):
            yield from self._predict(group, prepare=prepare, save=save, workers=self.workers)

    def _frames(self, source: Source, video: VideoReader) -> Generator[None, None, None]:
        products, style = videos_of(self.products), self.style
        if not products:
            raise ValueError(
                "a video needs pictures: add color or overlay to --format, or predict its frames "
                "as images"
            )
        record = {"frames": 0, "fps": video.fps}
        with self.folder.files(source, products, record) as paths:
            writers = {product: VideoWriter(path, fps=video.fps) for product, path in paths.items()}

            def save(_: np.ndarray, frame: Prepared, prediction: Prediction) -> None:
                nonlocal style
                prediction.require_finite()
                style = next_style(style, prediction)
                for product, writer in writers.items():
                    picture = product.make(product.name, prediction, frame.image, style)
                    assert isinstance(picture, np.ndarray)
                    writer.write(picture)

            prepare = partial(self.predictor.prepare, keep_image=True)
            for _, error in self._predict(video, prepare=prepare, save=save, workers=1):
                if error is not None:
                    raise error
                record["frames"] += 1
                yield
            for writer in writers.values():
                writer.close()

    def _predict(
        self,
        items: Iterable[S],
        *,
        prepare: Callable[[S], Prepared],
        save: Callable[[S, Prepared, Prediction], None],
        workers: int,
    ) -> Finished[S]:
        """Predicts items in batches; yields each at its end, with the error if it failed."""
        count = workers + self.predictor.batch_size
        failed: list[tuple[S, ValueError | None]] = []

        def prepared() -> Iterator[tuple[S, Prepared]]:
            tasks = ((item, partial(prepare, item)) for item in items)
            for item, future in _in_threads(readers, tasks, count):
                try:
                    yield item, future.result()
                except ValueError as error:
                    failed.append((item, error))

        def results(batch: Sequence[tuple[S, Prepared]]) -> list[tuple[S, Prepared, Prediction]]:
            try:
                predictions = self.predictor.predict([image for _, image in batch])
                return [(*pair, found) for pair, found in zip(batch, predictions, strict=True)]
            except ValueError as error:  # too little memory
                fault = error.with_traceback(None)  # its frames would keep tensors in memory
            if len(batch) > 1:
                return [result for pair in batch for result in results([pair])]
            failed.append((batch[0][0], fault))
            return []

        def predicted() -> Iterator[tuple[S, Callable[[], None]]]:
            size = self.predictor.batch_size
            for batch in batches(prepared(), size, key=lambda pair: pair[1].input.shape):
                for item, image, prediction in results(batch):
                    yield item, partial(save, item, image, prediction)

        with ExitStack() as stack:
            readers, writers = ThreadPoolExecutor(workers), ThreadPoolExecutor(workers)
            for pool in (readers, writers):  # at the end, tasks that still wait are not started
                stack.callback(pool.shutdown, cancel_futures=True)
            for item, future in _in_threads(writers, predicted(), count):
                try:
                    future.result()
                    yield item, None
                except ValueError as error:
                    yield item, error
                while failed:
                    yield failed.pop(0)
            yield from failed


def next_style(style: Style, prediction: Prediction) -> Style:
    """A style whose depth range follows the frames slowly, so that colours do not flicker."""
    spans = {}
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        new = np.array(Style().span(name, prediction))
        low, high = STEADINESS * np.array(style.spans.get(name, new)) + (1 - STEADINESS) * new
        spans[name] = float(low), float(high)
    return replace(style, spans=spans)


def _in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[S, Callable[[], T]]], count: int
) -> Iterator[tuple[S, Future[T]]]:
    """Runs tasks in a pool, and yields their futures in order; at most ``count`` are pending."""
    tasks = iter(tasks)
    waiting = deque((s, pool.submit(task)) for s, task in islice(tasks, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend((s, pool.submit(task)) for s, task in islice(tasks, 1))
