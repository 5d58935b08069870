"""``dpt fit``: refusals, the length of a run, and a run from the folder to the exported model."""

import http.server
import itertools
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import foreign_folders
import numpy as np
import pytest
import timm
import torch
from label_folders import NAMES, SIZE, folder, mask, save, save_photos, scaled
from safetensors.torch import load_file, save_file
from servers import running
from tiny import ON_CPU, TINY_DATA, TINY_VIT, call, checkpoint_of

import dpt
from dpt.data.statistics import LabelStatistics
from dpt.files import write_bytes
from dpt.fitting import (
    ENCODER,
    Length,
    Plan,
    can_fine_tune,
    enlargement,
    label_settings,
    length_of,
    rate_settings,
)
from dpt.training.short_runs import Times

REFUSED = [  # arguments, and what the message names
    (["empty"], "empty"),
    (["none"], "none"),
    (["loop"], "loop"),
    (["labels"], "masks/a.png"),
    (["alone"], "data.labels"),
    (["damaged"], "000.png"),
    (["good", "data.depth_scale=abc"], "data.depth_scale='abc'"),
    (["good", "--time", "soon"], "--time soon"),
    (["good", "data=camvid"], "data="),
    (["good", "data.folds=3"], "data.folds="),
    (["good", "task=depth"], "no image with labels"),
    (["good", "--plan", "data.labels=gone"], "data.labels"),
    (["good", "--plan", "data.anotations=coco", "run_dir=run"], "data.anotations"),
    (["good", "data.split_files.train=train.txt"], "data.split_files.train"),
    (["good", "data.num_classes"], "data.num_classes"),
    (["good", "optim.rate=1", "model=dpt_tiny", "run_dir=run"], "optim.rate"),
]


def test_fit_refuses_before_it_trains(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    save(tmp_path / "labels/masks/a.png", mask(0))
    save_photos(tmp_path / "alone", range(3))
    folder(tmp_path / "good")
    damaged = folder(tmp_path / "damaged") / "masks/train/000.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    for arguments, named in REFUSED:
        assert named in refused(call, "fit", *arguments)
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "run/data_check").exists()


def test_fit_of_a_missing_folder_names_those_like_it(tmp_path, refused):
    (tmp_path / "photos").mkdir()
    message = refused(call, "fit", tmp_path / "photo")
    assert f"folder {tmp_path / 'photo'} does not exist; {tmp_path} holds photos" in message


def test_fit_does_not_overwrite_a_run(tmp_path, refused):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints/last.ckpt").write_text("")
    (run / "pairs.csv").write_text("the pairs of the run")
    root = folder(tmp_path / "set")
    for argument in (f"run_dir={run}", f"resume={run}"):
        assert argument.split("=")[0] in refused(call, "fit", root, argument)
    assert (run / "pairs.csv").read_text() == "the pairs of the run"
    assert not (run / "data_check").exists()
    (tmp_path / "mine/evaluation").mkdir(parents=True)
    assert "run_dir" in refused(call, "fit", root, f"run_dir={tmp_path / 'mine'}")


