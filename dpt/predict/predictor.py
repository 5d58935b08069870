"""``Predictor``: predictions at an image's own size, from a file, an array or a tensor.

Shapes: (H, W) the image, (h, w) the network's input, C channels or classes.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.data.formats.cameras import CameraSource, StatedCamera
from dpt.data.view import resize_image, view_points
from dpt.depthmath import at_least_float32, focal_ratio
from dpt.exporting.runtimes import Precision, Runtime, is_exported, make_runtime
from dpt.functional import chunked_argmax, guided_resize, resize, upsample
from dpt.geometry import Camera, View, Window
from dpt.model import DPT
from dpt.nn.tta import flipped_mean, framed, refuse_masks
from dpt.predict.inputs import Image, KnownCamera, Prompt, as_pixels, as_prompt, known_camera
from dpt.predict.prediction import Prediction, depth_unit, first_output
from dpt.predict.steady import Steady
from dpt.process import lack_of_memory, log
from dpt.segments import SegmentMap, panoptic_segments
from dpt.tiling import predict_tiles
from dpt.types.outputs import DEPTH_UNITS, OutputSpec, prompt_focal, tensor_specs
from dpt.types.samples import Inputs
from dpt.validation import Count, Probability, validate

T = TypeVar("T")
SkyRule = Literal["invalid", "far", "keep"]
EdgeRule = Literal["smooth", "nearest", "guided"]


MIN_SKY_PIXELS = 11  # of the sky, and of the rest, for the rule "far"
SEGMENT_PIXELS = 2**21  # segments of larger images are computed at this number of pixels


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """An image ready for the network: uint8 RGB, or float32 (bands, or by ``cubic_float``)."""

    size: tuple[int, int]  # (H, W) of the image
    input: np.ndarray  # the image resized to (h, w, C)
    large: np.ndarray | None  # resized so that each tile is one network input; None without tiles
    image: np.ndarray | None  # a picture of the image, uint8 RGB (H, W, 3), if it was to be kept
    camera: KnownCamera | None = None
    prompt: np.ndarray | None = None  # sparse depth at the size of the input, float32 (h, w)


class Predictor:
    """Predicts for images of any size: ``Predictor(model)(image)``.

    As in evaluation, an image is resized as ``model.preprocessing`` says, and so are the outputs to
    the image's size.

    Args:
        model: a model, or where to load one from (see :meth:`dpt.DPT.from_pretrained`). It is
            copied: later changes of its weights have no effect. Or a file of ``dpt export``
            (``.onnx``, ``.xml``), or a runtime, which has its own device and precision.
        batch_size: number of images in one pass, if their network inputs have one size.
        device: ``cpu``, ``cuda``, ``cuda:1``, ...; None uses a GPU if there is one.
        precision: ``fp32``, ``bf16``, or ``fp16`` (GPUs). Outputs are float32.
        runtime: ``torch``, ``onnx`` or ``openvino`` (on a CPU; the model is exported once). None:
            ``torch``, or what the suffix of an exported file names.
        flip: average the predictions (class probabilities) for the image and its mirror image.
        tile: side in pixels of overlapping tiles, by which larger images are predicted: more
            detail, more passes. None: whole images only. See :mod:`dpt.tiling`.
        sky: what becomes of depth where a depth head predicts sky, see :func:`replace_sky`;
            ``keep`` leaves it as it is.
        min_confidence: of points, 0..1; others are left out. Above 0 for models with a
            ``log_variance`` alone.
        edges: how depth gets the size of a larger image: ``smooth``, by the rule of its
            preprocessing, as in evaluation; ``nearest``, without new values; or ``guided`` by the
            image, see :func:`dpt.functional.guided_resize`.

    Attributes:
        outputs: declaration of each output of an image without a camera; a calibrated depth is
            declared in metres.
        steady: averages the outputs of consecutive images, see :meth:`video`; None: none.
        calibration: converts the first depth output to metres; None leaves it as it is.
    """

    def __init__(
        self,
        model: DPT | Runtime | str | Path,
        *,
        batch_size: int = 1,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        runtime: str | None = None,
        flip: bool = False,
        tile: int | None = None,
        sky: SkyRule = "invalid",
        min_confidence: float = 0.0,
        edges: EdgeRule = "smooth",
    ) -> None:
        self.edges: EdgeRule = validate(EdgeRule, edges, "edges")
        self.batch_size: int = validate(Count, batch_size, "batch_size")
        self.sky: SkyRule = validate(SkyRule, sky, "sky")
        self._has_warned = False
        self.steady: Steady | None = None
        self.tile: int | None = validate(Count | None, tile, "tile")
        if isinstance(model, str | Path):
            model = Path(model) if is_exported(model) else DPT.from_pretrained(model)
        if isinstance(model, DPT | Path):
            settings = {"device": device, "precision": precision, "upsample_logits": flip}
            model = make_runtime(runtime, model, **settings)
        self.runtime: Runtime = model
        self.preprocessing = self.runtime.preprocessing
        least = max(self.preprocessing.image_size)
        if tile is not None and tile < least:
            raise ValueError(f"tile={tile}: must be at least {least}, the network's input size")
        if flip or tile is not None:
            refuse_masks(self.runtime.outputs)
        self.calibration = self.runtime.calibration
        self.min_confidence: float = validate(Probability, min_confidence, "min_confidence")
        if min_confidence and "depth_confidence" not in self.runtime.outputs:
            fault = "this model predicts no confidence: train it with task.log_variance=true"
            raise ValueError(f"min_confidence={min_confidence}: {fault}")
        self._depth = first_output(self.runtime.outputs, "depth")
        self._forward = framed(self.runtime, tensor_specs(self.runtime.outputs), self.preprocessing)
        if flip:
            self._forward = partial(flipped_mean, self._forward, self.runtime.outputs)

    @property
    def outputs(self) -> dict[str, OutputSpec]:
        return self.outputs_for(None)

    @property
    def needs_camera(self) -> bool:
        """Whether the unit of depth depends on whether the camera of an image is known."""
        outputs = self.outputs
        return any(
            s.has_metres and not outputs[n].has_metres for n, s in self.runtime.outputs.items()
        )

    @property
    def sky_output(self) -> OutputSpec | None:
        """The map of the sky, which is cut out of depth; None if depth is left as it is."""
        if self._depth is None or self.sky == "keep":
            return None
        return self.runtime.outputs.get(f"{self._depth.name}_sky")

    def outputs_for(self, camera: Camera | None) -> dict[str, OutputSpec]:
        """Returns the declaration of each output for a camera of the network's input.

        Canonical depth is in metres with a camera, and known up to scale without one.
        """
        return {name: self._converted(s, camera)[0] for name, s in self.runtime.outputs.items()}

    def _converted(
        self, spec: OutputSpec, camera: Camera | None
    ) -> tuple[OutputSpec, Callable[[Tensor], Tensor] | None]:
        """Returns an output as :meth:`outputs_for` declares it, and what converts the network's
        values to it; None if they are kept."""
        if self.calibration is not None and spec is self._depth:
            metres = self.calibration.min_depth, self.calibration.max_depth
            declared = replace(spec, unit="m", value_range=metres, canonical_focal=None)
            return declared, self.calibration.to_metres
        if spec.canonical_focal is None:
            return spec, None
        if camera is None:
            return replace(spec, unit=DEPTH_UNITS["up_to_scale"], canonical_focal=None), None
        ratio = _ratio(camera, spec.canonical_focal)
        limits = spec.value_range and (spec.value_range[0] * ratio, spec.value_range[1] * ratio)
        return replace(spec, value_range=limits, canonical_focal=None), lambda v: v * ratio

    @overload
    def __call__(
        self, images: Image, cameras: Camera | None = None, *, prompt: Prompt | None = None
    ) -> Prediction: ...
    @overload
    def __call__(
        self,
        images: list[Image] | tuple[Image, ...],
        cameras: Camera | Sequence[Camera | None] | None = None,
    ) -> list[Prediction]: ...
    def __call__(
        self,
        images: Image | list[Image] | tuple[Image, ...],
        cameras: Camera | Sequence[Camera | None] | None = None,
        *,
        prompt: Prompt | None = None,
    ) -> Prediction | list[Prediction]:
        """Predicts one image, or a list of images in order.

        An image is a path, uint8 (H, W, 3) RGB, a PIL image or a tensor (uint8 (3, H, W), or float
        in 0..1); for a model of bands a path, an array (H, W, C) or a tensor (C, H, W) of numbers
        in the unit of the training files. A model with a canonical focal length needs cameras for
        metres.

        Args:
            cameras: that of all images, or of each; images of another size are taken for scaled
                ones. Without one it is that of the EXIF tags of a file, or the predicted one, see
                :attr:`Prediction.camera`.
            prompt: measured depth at some pixels of each image, see
                :func:`dpt.predict.inputs.as_prompt`, for models with ``decoder.prompts``.

        Raises:
            ValueError: a file cannot be read, an image is none of these, or a camera does not fit.
        """
        pictures = images if isinstance(images, list | tuple) else [images]
        if cameras is None or isinstance(cameras, Camera):
            cameras = [cameras] * len(pictures)
        parse = StatedCamera.parse
        stated = [None if c is None else parse(c.K, "cameras", c.size) for c in cameras]
        predictions = self.predict_all(
            self.prepare(image, camera=camera, prompt=prompt)
            for image, camera in zip(pictures, stated, strict=True)
        )
        return predictions if pictures is images else predictions[0]

    def predict_all(self, images: Iterable[PreparedImage]) -> list[Prediction]:
        """Predicts prepared images, successive ones of equal input size together."""
        groups = batches(images, self.batch_size, key=lambda image: image.input.shape)
        return [prediction for group in groups for prediction in self.predict(group)]

    def video(self, frames: Iterable[Image]) -> Iterator[Prediction]:
        """Yields the prediction for each frame of a video as soon as it is read; what consecutive
        frames show of the same point is averaged, see :class:`dpt.predict.steady.Steady`.

        Args:
            frames: RGB, as for a call; another size begins a new shot.
        """
        if not self.preprocessing.is_rgb:
            raise ValueError("frames of bands: their motion is not found: predict them one by one")
        self.steady = Steady(self.runtime.outputs)
        try:
            for frame in frames:
                (prediction,) = self.predict([self.prepare(frame)])
                yield prediction
        finally:
            self.steady = None

    def prepare(
        self,
        image: Image,
        *,
        name: str | Path | None = None,
        keep_image: bool = False,
        camera: CameraSource | None = None,
        prompt: Prompt | None = None,
    ) -> PreparedImage:
        """Reads and resizes an image; several threads may call it at once.

        With ``keep_image`` the image at its own size is kept too. ``camera`` states its camera, by
        the path ``name`` of an image that is no file. ``prompt`` is its sparse depth.
        """
        pixels = as_pixels(image, self.preprocessing)
        height, width = pixels.shape[:2]
        rule = self.preprocessing.interpolation
        name = name or (image if isinstance(image, str | Path) else "an image")
        size = self.preprocessing.bounded_size(height, width, name)
        large = None
        if self.tile is not None and max(height, width) > self.tile:
            large = resize_image(pixels, self._tiling((height, width))[1], rule=rule)
        resized = resize_image(pixels, size, rule=rule)
        needs_picture = keep_image or self.edges == "guided"
        shown = self.preprocessing.picture(pixels.transpose(2, 0, 1)) if needs_picture else None
        known = known_camera(image, (height, width), camera, name=name)
        points = None
        if prompt is not None:
            points = self._points(as_prompt(prompt, (height, width)), size, known)
        return PreparedImage((height, width), resized, large, shown, known, points)

    def _points(
        self, depth: np.ndarray, size: tuple[int, int], known: KnownCamera | None
    ) -> np.ndarray:
        """Returns sparse depth (H, W) at ``size``, in the unit that the model takes."""
        focal = prompt_focal(self.runtime.outputs)
        fault = ""
        if not self.runtime.takes_prompts:
            fault = "takes no sparse depth: train it with model.decoder.prompts=true"
        elif self.calibration is not None:  # it would convert the metres once more
            fault = "is calibrated: take the checkpoint from before dpt calibrate"
        elif self.tile is not None:
            fault = f"predicts tiles of {self.tile}, and a prompt is for whole images"
        elif focal is not None and known is None:
            fault = "needs the image's focal length for metres: give --fov, --focal or --intrinsics"
        if fault:
            raise ValueError(f"prompt: this model {fault}")
        points = view_points(depth, View.of_window(Window(0, 0, *depth.shape), size))
        if focal is None or known is None:
            return points
        return points / _ratio(known.camera.resized(size), focal)

    def _tiling(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the size of the network's input for a tile of an image of ``size``, and the size
        of the image at which each tile is one input."""
        tile, step = [min(self.tile or side, side) for side in size], self.preprocessing.multiple_of
        window = self.preprocessing.input_size(*tile)
        sides = zip(size, window, tile, strict=True)
        height, width = (step * round(n * w / t / step) for n, w, t in sides)
        return window, (height, width)

    def predict(self, images: Sequence[PreparedImage]) -> list[Prediction]:
        """Predicts prepared images of equal input size in one pass of the network."""
        try:
            prompts = [image.prompt for image in images]
            outputs = self.run([image.input for image in images], prompts)
            if self.steady is not None:
                frames = zip(outputs, images, strict=True)
                outputs = [self.steady(tensors, image.input) for tensors, image in frames]
            return [self._finish(*pair) for pair in zip(images, outputs, strict=True)]
        except (MemoryError, RuntimeError) as error:
            fault = lack_of_memory(error)
            if fault is None:
                raise
        # raised here, because a context would keep the tensors of the failed pass in memory
        fewer = f"reduce the batch size, here {len(images)}, " if len(images) > 1 else ""
        raise ValueError(f"{fault}: {fewer}use precision bf16, smaller images or a smaller model")

    @torch.inference_mode()
    def run(
        self, images: Sequence[np.ndarray], prompts: Sequence[np.ndarray | None] = ()
    ) -> list[dict[str, Tensor]]:
        """Returns the tensors for each of the images, (h, w, C) of one size: float32 on the device.

        ``prompts`` are sparse depth (h, w) of each image that has some.

        They keep a batch axis of 1 (and so a memory format in which upsampling is fast). Dense ones
        have a channel axis, (1, C, h', w'); logits may be smaller than the images.
        """
        stacked = torch.from_numpy(np.stack(images)).to(self.runtime.device).permute(0, 3, 1, 2)
        inputs = Inputs(self.preprocessing.normalize(stacked))
        if any(prompt is not None for prompt in prompts):
            none = np.zeros(stacked.shape[-2:], np.float32)
            maps = np.stack([none if prompt is None else prompt for prompt in prompts])
            inputs = inputs._replace(prompts=torch.from_numpy(maps).to(inputs.images))
        computed = self._forward(inputs)
        tensors = {name: at_least_float32(values) for name, values in computed.items()}
        for name, spec in self.runtime.outputs.items():
            if spec.dense and spec.channels is None:
                tensors[name] = tensors[name][:, None]
        return [{k: v[i : i + 1] for k, v in tensors.items()} for i in range(len(images))]

    def _run_tiles(self, tiles: Sequence[np.ndarray]) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(tiles), self.batch_size):
            yield from self.run(tiles[start : start + self.batch_size])

    @torch.inference_mode()
    def _finish(self, image: PreparedImage, values: dict[str, Tensor]) -> Prediction:
        """Returns the prediction at the image's own size from what :meth:`run` returned."""
        dense = {name: spec for name, spec in self.runtime.outputs.items() if spec.dense}
        if image.large is not None and dense:
            window, _ = self._tiling(image.size)
            values |= predict_tiles(
                image.large, values, window=window, predict=self._run_tiles, outputs=dense
            )
        known = image.camera or self._predicted_camera(values, image.size)
        camera = None if known is None else known.camera.resized(image.input.shape[:2])
        arrays: dict[str, np.ndarray] = {}
        scores: dict[str, np.ndarray] = {}
        for name, spec in self.runtime.outputs.items():
            if spec.kind == "masks":
                segments = _segments(values, spec, image)
                result, scores[name] = segments.codes.int(), segments.scores.cpu().numpy()
            else:
                result = self._at_image_size(values[name], spec, image)
            array = self.in_range(name, result, camera).cpu().numpy()
            is_wide = spec.kind == "logits" and array.dtype == np.int32
            # a copy, not a view of the batch
            arrays[name] = np.array(array, np.uint16 if is_wide else array.dtype, order="C")
        not_finite = tuple(name for name in arrays if not values[name].isfinite().all())
        outputs, sky = self.outputs_for(camera), self.sky_output
        if self._depth is not None and sky is not None:
            name, far = self._depth.name, self.sky == "far"
            is_sky, inverse = arrays[sky.name] >= sky.threshold, outputs[name].is_inverse_depth
            arrays[name] = replace_sky(arrays[name], is_sky, far=far, inverse=inverse)
        return Prediction(arrays, outputs, not_finite, scores, known, self.min_confidence)

    def _predicted_camera(
        self, values: Mapping[str, Tensor], size: tuple[int, int]
    ) -> KnownCamera | None:
        """Returns the predicted camera of an image of ``size`` (H, W); None without one."""
        fov = first_output(self.runtime.outputs, "fov", dense=False)
        if fov is None:
            return None
        return KnownCamera(Camera.from_fov(float(values[fov.name].item()), size), "predicted")

    def in_range(self, name: str, values: Tensor, camera: Camera | None = None) -> Tensor:
        """Returns values of an output at its final size, in its range, and depth as
        :meth:`outputs_for` declares it; ``camera`` is that of the network's input."""
        spec = self.runtime.outputs[name]
        if spec.dense and spec.kind in ("depth", "map") and spec.value_range is not None:
            values = values.clamp(*spec.value_range)  # bicubic overshoots
        declared, convert = self._converted(spec, camera)
        if spec.has_metres and not declared.has_metres and not self._has_warned:
            self._has_warned = True
            log.warning("depth is relative: for metres this model needs the focal length of images")
        return values if convert is None else convert(values)

    def _at_image_size(self, values: Tensor, spec: OutputSpec, image: PreparedImage) -> Tensor:
        """Returns class ids (H, W) of logits (1, K, h', w'), values (H, W) or (H, W, C) of other
        dense outputs (1, C, h', w'), or what an output for the whole image (1, ...) holds."""
        if not spec.dense:
            return values[0].softmax(0) if spec.kind == "logits" else values[0]
        rule = self.preprocessing.output_interpolation
        if spec.kind == "logits":
            if image.large is None:  # first to the size of the input, as in evaluation
                values = upsample(values, image.input.shape[:2])
            dtype = torch.uint8 if values.shape[1] <= 256 else torch.int32
            return chunked_argmax(values, image.size, rule, dtype=dtype)[0]
        if spec.kind == "depth":
            values = self._resized_depth(values, image)
        else:
            values = resize(values, image.size, rule)
        values = F.normalize(values, dim=1) if spec.is_direction else values
        values = values[0].permute(1, 2, 0)
        return values[..., 0] if spec.channels is None else values

    def _resized_depth(self, values: Tensor, image: PreparedImage) -> Tensor:
        """Returns depth (1, 1, h', w') at the size of the image, as ``edges`` says."""
        is_larger = math.prod(image.size) > math.prod(values.shape[-2:])
        if self.edges == "smooth" or not is_larger:
            return resize(values, image.size, self.preprocessing.output_interpolation)
        if self.edges == "nearest":
            return F.interpolate(values, size=image.size, mode="nearest-exact")
        assert image.image is not None
        guide = torch.from_numpy(image.image).to(values.device).permute(2, 0, 1)
        return guided_resize(values, guide.float() / 255)


