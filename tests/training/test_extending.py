"""The blocks of the guide's page on parts of one's own are written to files, its commands run."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import call

from dpt.config.objects import SLOTS, registered
from dpt.data import ScenesDataset
from dpt.nn import ENCODERS, HEADS
from dpt.objectives import OBJECTIVES
from dpt.plugins import REGISTERED

GUIDE = Path(__file__).parents[2] / ".github/guide"
PAGES = "".join((GUIDE / name).read_text() for name in ("extending.md", "extending_data.md"))
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGES, re.S)
FILES = {
    block.partition("\n")[0].removeprefix("# "): block
    for language, block in BLOCKS
    if language in ("python", "yaml")
}
COMMANDS = [line for language, block in BLOCKS if language == "bash" for line in block.splitlines()]
SHORT = (
    "steps=2 data.num_workers=0 data.batch_size=2 data.image_size=[32,64]",
    "trainer.accelerator=cpu logger=none",
)
FEW_SCENES = ("data.train.length=4", "data.val.length=2")
SMALL = (
    "model=dpt_tiny model.encoder.num_blocks=4 model.encoder.out_indices=[0,1,2,3]",
    "model.encoder.embed_dim=48",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder ``mine`` of the page, and images for its data set."""
    root = tmp_path_factory.mktemp("extending")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for split in ("train", "val"):
        (root / "pairs" / split).mkdir(parents=True)
        scenes = ScenesDataset(split=split, length=3, size=(32, 64))
        for i, scene in enumerate(scenes[k] for k in range(3)):
            mask = np.repeat(scene["labels"][..., None], 3, axis=2)
            both = np.hstack([scene["image"], mask])
            Image.fromarray(both).save(root / f"pairs/{split}/{i}.png")
    return root


@pytest.fixture(autouse=True)
def _plugins(folder, monkeypatch):
    """Sets the variable of the page; removes what was registered afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DPT_PLUGINS", "mine")
    monkeypatch.setattr(sys, "path", sys.path[:])
    for base in SLOTS:
        registered(base)  # all that is built in
    before = [(table, dict(table)) for table in (ENCODERS, HEADS, OBJECTIVES, REGISTERED)]
    yield
    for table, content in before:
        table.clear()
        table.update(content)
    for name in [n for n in sys.modules if n == "mine" or n.startswith("mine.")]:
        del sys.modules[name]


def arguments(line, run_dir):
    """The arguments of a command of the page, for a short run."""
    words = shlex.split(line.partition("#")[0].replace("DIR", "pairs"))
    words = ["train", *words[2:]] if words[0] == "python" else words[1:]
    scenes = () if any(w.startswith("data=") for w in words) else FEW_SCENES
    if words[0] == "data":
        return [*words, "data.num_workers=0", f"run_dir={run_dir}"]
    small = () if "model/encoder=cnn" in words else SMALL
    return [*words, *SHORT, *scenes, *small, f"run_dir={run_dir}"]


@pytest.mark.parametrize("line", [c for c in COMMANDS if not c.startswith("export")])
def test_every_command_of_the_page_runs(line, tmp_path, metrics):
    call(*arguments(line, tmp_path / "run"))
    if "train.py" in line:
        assert (tmp_path / "run/checkpoints/last.ckpt").is_file()
        assert metrics(tmp_path / "run")["ended"] == "finished"


def test_two_heads_in_one_run_and_the_commands_that_read_its_checkpoint(folder, tmp_path, metrics):
    run = tmp_path / "run"
    line = "python train.py --config-dir=mine model/encoder=cnn task=depth_and_measured"
    call(*arguments(line, run))
    scores = metrics(run)
    assert {"val/abs_rel", "val/agreement"} <= set(scores)
    checkpoint = run / "checkpoints/last.ckpt"

    options = "data.image_size=[32,64] data.num_workers=0 trainer.accelerator=cpu"
    scored = f"checkpoint={checkpoint} run_dir={tmp_path / 'scores'}"
    call("evaluate", scored, *FEW_SCENES, options)
    again = metrics(tmp_path / "scores")
    assert again["val/agreement"] == pytest.approx(scores["val/agreement"], abs=1e-5)
    assert again["val/abs_rel"] == pytest.approx(scores["val/abs_rel"], rel=1e-4)

    photo = str(folder / "pairs/val/0.png")
    call("predict", str(checkpoint), photo, "--out", str(tmp_path / "maps"))
    assert (tmp_path / "maps/depth/0.png").is_file()
    call("inspect", str(checkpoint), photo, "--out", str(tmp_path / "sheet.png"))
    call("train", "--config-dir=mine", f"resume={run}", "trainer.max_steps=3")
    assert metrics(run)["ended"] == "finished"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("task/depth_loss=berhu", "DPT_PLUGINS"),
        ("model/encoder=cnn", r"model\.encoder\.kind='cnn': choose from vit.*DPT_PLUGINS"),
    ],
)
def test_without_the_variable_own_parts_are_refused(changed, says, tmp_path, monkeypatch, refused):
    monkeypatch.delenv("DPT_PLUGINS")
    message = refused(
        call,
        "train",
        "--config-dir=mine",
        "task=depth",
        changed,
        *SHORT,
        *FEW_SCENES,
        f"run_dir={tmp_path / 'run'}",
    )
    assert re.search(says, message)
    assert "mine" not in sys.modules
