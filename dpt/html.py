"""Pages that need no network: Jinja2 templates, for reports with embedded pictures.

The templates are in ``dpt/templates``. ``report.html`` holds the macros ``page``, ``table`` and
``figures``; each report has a template of its own that imports them.
"""

import base64
import math
import os
import re
from collections.abc import Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from dpt.files import DataError, write_bytes
from dpt.process import visible

_FIRST_LINE = "<!doctype html>"
_JPEG_SIDE = 65500
"""The longest side of a JPEG that OpenCV writes."""
Cell = str | float | int | None
"""A cell of a table: numbers are shown with three significant digits, None and NaN as a dash."""


def render_page(template: str, **values: object) -> bytes:
    """Returns a page from a template such as ``data_check.html`` and its variables, escaped."""
    text = _environment().get_template(template).render(values)
    text = text.replace(_FIRST_LINE, _beginning(template), 1)
    return text.encode(errors="backslashreplace")  # paths that are not UTF-8


def render_markdown(template: str, **values: object) -> str:
    """Returns a text from a template such as ``model_card.md``; its filter ``plain`` escapes."""
    return _environment().get_template(template).render(values)


def write_page(path: Path, template: str, **values: object) -> None:
    """Writes :func:`render_page`'s page."""
    write_bytes(path, render_page(template, **values))


def _beginning(template: str) -> str:
    """Returns the first lines of a page, which mark a report of this project."""
    return f"{_FIRST_LINE}\n<!-- dpt: {template} -->"


def require_free(folder: Path, template: str, names: Sequence[str]) -> None:
    """Refuses to replace files that are not of an earlier report of the same kind.

    Args:
        folder: where ``report.html`` is going to be written, from ``template``.
        names: of the files and folders that are written beside it.

    Raises:
        DataError: one of them exists and is not of such a report.
    """
    page = folder / "report.html"
    if page.is_file():
        with page.open("rb") as file:
            if file.read(200).startswith(_beginning(template).encode()):
                return
    for path in (page, *(folder / name for name in names)):
        if os.path.lexists(path):
            raise DataError(f"{path}: exists and would be replaced: give another run_dir")


def data_uri(rgb: np.ndarray) -> str:
    """Returns a uint8 (H, W, 3) RGB picture as the address of an embedded JPEG.

    A picture larger than JPEG allows is reduced to every n-th row and column.
    """
    step = -(-max(rgb.shape) // _JPEG_SIDE)
    bgr = np.ascontiguousarray(rgb[::step, ::step, ::-1])
    _, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, 88])
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"


def number(value: Cell) -> str:
    """Returns the text of a table's cell."""
    if value is None or value != value:
        return "-"
    if isinstance(value, (str, Integral)):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def plain(text: str) -> str:
    """Returns a text for one line of Markdown, in which none of its characters is markup."""
    return re.sub(r"([\\`*_\[\]|<>#])", r"\\\1", visible(" ".join(text.split())))


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("dpt"),
        autoescape=select_autoescape(),  # files in HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "data_uri": data_uri, "plain": plain}
    environment.tests["finite"] = math.isfinite
    return environment
