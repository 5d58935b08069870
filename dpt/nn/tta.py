"""Several looks at an image, one prediction: flip, scales, a sliding window.

Each function takes a model (or another of these functions with its model) and gives what the model
gives: a tensor a head, maps at the images' size. Outputs with classes, (B, K) and (B, K, H, W),
stay logits: means over flips and scales are of probabilities, returned as their logarithms, so
that softmax gives them back and argmax is the same.

Shapes: B images, K classes, (H, W) the images' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dpt.nn.enlarge import upsample

Outputs = dict[str, Tensor]
Model = Callable[[Tensor], Mapping[str, Tensor]]
"""Normalised images, float (B, 3, H, W), to a tensor a head."""


def augmented(
    model: Model,
    *,
    flip: bool = False,
    scales: Sequence[float] = (1.0,),
    window: tuple[int, int] | None = None,
    stride: tuple[int, int] | None = None,
    multiple_of: int = 1,
) -> Model:
    """``model`` with the looks that are asked for; itself where none is.

    With all of them, every scale of every image is seen through the sliding window, as it is and
    flipped, as in mmsegmentation.

    Args:
        model: to be asked.
        flip, scales, window, stride, multiple_of: see the functions below; ``window=None`` takes
            images whole, ``stride=None`` two thirds of the window.
    """
    if window is not None:
        stride = stride or (max(1, window[0] * 2 // 3), max(1, window[1] * 2 // 3))
        model = partial(slide, model, window=window, stride=stride)
    if tuple(scales) != (1.0,):
        model = partial(multi_scale, model, scales=scales, multiple_of=multiple_of)
    if flip:  # last, so that every look's logits are resized before any are averaged
        model = partial(flipped_mean, model)
    return model


def flipped_mean(model: Model, images: Tensor) -> Outputs:
    """Mean of the predictions for the images and for their mirror images, mirrored back.

    Args:
        model: to be asked twice.
        images: float (B, 3, H, W), normalised.
    """
    return _mean(_mirrored(model(x), back=k == 1) for k, x in enumerate((images, images.flip(-1))))


def multi_scale(
    model: Model, images: Tensor, *, scales: Sequence[float], multiple_of: int = 1
) -> Outputs:
    """Mean of the predictions for the images at several sizes, each brought to (H, W) first.

    The sizes are made from ``images`` as they come: for scales above 1 to show more detail, these
    must have been enlarged less than the photos allow.

    Args:
        model: to be asked once a scale.
        images: float (B, 3, H, W), normalised.
        scales: factors of both sides.
        multiple_of: sides are rounded to multiples of this many pixels.
    """
    if not scales or min(scales) <= 0:
        raise ValueError(f"scales={list(scales)}: must be factors above 0, as [0.75, 1.0, 1.25]")
    height, width = images.shape[-2:]

    def sides(scale: float) -> tuple[int, int]:
        rounded = (round(scale * side / multiple_of) * multiple_of for side in (height, width))
        low, high = (max(multiple_of, side) for side in rounded)
        return (height, width) if scale == 1 else (low, high)

    return _mean(_resized(model(_scaled(images, sides(s))), (height, width)) for s in scales)


def slide(
    model: Model, images: Tensor, *, window: tuple[int, int], stride: tuple[int, int]
) -> Outputs:
    """Predictions for overlapping windows, averaged where they overlap: logits as logits.

    As in mmsegmentation: windows start every ``stride`` pixels, the last ones are moved back
    inside, and an image smaller than the window is seen whole. Outputs that are no maps are
    averaged over the windows.

    Args:
        model: to be asked once a window.
        images: float (B, 3, H, W), normalised.
        window: [h, w] in pixels of ``images``.
        stride: [h, w] in pixels, at most the window.
    """
    if min(*window, *stride) < 1 or stride[0] > window[0] or stride[1] > window[1]:
        raise ValueError(
            f"window={list(window)}, stride={list(stride)}: both must be positive, the stride at "
            "most the window, or pixels between windows would never be seen"
        )
    height, width = images.shape[-2:]
    total: Outputs = {}
    seen = images.new_zeros((height, width), dtype=torch.float32)
    windows = 0
    for rows in _spans(height, window[0], stride[0]):
        for columns in _spans(width, window[1], stride[1]):
            for name, value in model(images[..., rows, columns]).items():
                value = _exact(value)
                size = (height, width) if _is_map(value) else ()
                if name not in total:
                    total[name] = value.new_zeros((*value.shape[: value.ndim - len(size)], *size))
                place = (..., rows, columns) if size else ...
                total[name][place] += value
            seen[rows, columns] += 1
            windows += 1
    return {k: v.div_(seen if _is_map(v) else windows) for k, v in total.items()}


def _spans(length: int, window: int, stride: int) -> Iterator[slice]:
    """Where windows lie along one side."""
    count = max(length - window + stride - 1, 0) // stride + 1
    for k in range(count):
        stop = min(k * stride + window, length)
        yield slice(max(stop - window, 0), stop)


def _is_map(output: Tensor) -> bool:
    return output.ndim >= 3


def _has_classes(output: Tensor) -> bool:
    return output.ndim in (2, 4)


def _exact(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _mirrored(outputs: Mapping[str, Tensor], *, back: bool) -> Mapping[str, Tensor]:
    return {k: v.flip(-1) if _is_map(v) else v for k, v in outputs.items()} if back else outputs


def _scaled(images: Tensor, size: tuple[int, int]) -> Tensor:
    if images.shape[-2:] == size:
        return images
    return F.interpolate(images, size=size, mode="bilinear", antialias=True)


def _resized(outputs: Mapping[str, Tensor], size: tuple[int, int]) -> Outputs:
    """Maps at ``size``, as :meth:`dpt.objectives.Objective.predict` resizes them."""
    resized = {}
    for name, value in outputs.items():
        if value.ndim == 3:
            value = upsample(value.unsqueeze(1), size).squeeze(1)
        elif value.ndim == 4:
            value = upsample(value, size)
        resized[name] = value
    return resized


def _mean(looks: Iterator[Mapping[str, Tensor]]) -> Outputs:
    """Mean of outputs, one look in memory at a time; that of logits is one of probabilities."""
    total: Outputs = {}
    count = 0
    for outputs in looks:
        for name, value in outputs.items():
            value = _exact(value)
            value = value.softmax(1) if _has_classes(value) else value
            total[name] = total[name].add_(value) if name in total else value.clone()
        count += 1
    for value in total.values():
        value.div_(count)
        if _has_classes(value):  # of 0 it would be -inf, which no interpolation survives
            value.clamp_(min=torch.finfo(value.dtype).tiny).log_()
    return total
