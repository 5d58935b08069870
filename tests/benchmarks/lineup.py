"""Who takes part by which name, and what a compiler or an export makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from benchmarks.onnx_runtime import our_onnx_contender, transformers_onnx_contender
from benchmarks.rivals import (
    Contender,
    our_contender,
    smp_contender,
    transformers_contender,
)
from torch import Tensor

from dpt.model import DPT


def optimized_contender(ours: DPT, task: str) -> Contender:
    """What :meth:`dpt.DPT.optimize_for_inference` makes of ours; it does not train."""
    fast = our_contender(ours.optimize_for_inference(), task, "dpt, optimised")
    plain = our_contender(ours, task).predict
    return Contender(fast.name, fast.model, fast.predict, loss=None, plain=plain)


def compiled_contender(rival: Contender) -> Contender:
    """The rival under torch.compile, its weights frozen into the graph for predictions."""
    if rival.loss is None:
        raise ValueError(
            f"--against: {rival.name} cannot be compiled once more, leave out -compile"
        )
    predict = torch.compile(rival.predict, options={"freezing": True})

    def frozen(images: Tensor) -> Tensor:
        with torch.no_grad():
            return predict(images)

    return Contender(
        f"{rival.name}, compiled",
        rival.model,
        frozen,
        torch.compile(rival.loss),
        plain=rival.predict,
    )


MAKERS: dict[str, Callable[[DPT, str], Contender]] = {
    "dpt": our_contender,
    "dpt-optimized": optimized_contender,
    "dpt-onnx": our_onnx_contender,
    "transformers": transformers_contender,
    "transformers-onnx": transformers_onnx_contender,
    "smp": smp_contender,
}


def make_contenders(ours: DPT, task: str, against: Sequence[str]) -> list[Contender]:
    """Ours first; ``NAME-compile`` is ``NAME`` under torch.compile."""
    contenders = [our_contender(ours, task)]
    for name in against:
        base = name.removesuffix("-compile")
        if base not in MAKERS:
            raise ValueError(f"--against {name}: choose from {', '.join(MAKERS)}, or NAME-compile")
        try:
            rival = MAKERS[base](ours, task)
        except ImportError as error:
            raise ValueError(f"--against {name}: {error}; pip install '.[dev]' has it") from error
        contenders.append(rival if base == name else compiled_contender(rival))
    return contenders
