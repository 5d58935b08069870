"""``RayPredictor``: predictions of the images of a Ray data set."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dpt.model import DPT
from dpt.predict.predictor import Predictor


class RayPredictor:
    """Adds the predictions of each image to the batches of a Ray data set.

    For ``ray.data.Dataset.map_batches``; each worker of Ray loads the model once::

        images = ray.data.read_images("s3://bucket/photos", mode="RGB", include_paths=True)
        depth = images.map_batches(
            RayPredictor, fn_constructor_args=["best.ckpt"], batch_size=8, num_gpus=1, concurrency=4
        )

    Args:
        model: a model, or where to load one from, see :class:`dpt.Predictor`.
        column: the name of the images, uint8 (H, W, 3) RGB each.
        settings: further arguments of :class:`dpt.Predictor`, such as ``precision``.
    """

    def __init__(self, model: DPT | str, *, column: str = "image", **settings: Any) -> None:
        self.predictor = Predictor(model, **settings)
        self.column = column

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the batch with a column for each output of the model: an array (H, W) or
        (H, W, C) for each image; values or probabilities of outputs for the whole image.

        Raises:
            ValueError: the batch has no images, or an output has the name of a column.
        """
        if self.column not in batch:
            raise ValueError(f"column {self.column}: the batch has {', '.join(batch)}: set column=")
        predictions = self.predictor(list(batch[self.column]))
        taken = batch.keys() & self.predictor.outputs.keys()
        if taken:
            raise ValueError(f"column {min(taken)}: is also an output of the model: rename it")
        columns = dict(batch)
        for name in self.predictor.outputs:
            column = np.empty(len(predictions), dtype=object)  # images may differ in size
            for k, prediction in enumerate(predictions):
                column[k] = prediction.arrays[name]
            columns[name] = column
        return columns
