"""Predictions for many files: reading ahead, batches, writing behind, and what failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

from dpt.predict.folder import CannotWriteError, OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product, depth_coding
from dpt.predict.paint import Style
from dpt.predict.predictor import Prediction, Predictor, Prepared, batches

T = TypeVar("T")


class Meter(Protocol):
    """Who is told of progress."""

    def advance(self, count: int = 1) -> None: ...

    def expect(self, more: int) -> None: ...

    def fail(self, source: Source, reason: str) -> None: ...


def predict_pictures(
    predictor: Predictor,
    sources: Sequence[Source],
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
    workers: int,
    meter: Meter,
) -> None:
    """Predicts every picture; one that cannot be read or written does not stop the rest.

    ``workers`` threads read and resize ahead, as many encode and write behind; decoding, resizing
    and compressing let go of Python's lock, so that the network computes meanwhile.

    Raises:
        CannotWriteError: no more can be written.
    """
    keep_photo = any(p.paint and p.folder != "depth_color" for p in products)

    def prepared(futures: Iterable[tuple[Source, Future]]) -> Iterator[tuple[Source, Prepared]]:
        for source, future in futures:
            try:
                yield source, future.result()
            except (ValueError, OSError) as error:
                meter.fail(source, str(error))

    with threads(workers) as readers, threads(workers) as writers:
        tasks = ((s, partial(predictor.prepare, s.path, keep_photo=keep_photo)) for s in sources)
        count = workers + predictor.batch_size
        pictures = prepared(in_threads(readers, tasks, count))

        def saving() -> Iterator[tuple[Source, Callable[[], None]]]:
            for batch in batches(pictures, predictor.batch_size, key=_input_shape):
                predictions = predictor.predict([p for _, p in batch])
                for source, picture in batch:
                    prediction = predictions.pop(0)  # large: nobody else shall hold it
                    yield (
                        source,
                        partial(_save, folder, source, prediction, picture.photo, products, style),
                    )
                    del prediction

        for source, future in in_threads(writers, saving(), count):
            try:
                future.result()
                meter.advance()
            except CannotWriteError:
                raise
            except (ValueError, OSError) as error:
                meter.fail(source, str(error))


def _input_shape(pair: tuple[Source, Prepared]) -> tuple[int, ...]:
    return pair[1].input.shape


def _save(
    folder: OutputFolder,
    source: Source,
    prediction: Prediction,
    photo: np.ndarray | None,
    products: Sequence[Product],
    style: Style,
) -> None:
    with folder.files(source, products, facts(prediction)) as paths:
        for product, path in paths.items():
            product.save(path, prediction, photo, style)


def facts(prediction: Prediction) -> dict[str, Any]:
    """What a reader of a picture's files must know, and what was said of it as a whole."""
    found: dict[str, Any] = {}
    if prediction.depth is not None:
        scale, offset = depth_coding(prediction)
        found["size"] = list(prediction.depth.shape)
        found["depth"] = {"scale": scale, "offset": offset, "unit": prediction.unit}
    if prediction.labels is not None:
        found["size"] = list(prediction.labels.shape)
    if prediction.class_id is not None and prediction.probabilities is not None:
        found["class_id"] = prediction.class_id
        if prediction.class_id < len(prediction.class_names):
            found["class"] = prediction.class_names[prediction.class_id]
        found["probability"] = round(float(prediction.probabilities[prediction.class_id]), 6)
    if prediction.value is not None:
        found["value"] = prediction.value
    return found


def in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[Source, Callable[[], T]]], count: int
) -> Iterator[tuple[Source, Future[T]]]:
    """Runs tasks in a pool, their futures in order; up to ``count`` of them are on their way."""
    tasks = iter(tasks)
    waiting = deque((s, pool.submit(task)) for s, task in islice(tasks, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend((s, pool.submit(task)) for s, task in islice(tasks, 1))


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that ends without doing what has not begun."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
