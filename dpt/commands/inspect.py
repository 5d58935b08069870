"""``dpt inspect``: attention, tokens and readout of a model as one picture."""

from __future__ import annotations

from pathlib import Path

from dpt.commands import command_parser


def run(arguments: list[str]) -> None:
    parser = command_parser(
        "inspect",
        "Draws one sheet for one photo: outputs; principal components and lengths of "
        "the tokens of each feature level, and the CLS token's contribution; attention of the "
        "CLS token and of a patch. Blocks, rows and columns are counted from 0.",
    )
    add = parser.add_argument
    add("image", type=Path, help="a photo")
    add("--out", type=Path, default=Path("sheet.png"), help="default: sheet.png")
    text = "the patch whose attention is shown, counted in patches; default: the middle"
    add("--patch", nargs=2, type=int, metavar=("ROW", "COL"), help=text)
    add("--device", help="default: a GPU where there is one")
    options = parser.parse_args(arguments)
    if options.out.suffix.lower() != ".png":
        raise ValueError(
            f"--out {options.out}: the sheet is a PNG, so name it {options.out.stem}.png"
        )
    if options.out.resolve() == options.image.resolve():
        raise ValueError(f"--out {options.out}: is the photo itself: choose another --out")

    from dpt.data import read_image
    from dpt.inspect import inspection_sheet
    from dpt.model import DPT
    from dpt.predict.predictor import pick_device
    from dpt.viz import save_png

    image = read_image(options.image, exif=True)
    device = pick_device(options.device)
    model = DPT.from_pretrained(options.checkpoint).to(device)
    patch = None if options.patch is None else (options.patch[0], options.patch[1])
    sheet = inspection_sheet(model, image, patch=patch)
    save_png(options.out, sheet)
    print(f"{options.out}: {sheet.shape[1]} x {sheet.shape[0]} pixels")
