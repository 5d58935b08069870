"""Metres at fields of view that training never saw, with and without a canonical focal length.

Scenes are trained at some ranges of the horizontal field of view and scored at the others. The two
models differ in ``canonical_focal`` alone: metres from the image, or from the image and its camera.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence

import torch

import dpt
from dpt.data import ScenesDataset
from dpt.data.loading import collate_eval, collate_train
from dpt.data.transforms import TrainTransform
from dpt.objectives import DepthObjective
from dpt.training.optim import cosine, muon
from dpt.types.outputs import HeadOutput
from dpt.types.samples import Batch, Sample

Range = tuple[float, float]
TRAINED: tuple[Range, ...] = ((35.0, 50.0), (70.0, 85.0))
"""Fields of view in degrees."""
HELD_OUT: tuple[Range, ...] = ((50.0, 70.0), (85.0, 95.0))
SIZE = 48, 64
FOCAL = 64.0
BATCH = 16
VAL_IMAGES = 60  # of each range


def run(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks canonical",
        description="Trains metric depth on scenes with and without a canonical focal length, and "
        "prints abs_rel at fields of view that were trained and at others.",
    )
    parser.add_argument("--steps", default=250, type=int)
    parser.add_argument("--seeds", default=2, type=int)
    parser.add_argument("--images", default=1000, type=int, help="training images")
    options = parser.parse_args(arguments)
    train = scenes(TRAINED, "train", options.images // len(TRAINED))
    val = {limits: scenes([limits], "val", VAL_IMAGES) for limits in (*TRAINED, *HELD_OUT)}
    means: dict[float | None, list[float]] = {}
    names = ", ".join(f"{low:g}-{high:g}" for low, high in val)
    print(
        f"abs_rel at fields of view of {names} degrees; the last two were not trained", flush=True
    )
    for seed in range(options.seeds):
        for canonical_focal in (None, FOCAL):
            model, objective = trained(train, canonical_focal, steps=options.steps, seed=seed)
            scores = [abs_rel(model, objective, samples) for samples in val.values()]
            means.setdefault(canonical_focal, []).append(statistics.mean(scores[len(TRAINED) :]))
            row = "  ".join(f"{score:.3f}" for score in scores)
            print(f"canonical_focal={canonical_focal} seed={seed}: {row}", flush=True)
    without, with_focal = (statistics.mean(means[focal]) for focal in (None, FOCAL))
    change = with_focal / without - 1
    print(f"not trained, mean: {without:.3f} without, {with_focal:.3f} with: {change:+.0%}")


def scenes(ranges: Sequence[Range], split: str, length: int) -> list[Sample]:
    """Returns scenes of each range of the field of view; those of two ranges are not the same."""
    samples = []
    for seed, limits in enumerate(ranges):
        data = ScenesDataset(split=split, length=length, size=SIZE, fov=limits, seed=seed)
        samples += [data[k] for k in range(length)]
    return samples


def trained(
    samples: Sequence[Sample], canonical_focal: float | None, *, steps: int, seed: int
) -> tuple[dpt.DPT, DepthObjective]:
    """Returns a model after ``steps`` steps, and its objective."""
    torch.manual_seed(seed)
    objective = DepthObjective(max_depth=20.0, canonical_focal=canonical_focal)
    head = {"kind": "metric", "activation": "exp", "canonical_focal": canonical_focal}
    model = dpt.create_model("dpt_stem", heads={"depth": head})
    optimizer = muon(model, lr=2e-3, weight_decay=0.01)
    schedule = cosine(optimizer, total_steps=steps, warmup=0.05)
    for batch in batches(samples, steps, seed):
        optimizer.zero_grad()
        output = predict(model, objective, batch)
        loss = torch.stack(list(objective.losses(output, batch).values())).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval(), objective


def batches(samples: Sequence[Sample], count: int, seed: int) -> Iterator[Batch]:
    """Yields batches of random samples, mirrored at random."""
    transform = TrainTransform(image_size=SIZE)
    random = torch.Generator().manual_seed(seed)
    for step in range(count):
        chosen = torch.randint(len(samples), (BATCH,), generator=random).tolist()
        views = [transform(samples[k], seed=BATCH * step + i) for i, k in enumerate(chosen)]
        yield collate_train(views, ["depth"])


def predict(model: dpt.DPT, objective: DepthObjective, batch: Batch) -> HeadOutput:
    """Returns depth in metres."""
    output = model(model.preprocessing.normalize(batch["image"]), raw=True)["depth"]
    return objective.add_outputs(model.heads["depth"], output, batch)


@torch.no_grad()
def abs_rel(model: dpt.DPT, objective: DepthObjective, samples: Sequence[Sample]) -> float:
    objective.metrics.reset()
    for start in range(0, len(samples), BATCH):
        batch = collate_eval(samples[start : start + BATCH], ["depth"])
        objective.update(predict(model, objective, batch), batch)
    return objective.compute()["abs_rel"]
