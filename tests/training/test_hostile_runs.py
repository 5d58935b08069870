"""A run's folder from somebody else: resuming it executes, reveals and changes nothing."""

import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from test_resume import resume_it
from tiny import slow_after, step_of

from dpt.config.resumed_config import resumed_config, run_in
from dpt.files import require_own_files
from dpt.training.loggers import wandb_id

SECRET = "s3cr3t-of-the-environment"


@pytest.fixture
def run(run_copy, tmp_path, monkeypatch):
    """A copy of the finished run, beside a file that nothing may touch."""
    monkeypatch.setenv("DPT_SECRET", SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("mine")
    return run_copy


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
        "interpolation": ["task.name=${oc.env:DPT_SECRET}", "model.name=${oc.env:DPT_SECRET}"],
    }


OVERRIDES = "interpolation pickle groups abbreviated plug-in searchpath launcher".split()


@pytest.mark.parametrize("case", slow_after(3, OVERRIDES))
def test_resume_executes_no_stored_override(run, monkeypatch, tmp_path, case):
    mark = tmp_path / "executed"
    monkeypatch.setenv("DPT_MARK", str(mark))
    overrides = hostile_overrides(run)[case]
    edit(run, lambda values: values.update(overrides=overrides))
    resume_it(f"resume={run}", "trainer.max_steps=3")
    assert step_of(run / "checkpoints/last.ckpt") == 3
    assert not mark.exists()
    assert SECRET not in (run / "log.txt").read_text()


INTERPOLATIONS = [
    "$\\x7boc.env:DPT_SECRET}",
    "$\\u007boc.env:DPT_SECRET}",
    "${oc.env:DPT_SECRET}",
    "\\\\${oc.env:DPT_SECRET}",
    "${oc.decode:${oc.env:DPT_SECRET}}",
]


@pytest.mark.parametrize("text", slow_after(1, INTERPOLATIONS))
@pytest.mark.parametrize("key", slow_after(1, ["  name:", "  - name:"]))
def test_resume_resolves_nothing_of_a_file(run, capfd, text, key):
    """As the name of the model, and as a name of W&B."""
    path = run / "config.yaml"
    values = yaml.safe_load(path.read_text())
    if key == "  name:":
        values["model"]["name"] = "PLACE"
    else:
        wandb = {"kind": "wandb", "save_dir": str(run)}
        values["logger"] = {"wandb": wandb | {"project": "p", "name": "PLACE", "tags": ["PLACE"]}}
    path.write_text(yaml.safe_dump(values).replace("PLACE", f'"{text}"'))
    resume_it(f"resume={run}", "trainer.max_steps=3")
    out = capfd.readouterr()
    assert SECRET not in out.out + out.err
    for file in run.rglob("*"):
        assert SECRET not in file.name
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file


NODES = [  # a logger or callback that a file must not choose; PLACE is outside of the run
    ("logger", {"_target_": "lightning.pytorch.loggers.MLFlowLogger"}),
    ("logger", {"kind": "WandbLogger", "project": "stolen", "offline": True}),
    ("logger", {"kind": "csv", "save_dir": "PLACE"}),
    ("logger", {"kind": "wandb", "settings": {"api_key": "k" * 40}, "save_dir": "."}),
    ("callbacks", {"_target_": "lightning.pytorch.callbacks.ModelCheckpoint", "dirpath": "PLACE"}),
    ("callbacks", {"kind": "LambdaCallback"}),
    ("callbacks", {"kind": "panels", "folder": "PLACE"}),
    ("callbacks", {"kind": "panels", "folder": "a/../../b"}),
]


@pytest.mark.parametrize(("group", "settings"), NODES)
def test_resume_refuses_a_logger_or_callback_of_a_file(run, refused, group, settings):
    elsewhere = str(run.parent / "outside")
    settings = {k: elsewhere if v == "PLACE" else v for k, v in settings.items()}
    edit(run, lambda values: values[group].update(x=settings))
    before = outside(run)
    assert f"{group}.x." in refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert outside(run) == before


def test_resume_refuses_files_elsewhere(run, refused):
    edit(run, lambda values: values["model"].update(weights=str(run.parent / "outside/w.pt")))
    shutil.rmtree(run / "checkpoints")
    assert "model.weights" in refused(resume_it, f"resume={run}", "trainer.max_steps=3")


