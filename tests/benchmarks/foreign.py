"""``dpt fit`` on label sets of different kind, beside networks of segmentation_models.pytorch.

Every run is a process of its own with one thread and the same processor time. ``dpt fit`` spends
it on everything, from the look into the folder to the exported model; the others on their start and
on training. All are scored on val by the same code, at the size of the masks.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import cv2
import numpy as np

Masks = Callable[[np.ndarray], np.ndarray]
Predict = Callable[[np.ndarray], np.ndarray]
"""An image, uint8 RGB (H, W, 3), to class ids (H, W)."""

STREET = 11
"""Classes of CamVid; the id is that of unlabelled pixels."""
VOID = 255
SIZE = 256
"""About the side of the resized images of the other networks."""
BATCH = 8
OUTLINES, OUTLINES_VAL = 60, 20
"""Images of ``outlines``."""


def _of(*classes: int) -> Masks:
    """Returns a function that makes a mask of 0 and 255 of the ids of CamVid."""
    return lambda ids: np.where(np.isin(ids, classes), 255, 0).astype(np.uint8)


STREET_SETS: dict[str, tuple[str, Masks]] = {
    "road": ("two classes: road of CamVid, 0/255", _of(3)),
    "people": ("rare: pedestrians and bicyclists of CamVid, 0/255", _of(9, 10)),
    "street": ("many classes: the 11 of CamVid", lambda ids: ids),
}
SETS = {"outlines": "thin, no upright: outlines of objects in scenes, 0/255"} | {
    name: text for name, (text, _) in STREET_SETS.items()
}
RECIPE = "dpt fit"
BASELINES = "constant", "per_position", "nearest_photo"


@dataclass(frozen=True)
class Run:
    """One entry of the table."""

    set: str
    method: str
    minutes: float
    seed: int

    @property
    def name(self) -> str:
        text = f"{self.set}_{self.method}_{self.minutes:g}m_seed{self.seed}"
        return text.replace(" ", "-")


@dataclass
class Score:
    """What a run reached, and the processor time that it took."""

    miou: float
    iou: list[float]
    seconds: float
    training: float
    steps: int
    baselines: dict[str, float]


# --- the sets


def make_set(root: Path, name: str, data: Path) -> Path:
    """Writes the images and masks of a set, unless they exist, and returns its folder."""
    folder = root / name
    if (folder / "masks/val").is_dir():
        return folder
    if name in STREET_SETS:
        _make_street(folder, data / "camvid", STREET_SETS[name][1])
    else:
        for split, count in (("train", OUTLINES), ("val", OUTLINES_VAL)):
            _make_outlines(folder, split, count)
    return folder


def _make_street(folder: Path, source: Path, masks: Masks) -> None:
    for split, step in (("train", 4), ("val", 3)):
        for image in sorted(source.glob(f"images/{split}/*.jpg"))[::step]:
            of_image = source / "masks" / image.parent.name / f"{image.stem}.png"
            picture, ids = cv2.imread(str(image)), cv2.imread(str(of_image), cv2.IMREAD_UNCHANGED)
            _write(folder, split, image.stem, picture, masks(ids))
    if masks is STREET_SETS["street"][1]:
        (folder / "classes.json").write_bytes((source / "classes.json").read_bytes())


def _make_outlines(folder: Path, split: str, count: int) -> None:
    """Writes scenes in turned and mirrored views, with lines of 3 pixels between their objects."""
    from dpt.data import ScenesDataset

    scenes = ScenesDataset(split=split, length=count, size=(384, 384))
    for index in range(count):
        sample = scenes[index]
        regions = sample["objects"].astype(np.int64) * 256 + sample["labels"]
        edges = np.zeros(regions.shape, np.uint8)
        edges[:, 1:] |= (regions[:, 1:] != regions[:, :-1]).astype(np.uint8)
        edges[1:] |= (regions[1:] != regions[:-1]).astype(np.uint8)
        mask = 255 * cv2.dilate(edges, np.ones((3, 3), np.uint8))
        turned = [
            np.rot90(a, index % 4)[:: 1 - 2 * (index // 4 % 2)] for a in (sample["image"], mask)
        ]
        _write(folder, split, f"{index:03d}", turned[0][..., ::-1], turned[1])


def _write(folder: Path, split: str, stem: str, picture: np.ndarray, mask: np.ndarray) -> None:
    for kind, array in (("images", picture), ("masks", mask)):
        path = folder / kind / split / f"{stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), array)


def read_split(folder: Path, split: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the images, uint8 RGB, and their class ids, 255 where unlabelled."""
    is_street = (folder / "classes.json").is_file()
    for path in sorted((folder / "images" / split).glob("*.png")):
        image = cv2.imread(str(path))[..., ::-1]
        mask = cv2.imread(str(folder / "masks" / split / path.name), cv2.IMREAD_UNCHANGED)
        ids = np.where(mask == STREET, VOID, mask) if is_street else mask // 255
        yield np.ascontiguousarray(image), ids.astype(np.uint8)


