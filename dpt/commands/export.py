"""Writes a checkpoint as one file for other programs (.onnx: ONNX Runtime, TensorRT, ...; .pt2:
torch.export), compares it with the model at three sizes, and writes no file if they differ. The
file takes any number of images of any size (.pt2: of more than two patches a side); its metadata
state outputs, units, classes and normalisation.
"""

from pathlib import Path

from dpt.commands import command_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = command_parser("export", __doc__)
    add = parser.add_argument
    add("out", type=Path, help="the file to write, ending in .onnx or .pt2")
    text = "export this head only (depth, segmentation, ...); can be repeated"
    add("--task", action="append", default=[], help=text)
    text = (
        "take uint8 RGB images (B, H, W, 3), or float32 bands in their unit, and normalise them in "
        "the file, but resize none"
    )
    add("--with-preprocessing", action="store_true", help=text)
    add("--size", nargs=2, type=int, metavar=("H", "W"), help="fix the size of the input")
    add("--opset", type=int, help="of ONNX (default: the exporter's)")
    options = parser.parse_args(arguments)

    from dpt.export import export
    from dpt.export.files import check_target
    from dpt.files import refuse_inputs
    from dpt.model import DPT

    check_target(options.out, opset=options.opset)  # before a large model is read
    for target in (options.out, Path(f"{options.out}.data")):  # the latter for large weights
        refuse_inputs(target, [options.checkpoint])
    if options.out.exists():
        say(f"{options.out}: exists; the new file replaces it after the comparison")
    report = export(
        DPT.from_pretrained(options.checkpoint),
        options.out,
        size=tuple(options.size) if options.size else None,
        tasks=options.task,
        with_preprocessing=options.with_preprocessing,
        opset=options.opset,
    )
    say(str(report))
