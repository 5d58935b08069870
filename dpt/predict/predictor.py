"""``Predictor``: predictions at an image's own size, from a file, an array or a tensor.

Shapes: (H, W) the image, (h, w) the network's input, C channels or classes.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, TypeVar, get_args, overload

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data.resize import resize_image
from dpt.depthmath import at_least_float32
from dpt.functional import EMULATED, chunked_argmax, has_bf16, resize, upsample
from dpt.model import DPT
from dpt.nn.tta import flipped_mean, refuse_masks
from dpt.predict.inputs import Image, as_rgb
from dpt.predict.tiling import predict_tiles
from dpt.process import lack_of_memory
from dpt.segments import OBJECT_IDS, SegmentMap, panoptic_segments
from dpt.types import Calibration, OutputKind, OutputSpec
from dpt.validation import Count, validate

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

T = TypeVar("T")
log = logging.getLogger("dpt")

SEGMENT_PIXELS = 2**21  # segments of larger images are computed at this number of pixels


@dataclass(frozen=True, eq=False)
class Segment:
    """A predicted object, or an area of stuff."""

    id: int  # 1, 2, ... in an image
    class_id: int
    class_name: str
    is_thing: bool  # whether the class is a thing; else it is stuff
    score: float  # probability of the class
    mask: np.ndarray  # bool (H, W)

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The smallest box around the mask: left, top, width and height in pixels."""
        left, top, width, height = cv2.boundingRect(self.mask.astype(np.uint8))
        return left, top, width, height


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model predicts for one image.

    ``depth``, ``labels``, ``class_id`` and ``value`` are the first output of their kind, and None
    if the model has no such head.

    ``arrays`` holds every prediction by the output's name. Dense outputs have the image's size:
    float32 (H, W) or (H, W, C), and class ids (H, W) in uint8, or uint16 for more than 256 classes.
    Segments: int32 (H, W), class · ``dpt.segments.OBJECT_IDS`` + number of the segment, -1 where
    there is none. Outputs for the whole image: probabilities float32 (C,), or values float32 () or
    (C,).
    """

    arrays: Mapping[str, np.ndarray]
    outputs: Mapping[str, OutputSpec]
    not_finite: tuple[str, ...] = ()  # outputs for which the network gave NaN or infinity
    scores: Mapping[str, np.ndarray] = field(default_factory=dict)  # (N,), of segments 1, 2, ...

    def require_finite(self) -> None:
        """Raises ValueError if the network gave NaN or infinity."""
        if self.not_finite:
            raise ValueError(
                f"the model's {' and '.join(self.not_finite)} holds NaN or infinity: use precision "
                "fp32, or a checkpoint from before the training diverged"
            )

    def _spec(self, kind: OutputKind, *, dense: bool = True) -> OutputSpec | None:
        found = (s for s in self.outputs.values() if (s.kind, s.dense) == (kind, dense))
        return next(found, None)

    def _first(self, kind: OutputKind, *, dense: bool = True) -> np.ndarray | None:
        spec = self._spec(kind, dense=dense)
        return None if spec is None else self.arrays[spec.name]

    @property
    def depth(self) -> np.ndarray | None:
        """float32 (H, W) in ``unit``."""
        return self._first("depth")

    @property
    def unit(self) -> str | None:
        """Unit of ``depth``: ``metres``, or ``relative inverse depth``, 1 / depth up to an unknown
        scale and shift (larger is nearer)."""
        spec = self._spec("depth")
        return None if spec is None else depth_unit(spec)

    @property
    def valid_range(self) -> tuple[float, float] | None:
        """Smallest and largest meaningful ``depth``; values outside or not finite are invalid."""
        spec = self._spec("depth")
        return None if spec is None else spec.value_range or (0.0, float("inf"))

    @property
    def labels(self) -> np.ndarray | None:
        """Class ids (H, W)."""
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
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of ``labels``, or else of ``class_id``; empty if unknown."""
        spec = self._spec("logits") or self._spec("logits", dense=False)
        return () if spec is None else spec.class_names

    @property
    def panoptic(self) -> np.ndarray | None:
        """Segments as int32 codes (H, W), see ``arrays``."""
        return self._first("masks")

    @property
    def segments(self) -> list[Segment]:
        """The objects and the areas of stuff."""
        spec = self._spec("masks")
        return [] if spec is None else self.segments_of(spec.name)

    @property
    def instances(self) -> list[Segment]:
        """The objects."""
        return [segment for segment in self.segments if segment.is_thing]

    def segments_of(self, name: str) -> list[Segment]:
        """The segments of an output."""
        codes, spec, found = self.arrays[name], self.outputs[name], []
        for code in np.unique(codes[codes >= 0]).tolist():
            class_id, number = divmod(code, OBJECT_IDS)
            score, is_thing = float(self.scores[name][number - 1]), spec.things[class_id]
            label = spec.class_name(class_id)
            found.append(Segment(number, class_id, label, is_thing, score, codes == code))
        return sorted(found, key=lambda segment: segment.id)

    @property
    def value(self) -> float | None:
        """The number that a regression head predicts for the whole image."""
        found = self._first("vector", dense=False)
        return float(found.item()) if found is not None and found.size == 1 else None


