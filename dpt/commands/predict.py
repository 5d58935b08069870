"""Predicts for images and videos, at their own size.

Formats (--format, separated by commas; default: png, with color for depth, overlay for classes and
segments, json for segments and npy for other maps)
  png       depth/NAME.png, 16 bits: metric depth in millimetres (coarser for models whose
            depth can exceed 65 m), 0 is invalid; relative inverse depth from the smallest to the
            largest value of each image, relative depth from 0. labels/NAME.png: class ids with a
            palette. panoptic/NAME.png and instance/NAME.png: ids of segments as RGB (R + 256 G +
            65536 B). HEAD/NAME.png: a picture of another map: three channels as RGB, else the first
            channel in colours
  npy       depth_npy/, labels_npy/, HEAD_npy/: the arrays
  color     depth_color/NAME.png: near is bright, with a colour bar below the picture
  overlay   overlay/NAME.png, HEAD_overlay/NAME.png: classes or segments over the image, with their
            names below the picture
  json      HEAD_json/NAME.json: the segments with class, score, box, area and mask (COCO's RLE)
  coco, yolo, labelme, voc
            labels_coco/, HEAD_coco/, ...: classes and segments as a label tool opens them, with
            copies of the images, see dpt data convert. COCO's and labelme's objects have scores
  ply, glb  depth_ply/, depth_glb/: the points that depth shows in the image's colours, and the
            surfaces through them with the image as texture, for metric depth and images with a
            camera (--fov, --focal, --intrinsics, EXIF). Points beside a discontinuity and triangles
            across one are left out: there, a surface would be seen at less than 3 degrees. Of
            images with more than a million pixels every second or third pixel is a point
  tif       labels_tif/, depth_tif/, HEAD_tif/: georeferenced TIFF files, and TIFF, PNG and JPEG
            files too large for a picture, in TIFF files of the same georeference. They are
            predicted by windows at their own resolution (--tile N, or the model's image size), by
            default in this format alone, and in others only if these are named without it. 255
            (labels) and NaN are "no data"
Videos are written as MP4 files in the formats that are pictures (color, overlay and pictures of
other maps). Their colour range changes slowly.

Also written: predictions.json (checkpoint, unit, settings) and predictions.jsonl (a line for each
input, with the scale and offset of its 16-bit PNG, depth = value * scale + offset, with its camera
(K, and whether it was given, of the EXIF tags, predicted or a guess) and with outputs for the whole
image). Sub-folders are kept. Files that dpt predict wrote earlier inside an input
folder are left out. The same command again skips finished inputs. Exit codes: 0 success, 1 some
inputs failed, or have no points (listed at the end, those of one fault in one line), 130 stopped by
Ctrl-C, 143 by SIGTERM.

Many workers: the same command with --shard 1/16 to --shard 16/16 on any machines, each again until
it has ended well, and once with --merge. The files are then those of one run. INPUTS may be
addresses, as s3://BUCKET/PHOTOS. --shard slurm takes the numbers of an array job, torchrun RANK and
WORLD_SIZE, kubernetes JOB_COMPLETION_INDEX and JOB_COMPLETIONS (set it in the manifest), auto those
of the only launcher whose variables are set.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpt.commands import command_parser, exit_if_failed
from dpt.files import plural
from dpt.process import Stopped, say

if TYPE_CHECKING:
    from dpt.model import DPT
    from dpt.predict.pipeline import Pipeline
    from dpt.predict.records import InputShard
    from dpt.predict.sources import InputFile

    Failed = list[tuple[str, ValueError]]
    """Inputs with the reason why each failed."""


def run(arguments: list[str]) -> None:
    """Writes the files; lists the inputs that failed."""
    options = _parse(arguments)
    with _resumable():
        from dpt.predict.sources import find_inputs, find_remote
        from dpt.predict.writers import class_lines
        from dpt.run_log import start_log

        start_log(None)
        if "://" in options.out:
            remedy = "name a folder, and upload it once at the end"
            raise ValueError(f"--out {options.out}: is an address: {remedy}")
        shard = _chosen_shard(options)
        if any("://" in name for name in options.inputs):
            inputs = find_remote(options.inputs)
        else:
            inputs = find_inputs(options.inputs, out=options.out)
        if options.engine == "ray":
            _predict_with_ray(options, inputs)
        pipeline = _make_pipeline(options, inputs, shard)
        with _writing(options.out), pipeline.folder.held():
            if options.merge or options.engine == "ray":
                failed = _merge(pipeline, inputs, arguments)
            else:
                failed = _predict_part(pipeline, inputs)
        for line in class_lines(pipeline.kinds, pipeline.predictor.outputs):
            say(line)
    exit_if_failed(failed)


def _predict_part(pipeline: Pipeline, inputs: Sequence[InputFile]) -> Failed:
    """Predicts the inputs of this process that are not finished; returns those that failed."""
    folder = pipeline.folder
    part = inputs if folder.shard is None else folder.shard.select(inputs)
    waiting = [file for file in part if not pipeline.is_done(file)]
    start = time.monotonic()
    done, failed = _predict(pipeline, waiting)
    if folder.shard is None:
        folder.finish(pipeline.kinds)
    seconds = max(time.monotonic() - start, 1e-9)
    count = len(part) - len(waiting)
    skipped = f", {count} were done before" if count else ""
    rate = f"{plural(done, 'image')} in {seconds:.1f} s ({done / seconds:.3g} images/s)"
    shard = "" if folder.shard is None else f"shard {folder.shard}: "
    say(f"{shard}{rate}{skipped}: {folder.path}")
    return failed


def _merge(pipeline: Pipeline, inputs: Sequence[InputFile], arguments: Sequence[str]) -> Failed:
    """Joins what the shards wrote; returns the inputs that failed.

    Raises:
        DataError: a shard is not finished; the message has the command that goes on with it.
    """
    import shlex

    from dpt.files import DataError, few
    from dpt.predict.records import shards_of

    folder = pipeline.folder
    missing = {file: k for k, file in enumerate(inputs) if not pipeline.is_done(file)}
    failures = folder.failures(missing)
    waiting = {file.name: k for file, k in missing.items() if file not in failures}
    if waiting:
        shards = shards_of(folder.path)
        count = shards[-1].count if shards else 1
        numbers = sorted({k % count + 1 for k in waiting.values()})
        commands = [f"--shard {number}/{count}" for number in numbers]
        command = shlex.join(["dpt", "predict", *(a for a in arguments if a != "--merge")])
        raise DataError(
            f"{folder.path}: {len(waiting)} of {len(inputs)} inputs are not finished "
            f"({few(list(waiting))}): run {command} {few(commands, 8)}"
        )
    folder.start()
    folder.finish(pipeline.kinds)
    say(f"{len(inputs) - len(failures)} inputs are complete: {folder.path}")
    return [(file.source, error) for file, error in failures.items()]


def _predict_with_ray(options: argparse.Namespace, inputs: Sequence[InputFile]) -> None:
    """Predicts a shard on each GPU of a Ray cluster, or on each core if it has no GPUs.

    Ray starts the shard of a killed worker again.
    """
    from dpt.files import require
    from dpt.predict.records import InputShard

    ray = require("ray", "--engine ray", extra="ray")
    ray.init()  # the cluster of RAY_ADDRESS, or this machine
    resources = ray.cluster_resources()
    gpus, cores = (int(resources.get(name, 0)) for name in ("GPU", "CPU"))
    task = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0, max_retries=-1)(predict_shard)
    count = gpus or cores
    shards = [InputShard(number + 1, count) for number in range(count)]
    stored = ray.put(inputs)
    try:
        ray.get([task.remote(options, stored, shard) for shard in shards])
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError):
            raise error.cause from None
        raise
    finally:
        ray.shutdown()


def predict_shard(
    options: argparse.Namespace, inputs: Sequence[InputFile], shard: InputShard
) -> None:
    """Predicts a shard in a worker of Ray; inputs that fail are in the shard's journal."""
    from dpt.run_log import start_log

    start_log(None)
    pipeline = _make_pipeline(options, inputs, shard)
    with _writing(options.out), pipeline.folder.held():
        _predict_part(pipeline, inputs)


