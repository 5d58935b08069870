"""What each switch of a training run does to a step's time and memory, beside none of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from benchmarks.models import LiveBytes, make_inputs, saved_bytes
from benchmarks.parts import take_turns
from benchmarks.rivals import make_ours, our_contender
from torch import Tensor

from dpt.config.model import set_switches

SWITCHES: dict[str, dict[str, Any]] = {
    "none of them": {},
    "model.channels_last=true": {"channels_last": True},
    "model.checkpoint_activations=true": {"checkpoint_activations": True},
    "trainer.precision=bf16-mixed": {"dtype": torch.bfloat16},
    "trainer.precision=16-mixed": {"dtype": torch.float16},
    "optim.fused=false": {"fused": False},
    "model.compile=true": {"compile": True},
}


def bench_switches(
    *,
    model: str,
    task: str,
    size: tuple[int, int],
    batch: int,
    rounds: int,
    device: str,
    names: Collection[str] = tuple(SWITCHES),
) -> str:
    """A training step with one switch set, in turn with a step without; a Markdown table.

    ``saved MiB`` is kept for backward. ``peak MiB`` is the most that tensors hold at once in
    forward and backward, parameters and optimiser aside (on a GPU: as its allocator counts).
    A compiled step has neither on a CPU: its memory is not made of tensors that can be counted.
    float16 is left out on CPUs.
    """
    images, truth = make_inputs(task=task, size=size, batch=batch, device=device)
    steps: dict[str, Callable[[int], Any]] = {}
    memory: dict[str, tuple[float, float] | None] = {}
    for name, switches in SWITCHES.items():
        slow = switches.get("dtype") is torch.float16 and images.device.type == "cpu"
        if slow or name not in names:
            continue
        steps[name], memory[name] = _make(model, task, images, truth, **switches)
    return _table(take_turns(steps, rounds), memory)


def _make(
    name: str,
    task: str,
    images: Tensor,
    truth: Tensor,
    *,
    dtype: torch.dtype | None = None,
    fused: bool = True,
    **switches: bool,
) -> tuple[Callable[[int], None], tuple[float, float] | None]:
    """A training step, and what it keeps for backward and holds at most, in MiB."""
    device = images.device
    model = make_ours(name, task, (images.shape[2], images.shape[3])).to(device).train()
    set_switches(model, switches)
    loss = our_contender(model, task).loss
    assert loss is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)

    def forward() -> Tensor:
        with torch.autocast(device.type, dtype=dtype) if dtype else nullcontext():
            return loss(images, truth)

    def backward() -> None:
        scaler.scale(forward()).backward()

    def step(turn: int) -> None:
        optimizer.zero_grad()
        backward()
        scaler.step(optimizer)
        scaler.update()
        if device.type == "cuda":
            torch.cuda.synchronize()

    if switches.get("compile"):
        return step, None
    saved = saved_bytes(forward, model)
    backward()  # the gradients are there before the peak is taken
    return step, (saved / 2**20, _peak(backward, device) / 2**20)


def _peak(run: Callable[[], Any], device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with LiveBytes() as live:
        run()
    return live.peak


def _table(
    seconds: Mapping[str, Sequence[float]], memory: Mapping[str, tuple[float, float] | None]
) -> str:
    plain = next(iter(seconds.values()))
    lines = ["| | step ms | time / none | saved MiB | peak MiB |", "|---|---|---|---|---|"]
    for name, values in seconds.items():
        ratio = statistics.median(t / p for t, p in zip(values, plain, strict=True))
        bytes_ = memory[name]
        held = " | ".join(f"{n:.0f}" for n in bytes_) if bytes_ else " | "
        lines.append(f"| `{name}` | {1e3 * statistics.median(values):.0f} | {ratio:.2f} | {held} |")
    return "\n".join(lines).replace("`none of them`", "none of them")
