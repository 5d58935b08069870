"""One class between a photo and an answer at the photo's own size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from dpt.data.resize import resize_image
from dpt.model import DPT
from dpt.predict.network import Maps, Network, Precision
from dpt.predict.pictures import Picture, as_rgb
from dpt.predict.tiling import predict_tiles
from dpt.types import Calibration

Unit = Literal["metres", "relative inverse depth"]
MIN_TILE = 64
MOST_ELONGATED = 32
"""A picture that would need this many times the model's usual input is refused: of 32 × 10,000
pixels, say, the network would be shown 384 × 120,000."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of one picture, at the picture's own size (H, W).

    Attributes:
        depth: float32 (H, W) in ``unit``, or None.
        unit: ``metres``, or ``relative inverse depth``, which is 1 / depth up to an unknown scale
            and shift: larger is nearer.
        valid_range: (smallest, largest) depth that means something; what lies outside, or is not
            finite, does not.
        labels: class ids (H, W), uint8 or (of more than 256 classes) uint16, or None.
        class_id: the most probable class of the picture, or None.
        probabilities: float32 (C,) of the picture's classes, or None.
        value: the number that a regression model gives the picture, or None.
        class_names: of ``labels`` or ``class_id``, where the model knows them.
    """

    depth: np.ndarray | None = None
    unit: Unit | None = None
    valid_range: tuple[float, float] | None = None
    labels: np.ndarray | None = None
    class_id: int | None = None
    probabilities: np.ndarray | None = None
    value: float | None = None
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A picture made ready for the network, which needs no more of it than this.

    Attributes:
        size: (H, W) of the picture.
        input: uint8 (h, w, 3), resized.
        photo: uint8 (H, W, 3), where tiles or pictures are to be made of it.
    """

    size: tuple[int, int]
    input: np.ndarray
    photo: np.ndarray | None


