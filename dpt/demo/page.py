"""The page: its parts, and what happens when an image is uploaded.

The only file that imports Gradio: what Gradio reads from the environment is set before.
"""

from __future__ import annotations

import html
import os
import tempfile
from pathlib import Path
from typing import Any

from dpt.demo.views import View, downloads, is_shown, note, open_image, write_files
from dpt.predict import Predictor
from dpt.viz import COLORMAPS

# Otherwise Gradio reports its use and looks for a newer version on every start.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
try:
    import gradio as gr
except ImportError:
    raise ValueError(
        'the demo needs a package: pip install "dense-prediction-transformers[demo]"'
    ) from None

KEEP_SECONDS = 3600
"""Files of earlier images are removed after this time, and all files at the end."""
SLIDER_HEIGHT = 420
CSS = """
.legend { display: flex; flex-wrap: wrap; gap: .3em 1.2em; align-items: center; }
.legend .bar { flex: 1; height: .9em; border-radius: 3px; min-width: 8em; }
.legend .swatch { display: inline-block; width: .8em; height: .8em; border-radius: 3px; }
"""
Values = dict[str, Any]
"""New values of parts of the page, by the name of the part."""


class Answers:
    """What the page's events call.

    Args:
        predictor: called with an image, uint8 (H, W, 3).
        folder: where files for download are written.
        max_pixels: of an image.
    """

    def __init__(self, predictor: Predictor, *, folder: Path, max_pixels: int) -> None:
        self.predictor = predictor
        self.folder = folder
        self.max_pixels = max_pixels
        self.outputs = predictor.outputs
        self.shown = [name for name, spec in self.outputs.items() if is_shown(spec)]

    def image(self, path: str | None, colormap: str) -> Values:
        """An image was uploaded, or removed.

        Raises:
            ValueError: it is too large, or not a complete image.
        """
        if path is None:
            return self.nothing()
        image = open_image(Path(path), max_pixels=self.max_pixels)
        prediction = self.predictor(image)
        view = View.of(image, prediction)
        values: Values = {"view": view, "note": note(prediction)} | self.paint(view, colormap)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for name, file in write_files(prediction, folder, stem=Path(path).stem).items():
            values[f"file_{name}"] = gr.DownloadButton(value=str(file), interactive=True)
        return values

    def nothing(self) -> Values:
        """The page without an image."""
        values: Values = {"view": None, "note": ""}
        values |= dict.fromkeys(self.shown)
        values |= {f"legend_{name}": "" for name in self.shown}
        for product in downloads(self.outputs):
            values[f"file_{product.folder}"] = gr.DownloadButton(value=None, interactive=False)
        return values

    def paint(self, view: View | None, colormap: str) -> Values:
        """The pictures and legends, with another colour map."""
        values: Values = {}
        for name in self.shown if view is not None else ():
            assert view is not None
            values[name] = view.pictures(name, colormap)
            values[f"legend_{name}"] = view.legend(name, colormap)
        return values


def only_uploads(image: Any) -> Any:
    """Makes a ``gr.Image`` pass on the path of an uploaded file, undecoded, and nothing else.

    By default it decodes whatever it gets before our code could look at the size, also images
    inside the request (``data:`` addresses), and fetches web addresses. The object is changed, not
    its class: Gradio writes a file beside the source of every derived class.
    """
    take = image.async_move_resource_to_block_cache

    async def take_file(path: Any) -> str | None:
        if path is not None and str(path).lower().startswith(("http:", "https:", "data:")):
            raise gr.Error("upload a file: addresses are not fetched", print_exception=False)
        return await take(path)

    def path_of(payload: Any) -> str | None:
        if payload is None:
            return None
        if not payload.path:
            raise gr.Error("upload a file", print_exception=False)
        return payload.path

    image.async_move_resource_to_block_cache = take_file
    image.preprocess = path_of
    return image


def build_page(answers: Answers, *, model: str, limits: str) -> gr.Blocks:
    """The page as a Gradio app, not yet served.

    Args:
        model: name of the model.
        limits: allowed size of an image, as text.
    """
    title = " and ".join(answers.outputs).capitalize()
    has_depth = any(spec.kind == "depth" for spec in answers.outputs.values())
    parts: dict[str, Any] = {}
    with gr.Blocks(
        title="dpt demo", analytics_enabled=False, delete_cache=(600, KEEP_SECONDS)
    ) as page:
        where = "Images stay on the computer that runs this page."
        gr.HTML(f"<h1>{html.escape(title)}</h1><p>{html.escape(model)}. {where}</p>")
        parts["view"] = gr.State(None, time_to_live=KEEP_SECONDS)
        with gr.Row():
            with gr.Column(scale=2, min_width=280):
                image = gr.Image(
                    label="Image",
                    sources=["upload", "clipboard"],
                    type="filepath",
                    height=280,
                    elem_id="image",
                )
                only_uploads(image)
                gr.HTML(f"<small>JPEG, PNG, WebP, BMP, TIFF or PPM, {html.escape(limits)}</small>")
                colormap = gr.Radio(
                    list(COLORMAPS),
                    value=COLORMAPS[0],
                    label="Depth colours",
                    visible=has_depth,
                    elem_id="colormap",
                )
                parts["note"] = gr.HTML(elem_id="note")
                for product in downloads(answers.outputs):
                    name = product.folder.removesuffix("_npy")
                    parts[f"file_{product.folder}"] = gr.DownloadButton(
                        f"Download {name}, {product.suffix[1:].upper()}",
                        interactive=False,
                        size="sm",
                        elem_id=f"file_{product.folder}",
                    )
            with gr.Column(scale=5, min_width=400):
                for name in answers.shown:
                    parts[name] = gr.ImageSlider(
                        label=f"Image | {name}", max_height=SLIDER_HEIGHT, elem_id=name
                    )
                    parts[f"legend_{name}"] = gr.HTML(elem_id=f"legend_{name}")

        def update(values: Values) -> dict[Any, Any]:
            return {parts[name]: value for name, value in values.items()}

        def answer(path: str | None, colors: str) -> dict[Any, Any]:
            try:
                return update(answers.image(path, colors))
            except ValueError as error:  # the pictures shown belong to another image
                gr.Warning(html.escape(str(error)), title="This image cannot be used")
                return update(answers.nothing())

        def repaint(view: View | None, colors: str) -> dict[Any, Any]:
            return update(answers.paint(view, colors))

        image.change(
            answer,
            [image, colormap],
            list(parts.values()),
            show_progress_on=[parts[name] for name in answers.shown] or None,
            api_visibility="private",
        )
        colormap.change(
            repaint,
            [parts["view"], colormap],
            list(parts.values()),
            show_progress="hidden",
            api_visibility="private",
        )
    return page
