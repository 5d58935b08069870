"""Time and memory of the model and its rivals: one process, in turn, medians."""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from benchmarks.contenders import NUM_CLASSES, Contender, autocast, make_contenders, make_ours
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are made under it and still alive.

    Parameters and inputs were made before and do not count, nor does scratch memory inside an
    operation. ``now`` is the current number, ``peak`` the largest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {a.untyped_storage()._cdata for a in tree_leaves(args) if isinstance(a, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: Any) -> None:
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def peak_bytes(run: Callable[[], Any]) -> int:
    """The most that tensors hold at once during ``run``, without gradients."""
    with torch.no_grad(), LiveBytes() as live:
        run()
    return live.peak


def kept_bytes(run: Callable[[], Any]) -> int:
    """Bytes alive after a forward pass: what is kept for backward, and the output.

    ``torch.autograd.graph.saved_tensors_hooks`` would miss what ``torch.utils.checkpoint`` keeps.
    """
    with LiveBytes() as live:
        output = run()
        gc.collect()
        kept = live.now
    del output
    return kept


def race(
    contenders: Sequence[Contender],
    images: Tensor,
    truth: Tensor,
    *,
    dtype: torch.dtype,
    train: bool,
    rounds: int,
) -> list[dict[str, Any]]:
    """A row for each contender: medians of its times, and of its ratio to the first."""
    rows: list[dict[str, Any]] = [{"name": c.name} for c in contenders]
    run_forward(contenders, images.to(dtype), rows, rounds=rounds)
    if train:
        pairs = [(c, row) for c, row in zip(contenders, rows, strict=True) if c.loss is not None]
        run_steps(
            [c for c, _ in pairs], images, truth, [r for _, r in pairs], dtype=dtype, rounds=rounds
        )
    return rows


@torch.no_grad()
def run_forward(
    contenders: Sequence[Contender], images: Tensor, rows: list[dict[str, Any]], *, rounds: int
) -> None:
    first = None
    for c, row in zip(contenders, rows, strict=True):
        c.model.eval().to(images.device, images.dtype).to(memory_format=torch.channels_last)
        out = c.predict(images)
        if not c.name.startswith("smp"):
            first = out if first is None else first
            row["difference"] = _difference(out, first)
        if c.eager:
            row["forward MiB"] = peak_bytes(partial(c.predict, images)) / 2**20
    for turn in range(-2, rounds):  # two turns to warm up
        for c in contenders:
            seconds = _timed(partial(c.predict, images), images.device)
            if turn >= 0:
                c.forward_s.append(seconds)
    _add_times(contenders, rows, "forward", lambda c: c.forward_s)


def run_steps(
    contenders: Sequence[Contender],
    images: Tensor,
    truth: Tensor,
    rows: list[dict[str, Any]],
    *,
    dtype: torch.dtype,
    rounds: int,
) -> None:
    steps = [c.training_step(images, truth, dtype=dtype) for c in contenders]
    for c, row in zip(contenders, rows, strict=True):
        if c.eager and c.loss is not None:
            with autocast(images.device, dtype):
                row["kept MiB"] = kept_bytes(partial(c.loss, images, truth)) / 2**20
            row["kept / theirs"] = rows[0]["kept MiB"] / row["kept MiB"]
    for turn in range(-1, rounds):
        for c, step in zip(contenders, steps, strict=True):
            seconds = _timed(step, images.device)
            if turn >= 0:
                c.step_s.append(seconds)
    _add_times(contenders, rows, "step", lambda c: c.step_s)


def _timed(run: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _difference(out: Tensor, ours: Tensor) -> float:
    """Largest difference over the scale; of class ids, the share of pixels that differ."""
    if not out.is_floating_point():
        return float((out != ours).float().mean())
    return float((out.float() - ours.float()).abs().max() / ours.float().abs().max())


def _add_times(
    contenders: Sequence[Contender],
    rows: list[dict[str, Any]],
    what: str,
    times: Callable[[Contender], list[float]],
) -> None:
    ours = times(contenders[0])
    for c, row in zip(contenders, rows, strict=True):
        row[f"{what} ms"] = 1e3 * statistics.median(times(c))
        ratios = [theirs / mine for theirs, mine in zip(times(c), ours, strict=True)]
        row[f"{what} / ours"] = statistics.median(ratios)


COLUMNS = {
    "name": "{}",
    "forward ms": "{:.0f}",
    "forward / ours": "{:.2f}",
    "forward MiB": "{:.1f}",
    "difference": "{:.0e}",
    "step ms": "{:.0f}",
    "step / ours": "{:.2f}",
    "kept MiB": "{:.1f}",
    "kept / theirs": "{:.3f}",
}
"""``kept / theirs``: this project's bytes over the contender's."""


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table; columns that no row has are left out."""
    columns = [c for c in COLUMNS if any(c in row for row in rows)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        cells = [COLUMNS[c].format(row[c]) if c in row else "" for c in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def bench(
    *,
    model: str,
    task: str,
    size: tuple[int, int],
    batch: int,
    dtype: str,
    against: Sequence[str],
    train: bool,
    rounds: int,
    device: str,
) -> str:
    """The table in Markdown. Segmentation is compared as class ids: the argmax of the logits."""
    random = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *size, generator=random)
    truth = torch.rand(batch, *size, generator=random)
    if task == "segmentation":
        truth = (truth * NUM_CLASSES).long()
    images, truth = images.to(device, memory_format=torch.channels_last), truth.to(device)
    contenders = make_contenders(make_ours(model, task, size), task, against)
    return as_markdown(
        race(contenders, images, truth, dtype=DTYPES[dtype], train=train, rounds=rounds)
    )
