"""``Predictor``: predictions at an image's own size, from a file, an array or a tensor.

Shapes: (H, W) the image, (h, w) the network's input, C channels or classes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args, overload

import numpy as np
import torch
from torch import Tensor

from dpt.data.resize import resize_image
from dpt.depthmath import at_least_float32
from dpt.functional import chunked_argmax, upsample
from dpt.model import DPT
from dpt.nn.tta import augmented
from dpt.predict.inputs import Image, as_rgb
from dpt.predict.tiling import label_dtype, predict_tiles
from dpt.types import Calibration, OutputKind, OutputSpec

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MIN_TILE = 64
MAX_ELONGATION = 32
"""Largest ratio of an input's pixels to the usual number; images above it are refused. For an image
of 32 × 10,000 pixels the network input would be 384 × 120,000."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model predicts for one image.

    ``depth``, ``labels``, ``class_id`` and ``value`` are the first output of their kind, and None
    if the model has no such head; ``maps`` and ``vectors`` are all others, by name.

    Attributes:
        arrays: predictions by the output's name. Dense outputs have the image's size: float32
            (H, W) or (H, W, C), and class ids (H, W) in uint8, or uint16 for more than 256
            classes. Outputs for the whole image: probabilities float32 (C,), or values float32 ()
            or (C,).
        outputs: the declaration of each output.
    """

    arrays: Mapping[str, np.ndarray]
    outputs: Mapping[str, OutputSpec]

    def name(self, kind: OutputKind, *, dense: bool = True) -> str | None:
        """The name of the first output of a kind."""
        found = (n for n, s in self.outputs.items() if (s.kind, s.dense) == (kind, dense))
        return next(found, None)

    def _first(self, kind: OutputKind, *, dense: bool = True) -> np.ndarray | None:
        name = self.name(kind, dense=dense)
        return None if name is None else self.arrays[name]

    @property
    def depth(self) -> np.ndarray | None:
        """float32 (H, W) in ``unit``."""
        return self._first("depth")

    @property
    def unit(self) -> str | None:
        """Unit of ``depth``: ``metres``, or ``relative inverse depth``.

        Relative inverse depth is 1 / depth up to an unknown scale and shift: larger is nearer.
        """
        name = self.name("depth")
        return None if name is None else depth_unit(self.outputs[name])

    @property
    def valid_range(self) -> tuple[float, float] | None:
        """Smallest and largest meaningful ``depth``; values outside or not finite are invalid."""
        name = self.name("depth")
        return None if name is None else self.outputs[name].value_range or (0.0, float("inf"))

    @property
    def labels(self) -> np.ndarray | None:
        """Class ids (H, W), uint8, or uint16 for more than 256 classes."""
        return self._first("logits")

    @property
    def probabilities(self) -> np.ndarray | None:
        """float32 (C,), of the classes of the whole image."""
        return self._first("logits", dense=False)

    @property
    def class_id(self) -> int | None:
        """The most probable class of the whole image."""
        return None if self.probabilities is None else int(self.probabilities.argmax())

    @property
    def class_name(self) -> str | None:
        """The name of ``class_id``, ``class 7`` if unknown."""
        k, name = self.class_id, self.name("logits", dense=False)
        if k is None or name is None:
            return None
        names = self.outputs[name].class_names
        return names[k] if k < len(names) else f"class {k}"

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of ``labels``, or else of ``class_id``; empty if unknown."""
        name = self.name("logits") or self.name("logits", dense=False)
        return () if name is None else self.outputs[name].class_names

    @property
    def value(self) -> float | None:
        """The number that a regression head predicts for the whole image."""
        found = self._first("vector", dense=False)
        return float(found.item()) if found is not None and found.size == 1 else None

    @property
    def maps(self) -> dict[str, np.ndarray]:
        """Dense outputs other than ``depth`` and ``labels``, float32 (H, W) or (H, W, C)."""
        return self._others(dense=True)

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        """Outputs for the whole image other than ``probabilities`` and ``value``."""
        return self._others(dense=False)

    def _others(self, *, dense: bool) -> dict[str, np.ndarray]:
        first = {self.name("depth", dense=dense), self.name("logits", dense=dense)}
        if self.value is not None:
            first.add(self.name("vector", dense=False))
        names = (n for n, s in self.outputs.items() if s.dense == dense and n not in first)
        return {name: self.arrays[name] for name in names}


