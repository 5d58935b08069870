"""``dpt inspect``: what happens inside a model, as a picture sheet."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dpt inspect",
        description="Draws one sheet for one photo: outputs; principal components and lengths of "
        "the tokens at each tapped level, and what the CLS token adds to them; attention of the "
        "CLS token and of a patch. Blocks, rows and columns are counted from 0.",
    )
    parser.add_argument("checkpoint", help="a file or folder in any format that is read")
    parser.add_argument("image", type=Path, help="a photo")
    parser.add_argument("--out", type=Path, default=Path("sheet.png"), help="default: sheet.png")
    parser.add_argument(
        "--patch",
        nargs=2,
        type=int,
        metavar=("ROW", "COL"),
        help="the patch whose attention is shown, counted in patches; default: the middle",
    )
    parser.add_argument(
        "--block", type=int, metavar="N", help="attention of this block alone, larger"
    )
    parser.add_argument("--device", help="default: a GPU where there is one")
    options = parser.parse_args(arguments)
    if options.out.suffix.lower() != ".png":
        raise ValueError(
            f"--out {options.out}: the sheet is a PNG, so name it {options.out.stem}.png"
        )

    import torch

    from dpt.data import read_image
    from dpt.data.resize import resize_image
    from dpt.inspect import inspection_sheet
    from dpt.inspect.attention import has_attention
    from dpt.model import DPT
    from dpt.viz import save_png

    image = read_image(options.image, exif=True)
    model = DPT.from_pretrained(options.checkpoint)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    rules = model.preprocessing
    resized = resize_image(image, rules.input_size(*image.shape[:2]), rule=rules.interpolation)
    pixels = torch.from_numpy(resized).permute(2, 0, 1)[None].to(device)
    patch = None if options.patch is None else (options.patch[0], options.patch[1])
    sheet = inspection_sheet(model, rules.normalize(pixels), patch=patch, block=options.block)
    save_png(options.out, sheet)
    print(f"{options.out}: {sheet.shape[1]} x {sheet.shape[0]} pixels")
    if not has_attention(model):
        print(f"no attention maps: {type(model.encoder).__name__} does not show its attention")
