"""What ``dpt predict`` does with its options: inputs, shards, workers, and the files to write."""

import argparse
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import cv2
import numpy as np

from dpt import viz
from dpt.data.formats.video import LiveReader
from dpt.exporting.files import fingerprint_of
from dpt.exporting.runtimes import is_exported
from dpt.files import DataError, few, plural, read_bytes, require_new
from dpt.model import DPT
from dpt.predict import records, writers
from dpt.predict.encoding import Style
from dpt.predict.folder import OutputFolder
from dpt.predict.inputs import chosen_camera
from dpt.predict.live import live_file, open_window
from dpt.predict.pipeline import FramePainter, Pipeline
from dpt.predict.prediction import depth_unit, first_output
from dpt.predict.predictor import Predictor
from dpt.predict.sources import InputFile, find_inputs, find_remote
from dpt.predict.steady import Steady
from dpt.process import Stopped, say
from dpt.run_log import start_log, tracked
from dpt.validation import Plain
from dpt.weights.formats import fingerprint

PREDICTOR_OPTIONS = ("precision", "runtime", "flip", "tile", "sky", "min_confidence")
"""Options that are settings of a predictor."""
Failed = list[tuple[str, ValueError]]
"""Inputs with the reason why each failed."""


def predict_inputs(options: argparse.Namespace) -> Failed:
    """Writes the predictions of the inputs; returns those that failed."""
    start_log(None)
    if "://" in options.out:
        remedy = "name a folder, and upload it once at the end"
        raise ValueError(f"--out {options.out}: is an address: {remedy}")
    shard = _chosen_shard(options)
    if any("://" in name for name in options.inputs):
        inputs = find_remote(options.inputs)
    else:
        inputs = find_inputs(options.inputs, out=options.out)
    pipeline = _make_pipeline(options, inputs, shard)
    with pipeline.folder.held():
        if options.merge:
            return _merge(pipeline, inputs)
        return _predict_part(pipeline, inputs)


def predict_source(options: argparse.Namespace) -> None:
    """Shows and writes the predictions of a camera or a stream until it ends, or the user ends it.

    Raises:
        ValueError: the source cannot be read, a frame failed, or there is nowhere to show them.
    """
    start_log(None)
    path = None if options.out is None else _clip_path(options)
    count = 0
    with ExitStack() as stack, suppress(Stopped):
        reader = stack.enter_context(closing(LiveReader(options.source)))
        window = open_window(reader.name)
        if window is None and path is None:
            raise ValueError(f"{reader.name}: no display for a window: give --out FILE.mp4")
        file = None if path is None else stack.enter_context(live_file(path))
        for picture in _live_pictures(options, reader):
            count += 1
            if file is not None:
                file.add(picture)
            if window is not None and not window.show(picture):
                break
    say(f"{reader.name} has ended: {count} of {plural(reader.count, 'frame')}: {path or 'shown'}")


def _clip_path(options: argparse.Namespace) -> Path:
    """Returns the path of the video that ``--source`` becomes; ValueError if it cannot be one."""
    path = Path(options.out)
    if path.suffix.lower() != ".mp4" or "://" in options.out:
        raise ValueError(f"--out {path}: with --source it is a file on this machine: FILE.mp4")
    if not options.overwrite:
        require_new(path)
    return path


def _live_pictures(options: argparse.Namespace, reader: LiveReader) -> Iterator[np.ndarray]:
    """Yields the pictures of the newest frame below one another, again and again."""
    cameras = chosen_camera(options.fov, options.focal, options.intrinsics)
    predictor, _ = _make_predictor(options)
    kinds = writers.videos_of(writers.chosen_kinds(options.format, predictor.outputs))
    if not kinds:
        raise ValueError("--source is shown as pictures: add color or overlay to --format")
    painter = FramePainter(kinds, Style(options.colormap), options.steady)
    predictor.steady = Steady(predictor.runtime.outputs) if options.steady else None
    say(f"{reader.name}: stop with q in the window, or Ctrl-C")
    for frame in reader:
        prepared = predictor.prepare(frame, name=reader.name, keep_image=True, camera=cameras)
        (prediction,) = predictor.predict([prepared])
        yield viz.stack(painter.paint(prediction, prepared.image))


def _predict_part(pipeline: Pipeline, inputs: Sequence[InputFile]) -> Failed:
    """Predicts the inputs of this process that are not finished; returns those that failed."""
    folder = pipeline.folder
    part = folder.shard.select(inputs)
    waiting = [file for file in part if not pipeline.is_done(file)]
    start = time.monotonic()
    done, failed = _predict(pipeline, waiting)
    if folder.shard == records.WHOLE:
        folder.finish()
    seconds = max(time.monotonic() - start, 1e-9)
    count = len(part) - len(waiting)
    skipped = f", {count} were done before" if count else ""
    rate = f"{plural(done, 'image')} in {seconds:.1f} s ({done / seconds:.3g} images/s)"
    shard = "" if folder.shard == records.WHOLE else f"shard {folder.shard}: "
    say(f"{shard}{rate}{skipped}: {folder.path}")
    return failed


def _merge(pipeline: Pipeline, inputs: Sequence[InputFile]) -> Failed:
    """Joins what the shards wrote; returns the inputs that failed.

    Raises:
        DataError: a shard is not finished.
    """
    folder = pipeline.folder
    missing = {file: k for k, file in enumerate(inputs) if not pipeline.is_done(file)}
    failures = folder.failures(missing)
    waiting = {file.name: k for file, k in missing.items() if file not in failures}
    if waiting:
        shards = records.shards_of(folder.path)
        count = shards[-1].count if shards else 1
        numbers = sorted({k % count + 1 for k in waiting.values()})
        again = few([f"--shard {number}/{count}" for number in numbers], 8)
        fault = f"{len(waiting)} of {len(inputs)} inputs are not finished ({few(list(waiting))})"
        raise DataError(f"{folder.path}: {fault}: run it again with {again}")
    folder.start()
    folder.finish()
    say(f"{len(inputs) - len(failures)} inputs are complete: {folder.path}")
    return [(file.source, error) for file, error in failures.items()]


