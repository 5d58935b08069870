"""``dpt export``: a checkpoint as an ONNX file or a ``.pt2``, compared with the model."""

from __future__ import annotations

import argparse


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dpt export",
        description="Writes a checkpoint as one file that other programs run (.onnx: ONNX Runtime, "
        "TensorRT, ...; .pt2: torch.export), compares it with the model at three sizes, and "
        "deletes it if they differ. The file takes any number of images of any size; its metadata "
        "tell task, unit, classes and normalisation.",
    )
    parser.add_argument("checkpoint", help="a file or folder in any format that is read")
    parser.add_argument("out", help="the file to write, ending in .onnx or .pt2")
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        help="export this head alone (depth, segmentation, ...); may be given again",
    )
    parser.add_argument(
        "--with-preprocessing",
        action="store_true",
        help="take uint8 RGB images (B, H, W, 3) and normalise them in the file; resizing a "
        "picture to a size that suits the model stays outside",
    )
    parser.add_argument(
        "--fp16",
        action="store_true",
        help="also write NAME.fp16.onnx, with weights in float16; its error and speed are measured",
    )
    parser.add_argument(
        "--size",
        nargs=2,
        type=int,
        metavar=("H", "W"),
        help="fix the size of the input, for programs and encoders that want it fixed",
    )
    parser.add_argument("--opset", type=int, help="of ONNX; the exporter's choice if left out")
    options = parser.parse_args(arguments)

    from pathlib import Path

    from dpt.export import export
    from dpt.export.files import check_target
    from dpt.model import DPT

    check_target(Path(options.out), opset=options.opset)  # before a large model is read
    report = export(
        DPT.from_pretrained(options.checkpoint),
        options.out,
        size=tuple(options.size) if options.size else None,
        tasks=options.task,
        with_preprocessing=options.with_preprocessing,
        half=options.fp16,
        opset=options.opset,
    )
    print(report)
