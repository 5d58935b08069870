"""Commands on folders of somebody else: nothing is executed, revealed or changed elsewhere, and
each command ends in time by success or by one line."""

import json
import os
import pickle
import shutil
import signal
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from photos import save_photo, tiny
from tiny import ON_CPU, TINY_DATA, TINY_MODEL, slow_after

SECRET = "s3cr3t-of-the-environment"
NAMES = ["${oc.env:DPT_SECRET}", "\x1b[31m${oc.decode:${oc.env:DPT_SECRET}}", "=cmd()|a"]
SECONDS = 100  # for one command
ON_TINY = (*TINY_DATA, *ON_CPU)
SCENES = ("data=scenes", "data.train.length=2", "data.val.length=1", "data.num_workers=0")
START = ("train", "model=dpt_tiny", *TINY_MODEL, *ON_TINY, "trainer.max_steps=1", "run_dir=new")
TRAIN = (*START, "task=depth", *SCENES)


class Executed:
    def __reduce__(self):
        return os.system, ("touch ../outside/executed",)


@pytest.fixture(scope="module")
def model():
    return tiny(
        {
            "depth": {"kind": "metric", "max_depth": 10.0},
            "segmentation": {"num_classes": 3, "class_names": NAMES},
        }
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The working folder, a stranger's, beside one whose files nobody may change."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("mine")
    save_photo(tmp_path / "outside/private.png")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("DPT_SECRET", SECRET)
    save_photo(tmp_path / "work/photos/a.png", 40, 56)
    return tmp_path / "work"


@pytest.fixture
def attempt(place, dpt_command):
    """attempt(*arguments): the exit code and the output of a command that does no harm."""

    def contents():
        return {p: p.read_bytes() for p in place.with_name("outside").rglob("*") if p.is_file()}

    def run(*arguments):
        before = contents()
        signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it takes too long"))
        signal.alarm(SECONDS)
        try:
            code, out, err = dpt_command(*arguments)
        finally:
            signal.alarm(0)
        assert contents() == before
        assert code in (0, 1), err
        if code and not {"predict", "check"} & {*arguments}:  # which list what is wrong
            assert [line.startswith("error: ") for line in err.splitlines()] == [True], err
        assert SECRET not in out + err
        assert "\x1b" not in out + err
        for path in place.rglob("*"):
            assert SECRET not in str(path)
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
        return code, err or out

    return run


# ------------------------------------------------------------------------------- checkpoints

USES = {
    "predict": ("predict", "PATH", "photos", "--out", "out"),
    "evaluate": ("evaluate", "PATH", *SCENES, *ON_TINY, "run_dir=scores"),
    "export": ("export", "PATH", "model.pt2", "--size", "48", "64"),
    "convert": ("convert", "PATH", "converted", "--to", "dpt"),
    "merge": ("merge", "PATH", "PATH", "--out", "merged"),
    "inspect": ("inspect", "PATH", "photos/a.png"),
    "calibrate": ("calibrate", "PATH", "--points", "points.csv", "--out", "calibrated"),
    "demo": ("demo", "PATH", "--port", "-1"),
    "model.weights": (*TRAIN, "model.weights=PATH"),
    "encoder": (*TRAIN, "model.encoder.weights=PATH"),
}


def use(command, path):
    rows = [f"photos/a.png,{3 * i},{4 * i},{1 + i}" for i in range(6)]
    Path("points.csv").write_text("\n".join(["image,x,y,depth_m", *rows]))
    return [argument.replace("PATH", str(path)) for argument in command]


def saved(write, folder, _):
    write({"state_dict": Executed()}, folder / "a.ckpt")
    return folder / "a.ckpt"


def folder_of(folder, model, change=lambda config: None):
    model.save_pretrained(folder / "model")
    config = json.loads((folder / "model/config.json").read_text())
    change(config)
    (folder / "model/config.json").write_text(json.dumps(config))
    return folder / "model"


def binary(folder, model):
    path = folder_of(folder, model)
    (path / "model.safetensors").unlink()
    torch.save({"x": Executed()}, path / "pytorch_model.bin")
    return path


def of_timm(name, folder, model):
    def change(config):
        config["encoder"] = {"kind": "timm", "name": name}

    path = folder_of(folder, model, change)
    torch.save({"x": Executed()}, path / "pytorch_model.bin")
    return path


HARMFUL = {
    "zip": partial(saved, torch.save),
    "pickle": partial(saved, lambda values, path: path.write_bytes(pickle.dumps(values))),
    "bin": binary,
    "local-dir": partial(of_timm, "local-dir:model"),
    "hf-hub": partial(of_timm, "hf-hub:a/b"),
}


@pytest.mark.parametrize("kind", HARMFUL)
@pytest.mark.parametrize("command", slow_after(1, USES))
def test_a_checkpoint_that_would_do_harm_is_refused(attempt, place, model, kind, command):
    code, text = attempt(*use(USES[command], HARMFUL[kind](place, model)))
    assert code == 1
    assert "a.ckpt" in text or "model" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "export", "convert", "inspect", "evaluate"])
