"""Writes a checkpoint as one file for other programs (.onnx: ONNX Runtime, TensorRT, ...; .xml:
OpenVINO; .pt2: torch.export), compares it with the model at three sizes, and writes no file if they
differ. The file takes any number of images of any size (.pt2: of more than two patches a side); its
metadata state outputs, units, classes and normalisation.

With --int8, layers compute in 8-bit integers, whose ranges are those of the images of --calibrate.
The file is compared with fp32: its outputs for every fourth image, or with KEY=VALUE, arguments of
dpt evaluate such as data=camvid, its scores. If the loss is above --max-loss, the noisiest layers
stay in float, up to half of them; if that is not enough, no file is written.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpt.commands import command_parser
from dpt.config.overrides import as_text
from dpt.process import say

MOST_IMAGES = 128  # for calibration, spread over those that are given


def run(arguments: list[str]) -> None:
    parser = command_parser("export", __doc__)
    add = parser.add_argument
    add("out", type=Path, help="the file to write, ending in .onnx, .xml or .pt2")
    text = "with --int8: score the file by dpt evaluate, such as data=camvid"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=text)
    text = "export this head only (depth, segmentation, ...); can be repeated"
    add("--task", action="append", default=[], help=text)
    text = (
        "take uint8 RGB images (B, H, W, 3), or float32 bands in their unit, and normalise them in "
        "the file, but resize none"
    )
    add("--with-preprocessing", action="store_true", help=text)
    add("--size", nargs=2, type=int, metavar=("H", "W"), help="fix the size of the input")
    add("--opset", type=int, help="of ONNX (default: the exporter's)")
    add("--int8", action="store_true", help="quantise layers, see above; .onnx or .xml")
    text = "with --int8: a folder of images, of which up to 128 are taken; can be repeated"
    add("--calibrate", action="append", type=Path, metavar="PHOTOS", help=text)
    text = "with --int8: largest relative loss (default: 0.01)"
    add("--max-loss", type=float, default=0.01, metavar="FRACTION", help=text)
    options = parser.parse_intermixed_args(arguments)
    if bool(options.calibrate) != options.int8:
        parser.error("--int8 and --calibrate PHOTOS: give both or none")
    if options.overrides and not options.int8:
        parser.error(f"{options.overrides[0]}: is for --int8")

    from dpt.files import refuse_inputs
    from dpt.run import export
    from dpt.run_log import start_log

    beside = (f"{options.out}.data", options.out.with_suffix(".bin"))
    for target in map(Path, (options.out, *beside)):
        refuse_inputs(target, [options.checkpoint])
    if options.out.exists():
        say(f"{options.out}: exists; the new file replaces it after the comparison")
    arguments_of_export = {
        "size": tuple(options.size) if options.size else None,
        "tasks": options.task,
        "with_preprocessing": options.with_preprocessing,
        "opset": options.opset,
    }
    if options.int8:
        start_log(None)
        say(_int8(options, arguments_of_export))
    else:
        say(str(export(options.checkpoint, options.out, **arguments_of_export)))


def _int8(options: argparse.Namespace, arguments_of_export: dict[str, Any]) -> str:
    """Writes a file of 8-bit integers, and returns the report."""
    from dpt.exporting.files import check_target
    from dpt.exporting.int8 import export_int8
    from dpt.model import DPT

    check_target(options.out)  # before a large model is read
    model = DPT.from_pretrained(options.checkpoint)
    images = _images(model, options, arguments_of_export["size"])
    scores = Scores(options.checkpoint, options.overrides) if options.overrides else None
    report = export_int8(
        model,
        options.out,
        images,
        max_loss=options.max_loss,
        measure=None if scores is None else scores.losses,
        **arguments_of_export,
    )
    return str(report) if scores is None else f"{report}\n{scores}"


class Scores:
    """The main scores of a checkpoint and of a file that was exported from it."""

    def __init__(self, checkpoint: str, overrides: list[str]) -> None:
        self._checkpoint, self._overrides = checkpoint, overrides
        self._before = self._after = self._scored()

    def _scored(self, *overrides: str) -> Any:
        """Returns the run of an evaluation, whose files are not kept."""
        from dpt.run import evaluate

        with TemporaryDirectory() as folder:
            arguments = (*self._overrides, *overrides, f"run_dir={as_text(folder)}")
            return evaluate(self._checkpoint, *arguments)

    def _pairs(self) -> dict[str, tuple[float, float]]:
        """Returns each main score before and after."""
        before, after = self._before.scores, self._after.scores
        return {k: (before[f"val/{k}"], after[f"val/{k}"]) for k in self._before.headlines}

    def losses(self, path: Path) -> dict[str, float]:
        """Returns the relative loss of each score of a file."""
        self._after = self._scored(f"runtime={as_text(str(path))}")
        losses = {}
        for name, (before, after) in self._pairs().items():
            sign = 1 if name in self._before.lower_is_better else -1
            losses[name] = sign * (after - before) / max(abs(before), 1e-30)
        return losses

    def __str__(self) -> str:
        pairs = [f"{name} {old:.4f} -> {new:.4f}" for name, (old, new) in self._pairs().items()]
        return f"  scores, fp32 -> int8  {', '.join(pairs)}"


def _images(model: Any, options: argparse.Namespace, size: tuple[int, int] | None) -> list[Any]:
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
        height, width = size or rule.bounded_size(pixels.shape[0], pixels.shape[1], path)
        resized = resize_image(pixels, (height, width), rule=rule.interpolation)
        image = torch.from_numpy(resized)[None]
        if not options.with_preprocessing:
            image = rule.normalize(image.permute(0, 3, 1, 2)).contiguous()
        elif rule.is_rgb:
            image = image.round().clamp(0, 255).to(torch.uint8)  # cubic_float overshoots
        images.append(image)
    return images