def _chosen_shard(options: argparse.Namespace) -> InputShard | None:
    """Returns the part of the inputs that ``--shard`` names."""
    from dpt.predict.records import InputShard

    if options.engine == "ray" and (options.shard or options.merge):
        raise ValueError(
            "--engine ray: divides and merges by itself: leave out --shard and --merge"
        )
    if options.overwrite and (options.shard or options.merge or options.engine == "ray"):
        fault = "a worker that starts again could not tell what is finished"
        raise ValueError(f"--overwrite: {fault}: leave it out and choose another --out")
    if options.runtime == "auto" and (options.shard or options.engine == "ray"):
        raise ValueError("--runtime auto: each worker might choose another: name one of them")
    if options.shard is None:
        return None
    if options.merge:
        raise ValueError(f"--shard {options.shard}: --merge is for all shards: leave one out")
    shard = InputShard.chosen(options.shard)
    say(f"shard {shard}")
    return shard


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options that the command line gives."""
    parser = command_parser("predict", __doc__)
    add = parser.add_argument
    add(
        "inputs",
        nargs="+",
        type=_plain_path,
        metavar="INPUTS",
        help="images, videos, folders, s3://BUCKET/...",
    )
    add("--out", required=True, type=_plain_path, metavar="DIR", help="the folder to write to")
    add("--format", default="", metavar="A,B", help="formats to write, see above")
    text = "images in one pass (only consecutive images of one size; default: 1)"
    add("--batch-size", default=1, type=int, metavar="N", help=text)
    text = "inferno (default), turbo, spectral, ..."
    add("--colormap", default="inferno", metavar="NAME", help=text)
    add("--tile", type=int, metavar="N", help="predict larger images by tiles of N x N pixels")
    text = "leave less certain points out of ply and glb, 0 to 1 (models with task.log_variance)"
    add("--min-confidence", default=0.0, type=float, metavar="C", help=text)
    text = "measured depth of the image: CSV of x,y,depth_m; PNG in millimetres or NPY in metres"
    add("--prompt", type=Path, metavar="FILE", help=text)
    add("--flip", action="store_true", help="average with the mirrored image")
    text = "depth in the sky, of models that predict it: invalid (default), far, or keep"
    add("--sky", default="invalid", choices=("invalid", "far", "keep"), help=text)
    add("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    text = "torch (default), onnx, openvino, or auto: the fastest for the first image"
    add("--runtime", metavar="NAME", help=text)
    cameras = parser.add_mutually_exclusive_group()
    text = "horizontal field of view of the images in degrees (default: by the EXIF tags of each)"
    cameras.add_argument("--fov", type=float, metavar="DEG", help=text)
    text = "focal length in pixels of the images; guess: 60 degrees where nothing is known"
    cameras.add_argument("--focal", metavar="PIXELS|guess", help=text)
    text = "text, JSON, YAML, COLMAP's cameras.txt or a CSV table (image, fx, fy, cx, cy)"
    cameras.add_argument("--intrinsics", type=Path, metavar="FILE", help=text)
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    text = "predict finished inputs again, also with other settings; files of others are kept"
    add("--overwrite", action="store_true", help=text)
    text = "predict part K of N, beside other workers; or take K and N from the environment"
    add("--shard", metavar="K/N|slurm|torchrun|kubernetes|auto", help=text)
    add("--merge", action="store_true", help="check and join what all shards wrote")
    text = "ray: a worker on each GPU of a Ray cluster (RAY_ADDRESS, or else this machine)"
    add("--engine", default="local", choices=("local", "ray"), help=text)
    return parser.parse_intermixed_args(arguments)


def _plain_path(text: str) -> str:
    """Returns a path or address; that of a file on this machine becomes its path."""
    return text.removeprefix("file://")


@contextmanager
def _resumable() -> Iterator[None]:
    """Adds to the message of a stop that the same command continues."""
    try:
        yield
    except Stopped as reason:
        reason.message += "; the same command continues from here"
        raise


@contextmanager
def _writing(out: str) -> Iterator[None]:
    """Raises an error of the output folder, as of a full disk, as a ValueError."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{out}: cannot be written ({error.strerror or error}): make room or choose "
            "another --out; finished files stay, and the same command continues from there"
        ) from error


