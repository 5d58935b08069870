"""Sections of ``tests/gpu.sh``: passes and steps beside the others, and the loader's rate.

Each prints a table in Markdown, row by row, so that a section that is stopped keeps its rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from benchmarks.contenders import Contender, make_contenders, make_ours, ours
from benchmarks.models import LiveBytes, difference
from benchmarks.parts import ZOOM, make_images
from benchmarks.timing import markdown, median_rate, median_ratio, take_turns
from torch import Tensor

from dpt.data import FolderDataset, TrainTransform, make_loader
from dpt.files import reason

SECTIONS = ("predict", "train", "compiled", "loader")
RIVALS = ("transformers", "smp")
DTYPE = torch.bfloat16
PHOTO = (480, 640)


@dataclass(frozen=True)
class Plan:
    """What is timed. 512 stands for 518, because smp needs multiples of 32."""

    models: Sequence[str] = ("dpt_base", "dpt_large", "dpt_small")
    sizes: Sequence[int] = (384, 512)
    predict_batches: Sequence[int] = (1, 16)
    train_batch: int = 8
    rounds: int = 15
    photos: int = 256
    backend: str = "inductor"


REHEARSAL = Plan(("dpt_tiny",), (64,), (1, 2), 2, rounds=2, photos=12, backend="aot_eager")


@dataclass(frozen=True)
class Cell:
    """A row of the table: passes or training steps of each contender on one batch."""

    model: str
    size: int
    batch: int
    train: bool
    compiled: bool

    @property
    def title(self) -> str:
        what = "training step" if self.train else "predict"
        mode = ", compiled" if self.compiled else ""
        return f"{self.model} {self.size}×{self.size}, {what}, batch {self.batch}{mode}"


def cells_of(section: str, plan: Plan) -> Iterator[Cell]:
    """Yields the rows of a section, the most interesting first."""
    kinds = {"predict": (False,), "train": (True,), "compiled": (False, True)}[section]
    for size in plan.sizes:
        for model in plan.models:
            for train in kinds:
                batches = [plan.train_batch] if train else plan.predict_batches
                for batch in batches[-1:] if section == "compiled" else batches:
                    yield Cell(model, size, batch, train, section == "compiled")


def seconds_now(device: str) -> float:
    """Returns the time at which the device has done all its work."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_mib(run: Callable[[], object], device: str) -> float:
    """Returns the most memory that a run adds to what is held before it."""
    if device != "cuda":
        with LiveBytes() as live:
            run()
        return live.peak / 2**20
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def runs_of(cell: Cell, contender: Contender, device: str) -> Callable[[], object]:
    """Returns the contender's pass or step, after it ran twice."""
    random = torch.Generator().manual_seed(0)
    shape = (cell.batch, 3, cell.size, cell.size)
    images = torch.randn(shape, generator=random).to(device, memory_format=torch.channels_last)
    contender.model.to(device, memory_format=torch.channels_last)
    if cell.train:
        target = torch.rand(shape[0], *shape[2:], generator=random).to(device)
        run: Callable[[], object] = contender.training_step(images, target, dtype=DTYPE)
    else:
        contender.model.eval().to(DTYPE)
        run = torch.inference_mode()(partial(contender.predict, images.to(DTYPE)))
    run()
    run()
    return run


def row_of(cell: Cell, plan: Plan, device: str) -> list[str]:
    """Returns a row: images/s and MiB of ours, and of each rival time and memory over ours."""
    contenders = make_contenders(
        make_ours(cell.model, "depth", (cell.size, cell.size)), "depth", RIVALS
    )
    runs: dict[str, Callable[[], object]] = {}
    memory: dict[str, float] = {}
    faults: dict[str, str] = {}
    for contender in contenders:
        name = contender.name
        if cell.compiled:
            compile_it = partial(torch.compile, backend=plan.backend)
            predict, loss = compile_it(contender.predict), compile_it(contender.loss)
            contender = replace(contender, predict=predict, loss=loss)
        try:
            run = runs_of(cell, contender, device)
            memory[name] = peak_mib(run, device)
            runs[name] = run
        except Exception as error:  # whatever another project's code raises
            faults[name] = f"failed: {reason(error)[:100]}"
    first = contenders[0].name
    if first in faults:
        return [cell.title, faults[first]]
    turns = {name: lambda _, run=run: run() for name, run in runs.items()}
    seconds = take_turns(turns, plan.rounds, clock=partial(seconds_now, device))
    row = [cell.title, f"{median_rate(seconds[first], cell.batch):.4g}", f"{memory[first]:.0f}"]
    for contender in contenders[1:]:
        name = contender.name
        if name in faults:
            row += [faults[name], ""]
            continue
        ratio = median_ratio(seconds[name], seconds[first])
        row += [f"{ratio:.2f}", f"{memory[name] / memory[first]:.2f}"]
    same = "" if cell.train or "transformers" in faults else _difference(runs)
    return [*row, same]