def _chosen_shard(options: argparse.Namespace) -> records.InputShard:
    """Returns the part of the inputs that ``--shard`` names."""
    is_divided = options.shard or options.merge
    if is_divided and options.overwrite:  # a worker could not tell what is finished
        raise ValueError("--overwrite: is for one process: leave it out")
    shard = records.InputShard.parse(options.shard) if options.shard else records.WHOLE
    if shard is None:
        raise ValueError(f"--shard {options.shard}: write K/N with K in 1..N, such as 3/16")
    return shard


def _predict(pipeline: Pipeline, inputs: Sequence[InputFile]) -> tuple[int, Failed]:
    """Writes the files; returns the number of images and frames, and the inputs that failed."""
    pipeline.folder.start()
    done = 0
    failed: Failed = []

    def fail(file: InputFile, error: ValueError) -> None:
        failed.append((file.source, error))
        pipeline.folder.add_failure(file, error)

    in_steps = {file: None for file in inputs if file.is_video or pipeline.is_raster(file)}
    images = [file for file in inputs if file not in in_steps]
    with closing(pipeline.images(images)) as finished:
        for file, error in tracked(finished, len(images), title="images"):
            done += error is None
            file.release()
            if error is not None:
                fail(file, error)
    for file in in_steps:
        try:
            with closing(
                pipeline.frames(file) if file.is_video else pipeline.windows(file)
            ) as steps:
                for _ in tracked(steps, next(steps), title=file.name):
                    done += file.is_video
            done += not file.is_video
        except ValueError as error:
            fail(file, error)
        file.release()
    return done, failed


def _make_pipeline(
    options: argparse.Namespace, inputs: Sequence[InputFile], shard: records.InputShard
) -> Pipeline:
    """Returns the pipeline that the options describe; mistakes in them are ValueErrors."""
    style = Style(options.colormap)
    cv2.setNumThreads(1)  # the pipeline has threads of its own
    cameras = chosen_camera(options.fov, options.focal, options.intrinsics)
    if options.steady and not any(file.is_video for file in inputs):
        remedy = "leave it out, or make a video of the frames"
        raise ValueError(f"--steady: is for videos, and no input is one: {remedy}")
    predictor, weights = _make_predictor(options)
    if options.prompt is not None and (len(inputs) != 1 or inputs[0].is_video):
        raise ValueError(f"--prompt {options.prompt}: is the depth of one image: name that alone")
    kinds = writers.chosen_kinds(options.format, predictor.outputs)
    has_rasters = not options.format or records.RASTER in options.format
    rasters = writers.all_kinds(predictor.outputs)[records.RASTER] if has_rasters else []
    shown = ("colormap", "fov", "focal", "steady")
    recorded = _of_predictor(options) | {key: vars(options)[key] for key in shown}
    recorded |= {key: _with_hash(vars(options)[key]) for key in ("intrinsics", "prompt")}
    depth = first_output(predictor.outputs, "depth")
    settings = records.PredictionSettings(
        weights=weights,
        checkpoint=options.checkpoint,
        options=recorded,
        unit=None if predictor.needs_camera else depth_unit(depth),
        classes=writers.class_names_by_folder(predictor.outputs),
    )
    folder = OutputFolder(
        Path(options.out),
        inputs=inputs,
        settings=settings,
        folders=writers.folders_of(predictor.outputs),
        overwrite=options.overwrite,
        shard=shard,
    )
    workers = min(4, os.cpu_count() or 1)
    of_inputs = {"cameras": cameras, "prompt": options.prompt, "steady": options.steady}
    of_inputs["sequences"] = writers.sequences_of(options.format, kinds)
    return Pipeline(predictor, folder, kinds, style, workers, rasters, **of_inputs)


def _of_predictor(options: argparse.Namespace) -> Plain:
    """Returns the settings of the predictor; points have guided edges: fewer are between two
    surfaces."""
    edges = "smooth" if {*records.POINT_FORMATS}.isdisjoint(options.format) else "guided"
    chosen = {key: vars(options)[key] for key in PREDICTOR_OPTIONS}
    return chosen | {"edges": options.edges or edges}


def _make_predictor(options: argparse.Namespace) -> tuple[Predictor, str]:
    """Returns the predictor that the options describe, and a code of its weights."""
    chosen = _of_predictor(options)
    model, weights = _load(options.checkpoint)
    predictor = Predictor(model, batch_size=options.batch_size, device=options.device, **chosen)
    if options.steady and not Steady(predictor.runtime.outputs).outputs:
        names = ", ".join(predictor.outputs)
        raise ValueError(f"--steady: averages depth, classes and maps, not {names}: leave it out")
    return predictor, weights


def _load(checkpoint: str) -> tuple[DPT | Path, str]:
    """Returns the model, or the path of an exported file, with a code of its weights."""
    if is_exported(checkpoint):
        return Path(checkpoint), fingerprint_of(Path(checkpoint))
    model = DPT.from_pretrained(checkpoint)
    return model, fingerprint(model.config.to_dict(), model.state_dict())


def _with_hash(path: Path | None) -> str | None:
    """Returns the path with a hash of the file's content, for the record."""
    if path is None:
        return None
    return f"{path} ({hashlib.sha256(read_bytes(path)).hexdigest()[:12]})"