def replace_sky(depth: np.ndarray, is_sky: np.ndarray, *, far: bool, inverse: bool) -> np.ndarray:
    """Returns depth, float32 (H, W), with other values where ``is_sky``, bool (H, W).

    They are NaN; or with ``far``, if more than 10 pixels are sky and more than 10 are not, the 0.99
    quantile of depth elsewhere (0.01 of ``inverse`` depth). Depth Anything 3 takes the quantile of
    100,000 random pixels at the network's resolution, so that its value varies.
    """
    if not far:
        return np.where(is_sky, np.float32(np.nan), depth)
    elsewhere = depth[~is_sky]
    if min(len(elsewhere), depth.size - len(elsewhere)) < MIN_SKY_PIXELS:
        return depth
    farthest = np.quantile(elsewhere, 0.01 if inverse else 0.99)
    return np.where(is_sky, np.float32(farthest), depth)


def _ratio(camera: Camera, canonical_focal: float) -> float:
    return float(focal_ratio(torch.from_numpy(camera.K)[None], canonical_focal))


def _segments(values: Mapping[str, Tensor], spec: OutputSpec, image: PreparedImage) -> SegmentMap:
    """Returns the segments of masks at the size of the image."""
    masks, classes = (values[tensor] for tensor in spec.tensors)
    masks, size = resize(masks, image.input.shape[:2])[0], image.size
    scale = min(1.0, (SEGMENT_PIXELS / (size[0] * size[1])) ** 0.5)
    small = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    segments = panoptic_segments(
        masks, classes[0], spec.things, size=small, threshold=spec.threshold, overlap=spec.overlap
    )
    if small == size:
        return segments
    ids = F.interpolate(segments.ids[None, None].float(), size=size, mode="nearest-exact")
    return segments._replace(ids=ids[0, 0].long())