def depth_unit(spec: OutputSpec) -> str:
    """The unit of a depth output as predictions and files state it."""
    return "relative inverse depth" if spec.is_inverse_depth else "metres"


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image ready for the network.

    Attributes:
        size: (H, W) of the image.
        input: uint8 (h, w, 3), resized.
        image: uint8 (H, W, 3), if it is needed for tiles or pictures; else None.
    """

    size: tuple[int, int]
    input: np.ndarray
    image: np.ndarray | None


class Predictor:
    """Predicts for images of any size: ``Predictor(model)(image)``.

    As in evaluation, an image is resized to the network's input size (``model.preprocessing``), and
    the outputs are resized to the image's size. ``flip`` and ``scales`` average class
    probabilities, and the values of all other outputs.

    Args:
        model: a model, or where to load one from (see :meth:`dpt.DPT.from_pretrained`). It is
            copied: later changes of its weights have no effect.
        batch_size: number of images in one pass, if their network inputs have one size.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; None uses a GPU if there is one.
        precision: ``fp32``, ``bf16``, or ``fp16`` (GPUs). Outputs are float32.
        flip: also predict the mirrored image, and average.
        scales: factors of the network's input size to average over.
        tile: predict images that are larger than this, in pixels, by overlapping tiles of this
            side: more detail, more passes. See :mod:`dpt.predict.tiling`.

    Attributes:
        outputs: declaration of each output; depth in metres where the model is calibrated.
        calibration: applied to the first depth output; None if there is none.
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
        if precision not in _DTYPES:
            raise ValueError(f"precision={precision!r}: choose from {get_args(Precision)}")
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales={list(scales)}: must be factors above 0, such as 0.75 1 1.25")
        self.device, self.dtype = _device(device), _DTYPES[precision]
        if self.dtype is torch.float16 and self.device.type == "cpu":
            raise ValueError("precision=fp16 is for GPUs: choose bf16 or fp32 on a CPU")
        if isinstance(model, str | Path):
            model = DPT.from_pretrained(model)
        self.batch_size = batch_size
        self.tile = tile
        self.preprocessing = model.preprocessing
        self.calibration: Calibration | None = model.calibration
        self.network_outputs = model.outputs
        self._depth = next((n for n, s in model.outputs.items() if s.kind == "depth"), None)
        fast = model.optimize_for_inference(compiled=False).to(self.device, self.dtype)
        if flip or tuple(scales) != (1.0,):
            multiple = self.preprocessing.multiple_of
            self._forward = augmented(
                fast, model.outputs, flip=flip, scales=scales, multiple_of=multiple
            )
        else:
            self._forward = partial(fast, upsample_logits=False)

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        outputs = dict(self.network_outputs)
        if self.calibration is not None and self._depth is not None:
            bounds = self.calibration.min_depth, self.calibration.max_depth
            outputs[self._depth] = replace(outputs[self._depth], unit="m", value_range=bounds)
        return outputs

    @property
    def unit(self) -> str | None:
        """Unit of the predicted depth, see :attr:`Prediction.unit`."""
        return Prediction({}, self.outputs).unit

    @overload
    def __call__(self, images: Image) -> Prediction: ...
    @overload
    def __call__(self, images: list[Image] | tuple[Image, ...]) -> list[Prediction]: ...
    def __call__(
        self, images: Image | list[Image] | tuple[Image, ...]
    ) -> Prediction | list[Prediction]:
        """The prediction for an image, or those for several, in their order.

        Args:
            images: a path, uint8 (H, W, 3) RGB, a PIL image, a tensor (uint8 (3, H, W), or float
                in 0..1), or a list of these.

        Raises:
            ValueError: a file cannot be read, or an image is none of these.
        """
        if not isinstance(images, list | tuple):
            return self.predict([self.prepare(images)])[0]
        found: dict[int, Prediction] = {}
        prepared = ((i, self.prepare(image)) for i, image in enumerate(images))
        for batch in batches(prepared, self.batch_size, key=lambda pair: pair[1].input.shape):
            predictions = self.predict([p for _, p in batch])
            found |= zip((i for i, _ in batch), predictions, strict=True)
        return [found[i] for i in range(len(images))]

    def prepare(self, image: Image, *, keep_image: bool = False) -> Prepared:
        """Reads and resizes an image; several threads may call it at once.

        Args:
            image: see :meth:`__call__`.
            keep_image: also keep the image at its own size.
        """
        rgb = as_rgb(image)
        height, width = rgb.shape[:2]
        size = self.preprocessing.input_size(height, width)
        usual = self.preprocessing.image_size
        if self.preprocessing.resize != "none" and (
            size[0] * size[1] > MAX_ELONGATION * usual[0] * usual[1]
        ):
            name = image if isinstance(image, str | Path) else "an image"
            raise ValueError(
                f"{name}: {width}x{height} pixels are too elongated, the network's input would "
                f"have {size[1]}x{size[0]}: crop it"
            )
        keep_image = keep_image or self._is_tiled((height, width))
        return Prepared((height, width), self._resized(rgb, size), rgb if keep_image else None)

    def predict(self, batch: Sequence[Prepared]) -> list[Prediction]:
        """Predictions for prepared images of equal input size, in one pass of the network."""
        try:
            found = self._run([p.input for p in batch])
            return [self._finish(p, maps) for p, maps in zip(batch, found, strict=True)]
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"the device has too little memory for {len(batch)} images of "
                f"{batch[0].input.shape[1]}x{batch[0].input.shape[0]} at once: reduce the batch "
                f"size or use precision bf16 ({str(error).partition('.')[0]})"
            ) from None

    @torch.inference_mode()
    def _run(self, images: Sequence[np.ndarray]) -> list[dict[str, Tensor]]:
        """The outputs for images uint8 (h, w, 3) of one size, float32 on the device.

        The outputs of each image keep the batch axis (the memory format makes upsampling fast).
        Dense outputs have a channel axis; logits may be smaller than the images.
        """
        stacked = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2)
        outputs = dict(self._forward(self.preprocessing.normalize(stacked).to(self.dtype)))
        for name, spec in self.network_outputs.items():
            values = at_least_float32(outputs[name])
            outputs[name] = values[:, None] if spec.dense and spec.channels is None else values
        return [{k: v[i : i + 1] for k, v in outputs.items()} for i in range(len(images))]

    def _run_tiles(self, tiles: list[np.ndarray]) -> list[dict[str, Tensor]]:
        size = self.preprocessing.input_size(*tiles[0].shape[:2])
        found: list[dict[str, Tensor]] = []
        for start in range(0, len(tiles), self.batch_size):
            batch = tiles[start : start + self.batch_size]
            found += self._run([self._resized(tile, size) for tile in batch])
        return found

    def _resized(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        return resize_image(image, size, rule=self.preprocessing.interpolation)

    def _is_tiled(self, size: tuple[int, int]) -> bool:
        return self.tile is not None and max(size) > self.tile

    @torch.inference_mode()
    def _finish(self, prepared: Prepared, found: dict[str, Tensor]) -> Prediction:
        """The network's outputs for one image at the image's own size, in NumPy."""
        outputs = self.outputs
        dense = {name: spec for name, spec in outputs.items() if spec.dense}
        if self.tile is not None and self._is_tiled(prepared.size) and dense:
            assert prepared.image is not None
            full = predict_tiles(
                prepared.image,
                tile=self.tile,
                whole=found,
                predict=self._run_tiles,
                outputs={name: self.network_outputs[name] for name in dense},
            )
        else:
            seen = prepared.input.shape[0], prepared.input.shape[1]
            full = {n: _at_size(found[n], s, seen, prepared.size) for n, s in dense.items()}
        arrays: dict[str, np.ndarray] = {}
        for name, spec in outputs.items():
            values = full[name] if spec.dense else found[name][0]
            if name == self._depth and self.calibration is not None:
                values = self.calibration.to_metres(values)
            if spec.kind == "logits" and not spec.dense:
                values = values.softmax(0)
            if spec.dense and spec.kind != "logits" and spec.channels is None:
                values = values[..., 0]
            array = np.array(values.cpu().numpy(), order="C")  # a copy: may be part of a batch
            arrays[name] = array.astype(np.uint16) if array.dtype == np.int32 else array
        return Prediction(arrays, outputs)


def _at_size(
    maps: Tensor, spec: OutputSpec, seen: tuple[int, int], size: tuple[int, int]
) -> Tensor:
    """Maps (1, C, h', w') at ``size`` as evaluation resizes them: (H, W, C), or class ids (H, W).

    Args:
        seen: (h, w) of the network's input, to which logits are upsampled first.
    """
    if spec.kind == "logits":
        maps = upsample(maps, seen)
        return chunked_argmax(maps, size, dtype=label_dtype(maps.shape[1]))[0]
    return upsample(maps, size)[0].permute(1, 2, 0)


def batches(items: Iterable[T], size: int, *, key: Callable[[T], Hashable]) -> Iterator[list[T]]:
    """Lists of up to ``size`` items of equal key; at most 4 · ``size`` items wait for others."""
    waiting: dict[Hashable, list[T]] = {}
    for item in items:
        group = waiting.setdefault(key(item), [])
        group.append(item)
        if len(group) == size:
            yield waiting.pop(key(item))
        elif sum(map(len, waiting.values())) >= 4 * size:
            yield waiting.pop(max(waiting, key=lambda k: len(waiting[k])))
    yield from waiting.values()


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(name)!r} cannot be used here ({reason})") from None
    return device