def test_resume_takes_a_callback_that_is_typed(run):
    name = "lightning.pytorch.callbacks.DeviceStatsMonitor"
    resume_it(f"resume={run}", f"+callbacks.x._target_={name}", "trainer.max_steps=3")
    assert step_of(run / "checkpoints/last.ckpt") == 3


LOOPS = ("loops", "fit_loop")
OPTIMIZER = (*LOOPS, "epoch_loop.automatic_optimization.optim_progress", "optimizer", "step")
RANKS = ("dpt_run", "ranks")
MOMENTS = ("optimizer_states", 0, "state", 0)
STATES = [  # where in a checkpoint, and what stands there; None: nothing
    (("callbacks", "RunCheckpoints"), 5),
    (("global_step",), 10**12),
    (("dpt_run", "batches"), 1.5),
    (("state_dict",), None),
    (RANKS, []),
    (RANKS, [{}]),
    (("dpt_run", "batches"), -1),
    (("dpt_run",), None),
    (("callbacks",), []),
    (("loops",), None),
    ((*LOOPS, "epoch_loop.batch_progress"), {}),
    ((*LOOPS, "state_dict"), {"combined_loader": ["x"]}),
    ((*OPTIMIZER, "total", "completed"), "x"),
    ((*OPTIMIZER, "total", "completed"), 10**12),
    (("global_step",), None),
    (("global_step",), "x"),
    (("optimizer_states",), None),
    (("optimizer_states",), [{}]),
    (MOMENTS, 5),
    ((*MOMENTS, "exp_avg"), torch.zeros(2)),
    (("pytorch-lightning_version",), "0.0.1"),
    (("skipped_steps",), None),
    (("skipped_steps",), 10**30),
    (("state_dict",), []),
]


@pytest.mark.parametrize(("keys", "value"), slow_after(5, STATES))
def test_resume_refuses_a_checkpoint_of_odd_states(run, refused, keys, value):
    *parents, last = keys
    for path in (run / "checkpoints").iterdir():
        node = values = torch.load(path, weights_only=True)
        for name in parents:
            node = node[name]
        node[last] = value
        if value is None:
            del node[last]
        torch.save(values, path)
    message = refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert "resume: other parameters" in message if "exp_avg" in keys else ".ckpt" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("data.sets", {"a": None}), ("data.sets", ["a"]), ("trainer.max_time", {"days": 10**12})],
)
def test_resume_refuses_odd_values_by_one_line(run, refused, key, value):
    group, name = key.split(".")
    edit(run, lambda values: values[group].update({name: value}))
    assert group in refused(resume_it, f"resume={run}", "trainer.max_steps=3")


@pytest.mark.parametrize(
    ("name", "link", "target"),
    [
        ("csv", "symlink_to", ""),
        ("csv/version_1", "symlink_to", ""),
        (".lock", "symlink_to", "file"),
        (".lock", "hardlink_to", "file"),
        ("log.txt", "hardlink_to", "file"),
    ],
)
def test_resume_refuses_a_run_that_leads_elsewhere(run, refused, name, link, target):
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    getattr(path, link)(run.parent / "outside" / target)
    before = outside(run)
    assert str(run) in refused(resume_it, f"resume={run}", "trainer.max_steps=3")
    assert outside(run) == before


@pytest.mark.parametrize("name", ["panels.fifo", "wandb/settings"])
def test_resume_refuses_odd_files(run, refused, name):
    (run / name).parent.mkdir(exist_ok=True)
    if name == "panels.fifo":
        os.mkfifo(run / name)
    else:
        (run / name).write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    assert str(run) in refused(resume_it, f"resume={run}", "trainer.max_steps=3")


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
    assert step_of(run / "checkpoints/last.ckpt") == 3
    assert (run / "wandb_id.txt").read_text() == before


def test_a_file_starts_no_more_processes_than_cores(run):
    cores = os.cpu_count()

    def change(values):
        values["data"]["num_workers"] = 1000
        values["trainer"] |= {"devices": "1000", "profiler": "advanced"}

    edit(run, change)
    values = run_in(run)
    assert values["data"]["num_workers"] == values["trainer"]["devices"] == cores
    assert values["trainer"]["profiler"] is None
    edit(run, lambda values: values["trainer"].update(devices=1))
    assert resumed_config(run, ["data.num_workers=1000"])["data"]["num_workers"] == 1000
    edit(run, lambda values: values.update(trainer=None))
    assert run_in(run)["trainer"] is None
