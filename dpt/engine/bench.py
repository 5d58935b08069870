"""Time and memory of the model beside its rivals: one process, taking turns, medians.

Rivals get what is best for them: scaled-dot-product attention, channels-last, fused AdamW. The one
that computes the same function (transformers) gets the same weights, and its largest difference
to ours is printed; the other (segmentation_models.pytorch) is another, similar network.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from dpt.losses import CrossEntropyLoss
from dpt.model import DPT, create_model
from dpt.weights.convert import convert

NUM_CLASSES = 150
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Contender:
    """A model in the race.

    Attributes:
        name: as printed.
        predict: images to what is compared: depth (B, H, W), or class ids (B, H, W).
        loss: images and truth to the scalar that a training step minimises; None does not train.
        plain: what ``predict`` was before it was compiled; operations are counted on it.
        model: its parameters are trained.
        forward_s, step_s: seconds of each turn.
    """

    name: str
    model: nn.Module
    predict: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None
    plain: Callable[[Tensor], Tensor] | None = None
    forward_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


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


# ------------------------------------------------------------------------------ who takes part


def make_ours(name: str, task: str, size: tuple[int, int]) -> DPT:
    heads: dict[str, dict[str, Any]] = {
        "depth": {"depth": {"kind": "relative", "upsample": "double"}},
        "segmentation": {"segmentation": {"num_classes": NUM_CLASSES, "dropout": 0.1}},
    }
    torch.manual_seed(0)
    return create_model(name, heads=heads[task], encoder={"image_size": list(size)})


def our_contender(model: DPT, task: str, label: str = "dpt") -> Contender:
    cross_entropy = CrossEntropyLoss()

    def depth_loss(images: Tensor, truth: Tensor) -> Tensor:
        return F.l1_loss(model(images)["depth"].float(), truth)

    def segmentation_loss(images: Tensor, truth: Tensor) -> Tensor:
        out = model(images, enlarge_logits=False)
        auxiliary = cross_entropy(out["segmentation_auxiliary"], truth)
        return cross_entropy(out["segmentation"], truth) + 0.2 * auxiliary

    if task == "depth":
        return Contender(label, model, lambda x: model(x)["depth"], depth_loss)
    return Contender(label, model, model.predict_labels, segmentation_loss)


def transformers_contender(ours: DPT, task: str) -> Contender:
    """The same weights in transformers' own classes."""
    from transformers import DPTForDepthEstimation, DPTForSemanticSegmentation

    with tempfile.TemporaryDirectory() as folder:
        ours.save_pretrained(f"{folder}/ours")
        convert(f"{folder}/ours", f"{folder}/theirs", to="transformers")
        if task == "depth":
            depth = DPTForDepthEstimation.from_pretrained(f"{folder}/theirs")
            return Contender(
                "transformers",
                depth,
                lambda x: depth(x).predicted_depth,
                lambda x, y: F.l1_loss(depth(x).predicted_depth.float(), y),
            )
        model = DPTForSemanticSegmentation.from_pretrained(f"{folder}/theirs")
    model.config.auxiliary_loss_weight = 0.2
    return Contender(
        "transformers",
        model,
        lambda x: model(x).logits.argmax(1),
        lambda x, y: model(x, labels=y).loss,
    )


def smp_contender(ours: DPT, task: str) -> Contender:
    """segmentation_models.pytorch's DPT of the same sizes; its depth is one class."""
    import segmentation_models_pytorch as smp

    encoder, decoder = ours.spec["encoder"], ours.spec["decoder"]
    if encoder["kind"] != "vit":
        raise ValueError(f"--against smp: it has no {encoder['kind']} encoder")
    names = {192: "tiny", 384: "small", 768: "base", 1024: "large"}
    model = smp.DPT(
        f"tu-vit_{names[encoder['embed_dim']]}_patch16_224",
        encoder_weights=None,
        encoder_output_indices=list(encoder["out_indices"]),
        decoder_intermediate_channels=list(decoder["reassemble_channels"]),
        decoder_fusion_channels=decoder["fusion_channels"],
        classes=1 if task == "depth" else NUM_CLASSES,
        dynamic_img_size=True,
        img_size=tuple(encoder["image_size"]),
    )
    if task == "depth":
        return Contender(
            "smp*",
            model,
            lambda x: model(x).squeeze(1),
            lambda x, y: F.l1_loss(model(x).squeeze(1).float(), y),
        )
    return Contender(
        "smp*",
        model,
        lambda x: model(x).argmax(1),
        lambda x, y: F.cross_entropy(model(x).float(), y, ignore_index=255),
    )


def optimized_contender(ours: DPT, task: str) -> Contender:
    """What :meth:`dpt.DPT.optimize_for_inference` makes of ours; it does not train."""
    fast = our_contender(ours.optimize_for_inference(), task, "dpt, optimised")
    plain = our_contender(ours, task).predict
    return Contender(fast.name, fast.model, fast.predict, loss=None, plain=plain)


def compiled_contender(rival: Contender) -> Contender:
    """The rival under torch.compile, its weights frozen into the graph for predictions."""
    if rival.loss is None:
        raise ValueError("--against dpt-optimized-compile: dpt-optimized is compiled already")
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
    "transformers": transformers_contender,
    "smp": smp_contender,
}


def make_contenders(ours: DPT, task: str, against: Sequence[str]) -> list[Contender]:
    """Ours first; ``NAME-compile`` is ``NAME`` under torch.compile."""
    contenders = [our_contender(ours, task)]
    for name in against:
        base = name.removesuffix("-compile")
        if base not in MAKERS:
            raise ValueError(
                f"--against {name}: choose from {', '.join(MAKERS)}, each also with -compile"
            )
        try:
            rival = MAKERS[base](ours, task)
        except ImportError as error:
            raise ValueError(f"--against {name}: {error}; pip install '.[dev]' has it") from error
        contenders.append(rival if base == name else compiled_contender(rival))
    return contenders


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
        c.model.eval().to(device, dtype)
        c.model.to(memory_format=torch.channels_last)
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
    device = images.device

    def scope() -> AbstractContextManager[Any]:
        if dtype is torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=dtype)

    optimizers = []
    for c, row in zip(contenders, rows, strict=True):
        c.model.train()
        optimizers.append(torch.optim.AdamW(c.model.parameters(), lr=1e-5, fused=True))
        if c.plain is None and c.loss is not None:
            with scope():
                row["saved MiB"] = saved_bytes(partial(c.loss, images, truth), c.model) / 2**20
    for turn in range(-1, rounds):
        for c, optimizer in zip(contenders, optimizers, strict=True):

            def step(c: Contender = c, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.zero_grad()
                assert c.loss is not None
                with scope():
                    loss = c.loss(images, truth)
                loss.backward()
                optimizer.step()

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
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this machine has none")
    ours = make_ours(model, task, size)
    contenders = make_contenders(ours, task, against)
    random = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, *size, generator=random)
    truth = torch.rand(batch, *size, generator=random)
    if task == "segmentation":
        truth = (truth * NUM_CLASSES).long()
    place = torch.device(device)
    images = images.to(place, memory_format=torch.channels_last)
    rows = race(
        contenders, images, truth.to(place), dtype=DTYPES[dtype], train=train, rounds=rounds
    )
    return as_markdown(rows)
