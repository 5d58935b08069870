"""``dpt predict``: predictions for images, folders and videos."""

import argparse
import os
import sys
import time
from contextlib import closing
from pathlib import Path

from dpt.commands import command_parser
from dpt.process import Stopped, say, visible

DETAILS = """\
Formats (--format, separated by commas; default: png, with color for depth, overlay for classes and
segments, json for segments and npy for other maps)
  png       depth/NAME.png, 16 bits: metric depth in millimetres (coarser for models whose
            depth can exceed 65 m), 0 is invalid; relative depth from the smallest to the largest
            value of each image. labels/NAME.png: class ids with a palette. panoptic/NAME.png and
            instance/NAME.png: ids of segments as RGB (R + 256 G + 65536 B). HEAD/NAME.png: a
            picture of another map: three channels as RGB, else the first channel in colours
  npy       depth_npy/, labels_npy/, HEAD_npy/: the arrays
  color     depth_color/NAME.png: near is bright, with a colour bar below the picture
  overlay   overlay/NAME.png, HEAD_overlay/NAME.png: classes or segments over the image, with their
            names below the picture
  json      HEAD_json/NAME.json: the segments with class, score, box, area and mask (COCO's RLE)
Videos are written as MP4 files in the formats that are pictures (color, overlay and pictures of
other maps). Their colour range changes slowly.

Also written: predictions.json (checkpoint, unit, settings) and predictions.jsonl (a line for each
input, with the scale and offset of its 16-bit PNG, depth = value * scale + offset, and with outputs
for the whole image). Sub-folders are kept. Files that dpt predict wrote earlier inside an input
folder are left out. The same command again skips finished inputs. Exit codes: 0 success, 1 some
inputs failed (listed at the end), 130 stopped by Ctrl-C, 143 by SIGTERM.
"""


def run(arguments: list[str]) -> None:
    parser = command_parser(
        "predict",
        "Predicts for images and videos, at their own size.",
        epilog=DETAILS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUTS", help="images, videos, folders")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder to write to")
    add("--format", default="", metavar="A,B", help="formats to write, see below")
    add("--batch-size", default=1, type=int, metavar="N",
        help="images in one pass (only consecutive images of one size; default: 1)")  # fmt: skip
    add("--colormap", default="inferno", metavar="NAME",
        help="inferno (default), turbo, spectral, ...")  # fmt: skip
    add("--tile", type=int, metavar="N", help="predict larger images by tiles of N x N pixels")
    add("--flip", action="store_true", help="average with the mirrored image")
    add("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    text = "predict finished inputs again, also with other settings; files of others are kept"
    add("--overwrite", action="store_true", help=text)
    options = parser.parse_intermixed_args(arguments)
    try:
        failed = _predict(options)
    except Stopped as reason:
        reason.message += "; the same command continues from here"
        raise
    if failed:
        print(f"{len(failed)} failed:", file=sys.stderr)
        for path, fault in failed:
            name, message = (" ".join(visible(str(t)).split()) for t in (path, fault))
            print(f"  {message if name in message else f'{name}: {message}'}", file=sys.stderr)
        raise SystemExit(1)


def _predict(options: argparse.Namespace) -> list[tuple[Path, ValueError]]:
    """Writes the files; returns the inputs that failed, with the error."""
    import cv2

    from dpt.model import DPT
    from dpt.predict import outputs
    from dpt.predict.folder import OutputFolder
    from dpt.predict.inputs import find_sources
    from dpt.predict.pipeline import Pipeline
    from dpt.predict.predictor import Prediction, Predictor
    from dpt.run_log import start_log
    from dpt.weights.formats import fingerprint

    style = outputs.Style(options.colormap)
    start_log(None)
    sources = find_sources(options.inputs, out=options.out)
    cv2.setNumThreads(1)  # the pipeline has threads of its own
    model = DPT.from_pretrained(options.checkpoint)
    made = {"precision": options.precision, "flip": options.flip, "tile": options.tile}
    predictor = Predictor(model, batch_size=options.batch_size, device=options.device, **made)
    specs = predictor.outputs
    settings = {  # what determines the contents of the files
        "weights": fingerprint(model.config.to_dict(), model.state_dict()),
        "checkpoint": options.checkpoint,
        "colormap": options.colormap,
        **made,
        "unit": Prediction({}, specs).unit,
        "classes": outputs.classes_of(specs),
    }
    del model
    formats = [name.strip() for name in options.format.split(",") if name.strip()]
    products = outputs.products_of(formats, specs)
    videos = outputs.videos_of(products)
    done, failed, start = 0, list[tuple[Path, ValueError]](), time.monotonic()
    try:
        folder = OutputFolder(
            options.out,
            sources=sources,
            settings=settings,
            folders=[p.folder for group in outputs.all_products(specs).values() for p in group],
            overwrite=options.overwrite,
        )
        todo = [s for s in sources if not folder.is_done(s, videos if s.is_video else products)]
        folder.start()
        pipeline = Pipeline(predictor, folder, products, style, workers=min(4, os.cpu_count() or 1))
        with closing(pipeline.run(todo)) as finished:
            for source, error in finished:
                done += error is None
                if error is not None:
                    failed.append((source.path, error))
    except OSError as error:
        raise ValueError(
            f"{options.out}: cannot be written ({error.strerror or error}): make room or choose "
            "another --out; finished files stay, and the same command continues from there"
        ) from error
    seconds = max(time.monotonic() - start, 1e-9)
    skipped = f", {len(sources) - len(todo)} were done before" if len(todo) < len(sources) else ""
    say(f"{done} images in {seconds:.1f} s ({done / seconds:.3g} images/s){skipped}: {options.out}")
    for line in outputs.class_lines(products, specs):
        say(line)
    return failed
