"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import TypeVar

import numpy as np

from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.folder import CannotWriteError, OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product, Span, Style, facts, nearness_span
from dpt.predict.predictor import Prediction, Predictor, Prepared, batches

S = TypeVar("S")
T = TypeVar("T")

STEADINESS = 0.9
"""Weight of the previous colour range in a video: the range follows within about 20 frames."""


def predict_images(
    predictor: Predictor,
    sources: Sequence[Source],
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
    workers: int,
) -> Generator[tuple[Source, Exception | None], None, None]:
    """Predicts every image; one that cannot be read or written does not stop the others.

    ``workers`` threads read and resize ahead, and as many encode and write behind. Decoding,
    resizing and compressing release Python's lock, so the network computes at the same time.

    Yields:
        Each source when it is finished, with the error if it failed.

    Raises:
        CannotWriteError: no more files can be written.
    """
    keep_image = any(p.is_picture for p in products)
    count = workers + predictor.batch_size
    failed: list[tuple[Source, Exception | None]] = []

    def prepared(futures: Iterable[tuple[Source, Future]]) -> Iterator[tuple[Source, Prepared]]:
        for source, future in futures:
            try:
                yield source, future.result()
            except (ValueError, OSError) as error:
                failed.append((source, error))

    with threads(workers) as readers, threads(workers) as writers:
        reading = ((s, partial(predictor.prepare, s.path, keep_image=keep_image)) for s in sources)
        images = prepared(in_threads(readers, reading, count))
        saving = (
            (source, partial(_save, folder, source, prediction, each.image, products, style))
            for source, each, prediction in _predicted(predictor, images)
        )
        for source, future in in_threads(writers, saving, count):
            error: Exception | None = None
            try:
                future.result()
            except CannotWriteError:
                raise
            except (ValueError, OSError) as reason:
                error = reason
            yield source, error
            while failed:
                yield failed.pop(0)
        yield from failed


def _predicted(
    predictor: Predictor, images: Iterable[tuple[S, Prepared]]
) -> Iterator[tuple[S, Prepared, Prediction]]:
    """Images with their predictions, made in batches of equal input size."""
    for batch in batches(images, predictor.batch_size, key=lambda pair: pair[1].input.shape):
        predictions = predictor.predict([each for _, each in batch])
        for source, each in batch:
            yield source, each, predictions.pop(0)  # large: this list must not keep them


def _save(
    folder: OutputFolder,
    source: Source,
    prediction: Prediction,
    image: np.ndarray | None,
    products: Sequence[Product],
    style: Style,
) -> None:
    with folder.files(source, products, facts(prediction)) as paths:
        for product, path in paths.items():
            path.write_bytes(product.encode(prediction, image, style))


class SteadyStyle:
    """A style whose depth range follows the frames slowly, so that colours do not flicker."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._spans: dict[str, Span] = {}

    def next(self, prediction: Prediction) -> Style:
        """The style for the next frame."""
        for name, spec in prediction.outputs.items():
            if spec.kind == "depth":
                new = nearness_span(name, prediction, self._style)
                old = self._spans.get(name, new)
                low, high = (
                    STEADINESS * o + (1 - STEADINESS) * n for o, n in zip(old, new, strict=True)
                )
                self._spans[name] = low, high
        return replace(self._style, spans=dict(self._spans))


def predict_video(
    predictor: Predictor,
    video: VideoReader,
    source: Source,
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
) -> Generator[None, None, None]:
    """Predicts every frame, with one thread that decodes ahead and one that encodes behind.

    Yields:
        After each frame.

    Raises:
        ValueError: the video cannot be decoded to its end.
        CannotWriteError: no more files can be written.
    """
    frames = iter(video)
    count = 2 * predictor.batch_size
    steady, record = SteadyStyle(style), {"frames": 0, "fps": video.fps}

    def read() -> Prepared | None:
        frame = next(frames, None)
        return None if frame is None else predictor.prepare(frame, keep_image=True)

    def prepared(reader: ThreadPoolExecutor) -> Iterator[tuple[Source, Prepared]]:
        for _, future in in_threads(reader, repeat((source, read)), count):
            frame = future.result()
            if frame is None:
                return
            yield source, frame

    with (
        folder.files(source, products, record) as paths,
        threads(1) as reader,
        threads(1) as painter,
    ):
        writers = {p: VideoWriter(path, fps=video.fps) for p, path in paths.items()}
        painting = (
            (source, partial(_write, writers, prediction, frame, steady))
            for _, frame, prediction in _predicted(predictor, prepared(reader))
        )
        for _, future in in_threads(painter, painting, count):
            future.result()
            record["frames"] += 1
            yield
        for writer in writers.values():
            writer.close()


def _write(
    writers: Mapping[Product, VideoWriter],
    prediction: Prediction,
    frame: Prepared,
    steady: SteadyStyle,
) -> None:
    style = steady.next(prediction)
    for product, writer in writers.items():
        picture = product.make(prediction, frame.image, style)
        assert isinstance(picture, np.ndarray)
        writer.write(picture)


def in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[S, Callable[[], T]]], count: int
) -> Iterator[tuple[S, Future[T]]]:
    """Runs tasks in a pool, and yields their futures in order; at most ``count`` are pending."""
    tasks = iter(tasks)
    waiting = deque((s, pool.submit(task)) for s, task in islice(tasks, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend((s, pool.submit(task)) for s, task in islice(tasks, 1))


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that at the end does not start tasks that are still waiting."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