class Predictor:
    """Predicts for pictures of any size: ``Predictor(model)(image)``.

    Resizing is evaluation's: to the network's input size as ``model.preprocessing`` says, and back.
    With ``flip`` and ``scales`` depth is averaged as depth, classes as probabilities.

    Args:
        model: a model, or where to load one from (see :meth:`dpt.DPT.from_pretrained`). It is
            copied; weights that change later are not seen.
        batch_size: pictures that go through the network at once, if of equal input size.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; None takes a GPU where there is one.
        precision: ``fp32``, ``bf16``, or ``fp16`` (GPUs).
        flip: average with the mirror image.
        scales: average over these factors of the network's input size.
        tile: see pictures that are larger than this, in pixels, as overlapping tiles of this side:
            more detail, many passes. See :mod:`dpt.predict.tiling`.

    Attributes:
        unit, valid_range, class_names: of every :class:`Prediction`.
        num_classes: of the segmentation, or 0.
    """

    def __init__(
        self,
        model: DPT | str | Path,
        *,
        batch_size: int = 1,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        flip: bool = False,
        scales: Sequence[float] = (1.0,),
        tile: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        if tile is not None and tile < MIN_TILE:
            raise ValueError(f"tile={tile}: must be at least {MIN_TILE} pixels")
        if isinstance(model, str | Path):
            model = DPT.from_pretrained(model)
        self.batch_size = batch_size
        self.tile = tile
        self.preprocessing = model.preprocessing
        self.network = Network(model, device=device, precision=precision, flip=flip, scales=scales)
        self.heads: dict[str, dict] = model.spec["heads"]
        self.class_names: tuple[str, ...] = tuple(model.spec.get("class_names") or ())
        self.num_classes: int = self.heads.get("segmentation", {}).get("num_classes", 0)
        self.calibration: Calibration | None = model.calibration
        self.unit: Unit | None = None
        self.valid_range: tuple[float, float] | None = None
        depth = self.heads.get("depth", {})
        self._kind: Literal["relative", "metric"] = depth.get("kind", "relative")
        if "depth" in self.heads:
            in_metres = self._kind == "metric" or self.calibration is not None
            self.unit = "metres" if in_metres else "relative inverse depth"
            known = depth.get("max_depth") if self._kind == "metric" else None
            self.valid_range = (0.0, known or float("inf"))
            if self.calibration is not None:
                self.valid_range = (self.calibration.min_depth, self.calibration.max_depth)

    @overload
    def __call__(self, pictures: Picture) -> Prediction: ...
    @overload
    def __call__(self, pictures: list[Picture] | tuple[Picture, ...]) -> list[Prediction]: ...
    def __call__(
        self, pictures: Picture | list[Picture] | tuple[Picture, ...]
    ) -> Prediction | list[Prediction]:
        """The prediction for a picture, or those for several, in their order.

        Args:
            pictures: a path, uint8 (H, W, 3) RGB, a PIL image, a tensor (uint8 (3, H, W), or float
                in 0..1), or a list of them.

        Raises:
            ValueError: a file cannot be read, or a picture is none of these.
        """
        if not isinstance(pictures, list | tuple):
            return self.predict([self.prepare(pictures)])[0]
        found: list[Prediction | None] = [None] * len(pictures)
        prepared = ((i, self.prepare(picture)) for i, picture in enumerate(pictures))
        for batch in batches(prepared, self.batch_size, key=lambda pair: pair[1].input.shape):
            predictions = self.predict([p for _, p in batch])
            for (i, _), prediction in zip(batch, predictions, strict=True):
                found[i] = prediction
        return [p for p in found if p is not None]

    def prepare(self, picture: Picture, *, keep_photo: bool = False) -> Prepared:
        """Reads and resizes a picture; may be called by several threads at once.

        Args:
            picture: see :meth:`__call__`.
            keep_photo: keep the picture at its own size too.
        """
        photo = as_rgb(picture)
        height, width = photo.shape[:2]
        size = self.preprocessing.input_size(height, width)
        usual = self.preprocessing.image_size
        if self.preprocessing.resize != "none" and (
            size[0] * size[1] > MOST_ELONGATED * usual[0] * usual[1]
        ):
            name = picture if isinstance(picture, str | Path) else "a picture"
            raise ValueError(
                f"{name}: {width}x{height} pixels are too elongated, the network would be shown "
                f"{size[1]}x{size[0]}: crop it"
            )
        shown = resize_image(photo, size, rule=self.preprocessing.interpolation)
        keep_photo = keep_photo or self._is_tiled((height, width))
        return Prepared((height, width), shown, photo if keep_photo else None)

    def predict(self, batch: Sequence[Prepared]) -> list[Prediction]:
        """Predictions for prepared pictures of equal input size, in one pass of the network."""
        try:
            maps = self.network([p.input for p in batch])
            return [self._finish(p, m) for p, m in zip(batch, maps, strict=True)]
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"the device has too little memory for {len(batch)} pictures of "
                f"{batch[0].input.shape[1]}x{batch[0].input.shape[0]} at once: take a smaller "
                f"batch size or precision bf16 ({str(error).partition('.')[0]})"
            ) from None

    def _is_tiled(self, size: tuple[int, int]) -> bool:
        return self.tile is not None and max(size) > self.tile

    @torch.inference_mode()
    def _finish(self, prepared: Prepared, maps: Maps) -> Prediction:
        """Maps at the picture's own size, in plain NumPy."""
        depth = labels = None
        if self.tile is not None and self._is_tiled(prepared.size):
            assert prepared.photo is not None
            depth, labels = predict_tiles(
                prepared.photo,
                tile=self.tile,
                whole=maps,
                predict=self._predict_tiles,
                kind=self._kind,
            )
        else:
            if maps.depth is not None:
                depth = maps.depth_at(prepared.size)
            if maps.logits is not None:
                labels = maps.labels_at(prepared.size)
        if depth is not None and self.calibration is not None:
            depth = self.calibration.to_metres(depth)
        probabilities = None if maps.class_logits is None else maps.class_logits[0].softmax(0)
        return Prediction(
            depth=_numpy(depth),
            unit=self.unit,
            valid_range=self.valid_range,
            labels=_label_array(labels, self.num_classes),
            class_id=None if probabilities is None else int(probabilities.argmax()),
            probabilities=_numpy(probabilities),
            value=None if maps.value is None else float(maps.value),
            class_names=self.class_names,
        )

    def _predict_tiles(self, tiles: list[np.ndarray]) -> list[Maps]:
        size = self.preprocessing.input_size(*tiles[0].shape[:2])
        found: list[Maps] = []
        for start in range(0, len(tiles), self.batch_size):
            shown = [
                resize_image(tile, size, rule=self.preprocessing.interpolation)
                for tile in tiles[start : start + self.batch_size]
            ]
            found += self.network(shown)
        return found


def batches(items: Iterable[T], size: int, *, key: Callable[[T], Hashable]) -> Iterator[list[T]]:
    """Lists of up to ``size`` items of one key; no more than 4 · ``size`` wait for their like."""
    waiting: dict[Hashable, list[T]] = {}
    for item in items:
        group = waiting.setdefault(key(item), [])
        group.append(item)
        if len(group) == size:
            yield waiting.pop(key(item))
        elif sum(map(len, waiting.values())) >= 4 * size:
            yield waiting.pop(max(waiting, key=lambda k: len(waiting[k])))
    yield from waiting.values()


def _numpy(values: Tensor | None) -> np.ndarray | None:
    """A copy of its own: the tensor may be a part of a batch, or belong to inference mode."""
    return None if values is None else np.array(values.cpu().numpy())


def _label_array(labels: Tensor | None, num_classes: int) -> np.ndarray | None:
    array = _numpy(labels)
    return array.astype(np.uint16) if array is not None and num_classes > 256 else array
