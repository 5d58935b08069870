"""Commands on models that have been trained."""

import sys
from pathlib import Path

import dpt
from dpt.commands import command_parser, make_parser
from dpt.files import refuse_inputs, require_new
from dpt.process import say


def convert(arguments: list[str]) -> None:
    """Writes a checkpoint in another format; fails if the format cannot hold it. dpt convert --list
    prints the families of checkpoints that are read, with the licences that their authors state.
    """
    from dpt.weights import formats
    from dpt.weights.licences import families

    if arguments == ["--list"]:
        say("\n".join(map(str, families())))
        return
    parser = command_parser("convert", convert.__doc__, checkpoint="SRC")
    parser.add_argument("dst", metavar="DST", help="the new folder or file to write")
    parser.add_argument("--to", required=True, choices=formats.WRITABLE, help="the format to write")
    options = parser.parse_args(arguments)
    say(str(formats.convert(options.checkpoint, options.dst, to=options.to)))


def merge(arguments: list[str]) -> None:
    """Joins two or more runs or checkpoints that were trained on one frozen encoder into one model,
    which predicts all of their heads from one pass of the encoder, each to the bit as before.

    Train each with callbacks.freeze.parts=[encoder], from the same model.weights.
    """
    parser = make_parser("merge", merge.__doc__)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="runs, files, folders or hub ids")
    add("--out", required=True, type=Path, metavar="FOLDER", help="a new folder to save to")
    options = parser.parse_args(arguments)

    from dpt.weights import formats

    require_new(options.out)
    sources = formats.merge(options.models, options.out)
    say(f"{options.out}: {', '.join(f'{head} of {path}' for head, path in sources.items())}")


def push(arguments: list[str]) -> None:
    """Publishes a model on the Hugging Face hub: weights, configuration and a model card with task,
    data, scores, training command and licence, in one commit. Log in before: hf auth login. The
    licence is named as on the hub: apache-2.0, cc-by-nc-4.0, other, ...

    The scores are those of the run, or those in --scores. A README.md in the model's folder that
    states a licence is published as it is, unless --license or --scores asks for a new one.
    """
    parser = command_parser("push", push.__doc__, checkpoint="RUN")
    add = parser.add_argument
    add("name", metavar="USER/NAME", help="on the hub; if it exists, it gets a new commit")
    add("--license", "--licence", metavar="NAME", help="of the model, such as apache-2.0")
    add("--scores", type=Path, metavar="DIR", help="what dpt evaluate RUN run_dir=DIR wrote")
    add("--private", action="store_true", help="create a private repository")
    options = parser.parse_args(arguments)

    from dpt.commands.push import publish

    publish(options)


def calibrate(arguments: list[str]) -> None:
    """Fits one scale, and for relative models a shift, from predicted depth to known metres, and
    saves the model with them. Relative models then predict metres, as long as camera and
    surroundings are like those of the points.

    points.csv has one line for each point, below the header image,x,y,depth_m (x and y in pixels
    from the upper left, from 0). At least four points at different distances are needed. From 12
    points on, outliers are rejected.

    --depth is a folder of depth maps in place of points, dense or sparse (LiDAR, or metres of
    another model), named like their images: 16-bit PNG, TIFF, NPY or PFM. Their values times
    --depth-scale are metres; those of --invalid mean unknown.
    """
    parser = command_parser("calibrate", calibrate.__doc__)
    add = parser.add_argument
    add("--out", required=True, type=Path, metavar="FOLDER", help="a new folder to save to")
    metres = parser.add_mutually_exclusive_group(required=True)
    metres.add_argument("--points", metavar="FILE.csv", help="a table of known points")
    metres.add_argument("--depth", metavar="DIR", help="depth maps")
    add("--images", metavar="DIR", help="of the images (default: the folder of the table)")
    add("--depth-scale", type=float, default=0.001, metavar="S", help="default: 0.001 (mm)")
    add("--invalid", type=float, nargs="+", default=[0.0], metavar="VALUE", help="default: 0")
    options = parser.parse_args(arguments)
    if options.depth and not options.images:
        parser.error("--depth needs --images DIR")

    from dpt import calibrate as calibration

    require_new(options.out)
    if options.points:
        points = calibration.read_points(options.points, images=options.images)
    else:
        coding = {"scale": options.depth_scale, "invalid": options.invalid}
        points = calibration.read_maps(options.images, options.depth, **coding)
    model = dpt.DPT.from_pretrained(options.checkpoint)
    report = calibration.calibrate(model, points)
    model.calibration = report.calibration
    model.save_pretrained(options.out)
    say(f"{report}\nsaved:  {options.out}")


def inspect(arguments: list[str]) -> None:
    """Draws one sheet for one image: outputs; principal components and norms of the tokens of each
    feature level, and the CLS token's contribution; attention of the CLS token and of a patch,
    by default the middle one. Blocks, rows and columns are counted from 0.
    """
    parser = command_parser("inspect", inspect.__doc__)
    add = parser.add_argument
    add("image", type=Path, help="an image file")
    add("--out", type=Path, default=Path("sheet.png"), help="default: sheet.png")
    add("--patch", nargs=2, type=int, metavar=("ROW", "COL"), help="counted in patches")
    add("--device", help="default: a GPU where there is one")
    options = parser.parse_args(arguments)
    out = options.out
    if out.suffix.lower() != ".png":
        raise ValueError(f"--out {out}: the sheet is a PNG, so name it {out.stem}.png")
    refuse_inputs(out, [options.image, options.checkpoint])

    from dpt.exporting.runtimes import pick_device
    from dpt.inspect import inspection_sheet
    from dpt.viz import save_png
    from dpt.weights.files import writing

    device = pick_device(options.device)
    model = dpt.DPT.from_pretrained(options.checkpoint).to(device)
    sheet = inspection_sheet(model, options.image, patch=options.patch and tuple(options.patch))
    with writing(out):
        save_png(out, sheet)
    say(f"{out}: {sheet.shape[1]} x {sheet.shape[0]} pixels")


def demo(arguments: list[str]) -> None:
    """Serves a web page: choose an image or the camera, see the predictions, download them. By
    default this computer alone can open it; --host 0.0.0.0 serves anyone. A folder of dpt export
    --web in place of a checkpoint predicts in the browser."""
    parser = command_parser("demo", demo.__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=7860, help="0 uses a free one (default: 7860)")
    add("--device", help="default: a GPU if there is one")
    options = parser.parse_args(arguments)

    from dpt.demo import Demo, Site, is_local, make_server

    path, host = Path(options.checkpoint), options.host
    if (path / "model.json").is_file():
        site = Site(path)
    else:
        model = dpt.DPT.from_pretrained(options.checkpoint)
        name = f"{model.config.name} ({path.name})"
        site = Demo(dpt.Predictor(model, device=options.device), name=name)
    server = make_server(site, host=host, port=options.port)
    if not is_local(host):
        risk = "anyone who can reach this computer can use the page: it has no password"
        print(f"warning: --host {host}: {risk}", file=sys.stderr)
    url_host = f"[{host}]" if ":" in host else host
    say(f"http://{url_host}:{server.server_port}/  (stop with Ctrl-C)")
    with server:
        server.serve_forever()
