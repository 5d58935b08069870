"""Draws one sheet for one image: outputs; principal components and norms of the tokens of each
feature level, and the CLS token's contribution; attention of the CLS token and of a patch. Blocks,
rows and columns are counted from 0.
"""

from pathlib import Path

from dpt.commands import command_parser
from dpt.files import refuse_inputs
from dpt.process import say


def run(arguments: list[str]) -> None:
    parser = command_parser("inspect", __doc__)
    add = parser.add_argument
    add("image", type=Path, help="an image file")
    add("--out", type=Path, default=Path("sheet.png"), help="default: sheet.png")
    text = "the patch whose attention is shown, counted in patches; default: the middle"
    add("--patch", nargs=2, type=int, metavar=("ROW", "COL"), help=text)
    add("--device", help="default: a GPU where there is one")
    options = parser.parse_args(arguments)
    out = options.out
    if out.suffix.lower() != ".png":
        raise ValueError(f"--out {out}: the sheet is a PNG, so name it {out.stem}.png")
    refuse_inputs(out, [options.image, options.checkpoint])

    from dpt.exporting.runtimes import pick_device
    from dpt.inspect import inspection_sheet
    from dpt.model import DPT
    from dpt.viz import save_png
    from dpt.weights.files import writing

    device = pick_device(options.device)
    model = DPT.from_pretrained(options.checkpoint).to(device)
    sheet = inspection_sheet(model, options.image, patch=options.patch and tuple(options.patch))
    with writing(out):
        save_png(out, sheet)
    say(f"{out}: {sheet.shape[1]} x {sheet.shape[0]} pixels")
