"""``RayPredictor``: predictions of the images of a Ray data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpt.data.formats.cameras import StatedCamera
from dpt.model import DPT
from dpt.predict.prediction import Prediction, depth_unit
from dpt.predict.predictor import Predictor


class RayPredictor:
    """Adds the predictions of each image to the batches of a Ray data set.

    For ``ray.data.Dataset.map_batches``; each worker of Ray loads the model once::

        images = ray.data.read_images("s3://bucket/photos", mode="RGB", include_paths=True)
        depth = images.map_batches(
            RayPredictor,
            fn_constructor_args=["best.ckpt"],
            fn_constructor_kwargs={"batch_size": 8},  # images in one pass, of one size
            batch_size=8,
            num_gpus=1,
            concurrency=4,
        )

    Ray does not apply the EXIF orientation of the files that it reads; ``dpt`` does for paths.

    Args:
        model: a model, or where to load one from, see :class:`dpt.Predictor`.
        column: the name of the images, uint8 (H, W, 3) RGB each, or of paths of files.
        cameras: the name of a column with the camera of each image, K (3, 3) or fx, fy, cx and cy
            in its pixels, for metres of a model with a canonical focal length.
        settings: further arguments of :class:`dpt.Predictor`, such as ``precision``.
    """

    def __init__(
        self,
        model: DPT | str,
        *,
        column: str = "image",
        cameras: str | None = None,
        **settings: Any,
    ) -> None:
        self.predictor = Predictor(model, **settings)
        self.column, self.cameras = column, cameras

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the batch with a column for each output of the model: an array (H, W) or
        (H, W, C) for each image; values or probabilities of outputs for the whole image. Depth has
        a second column ``NAME_unit``, see :attr:`dpt.Prediction.unit`.

        Raises:
            ValueError: the batch lacks a column, an output has the name of a column, or the network
                gave NaN or infinity.
        """
        for column in filter(None, (self.column, self.cameras)):
            if column not in batch:
                key = "column" if column == self.column else "cameras"
                raise ValueError(f"column {column}: the batch has {', '.join(batch)}: set {key}=")
        predictions = self._predict(batch)
        added: dict[str, np.ndarray] = {}
        for name, spec in self.predictor.outputs.items():
            added[name] = _column([prediction.arrays[name] for prediction in predictions])
            if spec.kind == "depth":
                units = [depth_unit(prediction.outputs[name]) for prediction in predictions]
                added[f"{name}_unit"] = _column(units)
        taken = batch.keys() & added.keys()
        if taken:
            raise ValueError(f"column {min(taken)}: is also an output of the model: rename it")
        return dict(batch) | added

    def _predict(self, batch: Mapping[str, np.ndarray]) -> list[Prediction]:
        images = batch[self.column]
        cameras: list[StatedCamera | None] = [None] * len(images)
        if self.cameras is not None:
            cameras = [StatedCamera.parse(K, f"column {self.cameras}") for K in batch[self.cameras]]
        pairs = zip(images, cameras, strict=True)
        prepare = self.predictor.prepare
        predictions = self.predictor.predict_all(prepare(x, camera=camera) for x, camera in pairs)
        for prediction in predictions:
            prediction.require_finite()
        return predictions


def _column(values: Sequence[object]) -> np.ndarray:
    """Returns one value for each image; arrays may differ in size."""
    column = np.empty(len(values), dtype=object)
    for k, value in enumerate(values):
        column[k] = value
    return column
