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
from benchmarks.timing import markdown, median_ratio, take_turns
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Row = dict[str, float]
"""The measurements of a contender by the column that shows them."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that are made under it and still alive.

    Parameters and inputs were made before and do not count, nor does scratch memory inside an
    operation. ``now`` is the current number, ``peak`` the largest.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._counted: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {a.untyped_storage()._cdata for a in tree_leaves(args) if isinstance(a, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in inputs:
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._counted:
            return
        self._counted.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """Returns the most that tensors hold at once during ``run``, without gradients."""
    with torch.no_grad(), LiveBytes() as live:
        run()
    return live.peak


def kept_bytes(run: Callable[[], object]) -> int:
    """Returns the bytes alive after a forward pass: what backward needs, and the output.

    ``torch.autograd.graph.saved_tensors_hooks`` would miss what ``torch.utils.checkpoint`` keeps.
    """
    with LiveBytes() as live:
        output = run()
        gc.collect()
        kept = live.now
    del output
    return kept


@torch.no_grad()
def race_forward(contenders: Sequence[Contender], images: Tensor, rounds: int) -> dict[str, Row]:
    """Returns times, memory and differences of forward passes by the contender's name."""
    rows: dict[str, Row] = {}
    reference = None
    for c in contenders:
        c.model.eval().to(images.device, images.dtype).to(memory_format=torch.channels_last)
        row = rows[c.name] = {}
        out = c.predict(images)
        if not c.name.startswith("smp"):
            reference = out if reference is None else reference
            row["difference"] = difference(out, reference)
        if c.eager:
            row["forward MiB"] = peak_bytes(partial(c.predict, images)) / 2**20
    runs = {c.name: partial(c.predict, images) for c in contenders}
    _add_times(rows, "forward", runs, rounds, warm_up=2, device=images.device)
    return rows


def race_steps(
    contenders: Sequence[Contender],
    images: Tensor,
    target: Tensor,
    rows: dict[str, Row],
    *,
    dtype: torch.dtype,
    rounds: int,
) -> None:
    """Adds times and memory of training steps to the rows of the contenders that can train."""
    losses = {c.name: c.loss for c in contenders if c.loss is not None}
    steps = {c.name: c.training_step(images, target, dtype=dtype) for c in contenders if c.loss}
    for c in contenders:
        if c.eager and c.name in losses:
            with autocast(images.device, dtype):
                kept = kept_bytes(partial(losses[c.name], images, target)) / 2**20
            ours = rows[contenders[0].name].setdefault("kept MiB", kept)
            rows[c.name] |= {"kept MiB": kept, "kept / theirs": ours / kept}
    _add_times(rows, "step", steps, rounds, warm_up=1, device=images.device)


def _add_times(
    rows: dict[str, Row],
    prefix: str,
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int,
    device: torch.device,
) -> None:
    """Adds medians of the times, and of their ratios to the first run."""

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    turns = {name: lambda _, run=run: run() for name, run in runs.items()}
    seconds = take_turns(turns, rounds, warm_up=warm_up, clock=clock)
    first = next(iter(seconds.values()))
    for name, values in seconds.items():
        rows[name][f"{prefix} ms"] = 1e3 * statistics.median(values)
        rows[name][f"{prefix} / ours"] = median_ratio(values, first)


def difference(out: Tensor, ours: Tensor) -> float:
    """Returns the largest difference over the scale; of class ids, the fraction of other pixels."""
    if not out.is_floating_point():
        return float((out != ours).float().mean())
    return float((out.float() - ours.float()).abs().max() / ours.float().abs().max())


def race_table(rows: Mapping[str, Row]) -> str:
    """Returns the rows in Markdown; ``kept / theirs`` is this project's bytes over the rival's."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [
        [name, *(f"{row[column]:.4g}" if column in row else "" for column in columns)]
        for name, row in rows.items()
    ]
    return markdown(["name", *columns], cells)


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
    """Returns the table. Segmentation is compared as class ids: the argmax of the logits."""
    random = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *size, generator=random)
    target = torch.rand(batch, *size, generator=random)
    if task == "segmentation":
        target = (target * NUM_CLASSES).long()
    images, target = images.to(device, memory_format=torch.channels_last), target.to(device)
    contenders = make_contenders(make_ours(model, task, size), task, against)
    rows = race_forward(contenders, images.to(DTYPES[dtype]), rounds)
    if train:
        race_steps(contenders, images, target, rows, dtype=DTYPES[dtype], rounds=rounds)
    return race_table(rows)