def _predict(pipeline: Pipeline, inputs: Sequence[InputFile]) -> tuple[int, Failed]:
    """Writes the files; returns the number of images and frames, and the inputs that failed."""
    from dpt.predict.pipeline import PartlyWrittenError
    from dpt.run_log import tracked

    pipeline.folder.start()
    done = 0
    failed: Failed = []

    def fail(file: InputFile, error: ValueError) -> None:
        failed.append((file.source, error))
        pipeline.folder.add_failure(file, error)

    rasters = {file: None for file in inputs if pipeline.is_raster(file)}
    images = [file for file in inputs if not file.is_video and file not in rasters]
    with closing(pipeline.images(images)) as finished:
        for file, error in tracked(finished, len(images), title="images"):
            done += error is None or isinstance(error, PartlyWrittenError)
            file.release()
            if error is not None:
                fail(file, error)
    for file in [*rasters, *(file for file in inputs if file.is_video)]:
        try:
            for _ in _frames(pipeline, file) if file.is_video else _raster(pipeline, file):
                done += 1
        except ValueError as error:
            fail(file, error)
        file.release()
    return done, failed


def _raster(pipeline: Pipeline, file: InputFile) -> Iterator[None]:
    """Predicts a raster window by window, and yields once at its end."""
    from dpt.run_log import tracked

    with closing(pipeline.windows(file)) as steps:
        for _ in tracked(steps, next(steps), title=file.name):
            pass
    yield