def test_task_decides_which_labels_are_read(tmp_path, refused, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = folder(tmp_path / "set")
    for name in NAMES:
        save(root / f"depth/{name}.png", np.full(SIZE, 7, np.uint16))
    assert "data.depth_scale" in refused(call, "fit", root, "--plan")
    call("fit", str(root), "--plan", "task=segmentation")
    assert "data.depth" not in capsys.readouterr().out.split("training:")[0]
    assert "data.depth_scale" in refused(call, "fit", root, "task=depth", "--plan")


def test_fit_shows_its_plan(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = folder(tmp_path / "set")
    call("fit", str(root), "--plan", "data.image_size=[32,32]", "run_dir=run")
    out = capsys.readouterr().out
    assert "11 masks, pairs by names, such as images/train/" in out
    assert "images/train/000.jpg, masks/train/000.png" in out
    assert "data.image_size=[32,32]" in out.split("python train.py")[1]
    assert {path.name for path in tmp_path.iterdir()} == {"set"}


def test_settings_follow_a_given_image_size(tmp_path):
    root = folder(tmp_path / "set")
    options = ("data.image_size=[384,512]", f"run_dir={tmp_path / 'run'}")
    values = Plan(root, options, "15m").chosen
    assert values["data.cache_size"] == [576, 768]  # training crops are not upsampled
    assert values["data.eval_size"] == [480, 640]


@pytest.mark.parametrize(
    ("remaining", "images", "validation", "length"),
    [
        (900, 100, 9, Length(863, 1564, 10)),  # without scoring (27) and export (10)
        (180, 100, 2, Length(164, 320, 3)),
        (180, 19, 2, Length(164, 328, 1)),  # the best of three by few images would be chance
        (1, 100, 10, Length(5, 10, 1)),
    ],
)
def test_length_of_a_run(remaining, images, validation, length):
    times = Times(batches=1, step=0.5, images=images, validation=validation)
    assert length_of(remaining, times, export=10) == length


@pytest.mark.parametrize(
    ("thickness", "image", "expected"),
    [
        (3, (384, 512), 2),  # as in the file
        (8, (384, 512), 1.25),
        (2, (1536, 2048), 5.524272),  # 1.5 megapixels
        (2, (96, 128), 1.25),
    ],
)
def test_enlargement_keeps_thin_structures_visible(thickness, image, expected):
    assert enlargement(thickness, image, (192, 256)) == pytest.approx(expected)


def test_a_pretrained_encoder_sees_images_at_about_their_own_size():
    assert enlargement(50, (360, 480), (196, 252), usual=1.8) == pytest.approx(1.8)
    assert enlargement(50, (256, 256), (224, 224), usual=1.8) == 1.25
    assert enlargement(3, (384, 512), (192, 256), usual=1.8) == 2


def test_enlargement_is_limited_by_the_time_of_evaluation():
    assert enlargement(3, (384, 512), (192, 256), limit=96 * 512 * 2) == pytest.approx(2**0.5)
    assert enlargement(3, (384, 512), (192, 256), limit=100) == 1.25


@pytest.mark.parametrize(
    ("task", "given", "steps", "expected"),
    [
        ("segmentation", {}, 10, {"optim.lr": 0.004}),
        ("segmentation", {}, 250, {"optim.lr": 0.002}),
        ("segmentation", {}, 1000, {}),
        ("segmentation", {"optim.lr": 0.001}, 50, {}),
        ("segmentation", {"model": "dpt_dinov2"}, 50, {}),
        ("depth", {}, 50, {}),
    ],
)
def test_rate_of_short_runs_is_larger(task, given, steps, expected):
    assert rate_settings(task, given, steps) == expected


def test_rate_of_a_given_number_of_steps_is_that_of_the_same_length(tmp_path):
    root = folder(tmp_path / "set")
    for key in ("steps", "trainer.max_steps"):
        plan = Plan(root, (f"{key}=250", f"run_dir={tmp_path / key}"), "15m")
        assert plan.chosen["optim.lr"] == 0.002
    with pytest.raises(ValueError, match="steps"):
        Plan(root, ("steps=many", f"run_dir={tmp_path / 'c'}"), "15m")


def test_a_pretrained_model_is_fine_tuned(tmp_path):
    root = folder(tmp_path / "set")
    options = ("model=dpt_dinov2", "model.encoder.weights=FILE", "steps=50")
    plan = Plan(root, (*options, f"run_dir={tmp_path / 'run'}"), "15m")
    assert plan.chosen["optim.layer_decay"] == 0.8
    assert not any(side % 14 for side in plan.config.data.loader.image_size)
    assert plan.config.optim.settings["encoder_lr"] == 0.1 * plan.chosen["optim.lr"] == 0.0001
    scratch = Plan(root, (*TINY_VIT, f"run_dir={tmp_path / 'scratch'}"), "15m")
    assert "optim.layer_decay" not in scratch.chosen


@pytest.mark.parametrize(
    ("task", "time", "cuda", "expected"),
    [
        ("segmentation", 900, False, True),
        ("segmentation", 240, False, False),
        ("segmentation", 240, True, True),
        ("depth", 900, False, False),
        ("depth", 900, True, True),
        ("joint", 3600, False, True),
    ],
)
def test_the_pretrained_encoder_is_chosen_where_it_was_better(
    monkeypatch, task, time, cuda, expected
):
    monkeypatch.setattr("dpt.fitting.has_bf16", lambda device: True)
    monkeypatch.setattr("dpt.fitting.has_hub_file", lambda name, file: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    assert can_fine_tune(task, time) == expected


def test_depth_starts_at_the_median_of_the_data(tmp_path):
    make = scaled(1000, np.uint16)
    root = folder(tmp_path / "set", kind="depth", make=make)
    plan = Plan(root, (*TINY_VIT, f"run_dir={tmp_path / 'run'}"), "15m")
    write_bytes(plan.table, plan.detected.table().encode())
    plan.measure()
    assert plan.chosen["task.objectives.depth.prior"] == pytest.approx(2.5, abs=0.02)
    head = dpt.create_model("dpt_tiny", heads={"depth": {**DEPTH_HEAD, "prior": 2.5}}).eval()
    typical = head(torch.randn(1, 3, 64, 64))["depth"].median().item()
    assert typical == pytest.approx(2.5, rel=0.2)


def test_a_model_of_classes_is_planned_beside_that_of_objects(tmp_path):
    foreign_folders.labelme(tmp_path / "set", foreign_folders.scene_pictures())
    options = (*TINY_VIT, f"run_dir={tmp_path / 'run'}")
    plan = Plan(tmp_path / "set", options, "15m")
    write_bytes(plan.table, plan.detected.table().encode())
    beside = plan.of_classes()
    assert beside.config.task.name == "segmentation"
    assert beside.config.folder == tmp_path / "run/classes"
    assert plan.config.folder == tmp_path / "run"
    assert plan.config.task.name == "instance"
    assert Plan(tmp_path / "set", (*options, "task=instance"), "15m").of_classes() is None


def statistics(**values):
    usual = {"counts": [900, 100], "thickness": 50.0, "uprightness": 0.5, "images": 20}
    return LabelStatistics(**usual | values)


def test_label_settings_start_at_the_weighted_classes():
    settings = label_settings(statistics())
    assert settings == {
        "task.segmentation_loss.class_weights": [0.5, 1.5],
        "task.objectives.segmentation.prior": [0.75, 0.25],
    }
    rare = label_settings(statistics(counts=[10**9, 1]))
    assert rare["task.segmentation_loss.class_weights"] == [0.06, 1.94]
    absent = label_settings(statistics(counts=[10**9, 0]))
    assert absent["task.segmentation_loss.class_weights"] == [1, 1]
    assert min(absent["task.objectives.segmentation.prior"]) > 0  # its logarithm is finite


def test_label_settings_turn_images_without_an_up():
    turned = label_settings(statistics(uprightness=0.05))
    assert turned["augment.turn"] == 1.0
    assert turned["augment.vflip"] == 0.5


DEPTH_HEAD = {"kind": "metric", "max_depth": 5.0}
RUN = (*TINY_VIT, *TINY_DATA, *ON_CPU, "data.eval_size=null")


@pytest.mark.slow
def test_fit_trains_scores_and_exports(tmp_path, capsys, monkeypatch):
    root, run = folder(tmp_path / "set"), tmp_path / "run"
    clock = itertools.count(0, 30)  # a slow machine: half a minute between two looks at the clock
    times = SimpleNamespace(monotonic=lambda: next(clock), process_time=lambda: 1.0)
    monkeypatch.setattr("dpt.fitting.clock", times)
    monkeypatch.setattr("dpt.training.short_runs.time", times)
    call("fit", str(root), "--time", "40s", *RUN, f"run_dir={run}")
    printed = capsys.readouterr().out
    assert "training: python train.py" in printed
    assert "training: 300 s, about 10 steps of 30.00 s\n--time" in printed
    assert printed.splitlines()[0].startswith(str(root))
    assert printed.splitlines()[-1].startswith("miou 0.")
    assert "the baseline" in printed.splitlines()[-1]
    for name in ("data_check/report.html", "evaluation/report.html", "checkpoints/best.ckpt"):
        assert (run / name).is_file()
    assert (run / "metrics.json").is_file()
    (exported,) = run.glob("model.*")
    exported.write_bytes(b"of the first run")
    loss = "task/segmentation_loss=cross_entropy_dice"
    call("fit", str(root), *RUN, f"run_dir={run}", "overwrite=true", "steps=2", loss)
    assert exported.read_bytes() != b"of the first run"
    assert "kind: dice" in (run / "config.yaml").read_text()


@pytest.mark.slow
def test_depth_is_hardly_worse_than_a_constant_after_a_few_steps(tmp_path):
    root = folder(tmp_path / "set", kind="depth", make=scaled(1000, np.uint16))
    call("fit", root, *RUN, f"run_dir={tmp_path / 'run'}", "steps=8")
    scores = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert scores["val/abs_rel"] < 1.5 * scores["constant/val/abs_rel"]


@pytest.mark.slow
def test_fit_keeps_the_better_of_objects_and_connected_areas(tmp_path, capsys):
    foreign_folders.labelme(tmp_path / "set", foreign_folders.scene_pictures())
    run = tmp_path / "run"
    call("fit", tmp_path / "set", *RUN, f"run_dir={run}", "steps=2")
    lines = capsys.readouterr().out.splitlines()
    pattern = r"AP on \d held-out images: objects \d\.\d+, connected areas \d\.\d+"
    assert re.fullmatch(pattern, lines[-2])
    best = Path(lines[-1].removeprefix("the better model is kept in "))
    assert best in (run, run / "classes")
    assert (best / "evaluation/report.html").is_file()
    assert all((p / "checkpoints/last.ckpt").is_file() for p in (run, run / "classes"))


@pytest.mark.slow
def test_fit_keeps_names_and_reveals_nothing(tmp_path, monkeypatch, capfd):
    """Names of classes and of the folder are text, whatever Hydra or OmegaConf would read."""
    monkeypatch.setenv("DPT_SECRET", "s3cr3t-of-the-environment")
    monkeypatch.chdir(tmp_path)
    names = [
        "${oc.env:DPT_SECRET}",
        "\\\\${oc.decode:${oc.env:DPT_SECRET}}",
        "it's a\\b, [1] {c: d}",
    ]
    root = folder(tmp_path / "a '${oc.env:DPT_SECRET}', b=[1]\\")
    classes = [{"id": i, "name": name} for i, name in enumerate(names)]
    (root / "classes.json").write_text(json.dumps({"classes": classes}))
    call("fit", str(root), *RUN, "steps=1")
    (run,) = (tmp_path / "runs/fit").iterdir()
    assert run.name.startswith(root.name)
    call("evaluate", run, "run_dir=scores")
    assert Path("scores/metrics.json").is_file()
    assert checkpoint_of(run)["dpt_config"]["heads"]["segmentation"]["class_names"] == names
    out = capfd.readouterr()
    for text in (out.out, out.err, *(f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())):
        secret = "s3cr3t-of-the-environment"
        assert (secret if isinstance(text, str) else secret.encode()) not in text


HUB_RUN = """
import sys
import dpt.functional
dpt.functional.has_bf16 = lambda device: True
from dpt.cli import main
from dpt.weights.hub import has_hub_file
assert not has_hub_file("timm/other", "model.safetensors")
sys.argv = ["dpt", "fit", *sys.argv[1:]]
main()
"""


@pytest.mark.slow
def test_fit_takes_a_pretrained_encoder_from_a_hub(tmp_path):
    class Handler(http.server.SimpleHTTPRequestHandler):
        def end_headers(self):
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", '"1"')
            super().end_headers()

    file = tmp_path / f"hub/timm/{ENCODER}/resolve/main/model.safetensors"
    file.parent.mkdir(parents=True)
    save_file(timm.create_model(ENCODER, num_classes=0).state_dict(), file)
    root, run = folder(tmp_path / "set"), tmp_path / "run"
    handler = partial(Handler, directory=str(tmp_path / "hub"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with running(server):
        address = f"http://127.0.0.1:{server.server_port}"
        arguments = [str(root), "steps=1", "data.batch_size=2", *ON_CPU, "optim=adamw"]
        arguments += ["trainer.precision=32-true", f"run_dir={run}"]
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", HUB_RUN, *arguments],
            env={**os.environ, **hub, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "model: from the encoder DINOv2" in done.stdout
    assert "174 encoder tensors loaded" in (run / "log.txt").read_text()
    weights = checkpoint_of(run)["state_dict"]
    theirs = load_file(file)["blocks.0.attn.qkv.weight"]
    ours = next(v for k, v in weights.items() if k.endswith("encoder.blocks.0.attn.qkv.weight"))
    assert (ours - theirs).abs().max() < 1e-3  # one step of fine-tuning
