"""Where the time of a forward pass and of a training step goes, by kind of operation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from benchmarks.models import DTYPES, make_inputs
from benchmarks.rivals import make_ours, our_contender
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

WHOLE = {"loss": r"CrossEntropy|_loss|log_softmax", "optimiser": r"Optimizer\.step|_fused_adam"}
"""What takes in all that is done inside of it."""
KINDS = {
    **WHOLE,
    "attention": r"attention",
    "convolution": r"conv",
    "matrix product": r"::(add|badd|b)*mm_?$|::(linear|matmul|addmv|mv|dot)$",
    "upsampling": r"upsample",
    "normalisation": r"(layer|batch|group)_norm",
    "activation": r"relu|gelu|clamp_min|threshold|sigmoid|silu|softplus|softmax",
    "random numbers": r"bernoulli|rand|uniform|normal_",
    "copies and layout": r"copy|clone|contiguous|::to$|cat$|stack|fill_|zero|index|gather|pad",
    "sums and products": r"::(add|sub|mul|div|sum|mean|neg|abs|pow|sqrt|lerp|argmax|where)",
}
"""By what is found in an operation's name, the first that fits."""
OTHER = "other"


def kind_of(names: Sequence[str]) -> str:
    """Kind of an operation, given its name and the names of those that it is a part of."""
    for kind, pattern in WHOLE.items():
        if any(re.search(pattern, name) for name in names):
            return kind
    return next((kind for kind, sign in KINDS.items() if re.search(sign, names[0])), OTHER)


def self_times(run: Callable[[], Any], *, rounds: int) -> Iterator[tuple[str, str, float]]:
    """Kind, name and seconds of each operation in ``rounds`` runs, without those inside of it."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    run()
    with profile(activities=activities) as recorded:
        for _ in range(rounds):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    for event in recorded.events() or ():
        if event.device_type != DeviceType.CPU:
            continue  # a kernel, which the operation that started it answers for
        names, parent = [event.name], event.cpu_parent
        while parent is not None:
            names.append(parent.name)
            parent = parent.cpu_parent
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        yield kind_of(names), event.name, spent / 1e6


def as_markdown(times: Iterator[tuple[str, str, float]], *, title: str, rounds: int) -> str:
    """Kinds by the time that they take, each with its three largest operations."""
    spent: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, name, seconds in times:
        # typeshed's Counter counts in whole numbers; seconds add up as well
        spent[kind][name.removeprefix("aten::")] += seconds  # type: ignore[assignment]
    totals = {kind: sum(names.values()) for kind, names in spent.items()}
    whole = sum(totals.values())
    lines = [f"| {title} | ms | share | most of it |", "|---|---|---|---|"]
    for kind, seconds in sorted(totals.items(), key=lambda item: -item[1]):
        largest = ", ".join(
            f"{name} {part / whole:.0%}"
            for name, part in spent[kind].most_common(3)
            if part >= 0.005 * whole
        )
        lines.append(
            f"| {kind} | {1e3 * seconds / rounds:.1f} | {seconds / whole:.1%} | {largest} |"
        )
    return "\n".join(lines)


def profile_model(
    *,
    model: str,
    task: str,
    size: tuple[int, int],
    batch: int,
    dtype: str,
    rounds: int,
    device: str,
) -> str:
    """A table of a forward pass and one of a training step, of this project's model."""
    images, truth = make_inputs(task=task, size=size, batch=batch, device=device)
    contender = our_contender(make_ours(model, task, size), task)

    @torch.no_grad()
    def predict() -> Tensor:
        return contender.predict(images.to(DTYPES[dtype]))

    contender.make_ready(device=images.device, dtype=DTYPES[dtype])
    forward = as_markdown(
        self_times(predict, rounds=rounds), title=f"{task}, forward pass", rounds=rounds
    )
    step = contender.training_step(images, truth, dtype=DTYPES[dtype])
    training = as_markdown(
        self_times(step, rounds=rounds), title=f"{task}, training step", rounds=rounds
    )
    return f"{forward}\n\n{training}"