def _frames(pipeline: Pipeline, file: InputFile) -> Iterator[None]:
    """Predicts a video, and yields after each frame."""
    from dpt.data.formats.video import VideoReader
    from dpt.run_log import tracked

    video = VideoReader(file.fetch())
    with closing(pipeline.frames(file, video)) as frames:
        for _ in tracked(frames, max(1, video.announced), title=file.name):
            yield


def _make_pipeline(
    options: argparse.Namespace, inputs: Sequence[InputFile], shard: InputShard | None
) -> Pipeline:
    """Returns the pipeline that the options describe; mistakes in them are ValueErrors."""
    import cv2

    from dpt.predict import writers
    from dpt.predict.encoding import Style
    from dpt.predict.folder import OutputFolder
    from dpt.predict.inputs import GUESS, chosen_camera
    from dpt.predict.pipeline import Pipeline
    from dpt.predict.prediction import depth_unit, first_output
    from dpt.predict.predictor import Predictor
    from dpt.predict.records import PredictionSettings

    style = Style(options.colormap)
    cv2.setNumThreads(1)  # the pipeline has threads of its own
    cameras = chosen_camera(options.fov, options.focal, options.intrinsics)
    keys = ("precision", "runtime", "flip", "tile", "sky", "min_confidence")
    recorded = {key: vars(options)[key] for key in keys}
    model, weights = _load(options.checkpoint)
    predictor = Predictor(model, batch_size=options.batch_size, device=options.device, **recorded)
    if options.focal == "guess":
        predictor.guess = GUESS
        say(f"cameras that are not known get a field of view of {GUESS.degrees:g} degrees, a guess")
    prompt = None if options.prompt is None else _checked_prompt(options.prompt, inputs)
    formats = [name.strip() for name in options.format.split(",") if name.strip()]
    pictures = [name for name in formats if name != writers.RASTER]
    only_rasters = bool(formats) and not pictures
    chosen = [] if only_rasters else writers.chosen_kinds(pictures, predictor.outputs)
    has_rasters = not formats or len(pictures) < len(formats)
    rasters = writers.raster_kinds(predictor.outputs) if has_rasters else []
    depth = first_output(predictor.outputs, "depth")
    settings = PredictionSettings(
        weights=weights,
        checkpoint=options.checkpoint,
        colormap=options.colormap,
        camera=_camera_option(options),
        **recorded,
        prompt=prompt,
        unit=None if predictor.needs_camera else depth_unit(depth),
        classes=writers.class_names_by_folder(predictor.outputs),
    )
    folders = writers.folders_of(predictor.outputs)
    with _writing(options.out):
        folder = OutputFolder(
            Path(options.out),
            inputs=inputs,
            settings=settings,
            folders=folders,
            overwrite=options.overwrite,
            shard=shard,
        )
    workers = min(4, os.cpu_count() or 1)
    return Pipeline(
        predictor, folder, chosen, style, workers, rasters, only_rasters, cameras, options.prompt
    )


def _load(checkpoint: str) -> tuple[DPT | Path, str]:
    """Returns the model, or the path of an exported file, with a code of its weights."""
    from dpt.exporting.files import fingerprint_of
    from dpt.exporting.runtimes import is_exported
    from dpt.model import DPT
    from dpt.weights.formats import fingerprint

    if is_exported(checkpoint):
        return Path(checkpoint), fingerprint_of(Path(checkpoint))
    model = DPT.from_pretrained(checkpoint)
    return model, fingerprint(model.config.to_dict(), model.state_dict())


def _checked_prompt(path: Path, inputs: Sequence[InputFile]) -> str:
    """Returns the path with a hash of its content; ValueError unless there is one image."""
    if len(inputs) != 1 or inputs[0].is_video:
        found = "a video" if len(inputs) == 1 else f"{len(inputs)} inputs"
        raise ValueError(f"--prompt {path}: is the depth of one image, and there are {found}")
    return _with_hash(path)


def _with_hash(path: Path) -> str:
    """Returns the path with a hash of the file's content."""
    import hashlib

    from dpt.files import read_bytes

    return f"{path} ({hashlib.sha256(read_bytes(path)).hexdigest()[:12]})"


def _camera_option(options: argparse.Namespace) -> str:
    """Returns the option that states the cameras, for the record; empty if there is none."""
    file = None if options.intrinsics is None else _with_hash(options.intrinsics)
    values = {"fov": options.fov, "focal": options.focal, "intrinsics": file}
    return "".join(f"--{key} {value}" for key, value in values.items() if value is not None)
