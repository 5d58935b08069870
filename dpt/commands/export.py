"""Writes a checkpoint as one file for other programs (.onnx: ONNX Runtime, TensorRT, ...; .xml:
OpenVINO; .pt2: torch.export, or AOTInductor with --to aoti; .tflite: LiteRT), compares it with the
model at three sizes, and writes no file if they differ. The file takes any number of images of any
size (.pt2: of more than two patches a side); its metadata state outputs, units, classes and
normalisation. --task exports one head of several, and can be repeated. With --with-preprocessing,
the file takes uint8 RGB images (B, H, W, 3), or float32 bands in their unit, and normalises them,
but resizes none.

Files for phones and NPUs (.tflite, and .onnx with --opset 13 to 17, where LayerNormalization is
written in parts) take one image of one size: that of --size, or of training. With --half, an .onnx
computes in float16 but for norms and attention's softmax.

With --int8, layers compute in 8-bit integers, whose ranges are those of the images of --calibrate:
folders of images, of which up to 128 are taken.
Its outputs for every fourth image are compared with those in fp32. If the loss is above --max-loss,
the noisiest layers stay in float, up to half of them; if that is not enough, no file is written.
Its scores are given by dpt evaluate RUN runtime=FILE.

With --web, OUT is a new folder for any web server, with the page of dpt demo, which predicts in the
browser, the model as .onnx, and onnxruntime-web, which npm fetches unless --web-runtime is given.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from dpt.commands import command_parser
from dpt.process import say

MOST_IMAGES = 128  # for calibration, spread over those that are given


def run(arguments: list[str]) -> None:
    parser = command_parser("export", __doc__)
    add = parser.add_argument
    add("out", type=Path, help="the file to write, ending in .onnx, .xml, .pt2 or .tflite")
    add("--task", dest="tasks", action="append", default=[], help="a head: depth, ...")
    add("--with-preprocessing", action="store_true", help="normalise images in the file")
    add("--size", nargs=2, type=int, metavar=("H", "W"), help="fix the size of the input")
    add("--to", metavar="TARGET", help="aoti, litert, ... (default: by the ending)")
    add("--opset", type=int, help="of ONNX, from 13 on (default: the exporter's)")
    add("--half", action="store_true", help="float16 in .onnx, but for norms and softmax")
    add("--int8", action="store_true", help="quantise layers, see above; .onnx or .xml")
    add("--calibrate", action="append", type=Path, metavar="PHOTOS", help="images for --int8")
    add("--max-loss", type=float, default=0.01, metavar="FRACTION", help="of --int8 (0.01)")
    add("--web", action="store_true", help="write a page that predicts in the browser, see above")
    add("--web-runtime", type=Path, metavar="DIR", help="the folder dist of onnxruntime-web")
    options = parser.parse_args(arguments)
    if bool(options.calibrate) != options.int8:
        parser.error("--int8 and --calibrate PHOTOS: give both or none")
    if options.int8 and options.half:
        parser.error("--int8 and --half: give one of them")
    fixed = (options.size, options.with_preprocessing, options.opset, options.half, options.to)
    if options.web and any(fixed):
        parser.error("--web: takes no --size, --with-preprocessing, --opset, --half or --to")

    from dpt.exporting.targets import target_of
    from dpt.files import refuse_inputs, require_new
    from dpt.model import DPT
    from dpt.run_log import start_log
    from dpt.web import write_page

    start_log(None)
    beside = (f"{options.out}.data", options.out.with_suffix(".bin"))
    for target in map(Path, (options.out, *beside)):
        refuse_inputs(target, [options.checkpoint])
    if options.web:
        require_new(options.out)
    elif options.out.exists():
        say(f"{options.out}: exists; the new file replaces it after the comparison")
    # before a large model is read
    target_of(options.out.with_suffix(".onnx") if options.web else options.out, options.to)
    model = DPT.from_pretrained(options.checkpoint)
    write = partial(_write, model, options)
    if options.web:
        say(write_page(model, options.out, write, options.web_runtime))
    else:
        say(write(options.out))


def _write(model: Any, options: argparse.Namespace, path: Path) -> str:
    """Exports ``model`` to ``path`` and returns a report."""
    from dpt.exporting.export import export
    from dpt.exporting.int8 import export_int8

    names = ("tasks", "with_preprocessing", "opset", "half", "to")
    settings = {name: vars(options)[name] for name in names}
    settings["size"] = options.size and tuple(options.size)
    if options.int8:
        settings["max_loss"] = options.max_loss
        return str(export_int8(model, path, _images(model, options), **settings))
    return str(export(model, path, **settings))


def _images(model: Any, options: argparse.Namespace) -> list[Any]:
    """Returns calibration images (tensors), spread over those given, as inputs of the file."""
    import torch

    from dpt.data.view import resize_image
    from dpt.predict.inputs import as_pixels
    from dpt.predict.sources import find_inputs

    files = [file.path for file in find_inputs(options.calibrate, out=options.out)]
    count = min(MOST_IMAGES, len(files))
    rule = model.preprocessing
    images = []
    for path in (files[i * len(files) // count] for i in range(count)):
        pixels = as_pixels(path, rule)
        size = options.size or rule.bounded_size(pixels.shape[0], pixels.shape[1], path)
        resized = resize_image(pixels, tuple(size), rule=rule.interpolation)
        image = torch.from_numpy(resized)[None]
        if not options.with_preprocessing:
            image = rule.normalize(image.permute(0, 3, 1, 2)).contiguous()
        elif rule.is_rgb:
            image = image.round().clamp(0, 255).to(torch.uint8)  # cubic_float overshoots
        images.append(image)
    return images
