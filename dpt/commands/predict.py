"""``dpt predict``: depth and labels of pictures, folders and videos."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpt.model import DPT

STOPPED = 128 + 2
"""Exit code after Ctrl-C."""

DETAILS = """\
Formats (--format, several with commas; default png, and color or overlay as the model has heads)
  png       depth/NAME.png, 16 bits: metres as millimetres (as 1/256 m for models that see beyond
            65 m), 0 where invalid; relative depth from each picture's smallest value to its largest
            labels/NAME.png: class ids with a palette
  npy, exr  depth as float32 (exr: pip install "dense-prediction-transformers[exr]")
  color     depth_color/NAME.png: near is bright
  overlay   overlay/NAME.png: classes over the photo
  panel     panel/NAME.png: photo, depth and classes side by side
Videos become MP4 files of color, overlay or panel, whose range of colours follows slowly.

Beside them: predictions.json (checkpoint, unit, settings) and predictions.jsonl (a line for each
input with the scale and offset of its 16-bit PNG: depth = value * scale + offset; image-level
classes and values too). Sub-folders are kept. Finished inputs are skipped when the command is given
again. Exit codes: 0 done, 1 some inputs failed (listed at the end), 130 stopped by Ctrl-C.
"""


def run(arguments: list[str]) -> None:
    options = _parser().parse_intermixed_args(arguments)
    try:
        failed = _predict(options)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        raise SystemExit(STOPPED) from None
    if failed:
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpt predict",
        description="Depth and labels of pictures, folders and videos, at their own size.",
        epilog=DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("checkpoint", metavar="CKPT", help="a file, folder or hub id in any known format")
    add("inputs", nargs="+", metavar="INPUTS", help="pictures, videos, folders, 'globs/**/*.jpg'")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder to write to")
    add("--format", default="", metavar="A,B", help="what to write, see below")
    add("--batch-size", default=1, type=int, metavar="N", help="pictures of one size at once")
    add(
        "--workers",
        default=min(4, os.cpu_count() or 1),
        type=int,
        metavar="N",
        help="threads that read, and as many that write (default %(default)s)",
    )
    add("--colormap", default="inferno", metavar="NAME", help="inferno, turbo, spectral, ...")
    add(
        "--range",
        nargs=2,
        type=float,
        metavar=("MIN", "MAX"),
        help="depths at the ends of the colours, in the prediction's unit (default: each "
        "picture's own)",
    )
    add("--tile", type=int, metavar="N", help="see larger pictures as tiles of N x N pixels")
    add("--flip", action="store_true", help="average with the mirror image")
    add("--scales", default="1", metavar="A,B", help="average over input sizes, as 0.75,1,1.25")
    add("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    add("--overwrite", action="store_true", help="predict everything anew")
    return parser


def _predict(options: argparse.Namespace) -> bool:
    """Whether some input failed."""
    import cv2

    from dpt.model import DPT
    from dpt.predict.files import predict_pictures
    from dpt.predict.folder import CannotWriteError, OutputFolder
    from dpt.predict.inputs import find_sources
    from dpt.predict.outputs import FOLDERS, products_of, videos_of
    from dpt.predict.paint import Style
    from dpt.predict.predictor import Predictor
    from dpt.predict.progress import ProgressMeter
    from dpt.predict.videos import predict_video

    _check(options)
    cv2.setNumThreads(1)  # there are threads of our own
    sources = find_sources(options.inputs, skip=[options.out / name for name in FOLDERS])
    model = DPT.from_pretrained(options.checkpoint)
    formats = [name for name in options.format.split(",") if name]
    heads = list(model.spec["heads"])
    products = products_of(formats, heads)
    videos = videos_of(products, heads)
    settings = _settings(options, model)
    predictor = Predictor(
        model,
        batch_size=options.batch_size,
        device=options.device,
        precision=options.precision,
        flip=options.flip,
        scales=settings["scales"],
        tile=options.tile,
    )
    del model
    settings["unit"] = predictor.unit
    if options.range is not None and predictor.unit == "metres" and options.range[0] <= 0:
        low, high = options.range
        raise ValueError(
            f"--range {low:g} {high:g}: of metres the first must be above 0, as 0.5 10: colours "
            "are even in 1 / depth"
        )
    folder = OutputFolder(options.out, settings=settings, overwrite=options.overwrite)
    style = Style(colormap=options.colormap, depth_range=settings["range"])
    todo = [s for s in sources if not folder.is_done(s, videos if s.is_video else products)]
    with ProgressMeter(len(todo)) as meter:
        predict_pictures(
            predictor,
            [s for s in todo if not s.is_video],
            folder,
            products=products,
            style=style,
            workers=options.workers,
            meter=meter,
        )
        for source in todo:
            if source.is_video:
                try:
                    predict_video(
                        predictor, source, folder, products=videos, style=style, meter=meter
                    )
                except CannotWriteError:
                    raise
                except (ValueError, OSError) as error:
                    meter.fail(source, str(error))
    skipped = f", {len(sources) - len(todo)} were done before" if len(todo) < len(sources) else ""
    print(
        f"{meter.done} images in {meter.seconds:.1f} s ({meter.speed:.3g} images/s){skipped}: "
        f"{options.out}"
    )
    if meter.failed:
        print(f"{len(meter.failed)} failed:", file=sys.stderr)
        for source, reason in meter.failed:
            where = "" if str(source.path) in reason else f"{source.path}: "
            print(f"  {where}{reason}", file=sys.stderr)
    return bool(meter.failed)


def _check(options: argparse.Namespace) -> None:
    from dpt.viz import COLORMAPS

    for name in ("batch_size", "workers"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: must be at least 1")
    if options.colormap not in COLORMAPS:
        raise ValueError(f"--colormap {options.colormap}: choose from {', '.join(COLORMAPS)}")
    if options.range is not None and not options.range[0] < options.range[1]:
        low, high = options.range
        raise ValueError(f"--range {low:g} {high:g}: the first must be smaller")


def _settings(options: argparse.Namespace, model: DPT) -> dict[str, Any]:
    """What decides the files' contents."""
    from dpt.weights.fingerprint import fingerprint

    try:
        scales = [float(value) for value in options.scales.split(",")]
    except ValueError:
        raise ValueError(f"--scales {options.scales}: give numbers, as 0.75,1,1.25") from None
    return {
        "checkpoint": options.checkpoint,
        "weights": fingerprint(model),
        "classes": list(model.spec.get("class_names") or ()),
        "colormap": options.colormap,
        "range": options.range,
        "tile": options.tile,
        "flip": options.flip,
        "scales": scales,
        "precision": options.precision,
    }
