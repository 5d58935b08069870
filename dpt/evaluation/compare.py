"""``dpt compare``: whether one evaluation is better than another of the same images."""

import csv
import io
import os
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dpt import html
from dpt.config.resumed_config import run_in
from dpt.config.schema import LOADER_KEYS
from dpt.evaluation.evaluate import LEFT_OUT_FILE
from dpt.evaluation.scoring import MATCHES
from dpt.files import DataError, decoding, few, parse_json, plural, read_bytes, read_text
from dpt.metrics import LeftOut
from dpt.run_log import log_rows, write_csv, write_json
from dpt.validation import Plain

MOST_ROWS = 20
"""The number of images in the table of those that moved most."""
_VIEWS = {f"protocol/{key}" for key in ("resize", "flip", "scales", "window", "stride")}
"""Keys of the protocol that predictions from files lack."""
_OTHER_DATA = {*LOADER_KEYS, "root", "labelled", "unlabelled"}
"""Keys of ``data`` that do not change what is scored."""


_HEADER = ["score", "A", "B", "B - A", "95 % from", "to", "B is"]


class Moved(NamedTuple):
    """An image and its scores."""

    name: str
    a: float
    b: float
    gain: float
    """How much better b is."""


class Difference(NamedTuple):
    """A row of the table of scores."""

    score: str
    a: float
    b: float
    difference: float
    ci95_low: float
    ci95_high: float
    verdict: str


@dataclass(frozen=True)
class Evaluated:
    """What ``dpt evaluate`` wrote into a folder."""

    folder: Path
    config: Plain
    facts: dict[str, str | float | None]
    """``metrics.json``."""
    images: dict[str, dict[str, float]]
    """The scores of each image, by name; NaN without a label."""
    left_out: LeftOut
    blocks: list[str]

    @classmethod
    def read(cls, folder: Path) -> "Evaluated":
        """Reads the files; DataError if ``folder`` holds no evaluation, or a damaged one."""
        path = folder / LEFT_OUT_FILE
        if not path.is_file():
            remedy = f"dpt evaluate {folder} run_dir=SCORES, and compare SCORES"
            raise DataError(f"{folder}: holds no {path.name} of dpt evaluate: type {remedy}")
        facts = parse_json(read_bytes(folder / "metrics.json"), folder / "metrics.json")
        rows, images = _read_table(path), _read_table(folder / "per_image.csv")
        with decoding(path, "the table of dpt evaluate"):
            (sizes, scores), *without = [
                (row["images"], {k: v for k, v in row.items() if k != "images"})
                for row in rows.values()
            ]
            columns = {name: np.array([row[name] for _, row in without]) for name in scores}
            left_out = LeftOut(scores, columns, np.array([size for size, _ in without]))
            if left_out.images.sum() != sizes or not isinstance(facts, dict):
                raise ValueError("it is not whole")
        return cls(folder, run_in(folder), facts, images, left_out, [*rows][1:])

    @property
    def lower_is_better(self) -> list[str]:
        """Names of the scores that are better if lower."""
        return str(self.facts.get("lower_is_better")).split(", ")

    @property
    def block_rule(self) -> str:
        """What makes images one block: a kind of blocks, or the regular expression of ``blocks``
        (that of ``data.group_by`` is compared with the data)."""
        kind = str(self.facts.get("blocks_kind"))
        return str(self.config.get("blocks")) if kind == MATCHES else kind

    def by_short_name(self) -> dict[str, dict[str, float]]:
        """Returns the scores of images by their names below the folder that all share."""
        start = os.path.commonprefix([*self.images]).rfind("/") + 1  # noqa: RUF071, whole folders
        return {name[start:]: scores for name, scores in self.images.items()}


def _read_table(path: Path) -> dict[str, dict[str, float]]:
    """Returns the numbers of each row of a CSV file by its first cell; NaN where it is empty."""
    with decoding(path, "a table of dpt evaluate"):
        # splitlines would also end a line at characters that names hold
        header, *rows = csv.reader(io.StringIO(read_text(path), newline=""))
        return {
            name: {k: float(v or "nan") for k, v in zip(header[1:], cells, strict=True)}
            for name, *cells in rows
        }


