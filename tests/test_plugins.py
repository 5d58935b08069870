"""Modules of a user's own: how they are named, and what a mistyped name is answered with."""

import json
import sys
from functools import partial

import pytest
from photos import tiny

import dpt
from dpt.plugins import load_plugins


@pytest.fixture
def plugins(monkeypatch, tmp_path):
    """plugins(value): sets the variable, in an empty folder; modules and paths are put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    known = set(sys.modules)
    yield lambda value: monkeypatch.setenv("DPT_PLUGINS", value)
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_load_plugins_imports_folders_files_and_modules(plugins, tmp_path):
    (tmp_path / "pack_of_mine").mkdir()
    (tmp_path / "pack_of_mine/__init__.py").write_text("made = 1\n")
    (tmp_path / "lone_of_mine.py").write_text("made = 2\n")
    plugins(f"pack_of_mine, {tmp_path}/lone_of_mine.py, colorsys, ")
    load_plugins()
    plugins("the_variable_is_read_once")
    plugins(f"pack_of_mine, {tmp_path}/lone_of_mine.py, colorsys")
    assert sys.modules["pack_of_mine"].made == 1
    assert sys.modules["lone_of_mine"].made == 2
    before = sys.path[:]
    load_plugins()
    assert sys.path == before


def test_load_plugins_refuses_to_hide_a_module(plugins, tmp_path):
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm/__init__.py").write_text("raise AssertionError\n")
    plugins("timm/")
    with pytest.raises(ValueError, match="DPT_PLUGINS=timm/: a module timm exists already"):
        load_plugins()


@pytest.mark.parametrize("value", ["nothing_of_mine", "no/such/file.py", "no-module", "no.such"])
def test_load_plugins_names_what_is_not_there(plugins, value):
    plugins(value)
    with pytest.raises(ValueError, match=f"DPT_PLUGINS={value}: no such folder, .* top-level"):
        load_plugins()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import not_installed_of_mine", "ModuleNotFoundError.*not_installed_of_mine"),
        ("x = 1\nraise SystemExit(0)", "SystemExit: 0.*faulty_of_mine.py:2"),
        ("def f(): f()\nf()", "RecursionError"),
        ("x = '\0'", "null bytes"),
    ],
)
def test_load_plugins_reports_faults_in_one_line_with_their_cause(plugins, tmp_path, body, says):
    (tmp_path / "faulty_of_mine.py").write_text(f"{body}\n")
    plugins("faulty_of_mine.py")
    with pytest.raises(ValueError, match=f"DPT_PLUGINS=faulty_of_mine.py: .*{says}") as caught:
        load_plugins()
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("part", ["encoder", "heads"])
def test_from_pretrained_names_plugins_for_unknown_parts(tmp_path, part):
    tiny({"regression": {}}).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if part == "encoder":
        config["encoder"]["kind"] = "mine"
    else:
        config["heads"] = {"mine": config["heads"]["regression"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"'mine': choose from.*DPT_PLUGINS"):
        dpt.DPT.from_pretrained(tmp_path)


def test_training_from_python_loads_plugins_too(plugins, tmp_path):
    plugins("nothing_of_mine")
    for call in (dpt.train, dpt.check, partial(dpt.evaluate, "a.ckpt"), partial(dpt.fit, tmp_path)):
        with pytest.raises(ValueError, match="DPT_PLUGINS=nothing_of_mine"):
            call()
