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
  exr       depth_exr/, normals_exr/, HEAD_exr/: EXR of 32 bits: depth in channel Z, normals in
            N.X, N.Y and N.Z; exr16: of 16 bits
  color     depth_color/NAME.png: near is bright, with a colour bar below the picture
  overlay   overlay/NAME.png, HEAD_overlay/NAME.png: classes or segments over the image, with their
            names below the picture
  json      HEAD_json/NAME.json: the segments with class, score, box, area and mask (COCO's RLE)
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
other maps), and as numbered files, depth/NAME/000000.png, in png, npy, exr, exr16 and json if these
are named: each_frame in predictions.jsonl has the scale and offset of each. The colour range of MP4
files changes slowly; with --steady it is that of the first frame, and depth and classes do not
flicker: what frames show of the same point is averaged. Cuts are counted.

Also written: predictions.json (checkpoint, unit, settings) and predictions.jsonl (a line for each
input, with the scale and offset of its 16-bit PNG, depth = value * scale + offset, with its camera
(K, and whether it was given, of the EXIF tags or predicted) and with outputs for the whole
image). Sub-folders are kept. Files that dpt predict wrote earlier inside an input
folder are left out. The same command again skips finished inputs. Exit codes: 0 success, 1 some
inputs failed, or have no points (listed at the end, those of one fault in one line), 130 stopped by
Ctrl-C, 143 by SIGTERM.

The camera, which points and models with a canonical focal length need, is that of the EXIF tags of
each image, or given by --fov (horizontal, in degrees), --focal (pixels) or --intrinsics (text,
JSON, YAML or a CSV table: image, fx, fy, cx, cy). --prompt is the measured depth of one image, for
models that take it: a CSV table of x, y, depth_m; PNG in millimetres or NPY in metres.
--edges guided puts the edges of depth where the image has some (joint bilateral upsampling),
nearest repeats the network's values, smooth (files by windows) interpolates as evaluation does.
--min-confidence leaves less certain points out of ply and glb (models with task.log_variance).
--batch-size joins consecutive images of one size. --overwrite predicts finished inputs again, also
with other settings; files of others are kept.

--source N (a camera) or --source ADDRESS (rtsp or http, of a camera or a stream) predicts the
newest frame again and again; frames that come meanwhile are dropped. The pictures are shown in a
window, where there is a display, and written to the MP4 file --out, where one is named, until q or
Ctrl-C is pressed or the source ends. The file is complete in each case, and the exit code 0.

Many workers: the same command with --shard 1/16 to --shard 16/16 on any machines, each again until
it has ended well, and once with --merge. The files are then those of one run. INPUTS may be
addresses, as s3://BUCKET/PHOTOS.
"""

import argparse
import re
from pathlib import Path

from dpt.commands import command_parser, exit_if_failed
from dpt.process import Stopped


def run(arguments: list[str]) -> None:
    """Writes the files; lists the inputs that failed."""
    options = _parse(arguments)
    if options.source:
        from dpt.commands.prediction import predict_source

        return predict_source(options)
    try:
        from dpt.commands.prediction import predict_inputs

        failed = predict_inputs(options)
    except Stopped as reason:
        reason.message += "; the same command continues from here"
        raise
    exit_if_failed(failed)


def _parse(arguments: list[str]) -> argparse.Namespace:
    """Returns the options that the command line gives."""
    parser = command_parser("predict", __doc__)
    add = parser.add_argument
    add("inputs", nargs="*", type=_plain_path, metavar="INPUTS", help="files, folders, addresses")
    add("--out", type=_plain_path, metavar="DIR", help="folder, or MP4 of --source")
    add("--source", metavar="N", help="a camera's number or address, in place of INPUTS")
    add("--format", default="", metavar="A,B", help="formats to write, see above")
    add("--batch-size", default=1, type=int, metavar="N", help="images in one pass (default: 1)")
    add("--colormap", default="inferno", metavar="NAME", help="inferno (default), turbo, ...")
    add("--tile", type=int, metavar="N", help="predict larger images by tiles of N x N pixels")
    add("--min-confidence", default=0.0, type=float, metavar="C", help="of points, from 0 to 1")
    add("--prompt", type=Path, metavar="FILE", help="measured depth of the image")
    text = "average what consecutive frames of a video show of the same point"
    add("--steady", action="store_true", help=text)
    add("--flip", action="store_true", help="average with the mirrored image")
    text = "depth in the sky, of models that predict it: invalid (default), far, or keep"
    add("--sky", default="invalid", choices=("invalid", "far", "keep"), help=text)
    text = "how depth gets the image's size: smooth, nearest, or guided (default of ply and glb)"
    add("--edges", choices=("smooth", "nearest", "guided"), help=text)
    add("--precision", default="fp32", choices=("fp32", "bf16", "fp16"))
    add("--runtime", metavar="NAME", help="torch (default), onnx or openvino")
    cameras = parser.add_mutually_exclusive_group()
    cameras.add_argument("--fov", type=float, metavar="DEG", help="horizontal field of view")
    cameras.add_argument("--focal", metavar="PIXELS", help="focal length of the images")
    cameras.add_argument("--intrinsics", type=Path, metavar="FILE", help="cameras of the images")
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    add("--overwrite", action="store_true", help="predict finished inputs again")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--shard", metavar="K/N", help="predict part K of N")
    parts.add_argument("--merge", action="store_true", help="check and join what all shards wrote")
    options = parser.parse_intermixed_args(arguments)
    options.format = [name.strip() for name in options.format.split(",") if name.strip()]
    if not options.source and not (options.inputs and options.out):
        parser.error("the following arguments are required: INPUTS, --out")
    if options.source and any((options.inputs, options.prompt, options.shard, options.merge)):
        parser.error("--source: takes no INPUTS, --prompt, --shard or --merge")
    return options


def _plain_path(text: str) -> str:
    """Returns a path or address; that of a file on this machine becomes its path."""
    return re.sub("^file://", "", text, flags=re.IGNORECASE)