def num_classes_of(folder: Path) -> int:
    return STREET if (folder / "classes.json").is_file() else 2


# --- a run


def score(folder: Path, predict: Predict) -> list[float]:
    """Returns the IoU of each class on val."""
    import torch

    from dpt.metrics import SegmentationMetrics

    metrics = SegmentationMetrics(num_classes_of(folder))
    for image, ids in read_split(folder, "val"):
        predicted = torch.from_numpy(predict(image).astype(np.int64))
        metrics.update(predicted[None], torch.from_numpy(ids)[None])
    scores = metrics.compute()
    return [float(value) for name, value in scores.items() if name.startswith("iou/")]


def fit(folder: Path, run: Run, scratch: Path) -> Score:
    """Runs ``dpt fit``, for which the clock is that of the processor, and scores its model."""
    time.monotonic = time.process_time
    import dpt.training.fit as training
    from dpt.cli import main
    from dpt.predict import Predictor

    spent: list[float] = []
    original = training.train_and_validate
    steps: list[int] = []

    def timed(prepared: training.Run) -> training.Scores:
        begun = time.process_time()
        scores = original(prepared)
        spent.append(time.process_time() - begun)
        steps.append(prepared.trainer.global_step)
        return scores

    training.train_and_validate = timed
    target = scratch / run.name
    arguments = ["--time", f"{60 * run.minutes:g}s", f"run_dir={target}", f"seed={run.seed}"]
    sys.argv = ["dpt", "fit", str(folder), *arguments, "overwrite=true"]
    main()
    seconds = time.process_time()
    iou = score(folder, lambda image: Predictor(target)(image).labels)
    values = json.loads((target / "evaluation/metrics.json").read_text())
    baselines = {k.split("/")[0]: v for k, v in values.items() if k.endswith("/val/miou")}
    return Score(float(np.mean(iou)), iou, seconds, spent[0], steps[0], baselines)


def network(method: str, num_classes: int):
    import segmentation_models_pytorch as smp

    if method == "smp unet":
        return smp.Unet("resnet34", encoder_weights=None, classes=num_classes)
    return smp.DPT(
        "tu-vit_tiny_patch16_224",
        encoder_weights=None,
        decoder_intermediate_channels=[24, 48, 96, 192],
        decoder_fusion_channels=64,
        classes=num_classes,
        dynamic_img_size=True,
        img_size=(SIZE, SIZE),
    )


