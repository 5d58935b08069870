"""Time and memory of the model beside its rivals: one process, taking turns, medians.

Rivals get what is best for them: scaled-dot-product attention, channels-last, fused AdamW. The one
that computes the same function (transformers) gets the same weights, and its largest difference
to ours is printed; the other (segmentation_models.pytorch) is another, similar network.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from benchmarks.lineup import make_contenders
from benchmarks.rivals import NUM_CLASSES, Contender, autocast, make_ours
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class LiveBytes(TorchDispatchMode):
    """Largest number of bytes held at once by tensors made under it.

    Scratch memory inside an operation does not count.
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


def saved_bytes(run: Callable[[], Any], model: nn.Module) -> int:
    """Bytes that ``run`` keeps for backward, parameters and buffers aside, each storage once."""
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = run()
    del result
    return sum(kept.values())


def matmul_peak(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of the best of twenty 2048³ products (4096³ on a GPU)."""
    n = 2048 if device.type == "cpu" else 4096
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / min(_timed(lambda: a @ b, device) for _ in range(20))


def _timed(run: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------ the race


def race(
    contenders: Sequence[Contender],
    images: Tensor,
    truth: Tensor,
    *,
    dtype: torch.dtype,
    train: bool,
    rounds: int,
) -> list[dict[str, Any]]:
    """A row a contender: medians of time and of the ratio to the first, turn by turn."""
    device = images.device
    peak = matmul_peak(dtype, device)
    rows: list[dict[str, Any]] = [{"name": c.name} for c in contenders]
    run_forward(contenders, images, rows, dtype=dtype, rounds=rounds)
    for c, row in zip(contenders, rows, strict=True):
        row["images/s"] = len(images) / statistics.median(c.forward_s)
        row["of peak"] = row.pop("flops") / statistics.median(c.forward_s) / peak
    if train:
        pairs = [(c, row) for c, row in zip(contenders, rows, strict=True) if c.loss is not None]
        run_steps(
            [c for c, _ in pairs], images, truth, [r for _, r in pairs], dtype=dtype, rounds=rounds
        )
    return rows


def run_forward(
    contenders: Sequence[Contender],
    images: Tensor,
    rows: list[dict[str, Any]],
    *,
    dtype: torch.dtype,
    rounds: int,
) -> None:
    device, first = images.device, None
    images = images.to(dtype)
    for c, row in zip(contenders, rows, strict=True):
        c.make_ready(device=device, dtype=dtype)
        count = c.plain or c.predict
        with torch.no_grad(), LiveBytes() as live:
            count(images)
        with torch.no_grad():
            out = c.predict(images)
        if not c.name.startswith("smp"):
            first = out if first is None else first
            row["difference"] = _difference(out, first)
        if c.plain is None or device.type == "cuda":
            row["forward MiB"] = _peak(partial(c.predict, images), live, device) / 2**20
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            count(images)
        row["flops"] = counter.get_total_flops()
    with torch.no_grad():
        for turn in range(-2, rounds):  # two turns to warm up
            for c in contenders:
                seconds = _timed(partial(c.predict, images), device)
                if turn >= 0:
                    c.forward_s.append(seconds)
    _add_times(contenders, rows, "forward", lambda c: c.forward_s)
    for c in contenders:
        c.model.float()


def run_steps(
    contenders: Sequence[Contender],
    images: Tensor,
    truth: Tensor,
    rows: list[dict[str, Any]],
    *,
    dtype: torch.dtype,
    rounds: int,
) -> None:
    device, steps = images.device, []
    for c, row in zip(contenders, rows, strict=True):
        steps.append(c.training_step(images, truth, dtype=dtype))
        if c.plain is None and c.loss is not None:
            with autocast(device, dtype):
                row["saved MiB"] = saved_bytes(partial(c.loss, images, truth), c.model) / 2**20
    for turn in range(-1, rounds):
        for c, step in zip(contenders, steps, strict=True):
            seconds = _timed(step, device)
            if turn >= 0:
                c.step_s.append(seconds)
    _add_times(contenders, rows, "step", lambda c: c.step_s)


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


def _peak(run: Callable[[], Any], live: LiveBytes, device: torch.device) -> int:
    if device.type != "cuda":
        return live.peak
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


COLUMNS = {
    "name": "{}",
    "forward ms": "{:.0f}",
    "forward / ours": "{:.2f}",
    "images/s": "{:.2f}",
    "of peak": "{:.0%}",
    "forward MiB": "{:.1f}",
    "difference": "{:.0e}",
    "step ms": "{:.0f}",
    "step / ours": "{:.2f}",
    "saved MiB": "{:.1f}",
}


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
    """Runs the race and returns its table in Markdown.

    Depth is compared as (B, H, W), segmentation as class ids (B, H, W): each contender takes the
    argmax of its own logits.
    """
    images, truth = make_inputs(task=task, size=size, batch=batch, device=device)
    contenders = make_contenders(make_ours(model, task, size), task, against)
    rows = race(contenders, images, truth, dtype=DTYPES[dtype], train=train, rounds=rounds)
    return as_markdown(rows)


def make_inputs(
    *, task: str, size: tuple[int, int], batch: int, device: str
) -> tuple[Tensor, Tensor]:
    """Noise for images (B, 3, H, W), and for their depth or labels (B, H, W)."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine has none")
    random = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *size, generator=random)
    truth = torch.rand(batch, *size, generator=random)
    if task == "segmentation":
        truth = (truth * NUM_CLASSES).long()
    return images.to(device, memory_format=torch.channels_last), truth.to(device)
