"""``dpt fit DIR``: from a folder to a trained, scored and exported model."""

import argparse
from pathlib import Path

DETAILS = """Prints its assumptions and the train.py command. If the files can be interpreted in
two ways, it lists the settings that decide and does not train. run_dir (runs/fit/DIR_DATE) holds
the run, pairs.csv, data_check/, evaluation/ and model.onnx (model.pt2 if the extra onnx is not
installed)."""


def run(arguments: list[str]) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="dpt fit",
        description="Trains a model on a folder of images with labels.",
        epilog=DETAILS,
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="images, and masks or depth maps")
    parser.add_argument("--time", default="15m", help="for everything: 90s, 15m, 2h (default: 15m)")
    parser.add_argument("--plan", action="store_true", help="print what is found, and stop")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as for train.py")
    options = parser.parse_intermixed_args(arguments)

    from dpt.fitting import Plan, fit

    if options.plan:
        Plan(options.folder, options.overrides, options.time).show()
    else:
        fit(options.folder, *options.overrides, time=options.time)