def train_other(folder: Path, run: Run, scratch: Path) -> Score:
    """Trains a network as its users do: Adam, cross-entropy, flips, in batches of 8; with bf16 and
    a cosine schedule over the processor time, which its users may lack."""
    import torch
    import torch.nn.functional as F

    from dpt.functional import has_bf16

    torch.manual_seed(run.seed)
    random = np.random.default_rng(run.seed)
    rate = 3e-4 if run.method == "smp dpt" else 1e-3
    samples = [_small(*sample) for sample in read_split(folder, "train")]
    net = network(run.method, num_classes_of(folder)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    mean, std = (
        torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    )

    def logits_of(images: torch.Tensor) -> torch.Tensor:
        inputs = ((images.float() / 255 - mean) / std).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bf16("cpu")):
            return net(inputs).float()

    end, begun, steps = 60 * run.minutes, time.process_time(), 0
    while time.process_time() < end:
        fraction = (time.process_time() - begun) / (end - begun)
        optimizer.param_groups[0]["lr"] = rate * (1 + np.cos(np.pi * fraction)) / 2
        chosen = random.integers(len(samples), size=BATCH)
        crops = [_flipped(*samples[i], random) for i in chosen]
        images, ids = (torch.from_numpy(np.stack(a)) for a in zip(*crops, strict=True))
        loss = F.cross_entropy(logits_of(images.movedim(-1, 1)), ids.long(), ignore_index=VOID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    seconds = time.process_time()
    net.eval()

    @torch.no_grad()
    def predict(image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        small, _ = _small(image, np.zeros(image.shape[:2], np.uint8))
        tensor = torch.from_numpy(small).movedim(-1, 0)[None].float()
        bottom, right = -tensor.shape[-2] % 32, -tensor.shape[-1] % 32
        logits = logits_of(F.pad(tensor, (0, right, 0, bottom), mode="replicate"))
        logits = logits[..., : small.shape[0], : small.shape[1]]
        full = F.interpolate(logits, (height, width), mode="bilinear")
        return full.argmax(1)[0].numpy()

    iou = score(folder, predict)
    return Score(float(np.mean(iou)), iou, seconds, seconds - begun, steps, {})


def _small(image: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns a sample at the size that images are resized to."""
    height, width = image.shape[:2]
    scale = SIZE / min(height, width)
    size = (32 * round(width * scale / 32), 32 * round(height * scale / 32))
    resized = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return resized, cv2.resize(ids, size, interpolation=cv2.INTER_NEAREST)


def _flipped(
    image: np.ndarray, ids: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    step = -1 if random.random() < 0.5 else 1
    return image[:, ::step], ids[:, ::step]


METHODS: dict[str, Callable[[Path, Run, Path], Score]] = {
    RECIPE: fit,
    "smp unet": train_other,
    "smp dpt": train_other,
}


def main(arguments: Sequence[str]) -> None:
    """Makes one run in this process: a folder, a scratch folder, a ``Run`` as JSON."""
    folder, scratch, described = arguments
    run = Run(**json.loads(described))
    result = METHODS[run.method](Path(folder), run, Path(scratch))
    (Path(scratch) / f"{run.name}.json").write_text(json.dumps(asdict(run) | asdict(result)))


def run(arguments: Sequence[str]) -> None:
    """Makes the runs that the folder of results lacks, and prints the table of all in it."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks foreign", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder that holds camvid")
    add("--results", type=Path, required=True, help="folder of results; runs that it has are kept")
    add("--sets", default=",".join(SETS), help=", ".join(f"{k}: {v}" for k, v in SETS.items()))
    add("--methods", default=",".join(METHODS))
    add("--minutes", default="4,15", help="of processor time")
    add("--seeds", default="0,1")
    options = parser.parse_args(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    words = options.minutes, options.sets, options.methods, options.seeds
    for minutes, name, method, seed in product(*(text.split(",") for text in words)):
        chosen = Run(name, method, float(minutes), int(seed))
        if not (options.results / f"{chosen.name}.json").is_file():
            folder = make_set(options.results / "sets", name, options.data)
            _run_as_process(chosen, folder, options.results)
    print(table(options.results))


def _run_as_process(chosen: Run, folder: Path, results: Path) -> None:
    print(f"{chosen.name} ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    command = [sys.executable, __file__, str(folder), str(results), json.dumps(asdict(chosen))]
    log = results / f"{chosen.name}.txt"
    with log.open("w") as file:
        done = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False)
    if done.returncode:
        raise SystemExit(f"{chosen.name} failed: see {log}")


def table(results: Path) -> str:
    """Returns the mIoU of all runs in a folder: a row for each set and time, a column for each
    method."""
    from benchmarks.timing import markdown

    runs = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    rows = []
    for _, name, limit in sorted({([*SETS].index(r["set"]), r["set"], r["minutes"]) for r in runs}):
        group = [r for r in runs if (r["set"], r["minutes"]) == (name, limit)]
        baselines = [r["baselines"] for r in group if r["baselines"]]
        kinds = BASELINES if baselines else ()
        cells = [f"{baselines[0][k]:.3f}" if k in baselines[0] else "" for k in kinds]
        cells += [""] * (len(BASELINES) - len(cells))
        for method in METHODS:
            chosen = sorted((r for r in group if r["method"] == method), key=lambda r: r["seed"])
            cells.append(", ".join(f"{r['miou']:.3f}" for r in chosen))
        fits = [r for r in group if r["method"] == RECIPE]
        shares = [1 - r["training"] / (60 * r["minutes"]) for r in fits]
        cells.append(f"{statistics.mean(shares):.0%}" if shares else "")
        rows.append([name, f"{limit:g}", *cells])
    columns = [kind.replace("_", " ") for kind in BASELINES]
    return markdown(["set", "minutes", *columns, *METHODS, "not training"], rows)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main(sys.argv[1:])
