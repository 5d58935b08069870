"""A model prepared for prediction: the same function in fewer operations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from dpt.files import reason
from dpt.functional import to_channels_last
from dpt.nn.base import Head
from dpt.nn.dpt import Network
from dpt.nn.encoders import HybridEmbed
from dpt.nn.fusion import ResidualConvUnit
from dpt.nn.lora import merge_low_rank

log = logging.getLogger("dpt")

M = TypeVar("M", bound=Network)
Forward = Callable[..., object]
"""The ``forward`` of a model: images and options to outputs."""


class Compiled:
    """A function of images; its first call decides whether the compiled form is used."""

    def __init__(self, function: Forward) -> None:
        self.function = function
        self.chosen: Forward | None = None

    def __call__(self, images: Tensor, **options: object) -> object:
        with torch.no_grad():
            self.chosen = self.chosen or self._choose(images, options)
            try:
                return self.chosen(images, **options)
            except Exception as error:  # other sizes and options are compiled when they come
                self.chosen = self._uncompiled(error)
            return self.function(images, **options)

    def _choose(self, images: Tensor, options: Mapping[str, object]) -> Forward:
        self.function(images, **options)  # raises what is wrong with the images
        compiled = torch.compile(self.function, options={"freezing": True})
        try:
            compiled(images, **options)
        except Exception as error:
            return self._uncompiled(error)
        seconds = {f: _seconds(f, images, options) for f in (self.function, compiled)}
        log.info("%.4g s, compiled %.4g s, for %s", *seconds.values(), tuple(images.shape))
        return min(seconds, key=seconds.__getitem__)

    def _uncompiled(self, error: Exception) -> Forward:
        """Returns the function as it is if torch.compile failed; raises other errors again."""
        # torch raises errors of its own types if there is no C++ compiler or no Triton
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise error
        log.warning("torch.compile does not work here, running without: %s", reason(error))
        return self.function

    def __deepcopy__(self, memo: dict[int, object]) -> Compiled:
        return Compiled(deepcopy(self.function, memo))  # compiled again for the copy's weights


def _seconds(function: Forward, images: Tensor, options: Mapping[str, object]) -> float:
    from torch.utils.benchmark import Timer  # warns where a CUDA toolkit is found without a GPU

    timer = Timer(
        "function(images, **options)", globals=locals(), num_threads=torch.get_num_threads()
    )
    return timer.timeit(5).mean


def fuse_norms(layers: nn.Sequential) -> None:
    """Fuses each BN into the convolution just before it, in place."""
    for i, (conv, norm) in enumerate(pairwise(list(layers))):
        if type(conv) is nn.Conv2d and type(norm) is nn.BatchNorm2d:  # timm's contain more
            layers[i], layers[i + 1] = fuse_conv_bn_eval(conv, norm), nn.Identity()


def optimized(model: M, *, compiled: bool) -> M:
    """Returns a copy for prediction alone, see :meth:`dpt.DPT.optimize_for_inference`."""
    copy = deepcopy(model).eval().requires_grad_(False)
    if copy.predicts_only:
        return copy
    copy.predicts_only = True
    merge_low_rank(copy)  # the sum is exact in the weights' own precision
    for module in list(copy.modules()):
        if type(module) is nn.Sequential:
            fuse_norms(module)
        if isinstance(module, Head | HybridEmbed | ResidualConvUnit):
            module.prepare_for_inference()
    to_channels_last(copy)
    if compiled:
        # nn.Module calls the `forward` of the instance, which mypy takes for a method of the class
        copy.forward = Compiled(copy.forward)  # type: ignore[method-assign, assignment]
    return copy