def _difference(runs: dict[str, Callable[[], object]]) -> str:
    found, expected = runs["transformers"](), runs["dpt"]()
    assert isinstance(found, Tensor)
    assert isinstance(expected, Tensor)
    return f"{difference(found, expected):.1g}"


HEADER = ["bf16", "images/s", "MiB", "transformers: time / ours", "memory / ours"]
HEADER += ["smp\\*: time / ours", "memory / ours", "transformers differs by"]


def print_cells(section: str, plan: Plan, device: str, seconds: float) -> None:
    """Prints the table of a section; rows for which no time is left say so."""
    end = time.monotonic() + seconds
    print(markdown(HEADER, []), flush=True)
    for cell in cells_of(section, plan):
        row = [cell.title, "no time left"]
        if time.monotonic() < end:
            torch._dynamo.reset()
            row = row_of(cell, plan, device)
        row += [""] * (len(HEADER) - len(row))
        print(f"| {' | '.join(row)} |", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def photo_set(plan: Plan) -> Iterator[FolderDataset]:
    """Makes images of 640×480 pixels with depth."""
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), PHOTO, "depth", plan.photos)
        yield FolderDataset(
            root=folder, split="train", fractions={"train": 1.0}, depth="depth", max_depth=100.0
        )


def print_loader(plan: Plan, device: str, seconds: float) -> None:
    """Prints images/s of the loader alone, of training steps alone, and of both together."""
    size, batch, workers = plan.sizes[0], plan.train_batch, min(16, os.cpu_count() or 1)
    end = time.monotonic() + seconds
    print(markdown([f"images/s at {size}×{size}, bf16, batch {batch}", "", "loader / step"], []))
    with photo_set(plan) as dataset:
        loader = make_loader(
            dataset,
            TrainTransform(image_size=(size, size), zoom=ZOOM, hflip=0.5, color=0.5),
            training=True,
            batch_size=batch,
            num_workers=workers,
            seed=0,
            targets=("depth",),
        )
        rate = _rate(iter(loader), lambda _: None, plan, device)  # the first epoch starts workers
        rate = _rate(iter(loader), lambda _: None, plan, device)
        print(f"| loader alone, {workers} processes, 640×480 JPEG with depth | {rate:.4g} | |")
        for model in plan.models:
            if time.monotonic() > end:
                print(f"| {model} | no time left | |", flush=True)
                continue
            contender = ours(make_ours(model, "depth", (size, size)), "depth")
            contender.model.to(device, memory_format=torch.channels_last)
            images = torch.zeros(batch, 3, size, size, device=device)
            target = torch.zeros(batch, size, size, device=device)
            step = contender.training_step(images, target, dtype=DTYPE)

            def train(loaded: dict[str, Tensor], images=images, target=target, step=step) -> None:
                images.copy_(loaded["image"].to(device, non_blocking=True))
                target.copy_(loaded["depth"].to(device, non_blocking=True))
                step()

            same = {"image": images.cpu(), "depth": target.cpu()}
            alone = _rate(iter([same] * (plan.rounds + 3)), train, plan, device)
            both = _rate(iter(loader), train, plan, device)
            print(f"| {model}: steps alone | {alone:.4g} | {rate / alone:.2f} |")
            print(f"| {model}: steps fed by the loader | {both:.4g} | |", flush=True)


def _rate(
    batches: Iterator[dict[str, Tensor]],
    use: Callable[[dict[str, Tensor]], None],
    plan: Plan,
    device: str,
) -> float:
    """Returns images/s from the third batch on."""
    for batch in islice(batches, 2):
        use(batch)
    start, count = seconds_now(device), 0
    for batch in batches:
        use(batch)
        count += plan.train_batch
    return count / (seconds_now(device) - start)


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python tests/benchmarks gpu", description=__doc__)
    parser.add_argument("section", choices=SECTIONS)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--models", help="separated by commas (default: small, base and large)")
    parser.add_argument("--rounds", type=int, help="turns that count")
    parser.add_argument("--seconds", default=1e9, type=float, help="no row starts after them")
    given = parser.parse_args(arguments)
    plan = Plan() if given.device == "cuda" else REHEARSAL
    if given.models:
        plan = replace(plan, models=given.models.split(","))
    if given.rounds:
        plan = replace(plan, rounds=given.rounds)
    if given.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: needs a CUDA device: --device cpu rehearses with tiny models")
    if given.section == "loader":
        print_loader(plan, given.device, given.seconds)
    else:
        print_cells(given.section, plan, given.device, given.seconds)