def batches(items: Iterable[T], size: int, *, key: Callable[[T], Hashable]) -> Iterator[list[T]]:
    """Yields lists of up to ``size`` successive items of equal key."""
    for _, group in groupby(items, key):
        while batch := list(islice(group, size)):
            yield batch


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
            ValueError: an output has the name of a column, or the network gave NaN or infinity.
        """
        images, predictor = batch[self.column], self.predictor
        cameras: Sequence[StatedCamera | None] = [None] * len(images)
        if self.cameras is not None:
            cameras = [StatedCamera.parse(K, f"column {self.cameras}") for K in batch[self.cameras]]
        pairs = zip(images, cameras, strict=True)
        predictions = predictor.predict_all(predictor.prepare(x, camera=c) for x, c in pairs)
        for prediction in predictions:
            prediction.require_finite()
        added: dict[str, list[object]] = {}
        for name, spec in predictor.outputs.items():
            added[name] = [prediction.arrays[name] for prediction in predictions]
            if spec.kind == "depth":
                added[f"{name}_unit"] = [depth_unit(p.outputs[name]) for p in predictions]
        taken = batch.keys() & added.keys()
        if taken:
            raise ValueError(f"column {min(taken)}: is also an output of the model: rename it")
        # arrays may differ in size
        columns = {name: np.fromiter(v, object, len(v)) for name, v in added.items()}
        return {**batch, **columns}
