"""``python tests/benchmarks folder CHECKPOINT PHOTOS``: a folder beside the network's passes alone.

Both take turns on the same images, in one process: the passes get inputs that are read and resized
already, and ``dpt predict`` reads, resizes, predicts, encodes and writes. ``--memory`` predicts
many tiny images and prints the memory of the process on the way.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from benchmarks.timing import markdown

from dpt.predict.encoding import Style
from dpt.predict.folder import OutputFolder
from dpt.predict.pipeline import Pipeline
from dpt.predict.predictor import Predictor, PreparedImage
from dpt.predict.records import PredictionSettings
from dpt.predict.sources import InputFile, find_inputs
from dpt.predict.writers import chosen_kinds, folders_of


def make_pipeline(
    predictor: Predictor, inputs: Sequence[InputFile], formats: Sequence[str], out: Path
) -> Pipeline:
    """Returns what ``dpt predict`` makes, with as many workers."""
    settings = PredictionSettings(weights="benchmark")
    folders = folders_of(predictor.outputs)
    folder = OutputFolder(out, inputs=inputs, settings=settings, folders=folders)
    products = chosen_kinds(formats, predictor.outputs)
    return Pipeline(predictor, folder, products, Style(), workers=min(4, torch.get_num_threads()))


def predict_folder(
    predictor: Predictor, inputs: Sequence[InputFile], formats: Sequence[str]
) -> None:
    with tempfile.TemporaryDirectory() as out:
        pipeline = make_pipeline(predictor, inputs, formats, Path(out))
        with pipeline.folder.held():
            pipeline.folder.start()
            for file, error in pipeline.images(inputs):
                assert error is None, (file, error)
            pipeline.folder.finish()


def run_alone(predictor: Predictor, images: Sequence[PreparedImage]) -> None:
    size = predictor.batch_size
    for start in range(0, len(images), size):
        predictor.run([image.input for image in images[start : start + size]])


def compare(
    predictor: Predictor, inputs: Sequence[InputFile], formats: Sequence[str], rounds: int
) -> str:
    """Returns ms of an image, wall and processor time, of the passes alone and of the folder."""
    images = [predictor.prepare(file.path) for file in inputs]
    runs = {
        "passes alone": partial(run_alone, predictor, images),
        "folder": partial(predict_folder, predictor, inputs, formats),
    }
    wall: dict[str, list[float]] = defaultdict(list)
    processor: dict[str, list[float]] = defaultdict(list)
    for turn in range(-1, rounds):
        for name, run in runs.items():
            begun = time.perf_counter(), time.process_time()
            run()
            if turn >= 0:
                wall[name].append((time.perf_counter() - begun[0]) / len(inputs))
                processor[name].append((time.process_time() - begun[1]) / len(inputs))
    rows = []
    for name in runs:
        row = [name]
        for seconds in (wall, processor):
            pairs = zip(seconds[name], seconds["passes alone"], strict=True)
            ratio = statistics.median(one / alone for one, alone in pairs)
            row += [f"{1e3 * statistics.median(seconds[name]):.1f}", f"{ratio:.2f}"]
        rows.append(row)
    return markdown(["", "ms / image", "ratio", "processor ms / image", "ratio"], rows)


def resident_mib() -> float:
    """Returns the memory that the process holds now (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def memory_table(predictor: Predictor, count: int, *, broken: int) -> str:
    """Returns the memory after each tenth of ``count`` tiny images.

    Args:
        broken: every n-th image is cut short; 0: none.
    """
    random = np.random.default_rng(0)
    marks: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        photos.mkdir()
        for i in range(count):
            picture = random.integers(0, 256, (24, 32, 3), np.uint8)
            content = cv2.imencode(".jpg", picture)[1].tobytes()
            is_broken = broken and i % broken == 0
            (photos / f"{i:06d}.jpg").write_bytes(content[:200] if is_broken else content)
        inputs = find_inputs([str(photos)], out=Path(folder, "out"))
        pipeline = make_pipeline(predictor, inputs, (), Path(folder, "out"))
        failed = 0
        with pipeline.folder.held():
            pipeline.folder.start()
            for done, (_, error) in enumerate(pipeline.images(inputs), 1):
                failed += error is not None
                if done % (count // 10) == 0:
                    marks.append([str(done), str(failed), f"{resident_mib():.0f}"])
            pipeline.folder.finish()
        marks.append(["finished", str(failed), f"{resident_mib():.0f}"])
    return markdown(["images", "of them failed", "MiB"], marks)


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python tests/benchmarks folder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint")
    parser.add_argument("photos", nargs="?", help="a folder")
    parser.add_argument("--count", default=100, type=int, help="images, the first of the folder")
    parser.add_argument("--format", default="", help="as of dpt predict")
    parser.add_argument("--runtime")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch-size", default=1, type=int)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--memory", type=int, metavar="N", help="predict N tiny images instead")
    parser.add_argument("--broken", default=0, type=int, metavar="N", help="each n-th is damaged")
    given = parser.parse_args(arguments)
    cv2.setNumThreads(1)  # as dpt predict
    options = {"runtime": given.runtime, "precision": given.precision}
    predictor = Predictor(given.checkpoint, batch_size=given.batch_size, **options)
    if given.memory:
        print(memory_table(predictor, given.memory, broken=given.broken))
        return
    inputs = find_inputs([given.photos], out=Path(given.photos, "none"))[: given.count]
    formats = [name for name in given.format.split(",") if name]
    print(compare(predictor, inputs, formats, given.rounds))
