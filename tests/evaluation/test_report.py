"""The log, the table and metrics.json."""

import csv
import json
import logging
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import ON_CPU, call

from dpt.evaluation.evaluate import write_confusion, write_per_image
from dpt.evaluation.scoring import ImageScore
from dpt.files import DataError
from dpt.html import render_page, require_free, write_page
from dpt.metrics import Confusion
from dpt.run_log import csv_cell, start_log, write_json


@pytest.fixture(autouse=True)
def log():
    """The project's log, as it was afterwards."""
    log = logging.getLogger("dpt")
    before = log.level, log.propagate, log.handlers[:], log.disabled
    yield log
    log.setLevel(before[0])
    log.propagate, log.handlers[:], log.disabled = before[1:]


def test_metrics_are_flat_sorted_and_valid_json(tmp_path):
    write_json(tmp_path / "metrics.json", {"val/b": 1.5, "val/a": math.nan, "val/c": -math.inf})
    text = (tmp_path / "metrics.json").read_text()
    assert not re.search("NaN|Infinity", text)  # which is no JSON
    assert list(json.loads(text).items()) == [("val/a", None), ("val/b", 1.5), ("val/c", None)]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]


HOSTILE = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "\udc80"]


def page(name):
    """A data check's variables with a name from somebody's data set everywhere."""
    picture = np.zeros((4, 4, 3), np.uint8)
    finding = SimpleNamespace(severity="error", code=name, split=name, message=name, remedy=name)
    return {
        "title": name,
        "failed": True,
        "summary": name,
        "tables": [(name, [name, "n"], [[name, 1.0]])],
        "findings": [(finding, [name], [(name, picture)])],
        "samples": [(name, picture)],
        "augmented": [(name, picture)],
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_report_shows_names_as_text(name):
    text = render_page("data_check.html", **page(name)).decode()
    assert "alert(1)<" not in text
    assert "<img src=x" not in text
    assert "49" not in text or "{{" not in name


def test_report_replaces_only_a_report_of_its_kind(tmp_path):
    require_free(tmp_path, "data_check.html", ["report.json"])
    write_page(tmp_path / "report.html", "data_check.html", **page("a"))
    (tmp_path / "report.json").write_text("[]")
    require_free(tmp_path, "data_check.html", ["report.json"])
    with pytest.raises(DataError, match=r"report\.html"):
        require_free(tmp_path, "evaluation.html", ["per_image.csv"])


EVALUATION = ("evaluate", "checkpoint=none.ckpt", "data=scenes", *ON_CPU)
DATA_CHECK = ("data", "check", "data=scenes")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((EVALUATION, name) for name in ("report.html", "per_image.csv", "panels/0.png")),
        (DATA_CHECK, "report.json"),
    ],
)
def test_reports_leave_files_of_the_user_alone(tmp_path, refused, command, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    command = (*command, f"run_dir={tmp_path}")
    assert name.partition("/")[0] in refused(call, *command)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        *((cell, f"'{cell}") for cell in ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1")),
        ("\r=1", "\\r=1"),
        ('a,"b', 'a,"b'),
        ("\udc80", "\\udc80"),
    ],
)
def test_text_in_a_table_is_no_formula(tmp_path, cell, text):
    assert csv_cell(cell) == text
    write_per_image(tmp_path / "a.csv", [ImageScore(cell, {cell: -0.5, "rmse": 1.0})])
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["name", text, "rmse"], [text, "-0.5", "1"]]
    write_confusion(tmp_path / "b.csv", [Confusion((cell,), np.array([[3, 0]]))])
    with (tmp_path / "b.csv").open(newline="") as file:
        assert list(csv.reader(file))[1] == [text, "3", "0"]


def test_log_shows_escapes(tmp_path, capsys, log):
    start_log(tmp_path)
    log.info("classes: %s", "a\x1b[31m\u202e")
    shown = "classes: a\\x1b[31m\\u202e"
    assert capsys.readouterr().out == f"{shown}\n"
    assert shown in (tmp_path / "log.txt").read_text()