def test_names_of_classes_in_a_checkpoint_are_text(attempt, place, model, command):
    code, text = attempt(*use(USES[command], folder_of(place, model)))
    assert code == (command == "evaluate"), text  # of other classes than the scenes'


# ----------------------------------------------------------------------- runs and data sets


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    options = ("task=depth", "logger=csv")
    return train(tmp_path_factory.mktemp("finished") / "run", *options, "trainer.max_steps=1")


RUNS = {
    "hydra": ("hydra.job.env_set.DPT_PLUGINS", "photos"),
    "data": ("data._target_", "os.system"),
    "name": ("data.kind", "os.system"),
    "loss": ("task.objectives.depth.loss._target_", "torch.hub.load"),
    "nested": ("data.root", {"kind": "panels", "folder": "../outside"}),
    "profiler": ("trainer.profiler", "advanced"),
    "plugins": ("trainer.plugins", {"_target_": "os.system"}),
    "default root": ("trainer.default_root_dir", "../outside"),
    "csv": ("logger.csv.save_dir", "${oc.env:HOME}/../outside"),
    "csv version": ("logger.csv.version", "../../../outside"),
    "csv name": ("logger.csv.name", "/tmp/outside"),
    "run_dir": ("run_dir", "../outside"),
    "timm": ("model.encoder", {"kind": "timm", "name": "local-dir:photos"}),
    "weights": ("model.weights", "../outside/file"),
    "unlabelled": ("data.unlabelled", "../outside"),
}


AGAIN = {
    "resume": ("train", "resume=run", "trainer.max_steps=2"),
    "evaluate": ("evaluate", "run", "run_dir=scores"),
}


@pytest.mark.parametrize(("command", "case"), slow_after(1, product(AGAIN, RUNS)))
def test_the_file_of_a_run_chooses_no_place_and_no_code(attempt, place, finished, case, command):
    run = shutil.copytree(finished, place / "run")
    values = node = yaml.safe_load((run / "config.yaml").read_text())
    key, value = RUNS[case]
    *parents, last = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    attempt(*AGAIN[command])


NAMED_CODE = {  # settings from which Lightning would make a model, and Hydra an object
    "_instantiator": "harm.act",
    "_class_path": "harm.act",
    "class_path": "harm.act",
    "init_args": {},
    "_target_": "harm.act",
}


@pytest.mark.parametrize("command", slow_after(1, [*AGAIN, *USES]))
def test_code_that_settings_in_a_checkpoint_name_does_not_run(
    attempt, place, finished, command, monkeypatch
):
    """As in GHSA-qqmf-gpg7-g8gw: such a file holds tensors and text alone."""
    monkeypatch.syspath_prepend(place)
    (place / "harm.py").write_text("open('../outside/executed', 'w').close()\nact = print\n")
    run = shutil.copytree(finished, place / "run")
    for path in (run / "checkpoints").glob("*.ckpt"):
        values = torch.load(path, weights_only=True)
        keys = ("hyper_parameters", "datamodule_hyper_parameters", "hparams_name")
        torch.save({**values, **dict.fromkeys(keys, NAMED_CODE)}, path)
        assert torch.load(path, weights_only=True)["hyper_parameters"] == NAMED_CODE
    everywhere = {"resume": AGAIN["resume"], "evaluate": (*AGAIN["evaluate"], "data.val.length=1")}
    code, text = attempt(
        *everywhere.get(command, use(USES.get(command, ()), "run/checkpoints/last.ckpt"))
    )
    assert code == (command == "demo"), text  # whose port is none


