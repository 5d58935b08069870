"""A user's mistake: exit code 1 and one line that names the file or key and the remedy."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from photos import save_dense
from tiny import ON_CPU, TINY_DATA, TINY_VIT, call, small_model

import dpt
from dpt.cli import HELP

TINY = (*TINY_VIT, *TINY_DATA, *ON_CPU, "trainer.max_steps=1", "logger=none")
SCENES = ("data.train.length=4", "data.val.length=2")
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.delenv("DPT_DEBUG", raising=False)


@pytest.fixture
def mistake(refused, tmp_path):
    """mistake(*arguments): the one line with which ``dpt ARGUMENTS`` ends."""
    return lambda *arguments: refused(call, *arguments, f"run_dir={tmp_path / 'run'}")


# -------------------------------------------------------------------------- help and commands


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_of_the_command_line(dpt_command, arguments):
    assert dpt_command(*arguments) == (0, HELP, "")


def test_version(dpt_command):
    assert dpt_command("--version") == (0, f"dpt {dpt.__version__}\n", "")


def in_a_shell(command, folder):
    """Standard error of ``dpt COMMAND`` with its output where the command says."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    line = f"{shlex.quote(sys.executable)} -m dpt {command}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["--help", "--version", "predict --help"])
def test_an_output_that_takes_nothing_is_one_line(tmp_path, command):
    code, err = in_a_shell(f"{command} > /dev/full", tmp_path)
    assert (code, "free disk space" in err, len(err.splitlines())) == (1, True, 1), err
    err = in_a_shell(f"{command} | true", tmp_path)[1]
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 1
    code, err = in_a_shell(f"{command} >&-", tmp_path)
    assert (code, "Traceback" in err) == (0, False), err


def test_a_working_folder_that_is_gone_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    code, err = in_a_shell("--help; exit 0", tmp_path / "a")
    assert (code, err) == (0, "")
    line = f"cd a; rmdir ../a; {shlex.quote(sys.executable)} -m dpt predict x y --out z"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, "working folder" in done.stderr) == (1, True)
    assert len(done.stderr.splitlines()) == 1


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", LONG, LONG, "--out", "o"),
        ("convert", LONG, "b", "--to", "dpt"),
        ("calibrate", LONG, "--points", LONG, "--out", "o"),
        ("evaluate", LONG),
        ("data", "check", "data=folder", f"data.root={LONG}"),
    ],
)
def test_a_name_that_is_too_long_is_one_line(tmp_path, monkeypatch, refused, arguments):
    monkeypatch.chdir(tmp_path)
    err = refused(call, *arguments)
    assert LONG in err
    assert "Errno" not in err


def test_unknown_command(dpt_command):
    code, _, err = dpt_command("trian")
    assert code == 2
    assert "trian" in err
    assert "train" in err.replace("trian", "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train", ["Usage", "inpainting, instance, joint", "data.root=DIR", "metrics.json"]),
        ("evaluate", ["Usage", "checkpoint=FILE", "scenes"]),
    ],
)
def test_help_of_a_command(dpt_command, command, says):
    code, out, err = dpt_command(command, "--help")
    assert (code, err) == (0, "")
    for text in says:
        assert text in out
    for text in ("${", "$APP", " _base"):
        assert text not in out


def test_the_configuration_can_be_printed_without_a_run(dpt_command, tmp_path):
    code, out, err = dpt_command(
        "train", "--cfg", "job", f"task=depth optim.lr=0.125 run_dir={tmp_path / 'run'}"
    )
    assert (code, err) == (0, "")
    assert "lr: 0.125" in out
    assert "monitor: val/abs_rel" in out
    assert not (tmp_path / "run").exists()


def test_tab_completion(dpt_command, monkeypatch):
    line = "python train.py model=dpt_b"
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert dpt_command("train", "-sc", "query=bash")[1].split() == ["model=dpt_base"]


def test_a_users_own_configuration_files(dpt_command, tmp_path):
    (tmp_path / "mine/optim").mkdir(parents=True)
    (tmp_path / "mine/optim/slow.yaml").write_text("kind: sgd\nlr: 0.25\n")
    own = ("--config-dir", tmp_path / "mine", "optim=slow")
    code, out, _ = dpt_command("train", *own, "--cfg", "job")
    assert code == 0
    assert "lr: 0.25" in out


# ------------------------------------------------------------------- mistakes in the overrides

WRONG = [  # overrides, and what the message names
    ("optim.lrr=1", "optim.lrr. Did you mean lr?"),
    ("model.encoder.embed_dims=3", "model.encoder.embed_dims. Did you mean embed_dim?"),
    ("task=dept", "task/dept"),
    ("optim.lr=fast", "optim.lr='fast'"),
    ("model=_base", "model.name must be given"),
    ("trainer.precision=8", "trainer.precision"),
    ("~steps", "steps must be given"),
    ("--steps 10", "--steps"),
    ("task.objectives.segmentation.loss.class_weights=[1]", "task.objectives.segmentation.loss"),
    ("data.weights.rgbd=2 data=mix", "+data.weights.rgbd=VALUE"),
    ("data=mix +data@data.sets.a=scenes +data.unlabelled=x", "data.unlabelled"),
    (
        "data=folder data.root=. data.invalid_depth=65535 data.depth=a task=depth",
        "data.invalid_depth=65535",
    ),
    ("optim=null", "optim/null"),
    pytest.param("trainer.max_steps=-1 trainer.max_time=00:00:01:00", "max_steps", marks=SLOW),
    pytest.param("model.encoder.out_indices=[0,1,2,99]", "out_indices", marks=SLOW),
    pytest.param("model/encoder=timm model.encoder.name=vit_tinny", "vit_tinny", marks=SLOW),
]