def _require_comparable(a: Evaluated, b: Evaluated) -> None:
    """Raises DataError unless two evaluations are of the same images, split and protocol."""
    pairs = [("split", a.config.get("split"), b.config.get("split"))]
    for key in sorted({*a.config["data"], *b.config["data"]} - _OTHER_DATA):
        pairs.append((f"data.{key}", a.config["data"].get(key), b.config["data"].get(key)))
    for key in sorted(k for k in {*a.facts, *b.facts} if k.startswith("protocol")):
        if key not in _VIEWS or (key in a.facts and key in b.facts):
            pairs.append((key.replace("/", "."), a.facts.get(key), b.facts.get(key)))
    names, others = [*a.by_short_name()], [*b.by_short_name()]
    if names == others:
        pairs.append(("blocks", a.block_rule, b.block_rule))
        pairs.append(("images of blocks", a.left_out.images.tolist(), b.left_out.images.tolist()))
    differing = [f"{key} ({one} and {two})" for key, one, two in pairs if one != two]
    if names != others:
        differing.append(f"images or their order ({few(sorted({*names} ^ {*others}))})")
    if not {*a.left_out.scores} & {*b.left_out.scores}:
        differing.append("scores, of which none is in both")
    if differing:
        remedy = "evaluate both in the same way"
        raise DataError(f"{a.folder} and {b.folder} differ in {few(differing)}: {remedy}")


def compare(a: Evaluated, b: Evaluated, out: Path) -> str:
    """Writes ``comparison.json``, ``per_image.csv`` and ``report.html``: scores of b minus a.

    Returns:
        A sentence about the first score that both have.
    """
    _require_comparable(a, b)
    html.require_free(out, "comparison.html", ("comparison.json", "per_image.csv"))
    rows = _differences(a, b)
    first, blocks = rows[0], plural(len(a.blocks), str(a.facts.get("blocks_kind")))
    interval = f"95 % interval over {blocks}: {first.ci95_low:+.3g} to {first.ci95_high:+.3g}"
    if len(a.blocks) == 1:
        interval = f"no interval over {blocks}: evaluate both with blocks="
    summary = (
        f"{first.score} of A {first.a:.4g}, of B {first.b:.4g}; B - A {first.difference:+.3g} "
        f"({interval}): {first.verdict}"
    )
    facts: dict[str, float | str] = {}
    for row in rows:
        columns = row._asdict().items()
        facts |= {f"{key}/{row.score}": value for key, value in columns if key != "score"}
    facts |= {"blocks": len(a.blocks), "images": len(a.images), "summary": summary}
    write_json(out / "comparison.json", facts)
    moved = _moved(a, b, first.score)
    write_csv(out / "per_image.csv", [["name", "A", "B", "better by"], *moved])
    whole = [row for row in rows if "/" not in row.score]
    cells = [[n, *(f"{v:.4f}" for v in values), verdict] for n, *values, verdict in whole]
    log_rows("B against A", _HEADER, cells)
    html.write_page(
        out / "report.html",
        "comparison.html",
        summary=summary,
        header=_HEADER,
        rows=whole,
        first=first.score,
        moved=sorted(moved, key=lambda row: -abs(row.gain))[:MOST_ROWS],
        settings=[("A", str(a.folder)), ("B", str(b.folder)), ("intervals over", blocks)],
    )
    return summary


def _differences(a: Evaluated, b: Evaluated) -> list[Difference]:
    """Returns the difference of each score that both have, with an interval over the blocks."""
    difference = b.left_out.minus(a.left_out)
    rows = []
    for name, value in difference.scores.items():
        low, high = difference.interval(name)
        verdict = "no difference found" if low <= 0 <= high else "better"
        if isnan(low):
            verdict = "unknown"
        elif not low <= 0 <= high and (value < 0) != (name in a.lower_is_better):
            verdict = "worse"
        scores = a.left_out.scores[name], b.left_out.scores[name]
        rows.append(Difference(name, *scores, value, low, high, verdict))
    return rows


def _moved(a: Evaluated, b: Evaluated, score: str) -> list[Moved]:
    """Returns the images that have both scores, by falling gain."""
    sign, images = -1 if score in a.lower_is_better else 1, b.by_short_name()
    moved = []
    for name, scores in a.by_short_name().items():
        one, two = scores.get(score, nan), images[name].get(score, nan)
        if not isnan(two - one):
            moved.append(Moved(name, one, two, sign * (two - one)))
    return sorted(moved, key=lambda row: -row.gain)
