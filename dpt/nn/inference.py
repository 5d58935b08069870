"""A model prepared for prediction: the same function in fewer operations."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dpt.nn.base import Head
from dpt.nn.dpt import DPT
from dpt.nn.encoders import HybridEmbed
from dpt.nn.fusion import ResidualConvUnit

log = logging.getLogger("dpt")

M = TypeVar("M", bound=DPT)


def prepare_for_inference(model: nn.Module) -> None:
    """Fuses normalisation into weights and removes auxiliary heads, in place."""
    for module in list(model.modules()):
        if isinstance(module, Head | HybridEmbed | ResidualConvUnit):
            module.prepare_for_inference()


class Compiled:
    """A function of images, under torch.compile if that works here and is faster (first call)."""

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
            except Exception as error:
                # torch raises errors of its own types if there is no C++ compiler or no Triton
                if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
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
        return Compiled(deepcopy(self.function, memo))  # compiled again for the copy's weights


def _seconds(
    functions: Sequence[Callable[..., Any]], images: Tensor, options: dict[str, Any]
) -> list[float]:
    """Median time of each function, interleaved; the first round is a warm-up."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(6):
        for function, taken in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function(images, **options)
            if images.device.type == "cuda":
                torch.cuda.synchronize(images.device)
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def optimized(model: M, *, compiled: bool) -> M:
    """A copy that computes what ``model`` computes in evaluation, and cannot be trained or saved.

    BN is fused, auxiliary heads are removed, convolutions are channels-last, parameters frozen.

    Args:
        compiled: also try torch.compile at the first call, which takes half a minute, more for
            images of other sizes, and holds its own copy of the weights.
    """
    if model.predicts_only:
        return model
    copy: Any = deepcopy(model).eval().requires_grad_(False)
    copy.predicts_only = True
    prepare_for_inference(copy)
    copy.to(memory_format=torch.channels_last)
    if compiled:
        copy.forward = Compiled(copy.forward)
    return copy
