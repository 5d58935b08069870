"""A model made ready for prediction alone: the same function, fewer operations."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from dpt.nn.dpt import DPT
from dpt.nn.encoders import HybridEmbed
from dpt.nn.fusion import ResidualConvUnit
from dpt.nn.heads import SegmentationHead

log = logging.getLogger("dpt")

M = TypeVar("M", bound=DPT)


def fold(model: nn.Module) -> None:
    """What normalises goes into the weights, in place.

    Each BN of the decoder and the heads into the convolution in front of it; the standardisation of
    the hybrid's CNN into the weights that it standardises.
    """
    for module in list(model.modules()):
        if isinstance(module, ResidualConvUnit):
            for k in ("1", "2"):
                conv, norm = getattr(module, f"conv{k}"), getattr(module, f"bn{k}")
                if isinstance(norm, nn.BatchNorm2d):
                    setattr(module, f"conv{k}", fuse_conv_bn_eval(conv, norm))
                    setattr(module, f"bn{k}", nn.Identity())
        elif isinstance(module, HybridEmbed):
            module.fold()
        elif isinstance(module, SegmentationHead):
            module.auxiliary_layers = None
            conv, norm = module.layers[0], module.layers[1]
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module.layers[0] = fuse_conv_bn_eval(conv, norm)
                module.layers[1] = nn.Identity()


class Compiled:
    """A function of images under torch.compile where that is faster, or else as it is.

    Which it is the first call finds out, with the machine and the images at hand: it compiles, and
    times both. Where no compiler works on this machine the function stays as it is, too.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.compiled: Callable[..., Any] | None = torch.compile(
            function, options={"freezing": True}
        )
        self.measured = False

    def __call__(self, images: Tensor, **options: Any) -> Any:
        with torch.no_grad():
            if self.compiled is None:
                return self.function(images, **options)
            try:
                result = self.compiled(images, **options)
            except Exception as error:  # of torch's own: no C++ compiler, no Triton
                if not _from_compiler(error):
                    raise
                result = self.function(images, **options)  # raises what is wrong with the images
                reason = str(error).strip().partition("\n")[0]
                log.warning("torch.compile does not work here, running without: %s", reason)
                self.compiled = None
                return result
            if not self.measured:
                self.measured = True
                plain, compiled = _seconds([self.function, self.compiled], images, options)
                log.info("%.4g s for %s; compiled %.4g s", plain, tuple(images.shape), compiled)
                if plain <= compiled:
                    self.compiled = None
            return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled(deepcopy(self.function, memo))  # compiled anew, for the copy's weights


def _seconds(
    functions: Sequence[Callable[..., Any]], images: Tensor, options: dict[str, Any]
) -> list[float]:
    """Median time of each function, taking turns; the first turn warms up."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(6):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function(images, **options)
            if images.device.type == "cuda":
                torch.cuda.synchronize(images.device)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def _from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def optimized(model: M, *, compiled: bool) -> M:
    """A copy that predicts what ``model`` does in evaluation, for nothing else.

    BN is folded, auxiliary heads are dropped, convolutions are channels-last, parameters frozen.

    Args:
        compiled: also under torch.compile, if the first call finds that to be faster. It takes
            half a minute, more for images of other sizes, and holds its own copy of the weights;
            without a compiler on the machine it warns and does without.
    """
    if model.predicts_only:
        return model
    copy: Any = deepcopy(model).eval().requires_grad_(False)
    copy.predicts_only = True
    fold(copy)
    copy.to(memory_format=torch.channels_last)
    if compiled:
        copy.forward = Compiled(copy.forward)
        copy.small_logits = Compiled(copy.small_logits)  # the argmax by bands is faster as it is
    return copy