# --------------------------------------------------------------------------------------- links

PACK = ("data", "pack", *SCENES, "out=packed", "split=train", "run_dir=log")
CHECK = ("data", "check", *SCENES, "run_dir=checked")
LINKS = {
    "sheet.png": ("../outside/file", USES["inspect"]),
    "model.pt2": ("../outside/file", USES["export"]),
    "converted": ("../outside", USES["convert"]),
    "calibrated": ("../outside/new", USES["calibrate"]),
    "out/depth/a.png": ("../../../outside/file", USES["predict"]),
    "packed/train-000000.tar": ("../../outside/new", PACK),
    "packed/train.json": ("../../outside/new", PACK),
    "scores/panels": ("../../outside", USES["evaluate"]),
    "new/panels": ("../../outside", USES["encoder"]),
    "new/csv": ("../../outside", TRAIN),
    "new/tensorboard": ("../../outside", (*TRAIN, "logger=tensorboard")),
    "new/checkpoints": ("../../outside", TRAIN),
    "checked/report.html": ("../../outside/file", CHECK),
    "checked/samples": ("../../outside", CHECK),
}


@pytest.mark.parametrize("link", slow_after(1, ["new/csv", *LINKS]))
def test_nothing_is_written_through_a_link(attempt, place, model, link):
    target, command = LINKS[link]
    (place / link).parent.mkdir(exist_ok=True, parents=True)
    (place / link).symlink_to(target)
    attempt(*use(command, folder_of(place, model)))


@pytest.mark.parametrize("name", ["../outside/", "PLACE/outside/", "photos/../../outside/"])
def test_points_of_images_elsewhere_are_refused(attempt, place, model, name):
    name = name.replace("PLACE", str(place.parent))
    rows = [f"{name}private.png,{i},{i},{1 + i}" for i in range(6)]
    Path("table.csv").write_text("\n".join(["image,x,y,depth_m", *rows]))
    model = folder_of(place, model)
    code, text = attempt("calibrate", model, "--points", "table.csv", "--out", "new")
    assert (code, "table.csv: " in text) == (1, True), text


# ----------------------------------------------------------------------------------- data sets

SET = ("data=imagefolder", "data.root=set", "data.num_workers=0")
ON_SETS = {
    "fit": ("fit", "set", "--time", "1s"),
    "fit the folder above": ("fit", ".", "steps=1"),
    "check": ("data", "check", *SET, "run_dir=checked"),
    "pack": ("data", "pack", *SET, "out=packed", "run_dir=log"),
    "train": (*START, "task=classification", *SET),
    "predict": ("predict", "PATH", "set", "--out", "out"),
    "predict from above": ("predict", "PATH", ".", "--out", "out"),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("command", ON_SETS)
def test_a_set_of_odd_names_and_files(attempt, place, model, command, broken):
    for split, name in product(("train", "val"), NAMES[:2]):
        folder = place / "set" / split / name
        for file in ("-rf.png", "$(touch x).png", "b\x1b[31m.png", "c\n.png", "\udcff.png"):
            save_photo(folder / file, 40, 56, seed=len(split + name + file))
        (folder / "again").symlink_to("../..")
        if broken:
            os.mkfifo(folder / "fifo.png")
            (folder / "device.png").symlink_to("/dev/zero")
            (folder / "gone.png").symlink_to("nothing")
            (folder / "text.png").write_text("text")
    (place / "set/classes.json").write_text(json.dumps(NAMES))
    code, text = attempt(*use(ON_SETS[command], folder_of(place, model)))
    assert broken or code == command.startswith(("fit", "check")), text  # no masks; copies
    assert not (place / "x").exists()