def depth_unit(spec: OutputSpec) -> str:
    """The unit of a depth output as predictions and files state it."""
    return "relative inverse depth" if spec.is_inverse_depth else "metres"


@dataclass(frozen=True, eq=False)
class Prepared:
    """An image ready for the network: uint8, or float32 if it is resized by ``cubic_float``."""

    size: tuple[int, int]  # (H, W) of the image
    input: np.ndarray  # the image resized to (h, w, 3)
    large: np.ndarray | None  # resized so that each tile is one network input; None without tiles
    image: np.ndarray | None  # the image itself, uint8 (H, W, 3), if it was to be kept


class Predictor:
    """Predicts for images of any size: ``Predictor(model)(image)``.

    As in evaluation, an image is resized as ``model.preprocessing`` says, and so are the outputs to
    the image's size.

    Args:
        model: a model, or where to load one from (see :meth:`dpt.DPT.from_pretrained`). It is
            copied: later changes of its weights have no effect.
        batch_size: number of images in one pass, if their network inputs have one size.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; None uses a GPU if there is one.
        precision: ``fp32``, ``bf16``, or ``fp16`` (GPUs). Outputs are float32.
        flip: average the predictions (class probabilities) for the image and its mirror image.
        tile: side in pixels of overlapping tiles, by which larger images are predicted: more
            detail, more passes. None: whole images only. See :mod:`dpt.predict.tiling`.

    Attributes:
        outputs: declaration of each output; a calibrated depth is declared in metres.
        calibration: converts the first depth output to metres; None leaves it as it is.
    """

    def __init__(
        self,
        model: DPT | str | Path,
        *,
        batch_size: int = 1,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        flip: bool = False,
        tile: int | None = None,
    ) -> None:
        self.batch_size = validate(Count, batch_size, "batch_size")
        self.tile = tile = validate(Count | None, tile, "tile")
        if precision not in _DTYPES:
            raise ValueError(f"precision={precision!r}: choose from {get_args(Precision)}")
        self.device, self.dtype = pick_device(device), _DTYPES[precision]
        kind = self.device.type
        if self.dtype is torch.float16 and kind == "cpu":
            raise ValueError("precision=fp16 is for GPUs: choose bf16 or fp32 on a CPU")
        if self.dtype is torch.bfloat16 and kind in ("cpu", "cuda") and not has_bf16(kind):
            log.warning("precision=bf16: %s", EMULATED)
        if isinstance(model, str | Path):
            model = DPT.from_pretrained(model)
        least = max(model.preprocessing.image_size)
        if tile is not None and tile < least:
            raise ValueError(f"tile={tile}: must be at least {least}, the network's input size")
        self.preprocessing = model.preprocessing
        self.calibration: Calibration | None = model.calibration
        self.network_outputs = model.outputs
        if flip or tile is not None:
            refuse_masks(model.outputs)
        self._depth = next((n for n, s in model.outputs.items() if s.kind == "depth"), None)
        fast = model.optimize_for_inference(compiled=False).to(self.device, self.dtype)
        self._forward = partial(fast, upsample_logits=False)
        if flip:
            self._forward = partial(flipped_mean, fast, model.outputs)

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        outputs = dict(self.network_outputs)
        if self.calibration is not None and self._depth is not None:
            bounds = self.calibration.min_depth, self.calibration.max_depth
            outputs[self._depth] = replace(outputs[self._depth], unit="m", value_range=bounds)
        return outputs

    @overload
    def __call__(self, images: Image) -> Prediction: ...
    @overload
    def __call__(self, images: list[Image] | tuple[Image, ...]) -> list[Prediction]: ...
    def __call__(
        self, images: Image | list[Image] | tuple[Image, ...]
    ) -> Prediction | list[Prediction]:
        """Predicts one image, or a list of images in order.

        An image is a path, uint8 (H, W, 3) RGB, a PIL image or a tensor (uint8 (3, H, W), or float
        in 0..1).

        Raises:
            ValueError: a file cannot be read, or an image is none of these.
        """
        if not isinstance(images, list | tuple):
            return self.predict([self.prepare(images)])[0]
        prepared = batches(map(self.prepare, images), self.batch_size, key=lambda p: p.input.shape)
        return [prediction for batch in prepared for prediction in self.predict(batch)]

    def prepare(self, image: Image, *, keep_image: bool = False) -> Prepared:
        """Reads and resizes an image; several threads may call it at once.

        With ``keep_image`` the image at its own size is kept too.
        """
        rgb = as_rgb(image)
        height, width = rgb.shape[:2]
        name = image if isinstance(image, str | Path) else "an image"
        size = self.preprocessing.bounded_size(height, width, name)
        resized, large = partial(resize_image, rgb, rule=self.preprocessing.interpolation), None
        if self.tile is not None and max(height, width) > self.tile:
            tile, step = self._tile_of((height, width)), self.preprocessing.multiple_of
            sides = zip((height, width), tile, self.preprocessing.input_size(*tile), strict=True)
            large = resized(tuple(step * round(n * w / t / step) for n, t, w in sides))
        return Prepared((height, width), resized(size), large, rgb if keep_image else None)

    def _tile_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """(H, W) of the tiles of an image."""
        tile = self.tile or max(size)
        return min(tile, size[0]), min(tile, size[1])

    def predict(self, batch: Sequence[Prepared]) -> list[Prediction]:
        """Predictions for prepared images of equal input size, in one pass of the network."""
        try:
            found = self._run([p.input for p in batch])
            return [self._finish(p, maps) for p, maps in zip(batch, found, strict=True)]
        except (MemoryError, RuntimeError) as error:
            fault = lack_of_memory(error)
            if fault is None:
                raise
        # raised here, because a context would keep the tensors of the failed pass in memory
        fewer = f"reduce the batch size, here {len(batch)}, " if len(batch) > 1 else ""
        raise ValueError(f"{fault}: {fewer}use precision bf16, smaller images or a smaller model")

    @torch.inference_mode()
    def _run(self, images: Sequence[np.ndarray]) -> list[dict[str, Tensor]]:
        """The outputs for each of the images, (h, w, 3) of one size: float32 on the device.

        They keep a batch axis of 1 (and so a memory format in which upsampling is fast). Dense
        outputs have a channel axis, (1, C, h', w'); logits may be smaller than the images.
        """
        stacked = torch.from_numpy(np.stack(images)).to(self.device).permute(0, 3, 1, 2)
        found = self._forward(self.preprocessing.normalize(stacked).to(self.dtype))
        outputs = {name: at_least_float32(values) for name, values in found.items()}
        for name, spec in self.network_outputs.items():
            if spec.dense and spec.channels is None:
                outputs[name] = outputs[name][:, None]
        return [{k: v[i : i + 1] for k, v in outputs.items()} for i in range(len(images))]

    def _run_tiles(self, tiles: Sequence[np.ndarray]) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(tiles), self.batch_size):
            yield from self._run(tiles[start : start + self.batch_size])

    @torch.inference_mode()
    def _finish(self, prepared: Prepared, found: dict[str, Tensor]) -> Prediction:
        """The prediction at the image's own size, from what :meth:`_run` found."""
        outputs, (height, width) = self.outputs, prepared.input.shape[:2]
        rule = self.preprocessing.output_interpolation
        dense = {name: spec for name, spec in self.network_outputs.items() if spec.dense}
        if prepared.large is not None and dense:
            window = self.preprocessing.input_size(*self._tile_of(prepared.size))
            found |= predict_tiles(
                prepared.large, found, window=window, predict=self._run_tiles, outputs=dense
            )
        not_finite = tuple(name for name in outputs if not found[name].isfinite().all())
        arrays: dict[str, np.ndarray] = {}
        scores: dict[str, np.ndarray] = {}
        for name, spec in outputs.items():
            values = found[name]
            if spec.kind == "masks":
                masks = resize(values, (height, width))[0]
                segments = self._segments(masks, found[f"{name}_classes"][0], spec, prepared.size)
                values, scores[name] = segments.codes.int(), segments.scores.cpu().numpy()
            elif spec.dense and spec.kind == "logits":
                if prepared.large is None:  # first to the size of the input, as in evaluation
                    values = upsample(values, (height, width))
                dtype = torch.uint8 if values.shape[1] <= 256 else torch.int32
                values = chunked_argmax(values, prepared.size, rule, dtype=dtype)[0]
            elif spec.dense:
                values = resize(values, prepared.size, rule)[0].permute(1, 2, 0)
                if (limits := dense[name].value_range) is not None:  # bicubic overshoots
                    values = values.clamp(*limits)  # not yet calibrated
                values = values[..., 0] if spec.channels is None else values
            else:
                values = values[0].softmax(0) if spec.kind == "logits" else values[0]
            if name == self._depth and self.calibration is not None:
                values = self.calibration.to_metres(values)
            array = np.array(values.cpu().numpy(), order="C")  # a copy, not a view of the batch
            wide = spec.kind == "logits" and array.dtype == np.int32
            arrays[name] = array.astype(np.uint16) if wide else array
        return Prediction(arrays, outputs, not_finite, scores)

    @staticmethod
    def _segments(
        masks: Tensor, classes: Tensor, spec: OutputSpec, size: tuple[int, int]
    ) -> SegmentMap:
        """The segments of mask logits (Q, h, w) at ``size``."""
        scale = min(1.0, (SEGMENT_PIXELS / (size[0] * size[1])) ** 0.5)
        small = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
        options = {"threshold": spec.threshold, "overlap": spec.overlap}
        found = panoptic_segments(masks, classes, spec.things, size=small, **options)
        if small == size:
            return found
        ids = F.interpolate(found.ids[None, None].float(), size=size, mode="nearest-exact")
        return found._replace(ids=ids[0, 0].long())


def batches(items: Iterable[T], size: int, *, key: Callable[[T], Hashable]) -> Iterator[list[T]]:
    """Lists of up to ``size`` successive items of equal key."""
    for _, group in groupby(items, key):
        while batch := list(islice(group, size)):
            yield batch


def pick_device(name: str | torch.device | None) -> torch.device:
    """The device of that name, or a GPU if there is one; ValueError if it cannot be used."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a meta tensor holds no value
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(name)!r} cannot be used here ({reason})") from None
    return device
