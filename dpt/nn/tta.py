"""Test-time augmentation: horizontal flip, scales, sliding window; and models of one input size.

Each augmentation calls a model, or another augmentation bound to one, and returns a tensor for
each head, dense ones at the images' size, averaged as its ``OutputSpec`` says. For
logits, flips and scales return the logarithm of the mean probabilities, so that softmax gives the
mean.

Shapes: B batch, (H, W) the images, K classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.functional import resize
from dpt.geometry import mirrored_classes
from dpt.tiling import Blend, spans
from dpt.types.outputs import HeadPrediction, OutputSpec, tensor_specs, tensors_of
from dpt.types.preprocessing import OutputResize, Preprocessing
from dpt.types.samples import Inputs

Outputs = dict[str, Tensor]
Model = Callable[[Inputs], Mapping[str, Tensor]]
"""Inputs to tensors by name, see ``tensors_of``."""
Predictions = Callable[[Inputs], Mapping[str, HeadPrediction]]
"""Inputs to the prediction of each head."""
Specs = Mapping[str, OutputSpec]

_UNFRAMED = Preprocessing()
MAX_SCALE = 8  # the memory of a forward pass grows with its square


def augmented(
    model: Predictions,
    outputs: Specs,
    *,
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    window: tuple[int, int] | None = None,
    stride: tuple[int, int] | None = None,
    multiple_of: int = 1,
    resize: OutputResize = "bilinear_aligned",
    rule: Preprocessing = _UNFRAMED,
) -> Predictions:
    """Returns ``model`` with the requested augmentations; ``model`` itself if none is requested.

    The sliding window runs over every scale of every image and of its mirror image, as in
    mmsegmentation. Arguments are those of the functions below; ``outputs`` is ``dpt.DPT.outputs``,
    ``stride=None`` two thirds of the window, ``rule`` that of :func:`framed`.
    """
    if stride is not None and window is None:
        raise ValueError(f"stride={list(stride)} has no effect without window: give both")
    is_plain = not flip and window is None and tuple(scales) == (1.0,)
    if is_plain and not rule.is_framed:
        return model
    if not is_plain:
        refuse_masks(outputs)
    specs = tensor_specs(outputs)
    averaged = framed(lambda inputs: tensors_of(model(inputs), outputs), specs, rule)
    if window is not None:
        stride = stride or (max(1, window[0] * 2 // 3), max(1, window[1] * 2 // 3))
        averaged = partial(slide, averaged, specs, window=window, stride=stride)
    if tuple(scales) != (1.0,):
        averaged = partial(
            multi_scale, averaged, specs, scales=scales, multiple_of=multiple_of, resize=resize
        )
    if flip:  # last, so that all logits are resized before any are averaged
        averaged = partial(flipped_mean, averaged, specs)
    return partial(joined, averaged, outputs)


def framed(model: Model, specs: Specs, rule: Preprocessing) -> Model:
    """Returns a model that sees squares of ``rule.image_size`` alone, if ``rule.resize`` is ``pad``
    or ``windows``: images are padded with black, which is cut off again, or split."""
    if rule.resize == "windows":
        refuse_masks(specs)
    return partial(_in_frames, model, specs, rule) if rule.is_framed else model


def _in_frames(model: Model, specs: Specs, rule: Preprocessing, inputs: Inputs) -> Outputs:
    size, (height, width) = rule.image_size, inputs.images.shape[-2:]
    sides = max(size[0], height), max(size[1], width)
    images = rule.normalize(torch.zeros_like(inputs.images[..., :1, :1]).expand(-1, -1, *sides))
    images[..., :height, :width] = inputs.images
    logits = [name for name, spec in specs.items() if spec.kind == "logits"]

    def scores(window: Inputs) -> Outputs:
        outputs = model(window)
        values = {
            n: resized(v, specs[n], size, rule.output_interpolation) for n, v in outputs.items()
        }
        return values | {name: values[name].exp() for name in logits}

    means = slide(scores, specs, inputs._replace(images=images), window=size)
    means |= {name: means[name].log() for name in logits}
    return {n: v[..., :height, :width] if specs[n].dense else v for n, v in means.items()}


def joined(model: Model, outputs: Specs, inputs: Inputs) -> Mapping[str, HeadPrediction]:
    """Returns the prediction of each head, of the tensors by name that ``model`` returns."""
    tensors = model(inputs)
    return {k: spec.join([tensors[name] for name in spec.tensors]) for k, spec in outputs.items()}


def refuse_masks(specs: Specs) -> None:
    """Raises ValueError for masks: a query may find another object in another view."""
    if any(spec.kind == "masks" for spec in specs.values()):
        raise ValueError("flip, scales and tiles do not work with masks: leave them out")


def flipped_mean(model: Model, specs: Specs, inputs: Inputs) -> Outputs:
    """Averages the predictions for the images and for their mirror images, mirrored back.

    Raises:
        ValueError: a class is a left or a right side, and no class is the other one.
    """
    for spec in specs.values():
        if -1 in mirrored_classes(spec.class_names):
            fault = f"a class of {spec.name} is a left or right side, and none is the other one"
            raise ValueError(f"flip: {fault}: leave it out")

    def views() -> Iterator[Mapping[str, Tensor]]:
        yield model(inputs)
        mirrored = model(inputs.mirrored())
        yield {name: mirror(value, specs[name]) for name, value in mirrored.items()}

    return _mean(views(), specs)


def mirror(output: Tensor, spec: OutputSpec) -> Tensor:
    """Turns the output for a mirror image into the output for the image."""
    if spec.dense:
        output = output.flip(-1)
    if spec.flip_signs is not None:
        signs = torch.tensor(spec.flip_signs, dtype=output.dtype, device=output.device)
        output = output * signs.view(-1, *(1,) * (output.ndim - 2))
    if spec.kind == "logits" and spec.class_names:
        output = output[:, mirrored_classes(spec.class_names)]
    return output


def multi_scale(
    model: Model,
    specs: Specs,
    inputs: Inputs,
    *,
    scales: Sequence[float],
    multiple_of: int = 1,
    resize: OutputResize = "bilinear_aligned",
) -> Outputs:
    """Averages the predictions for several sizes of the images, each first resized to (H, W).

    The inputs have no prompts. The sides are those of the images times each of ``scales``, rounded
    to ``multiple_of`` pixels.
    Scales above 1 add no detail of the original image.
    """
    if not scales or not all(0 < scale <= MAX_SCALE for scale in scales):
        raise ValueError(f"scales={list(scales)}: must be above 0 and up to {MAX_SCALE}")
    height, width = inputs.images.shape[-2:]

    def side(length: int, scale: float) -> int:
        if scale == 1:
            return length
        return max(multiple_of, round(scale * length / multiple_of) * multiple_of)

    def view(scale: float) -> Outputs:
        size = (side(height, scale), side(width, scale))
        scaled = inputs
        if size != (height, width):
            scaled = Inputs(F.interpolate(inputs.images, size, mode="bilinear", antialias=True))
        zoom = (size[0] / height + size[1] / width) / 2  # of the focal length in pixels
        return {
            k: resized(v, specs[k], (height, width), resize)
            * (1.0 if specs[k].canonical_focal is None else zoom)
            for k, v in model(scaled).items()
        }

    return _mean((view(scale) for scale in scales), specs)


def resized(output: Tensor, spec: OutputSpec, size: tuple[int, int], rule: OutputResize) -> Tensor:
    """Resizes a dense output to ``size``; returns others unchanged."""
    if not spec.dense:
        return output
    if spec.channels is None:
        return resize(output.unsqueeze(1), size, rule).squeeze(1)
    return resize(output, size, rule)


def slide(
    model: Model,
    specs: Specs,
    inputs: Inputs,
    *,
    window: tuple[int, int],
    stride: tuple[int, int] | None = None,
) -> Outputs:
    """Averages predictions for windows where these overlap; logits themselves are averaged.

    As in mmsegmentation: windows (h, w) start every ``stride`` (h, w) pixels, the last ones are
    moved back inside the image, and an image smaller than the window is predicted whole. Without
    ``stride``, see :func:`dpt.tiling.spans`. Outputs that are not dense are averaged over all
    windows, and fields of view are those of the whole image.
    """
    steps = stride or window
    if min(*window, *steps) < 1 or steps[0] > window[0] or steps[1] > window[1]:
        sides = f"window={list(window)}, stride={list(steps)}"
        raise ValueError(f"{sides}: must be positive, and the stride at most the window")
    height, width = inputs.images.shape[-2:]
    blend = Blend(smooth=False)
    total: Outputs = {}  # of outputs that are not dense
    down, across = stride or (None, None)
    windows = [*product(spans(height, window[0], down), spans(width, window[1], across))]
    for rows, columns in windows:
        for name, value in model(inputs.window(rows, columns)).items():
            value = at_least_float32(value)
            if specs[name].kind == "fov":
                value = _fov_of_whole(value, columns.stop - columns.start, width)
            if specs[name].dense:
                blend.add(name, value, (height, width), top=rows.start, left=columns.start)
            else:
                total[name] = total[name] + value if name in total else value
    return {name: value / len(windows) for name, value in total.items()} | blend.means()


def _fov_of_whole(degrees: Tensor, window: int, width: int) -> Tensor:
    """Returns fields of view of images of ``width`` pixels by those of windows, which have the same
    focal length in pixels."""
    tangent = torch.deg2rad(degrees / 2).tan() * width / window
    return torch.rad2deg(2 * tangent.atan())


def _mean(views: Iterable[Mapping[str, Tensor]], specs: Specs) -> Outputs:
    """Averages outputs (logits: log of the mean probabilities), one view in memory at a time."""
    total: Outputs = {}
    count = 0
    for outputs in views:
        for name, value in outputs.items():
            value = at_least_float32(value)
            value = value.softmax(1) if specs[name].kind == "logits" else value
            total[name] = total[name].add_(value) if name in total else value.clone()
        count += 1
    for name, value in total.items():
        value.div_(count)
        if specs[name].kind == "logits":  # interpolation would spread log(0) = -inf
            value.clamp_(min=torch.finfo(value.dtype).tiny).log_()
    return total
