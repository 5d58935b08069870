"""A video in, videos out: coloured depth, classes over the frames, or panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat

from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.predict.files import Meter, in_threads, threads
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import Source
from dpt.predict.outputs import Product
from dpt.predict.paint import Span, Style, nearness_span
from dpt.predict.predictor import Prediction, Predictor, Prepared

STEADINESS = 0.9
"""Share that the range of colours keeps from frame to frame: it follows within some 20 frames."""


class SteadyStyle:
    """A style whose range of depths follows the frames slowly, so that colours do not flicker."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._span: Span | None = None

    def of(self, prediction: Prediction) -> Style:
        """The style for the next frame."""
        if prediction.depth is None:
            return self._style
        new = nearness_span(prediction, self._style)
        old = self._span or new
        low, high = (STEADINESS * o + (1 - STEADINESS) * n for o, n in zip(old, new, strict=True))
        self._span = low, high
        return replace(self._style, span=self._span)


def predict_video(
    predictor: Predictor,
    source: Source,
    folder: OutputFolder,
    *,
    products: Sequence[Product],
    style: Style,
    meter: Meter,
) -> None:
    """Predicts every frame, with one thread that decodes ahead and one that encodes behind.

    Raises:
        ValueError: the video cannot be decoded to its end.
        CannotWriteError: no more can be written.
    """
    video = VideoReader(source.path)
    meter.expect(video.announced)
    frames = iter(video)
    count = 2 * predictor.batch_size
    steady, facts = SteadyStyle(style), {"frames": 0, "fps": video.fps}

    def read() -> Prepared | None:
        frame = next(frames, None)
        return None if frame is None else predictor.prepare(frame, keep_photo=True)

    with (
        folder.files(source, products, facts) as paths,
        threads(1) as reader,
        threads(1) as painter,
    ):
        writers = {p: VideoWriter(path, fps=video.fps) for p, path in paths.items()}

        def painting() -> Iterator[tuple[Source, Callable[[], None]]]:
            for batch in _batches(in_threads(reader, repeat((source, read)), count), predictor):
                predictions = predictor.predict(batch)
                for picture, prediction in zip(batch, predictions, strict=True):
                    yield source, partial(_write, writers, prediction, picture, steady)

        for _, future in in_threads(painter, painting(), count):
            future.result()
            facts["frames"] += 1
            meter.advance()
        for writer in writers.values():
            writer.close()


def _batches(futures: Iterator, predictor: Predictor) -> Iterator[list[Prepared]]:
    """Frames by batches, up to the end of the video."""
    batch: list[Prepared] = []
    for _, future in futures:
        picture = future.result()
        if picture is not None:
            batch.append(picture)
        if batch and (picture is None or len(batch) == predictor.batch_size):
            yield batch
            batch = []
        if picture is None:
            return


def _write(
    writers: Mapping[Product, VideoWriter],
    prediction: Prediction,
    picture: Prepared,
    steady: SteadyStyle,
) -> None:
    style = steady.of(prediction)
    for product, writer in writers.items():
        assert product.paint is not None
        writer.write(product.paint(prediction, picture.photo, style))
