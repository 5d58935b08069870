"""Reports as one HTML file that needs no network: Jinja2 templates with embedded pictures.

The templates are in ``dpt/templates``. ``report.html`` holds the macros ``page``, ``table``,
``bars`` and ``figures``; each report has a template of its own that imports them.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from dpt.atomic import write_bytes

if TYPE_CHECKING:
    import jinja2

Cell = str | float | int | None
"""A cell of a table: numbers are shown with four digits, None and NaN as a dash."""


def write_report(path: Path, template: str, **values: Any) -> None:
    """Renders a template of ``dpt/templates`` to a file. Text is escaped.

    Args:
        path: of the page; written whole or not at all.
        template: a file name, such as ``data_check.html``.
        values: the template's variables; all that it uses must be given.
    """
    write_bytes(path, _environment().get_template(template).render(values).encode())


def data_uri(rgb: np.ndarray) -> str:
    """A uint8 (H, W, 3) RGB picture as the address of an embedded JPEG."""
    _, data = cv2.imencode(
        ".jpg", np.ascontiguousarray(rgb[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 88]
    )
    return f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"


def number(value: Cell) -> str:
    """The text of a table's cell."""
    if value is None or value != value:
        return "-"
    return str(value) if isinstance(value, (str, Integral)) else f"{value:.4g}"


@cache
def _environment() -> jinja2.Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dpt"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "data_uri": data_uri}
    environment.tests["finite"] = math.isfinite
    return environment


# The functions below are replaced by templates and go as soon as the evaluation report uses one.

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .25em .8em; border-bottom: 1px solid #ddd; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { display: inline-block; margin: .5em 1em .5em 0; vertical-align: top; }
figure img { max-width: 100%; display: block; }
figcaption { color: #555; font-size: 13px; }
.bar { display: inline-block; height: .8em; background: #4878a8; }
.bad { color: #a00; font-weight: 600; }
.good { color: #070; font-weight: 600; }
"""


def escape(text: str) -> str:
    """Text as HTML: file names may hold anything."""
    return html.escape(str(text))


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    """A line of text; ``kind`` is ``good``, ``bad`` or nothing."""
    return f'<p class="{kind}">{escape(text)}</p>'


def listing(lines: Sequence[str]) -> str:
    """Lines with a dot before each."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Rows of text and numbers; numbers are rounded to four digits, None and NaN are dashes."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(values: Mapping[str, float], *, top: float | None = None) -> str:
    """A horizontal bar for each value; ``top`` is the value of a full bar, None the largest."""
    full = top or max((v for v in values.values() if v == v), default=1.0) or 1.0
    widths = {k: 300 * max(0.0, v) / full if v == v else 0.0 for k, v in values.items()}
    rows = "".join(
        f"<tr><td>{escape(name)}</td>{_cell(value)}"
        f'<td><span class="bar" style="width:{widths[name]:.0f}px"></span></td></tr>'
        for name, value in values.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def picture(rgb: np.ndarray, caption: str = "", *, width: int | None = None) -> str:
    """A uint8 (H, W, 3) RGB picture, embedded; shrunk to ``width`` pixels if it is wider."""
    if width is not None and rgb.shape[1] > width:
        height = max(1, round(rgb.shape[0] * width / rgb.shape[1]))
        rgb = cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(
        ".jpg", np.ascontiguousarray(rgb[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 88]
    )
    code = base64.b64encode(data.tobytes()).decode()
    return (
        f'<figure><img src="data:image/jpeg;base64,{code}" alt="{escape(caption)}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def write_page(path: Path, *, title: str, parts: Sequence[str]) -> None:
    """Writes a page made of the other functions' results, whole or not at all."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    body = heading(title, 1) + "\n".join(parts)
    page = f"<!doctype html><html lang=en><head>{head}</head><body>{body}</body></html>\n"
    write_bytes(path, page.encode())


def _cell(value: Cell) -> str:
    if value is None or value != value:
        return '<td class="number">-</td>'
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{value if isinstance(value, int) else f"{value:.4g}"}</td>'
