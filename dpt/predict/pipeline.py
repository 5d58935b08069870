"""Many images, and videos: reading ahead, prediction in batches, writing behind."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

import numpy as np

from dpt.data.formats.io import read_size
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product, Style, facts
from dpt.predict.predictor import Prediction, Predictor, Prepared, batches

S = TypeVar("S")
T = TypeVar("T")

LARGE = 2**25  # pixels of an image above which it is predicted alone, which bounds the memory
STEADINESS = 0.9  # weight of the previous colour range in a video, which follows within 20 frames


def predict_images(
    predictor: Predictor,
    sources: Sequence[Source],
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
    workers: int,
) -> Generator[tuple[Source, ValueError | None], None, None]:
    """Predicts every image; yields each when it is finished, with the error if it failed."""
    keep_image = any(p.is_picture for p in products)

    def prepare(source: Source) -> Prepared:
        return predictor.prepare(source.path, keep_image=keep_image)

    def group_of(source: Source) -> Source | None:
        with suppress(ValueError):  # reading it will name the fault
            return source if math.prod(read_size(source.path)) > LARGE else None
        return None

    def save(source: Source, image: Prepared, prediction: Prediction) -> None:
        prediction.require_finite()
        with folder.files(source, products, facts(prediction)) as paths:
            for product, path in paths.items():
                path.write_bytes(product.encode(prediction, image.image, style))

    for _, group in groupby(sources, group_of):
        yield from _predict(predictor, group, prepare=prepare, save=save, workers=workers)


def predict_video(
    predictor: Predictor,
    video: VideoReader,
    source: Source,
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
) -> Generator[None, None, None]:
    """Predicts every frame, and yields after each."""
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
        for _, error in _predict(predictor, video, prepare=prepare, save=save, workers=1):
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
        new = np.array(Style().span(name, prediction))
        low, high = STEADINESS * np.array(style.spans.get(name, new)) + (1 - STEADINESS) * new
        spans[name] = float(low), float(high)
    return replace(style, spans=spans)


def _predict(
    predictor: Predictor,
    items: Iterable[S],
    *,
    prepare: Callable[[S], Prepared],
    save: Callable[[S, Prepared, Prediction], None],
    workers: int,
) -> Generator[tuple[S, ValueError | None], None, None]:
    """Predicts items in batches; yields each when it is finished, with the error if it failed.

    ``workers`` threads read and resize ahead, and as many encode and write behind. Decoding,
    resizing and compressing release Python's lock, so the network computes at the same time.
    """
    count = workers + predictor.batch_size
    failed: list[tuple[S, ValueError | None]] = []

    def prepared() -> Iterator[tuple[S, Prepared]]:
        for item, future in _in_threads(readers, ((i, partial(prepare, i)) for i in items), count):
            try:
                yield item, future.result()
            except ValueError as error:
                failed.append((item, error))

    def results(batch: Sequence[tuple[S, Prepared]]) -> list[tuple[S, Prepared, Prediction]]:
        try:
            predictions = predictor.predict([each for _, each in batch])
            return [(*pair, found) for pair, found in zip(batch, predictions, strict=True)]
        except ValueError as error:  # too little memory
            fault = error.with_traceback(None)  # its frames would keep tensors in memory
        if len(batch) > 1:
            return [result for each in batch for result in results([each])]
        failed.append((batch[0][0], fault))
        return []

    def predicted() -> Iterator[tuple[S, Callable[[], None]]]:
        for batch in batches(prepared(), predictor.batch_size, key=lambda p: p[1].input.shape):
            for item, each, prediction in results(batch):
                yield item, partial(save, item, each, prediction)

    with ExitStack() as stack:
        readers, writers = ThreadPoolExecutor(workers), ThreadPoolExecutor(workers)
        for pool in (readers, writers):  # at the end, tasks that are still waiting are not started
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


def _in_threads(
    pool: ThreadPoolExecutor, tasks: Iterable[tuple[S, Callable[[], T]]], count: int
) -> Iterator[tuple[S, Future[T]]]:
    """Runs tasks in a pool, and yields their futures in order; at most ``count`` are pending."""
    tasks = iter(tasks)
    waiting = deque((s, pool.submit(task)) for s, task in islice(tasks, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend((s, pool.submit(task)) for s, task in islice(tasks, 1))
