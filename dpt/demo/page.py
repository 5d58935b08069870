"""The page: what is on it, and what happens when a photo is dropped."""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import Any

from dpt.demo.answer import (
    DOWNLOADS,
    View,
    classes_legend,
    depth_legend,
    depth_note,
    make_view,
    open_photo,
    whole_note,
    write_files,
)
from dpt.demo.safety import gr, only_uploads
from dpt.predict.predictor import Predictor
from dpt.viz import COLORMAPS

KEEP_SECONDS = 3600
"""Files of earlier photos are removed after this time, and all of them at the end."""
SLIDER_HEIGHT = 420
CSS = """
.legend { display: flex; flex-wrap: wrap; gap: .3em 1.2em; align-items: center; }
.legend .bar { flex: 1; height: .9em; border-radius: 3px; min-width: 8em; }
.legend .swatch { display: inline-block; width: .8em; height: .8em; border-radius: 3px; }
"""


class Answers:
    """What the page's events call.

    Args:
        predictor: called with a photo, uint8 (H, W, 3).
        folder: where files for download are written.
        max_pixels: of a photo.
    """

    def __init__(self, predictor: Predictor, *, folder: Path, max_pixels: int) -> None:
        self.predictor = predictor
        self.folder = folder
        self.max_pixels = max_pixels

    def photo(self, path: str | None, colormap: str) -> dict[str, Any]:
        """A photo was dropped, or taken away: the new value of every part of the page, by name.

        Raises:
            ValueError: it is too large, or no whole picture.
        """
        if path is None:
            return self.nothing()
        photo = open_photo(Path(path), max_pixels=self.max_pixels)
        prediction = self.predictor(photo)
        view = make_view(photo, prediction)
        values: dict[str, Any] = {"view": view, "whole": whole_note(prediction)}
        if prediction.depth is not None:
            values["depth_note"] = depth_note(prediction)
            values |= self.colors(view, colormap)
        if prediction.labels is not None:
            values |= {"classes": view.classes(), "classes_legend": classes_legend(view)}
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for name, file in write_files(prediction, folder, stem=Path(path).stem).items():
            values[f"file_{name}"] = gr.DownloadButton(value=str(file), interactive=True)
        return values

    def nothing(self) -> dict[str, Any]:
        """The page without a photo."""
        pictures = dict.fromkeys(("view", "depth", "classes"))
        texts = dict.fromkeys(("depth_legend", "depth_note", "classes_legend", "whole"), "")
        button = gr.DownloadButton(value=None, interactive=False)
        return pictures | texts | {f"file_{name}": button for name in DOWNLOADS}

    def colors(self, view: View | None, colormap: str) -> dict[str, Any]:
        """Another colour map was chosen."""
        if view is None or view.prediction.depth is None:
            return {}
        return {"depth": view.depth(colormap), "depth_legend": depth_legend(view, colormap)}


def build_page(answers: Answers, *, model: str, limits: str) -> gr.Blocks:
    """The page as a Gradio app, not yet served.

    Args:
        model: what to call it.
        limits: how large a photo may be, in words.
    """
    heads = answers.predictor.heads
    title = " and ".join(heads).capitalize()
    with gr.Blocks(
        title="dpt demo", analytics_enabled=False, delete_cache=(600, KEEP_SECONDS)
    ) as page:
        where = "Photos stay on the computer that runs this page."
        gr.HTML(f"<h1>{html.escape(title)}</h1><p>{html.escape(model)}. {where}</p>")
        parts: dict[str, Any] = {"view": gr.State(None, time_to_live=KEEP_SECONDS)}
        with gr.Row():
            with gr.Column(scale=2, min_width=280):
                photo = only_uploads(
                    gr.Image(
                        label="Photo",
                        sources=["upload", "clipboard"],
                        type="filepath",
                        height=280,
                        elem_id="photo",
                    )
                )
                gr.HTML(f"<small>JPEG, PNG, WebP, BMP, TIFF or PPM, {html.escape(limits)}</small>")
                colormap = gr.Radio(
                    list(COLORMAPS),
                    value=COLORMAPS[0],
                    label="Depth colours",
                    visible="depth" in heads,
                    elem_id="colormap",
                )
                if {"classification", "regression"} & set(heads):
                    parts["whole"] = gr.HTML()
                for name, (label, head) in DOWNLOADS.items():
                    if head in heads:
                        parts[f"file_{name}"] = gr.DownloadButton(
                            label, interactive=False, size="sm", elem_id=f"file_{name}"
                        )
            with gr.Column(scale=5, min_width=400):
                if "depth" in heads:
                    parts["depth"] = gr.ImageSlider(
                        label="Photo | depth", max_height=SLIDER_HEIGHT, elem_id="depth"
                    )
                    parts["depth_legend"] = gr.HTML()
                    parts["depth_note"] = gr.HTML(elem_id="depth_note")
                if "segmentation" in heads:
                    parts["classes"] = gr.ImageSlider(
                        label="Photo | classes", max_height=SLIDER_HEIGHT, elem_id="classes"
                    )
                    parts["classes_legend"] = gr.HTML(elem_id="classes_legend")

        def update(values: dict[str, Any]) -> dict[Any, Any]:
            return {parts[name]: value for name, value in values.items() if name in parts}

        def answer(path: str | None, colors: str) -> dict[Any, Any]:
            try:
                return update(answers.photo(path, colors))
            except ValueError as error:  # what was there belongs to another photo
                gr.Warning(html.escape(str(error)), title="This photo cannot be used")
                return update(answers.nothing())

        def repaint(view: View | None, colors: str) -> dict[Any, Any]:
            return update(answers.colors(view, colors))

        outputs = list(parts.values())
        sliders = [parts[name] for name in ("depth", "classes") if name in parts]
        photo.change(
            answer,
            [photo, colormap],
            outputs,
            show_progress_on=sliders or None,
            api_visibility="private",
        )
        colormap.change(
            repaint,
            [parts["view"], colormap],
            outputs,
            show_progress="hidden",
            api_visibility="private",
        )
    return page
