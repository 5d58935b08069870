"""A run's folder from somebody else: resuming it executes, reveals and changes nothing."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from test_resume import resume_it

from dpt.files import require_own_files
from dpt.training import resume
from dpt.training.loggers import wandb_id

SECRET = "s3cr3t-of-the-environment"
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("finished") / "run", "task=regression", "logger=csv")


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """A copy of the finished run, beside a file that nothing may touch."""
    monkeypatch.setenv("DPT_SECRET", SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("mine")
    return shutil.copytree(finished, tmp_path / "run")


def edit(run, change):
    values = yaml.safe_load((run / "config.yaml").read_text())
    change(values)
    (run / "config.yaml").write_text(yaml.safe_dump(values))


def outside(run):
    return {p: p.read_bytes() for p in (run.parent / "outside").rglob("*") if p.is_file()}


class Executed:
    def __reduce__(self):
        return os.system, (f"touch {os.environ['DPT_MARK']}",)


def hostile_overrides(run):
    (run / "x.pickle").write_bytes(pickle.dumps(Executed()))
    (run / "conf/x").mkdir(parents=True)
    text = "hydra: {job: {env_set: {DPT_PLUGINS: %s}}}" % (run / "plug.py")
    (run / "conf/x/y.yaml").write_text(f"# @package _global_\n{text}\n")
    (run / "plug.py").write_text(f"import os; os.system('touch {os.environ['DPT_MARK']}')\n")
    return {
        "pickle": [f"--experimental-rerun={run}/x.pickle", "task=regression"],
        "abbreviated": [f"--exp={run}/x.pickle"],
        "groups": [f"--config-dir={run}/conf", "+x=y"],
        "plug-in": [f"hydra.job.env_set.DPT_PLUGINS={run}/plug.py"],
        "searchpath": [f"hydra.searchpath=[file://{run}/conf]", "+x=y"],
        "launcher": ["-m", "hydra/launcher=joblib", "seed=1,2"],
        "interpolation": ["task.name=${oc.env:DPT_SECRET}"],
    }


@pytest.mark.parametrize(
    "case",
    [
        "pickle",
        "groups",
        *(
            pytest.param(c, marks=SLOW)
            for c in ("abbreviated", "plug-in", "searchpath", "launcher", "interpolation")
        ),
    ],
)
def test_resume_executes_no_stored_override(run, monkeypatch, tmp_path, case):
    mark = tmp_path / "executed"
    monkeypatch.setenv("DPT_MARK", str(mark))
    overrides = hostile_overrides(run)[case]
    edit(run, lambda values: values.update(overrides=overrides))
    resume_it(f"resume={run}", "trainer.max_steps=3")
    assert resume.step_of(run / "checkpoints/last.ckpt") == 3
    assert not mark.exists()
    assert SECRET not in (run / "log.txt").read_text()


INTERPOLATIONS = [
    "$\\x7boc.env:DPT_SECRET}",
    "$\\u007boc.env:DPT_SECRET}",
    "${oc.env:DPT_SECRET}",
    "\\\\${oc.env:DPT_SECRET}",
    "${oc.decode:${oc.env:DPT_SECRET}}",
]


@pytest.mark.parametrize(
    "text", [INTERPOLATIONS[0], *(pytest.param(t, marks=SLOW) for t in INTERPOLATIONS[1:])]
)
@pytest.mark.parametrize("key", ["  name:", pytest.param("  - name:", marks=SLOW)])
def test_resume_resolves_nothing_of_a_file(run, capfd, text, key):
    """As the name of the model, and as a name of W&B."""
    path = run / "config.yaml"
    values = yaml.safe_load(path.read_text())
    if key == "  name:":
        values["model"]["name"] = "PLACE"
    else:
        wandb = {"_target_": "dpt.training.loggers.make_wandb", "save_dir": str(run)}
        values["logger"] = {"wandb": wandb | {"project": "p", "name": "PLACE", "tags": ["PLACE"]}}
    path.write_text(yaml.safe_dump(values).replace("PLACE", f'"{text}"'))
    resume_it(f"resume={run}", "trainer.max_steps=3")
    out = capfd.readouterr()
    assert SECRET not in out.out + out.err
    for file in run.rglob("*"):
        assert SECRET not in file.name
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


NODES = {
    "wandb of Lightning": (
        "logger",
        {"_target_": "lightning.pytorch.loggers.WandbLogger", "project": "stolen", "offline": True},
    ),
    "mlflow": ("logger", {"_target_": "lightning.pytorch.loggers.MLFlowLogger"}),
    "own key": (
        "logger",
        {
            "_target_": "dpt.training.loggers.make_wandb",
            "project": "x",
            "settings": {"api_key": "k" * 40},
        },
    ),
    "csv elsewhere": (
        "logger",
        {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "PLACE"},
    ),
    "checkpoints": (
        "callbacks",
        {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": "PLACE"},
    ),
    "lambda": ("callbacks", {"_target_": "lightning.pytorch.callbacks.LambdaCallback"}),
    "panels": ("callbacks", {"_target_": "dpt.evaluation.callbacks.Panels", "folder": "PLACE"}),
    "dots": ("callbacks", {"_target_": "dpt.evaluation.callbacks.Panels", "folder": "a/../../b"}),
    "cache": ("data", {"cache_dir": "PLACE"}),
    "weights": ("model", "PLACE/w.pt"),
}


@pytest.mark.parametrize("case", NODES)
def test_resume_refuses_what_a_file_must_not_choose(run, refused, case):
    group, node = NODES[case]
    place = str(run.parent / "outside")

    def change(values):
        if group == "model":
            values["model"]["weights"] = f"{place}/w.pt"
            shutil.rmtree(run / "checkpoints")
        else:
            values[group]["x"] = {
                k: v.replace("PLACE", place) if isinstance(v, str) else v for k, v in node.items()
            }

    edit(run, change)
    before = outside(run)
    message = refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert "data.x.cache_dir" in message if group == "data" else True
    assert "model.weights" in message if group == "model" else f"{group}.x." in message
    assert outside(run) == before


def test_resume_takes_a_callback_that_is_typed(run):
    name = "lightning.pytorch.callbacks.DeviceStatsMonitor"
    resume_it(f"resume={run}", f"+callbacks.x._target_={name}", "trainer.max_steps=3")
    assert resume.step_of(run / "checkpoints/last.ckpt") == 3


LOOPS = ("loops", "fit_loop")
OPTIMIZER = (*LOOPS, "epoch_loop.automatic_optimization.optim_progress", "optimizer", "step")
STATES = {
    "callback": (("callbacks", "RunCheckpoints"), 5),
    "no callbacks": (("callbacks",), []),
    "loop": ((*LOOPS, "epoch_loop.batch_progress"), {}),
    "loader": ((*LOOPS, "state_dict"), {"combined_loader": ["x"]}),
    "text for steps": ((*OPTIMIZER, "total", "completed"), "x"),
    "steps of the optimiser": ((*OPTIMIZER, "total", "completed"), 10**12),
    "step": (("global_step",), 10**12),
    "place": (("dpt_run", "batches"), 1.5),
    "place before the first": (("dpt_run", "batches"), -1),
    "moments": (("optimizer_states", 0, "state", 0), 5),
    "version": (("pytorch-lightning_version",), "0.0.1"),
    "skipped": (("skipped_steps",), 10**30),
    "weights": (("state_dict",), []),
}


QUICK = ["callback", "step", "place"]


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(c, marks=SLOW) for c in STATES if c not in QUICK)]
)
def test_resume_refuses_a_checkpoint_of_odd_states(run, refused, case):
    *parents, last = STATES[case][0]
    for path in (run / "checkpoints").iterdir():
        node = values = torch.load(path, weights_only=True)
        for name in parents:
            node = node[name]
        node[last] = STATES[case][1]
        torch.save(values, path)
    message = refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert ".ckpt" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.sets", {"a": None}),
        pytest.param("data.sets", ["a"], marks=SLOW),
        ("trainer.max_time", {"days": 10**12}),
    ],
)
def test_resume_refuses_odd_values_by_one_line(run, refused, key, value):
    group, name = key.split(".")
    edit(run, lambda values: values[group].update({name: value}))
    assert group in refused(resume_it, f"resume={run}", "trainer.max_steps=3")


LINKS = {
    "csv": lambda run, other: (shutil.rmtree(run / "csv"), (run / "csv").symlink_to(other)),
    "hard log": lambda run, other: (
        (run / "log.txt").unlink(),
        (run / "log.txt").hardlink_to(other / "file"),
    ),
    "lock": lambda run, other: (
        (run / ".lock").unlink(missing_ok=True),
        (run / ".lock").symlink_to(other / "file"),
    ),
    "hard lock": lambda run, other: (
        (run / ".lock").unlink(missing_ok=True),
        (run / ".lock").hardlink_to(other / "file"),
    ),
    "deep": lambda run, other: (run / "csv/version_1").symlink_to(other),
    "fifo": lambda run, other: os.mkfifo(run / "panels.fifo"),
    "server and key of W&B": lambda run, other: (
        (run / "wandb").mkdir(),
        (run / "wandb/settings").write_text("[default]\nbase_url = http://127.0.0.1:9\n"),
    ),
}


@pytest.mark.parametrize("case", LINKS)
def test_resume_refuses_a_run_that_leads_elsewhere(run, refused, case):
    LINKS[case](run, run.parent / "outside")
    before = outside(run)
    assert str(run) in refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert outside(run) == before


def test_links_inside_of_a_run_are_allowed(run):
    (run / "latest").symlink_to("csv")
    logs = run / "wandb/offline-run-1/logs"  # as W&B makes them
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(run.parent / "outside/file")
    (run / "wandb/latest-run").symlink_to("offline-run-1")
    (run / "wandb/debug.log").symlink_to("offline-run-1/logs/debug.log")
    require_own_files(run)
    (run / "wandb/offline-run-2").symlink_to(run.parent / "outside")
    with pytest.raises(ValueError, match="offline-run-2"):
        require_own_files(run)


def test_wandb_id_is_no_secret(tmp_path):
    (tmp_path / "secret").write_text("machine api.wandb.ai password x\n")
    (tmp_path / "wandb_id.txt").symlink_to(tmp_path / "secret")
    new = wandb_id(tmp_path)
    assert new == wandb_id(tmp_path) != wandb_id(tmp_path / "other")
    assert not (tmp_path / "wandb_id.txt").is_symlink()
    (tmp_path / "wandb_id.txt").write_text("../../evil id")
    assert len(wandb_id(tmp_path)) == 8
    assert Path(tmp_path / "secret").read_text().startswith("machine")


def test_a_run_with_wandb_is_resumed(train, tmp_path, monkeypatch):
    """W&B leaves links to its own logs in the run."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train(tmp_path / "run", "task=regression", "logger=wandb")
    before = (run / "wandb_id.txt").read_text()
    resume_it(f"resume={run}", "trainer.max_steps=3")
    assert resume.step_of(run / "checkpoints/last.ckpt") == 3
    assert (run / "wandb_id.txt").read_text() == before