@pytest.mark.parametrize(("overrides", "key"), WRONG)
def test_a_wrong_key_choice_or_value_is_named(mistake, overrides, key):
    words = overrides.split()
    scenes = () if any(word.startswith("data=") for word in words) else SCENES
    assert key in mistake("train", "steps=1", "logger=none", *scenes, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    (
        "paths data model augment task optim schedule trainer callbacks logger seed steps "
        "overwrite resume max_skipped_steps overrides experiment debug task.teacher "
        "data.batch_size data.num_workers data.image_size data.on_error trainer.max_steps "
        "callbacks.checkpoint model.encoder"
    ).split(),
)
def test_any_value_of_a_key_is_taken_or_refused_in_one_line(dpt_command, tmp_path, key):
    for value in ("text", "null", "[1,a]", "-1", "1e308", "nan", "{a:1}", "''", "'2'", "true"):
        changed = f"overwrite=true run_dir={tmp_path} {key}={value}"
        code, _, err = dpt_command("train", "task=regression", *TINY, *SCENES, changed)
        assert code in (0, 1), (key, value)
        assert len(err.splitlines()) == code, (key, value, err)


def test_the_stack_trace_of_a_mistake_is_kept_in_the_log(mistake, tmp_path):
    regression = "+task.objectives.regression.head=regression"
    mistake("train", "task=depth", regression, *TINY, *SCENES)
    assert "Traceback" in (tmp_path / "run/log.txt").read_text()


GREEDY = """
import torch
from dpt.plugins import register

@register("greedy")
class Loss(torch.nn.Module):
    def __init__(self, *, depth):
        super().__init__()

    def forward(self, *inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has")
"""


def test_a_full_gpu_is_answered_with_what_takes_less(mistake, tmp_path, monkeypatch):
    (tmp_path / "greedy_loss.py").write_text(GREEDY)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("DPT_PLUGINS", str(tmp_path / "greedy_loss.py"))
    message = mistake("train", "task=depth task.depth_loss.kind=greedy", *TINY, *SCENES)
    assert message.startswith("error: CUDA out of memory: reduce data.batch_size")
    assert "model.checkpoint_activations=true" in message


# ------------------------------------------------------------------------ mistakes in the data


@pytest.fixture
def folder(tmp_path):
    """A healthy folder of photos with masks and depth, to be spoilt.

    What is said of other faults of a folder, tests/data/test_folder.py holds.
    """
    save_dense(tmp_path, {"train": 3, "val": 3}, (36, 50), suffix=".jpg")
    return tmp_path


def masks(root, *overrides):
    data = ("data=folder", f"data.root={root}", "data.labels=masks", "data.num_classes=3")
    return ("train", *TINY, "task=segmentation", *data, *overrides)


def test_missing_folders(mistake, folder):
    message = mistake(*masks(folder / "nowhere"))
    assert str(folder / "nowhere") in message
    assert "data.root" in message
    message = mistake(*masks(folder, "data.labels=mask"))
    assert str(folder / "mask") in message
    assert "masks" in message
    assert "data.labels" in message


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=SLOW)])
def test_truncated_image(mistake, folder, workers):
    path = folder / "images/train/1.jpg"
    path.write_bytes(path.read_bytes()[:400])
    message = mistake(*masks(folder, f"data.num_workers={workers}"))
    assert str(path) in message
    assert "truncated" in message


def test_two_heads_with_a_score_of_one_name_are_refused(mistake):
    regression = "+task.objectives.regression.head=regression"
    message = mistake("train", "task=depth", regression, *TINY, *SCENES)
    assert "regression" in message
    assert "rmse" in message


# ------------------------------------------------------------------------------------ evaluate


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A folder with a segmentation model of five classes."""
    folder = tmp_path_factory.mktemp("model")
    small_model(heads={"segmentation": {"num_classes": 5}}).save_pretrained(folder)
    return folder


def scored(checkpoint, *overrides):
    data = () if any(o.startswith("data=") for o in overrides) else ("data=scenes",)
    return ("evaluate", f"checkpoint={checkpoint}", *data, "data.num_workers=0", *overrides)


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ("", "classes"),
        ("data=folder data.root=ROOT data.depth=depth data.max_depth=10", "depth maps"),
        (
            "data=folder data.root=ROOT data.labels=masks data.num_classes=5 protocol=kitti_garg",
            "protocol=kitti_garg",
        ),
    ],
)
def test_a_mistake_in_an_evaluation_is_named(mistake, checkpoint, folder, overrides, names):
    overrides = overrides.replace("ROOT", str(folder)).split()
    assert names in mistake(*scored(checkpoint, *overrides))


def test_an_evaluation_names_a_missing_or_damaged_checkpoint(mistake, refused, tmp_path):
    assert "checkpoint=FILE" in refused(call, "evaluate")
    assert "nowhere.ckpt" in mistake(*scored("nowhere.ckpt"))
    for other in ("checkpoint=other.ckpt", "++checkpoint=other.ckpt"):
        assert "two checkpoints" in mistake("evaluate", str(tmp_path), other)
    damaged = tmp_path / "damaged.ckpt"
    torch.save({"state_dict": {"a": torch.zeros(1000)}}, damaged)
    assert "damaged.ckpt" in mistake(*scored(damaged))
    damaged.write_bytes(damaged.read_bytes()[:500])
    assert "damaged.ckpt" in mistake(*scored(damaged))


# ----------------------------------------------------------------------------- as a new process


@pytest.mark.parametrize(
    "command", [["train.py"], pytest.param(["-m", "dpt", "train"], marks=SLOW)]
)
def test_train_py_and_dpt_train_are_the_same_command(command):
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, *command, "task=dept"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no task/dept; choose from classification")
    assert len(done.stderr.splitlines()) == 1
