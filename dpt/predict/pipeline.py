"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from dpt.data.formats.io import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product, Style, facts, nearness_span
from dpt.predict.predictor import Prediction, Predictor, Prepared, batches

S = TypeVar("S")
T = TypeVar("T")

PIXELS_PENDING = 2**27
"""Images that wait to be predicted, or to be written, have at most this many pixels together."""
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
) -> Generator[tuple[Source, ValueError | None], None, None]:
    """Predicts every image; one that cannot be read does not stop the others.

    Yields:
        Each source when it is finished, with the error if it failed.

    Raises:
        OSError: no more files can be written.
    """
    keep_image = any(p.is_picture for p in products)

    def prepare(source: Source) -> Prepared:
        return predictor.prepare(source.path, keep_image=keep_image)

    def pixels(source: Source) -> int:
        with suppress(ValueError):  # reading names the fault
            height, width = read_size(source.path)
            return height * width
        return 0

    def save(source: Source, image: Prepared, prediction: Prediction) -> None:
        prediction.require_finite()
        with folder.files(source, products, facts(prediction)) as paths:
            for product, path in paths.items():
                path.write_bytes(product.encode(prediction, image.image, style))

    sized = ((source, pixels(source)) for source in sources)
    return _predict(predictor, sized, prepare=prepare, save=save, workers=workers)


def predict_video(
    predictor: Predictor,
    video: VideoReader,
    source: Source,
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
) -> Generator[None, None, None]:
    """Predicts every frame, and yields after each.

    Raises:
        ValueError: the video cannot be decoded to its end.
        OSError: no more files can be written.
    """
    record = {"frames": 0, "fps": video.fps}
    with folder.files(source, products, record) as paths:
        writers = {product: VideoWriter(path, fps=video.fps) for product, path in paths.items()}

        def save(_: np.ndarray, frame: Prepared, prediction: Prediction) -> None:
            nonlocal style
            prediction.require_finite()
            style = next_style(style, prediction)
            for product, writer in writers.items():
                picture = product.make(product.name, prediction, frame.image, style)
                assert isinstance(picture, np.ndarray)
                writer.write(picture)

        prepare = partial(predictor.prepare, keep_image=True)
        frames = ((frame, frame.size // 3) for frame in video)
        for _, error in _predict(predictor, frames, prepare=prepare, save=save, workers=1):
            if error is not None:
                raise error
            record["frames"] += 1
            yield
        for writer in writers.values():
            writer.close()


def next_style(style: Style, prediction: Prediction) -> Style:
    """A style whose depth range follows the frames slowly, so that colours do not flicker."""
    spans = {}
    for name in (n for n, spec in prediction.outputs.items() if spec.kind == "depth"):
        new = np.array(nearness_span(name, prediction, replace(style, spans={})))
        low, high = STEADINESS * np.array(style.spans.get(name, new)) + (1 - STEADINESS) * new
        spans[name] = float(low), float(high)
    return replace(style, spans=spans)


def _predict(
    predictor: Predictor,
    items: Iterable[tuple[S, int]],
    *,
    prepare: Callable[[S], Prepared],
    save: Callable[[S, Prepared, Prediction], None],
    workers: int,
) -> Generator[tuple[S, ValueError | None], None, None]:
    """Predicts items in batches; yields each when it is finished, with the error if it failed.

    Each item comes with its number of pixels, which bounds how many are held at once.
    ``workers`` threads read and resize ahead, and as many encode and write behind. Decoding,
    resizing and compressing release Python's lock, so the network computes at the same time.
    """
    count = workers + predictor.batch_size
    failed: list[tuple[S, ValueError | None]] = []

    def prepared() -> Iterator[tuple[S, Prepared]]:
        tasks = ((item, pixels, partial(prepare, item)) for item, pixels in items)
        for item, future in _in_threads(readers, tasks, count):
            try:
                yield item, future.result()
            except ValueError as error:
                failed.append((item, error))

    def predicted() -> Iterator[tuple[S, int, Callable[[], None]]]:
        for batch in batches(prepared(), predictor.batch_size, key=lambda p: p[1].input.shape):
            predictions = predictor.predict([each for _, each in batch])
            for (item, each), prediction in zip(batch, predictions, strict=True):
                height, width = each.size
                yield item, height * width, partial(save, item, each, prediction)

    with _threads(workers) as readers, _threads(workers) as writers:
        for item, future in _in_threads(writers, predicted(), count):
            try:
                future.result()
            except ValueError as error:
                failed.append((item, error))
            else:
                yield item, None
            while failed:
                yield failed.pop(0)
        yield from failed


def _in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[S, int, Callable[[], T]]], count: int
) -> Iterator[tuple[S, Future[T]]]:
    """Runs tasks in a pool, and yields their futures in order.

    At most ``count`` are pending, and of more than one at most ``PIXELS_PENDING`` pixels.
    """
    waiting: deque[tuple[S, Future[T], int]] = deque()
    for item, pixels, task in tasks:
        while waiting and (
            len(waiting) == count or sum(w[2] for w in waiting) + pixels > PIXELS_PENDING
        ):
            yield waiting.popleft()[:2]
        waiting.append((item, pool.submit(task), pixels))
    while waiting:
        yield waiting.popleft()[:2]


@contextmanager
def _threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that at the end does not start tasks that are still waiting."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
