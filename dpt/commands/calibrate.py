"""Fits one scale, and for relative models a shift, from predicted depth to known metres, and saves
the model with them. Relative models then predict metres, as long as camera and surroundings are
like those of the points.

points.csv has one line for each point, below the header image,x,y,depth_m (x and y in pixels from
the upper left, from 0). At least four points at different distances are needed. From 12 points on,
outliers are rejected.
"""

from pathlib import Path

from dpt.commands import command_parser
from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = command_parser("calibrate", __doc__)
    add = parser.add_argument
    add("--out", required=True, type=Path, metavar="FOLDER", help="a new folder to save to")
    metres = parser.add_mutually_exclusive_group(required=True)
    metres.add_argument("--points", metavar="FILE.csv", help="a table of known points")
    text = "depth maps, dense or sparse (LiDAR, or metres of another model): 16-bit PNG, TIFF, NPY "
    text += "or PFM, named like their images; 0 means unknown"
    metres.add_argument("--depth", metavar="DIR", help=text)
    text = "folder of the images; with --points the default is the folder of the table"
    add("--images", metavar="DIR", help=text)
    text = "metres = value in a depth file x S (default: 0.001, for millimetres)"
    add("--depth-scale", type=float, default=0.001, metavar="S", help=text)
    text = "values in depth files that mean unknown (default: 0)"
    add("--invalid", type=float, nargs="+", default=[0.0], metavar="VALUE", help=text)
    options = parser.parse_args(arguments)
    if options.depth and not options.images:
        parser.error("--depth needs --images DIR")

    from dpt.calibrate import calibrate, read_maps, read_points
    from dpt.model import DPT

    out = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: exists already; give a new folder")
    if options.points:
        points = read_points(options.points, images=options.images)
    else:
        coding = {"scale": options.depth_scale, "invalid": options.invalid}
        points = read_maps(options.images, options.depth, **coding)
    model = DPT.from_pretrained(options.checkpoint)
    report = calibrate(model, points)
    model.calibration = report.calibration
    model.save_pretrained(out)
    say(f"{report}\nsaved:  {out}")
