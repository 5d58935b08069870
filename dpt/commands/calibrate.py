"""``dpt calibrate``: predicted depth in metres, from known depths."""

from __future__ import annotations

import argparse


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dpt calibrate",
        description="Fits one scale and shift from predicted depth to known metres, robustly, and "
        "saves the model with them. Relative models then give metres, as long as camera and "
        "surroundings are like those of the points; metric models lose a wrong scale.",
        epilog="points.csv has a line a point, and these names on its first: image,x,y,depth_m "
        "(x and y in pixels from the upper left, from 0). A handful of points at different "
        "distances will do; wrong ones among them are told by the others.",
    )
    parser.add_argument("checkpoint", help="a file or folder in any format that is read")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="a new folder to save to")
    known = parser.add_mutually_exclusive_group(required=True)
    known.add_argument("--points", metavar="FILE.csv", help="a table of known points")
    known.add_argument(
        "--depth",
        metavar="DIR",
        help="depth maps, dense or sparse (LiDAR, or another model's metres): 16-bit PNG, TIFF, "
        "NPY or PFM, named like their images; 0 means unknown",
    )
    parser.add_argument(
        "--images",
        metavar="DIR",
        help="where the images are; with --points the table's own folder if left out",
    )
    parser.add_argument(
        "--depth-scale",
        type=float,
        default=1.0,
        metavar="S",
        help="metres = value in a depth file x S; 0.001 for millimetres (default: 1)",
    )
    parser.add_argument(
        "--invalid",
        type=float,
        nargs="+",
        default=[0.0],
        metavar="VALUE",
        help="values in depth files that mean unknown (default: 0)",
    )
    parser.add_argument(
        "--shift",
        action=argparse.BooleanOptionalAction,
        help="fit a shift beside the scale (default: for relative models)",
    )
    options = parser.parse_args(arguments)
    if options.depth and not options.images:
        parser.error("--depth needs --images DIR")

    import os
    import tempfile
    from pathlib import Path

    from dpt.calibrate import calibrate, read_maps, read_points
    from dpt.model import DPT

    out = Path(options.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: exists already; give a new folder")
    if options.points:
        points = read_points(options.points, images=options.images)
    else:
        points = read_maps(
            options.images, options.depth, scale=options.depth_scale, invalid=options.invalid
        )
    model = DPT.from_pretrained(options.checkpoint)
    report = calibrate(model, points, with_shift=options.shift)
    model.calibration = report.calibration
    print(report)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        model.save_pretrained(Path(folder) / out.name)
        os.replace(Path(folder) / out.name, out)
    print(f"saved:  {out}")
