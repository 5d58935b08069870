"""Training runs from the command line to what lies in the run's folder."""

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest
import torch
from omegaconf import OmegaConf
from tiny import ON_CPU, TINY_DATA, TINY_SCENES, call, checkpoint_of, slow_after

import dpt
from dpt.data import DataError, Dataset
from dpt.data.scenes.dataset import CLASSES
from dpt.objectives.teacher import PseudoLabelTeacher, Teacher
from dpt.training import task
from dpt.training.fit import LabelledData, check_first_files, missing_labels
from dpt.types.samples import DatasetInfo

ROOT = Path(__file__).parents[2]
DEPTH = set(
    (
        "val/abs_rel val/rmse val/sq_rel val/rmse_log val/log10 val/silog val/delta1 val/delta2 "
        "val/delta3"
    ).split()
)
SEGMENTATION = {"val/miou", "val/pixel_accuracy", "val/mean_accuracy", "val/iou/ground"}
RUNS = {
    # overrides, metrics, heads, whether there are pictures
    "joint": (["task=joint"], DEPTH | SEGMENTATION, {"depth", "segmentation"}, True),
    "depth": (["task=depth"], DEPTH, {"depth"}, True),
    "relative": (["task=depth", "task.kind=relative"], DEPTH, {"depth"}, True),
    "segmentation": (["task=segmentation"], SEGMENTATION, {"segmentation"}, True),
    "classification": (["task=classification"], {"val/accuracy"}, {"classification"}, False),
    "regression": (["task=regression"], {"val/mae", "val/rmse", "val/r2"}, {"regression"}, False),
}


SLOW = ("depth", "segmentation", "classification")
KINDS = {k: pytest.param(k, marks=pytest.mark.slow if k in SLOW else ()) for k in RUNS}


@pytest.fixture(scope="module", params=KINDS.values())
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def run(kind, train, joint_run, tmp_path_factory):
    if kind == "joint":
        return joint_run
    return train(tmp_path_factory.mktemp(kind) / "run", *RUNS[kind][0])


def log_of(folder):
    return (folder / "log.txt").read_text()


# ------------------------------------------------------------------------------ every task

TASKS = sorted(p.stem for p in (ROOT / "conf/task").glob("*.yaml") if p.stem[0] != "_")


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_the_default_model(tmp_path, name):
    """The runs of other tests have a smaller model and another optimizer."""
    options = f"logger=none trainer.max_steps=2 task={name} run_dir={tmp_path}"
    call("train", *TINY_DATA, *TINY_SCENES, *ON_CPU, options)
    assert checkpoint_of(tmp_path)["global_step"] == 2


def test_the_folder_is_complete(kind, run):
    files = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()}
    pictures = {f for f in files if f.startswith("panels/")}
    assert files - pictures == set(
        "config.yaml log.txt metrics.json .lock checkpoints/last.ckpt checkpoints/best.ckpt".split()
    )
    wanted = {f"panels/{i:05d}.png" for i in range(5)} if RUNS[kind][3] else set()
    assert pictures == wanted
    assert "Scores on val" in log_of(run)
    assert str(run / "checkpoints") in log_of(run)


def test_the_configuration_is_resolved(run):
    text = (run / "config.yaml").read_text()
    assert "${" not in text
    cfg = OmegaConf.load(run / "config.yaml")
    assert cfg.run_dir == str(run)
    assert cfg.data.batch_size == 4
    assert cfg.trainer.max_steps == 2
    assert cfg.callbacks.checkpoint.dirpath == f"{run}/checkpoints"


def test_metrics_are_flat_and_named_as_documented(kind, run, metrics):
    found = metrics(run)
    assert RUNS[kind][1] <= set(found)
    assert all(v is None or isinstance(v, float | int | str) for v in found.values())
    assert all(isinstance(found[k], float) for k in RUNS[kind][1])
    for key in RUNS[kind][1] - {"val/r2"}:
        assert f"constant/{key}" in found
    for key, value in found.items():
        if key.rpartition("/")[2] in ("miou", "accuracy", "delta1", "pixel_accuracy"):
            assert 0 <= value <= 1


def test_a_relative_run_says_that_its_scores_are_aligned(kind, run, metrics):
    words = [v for v in metrics(run).values() if isinstance(v, str)]
    assert any("scale" in w for w in words) == (kind == "relative")


def test_the_checkpoint_is_plain_data_and_a_model(kind, run):
    content = checkpoint_of(run)
    assert content["global_step"] == 2
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")
    assert set(model.heads) == RUNS[kind][2]
    assert model.preprocessing.image_size == (32, 48)
    outputs = model(torch.zeros(1, 3, 40, 50))
    assert set(outputs) == RUNS[kind][2]
    for name, value in outputs.items():
        dense = name in ("depth", "segmentation")
        assert value.shape[-2:] == (40, 50) if dense else value.shape[0] == 1
    best = dpt.DPT.from_pretrained(run / "checkpoints/best.ckpt")
    assert best.config == model.config
    if kind == "joint":
        assert model.outputs["segmentation"].class_names == tuple(CLASSES)


@pytest.mark.parametrize("kind", [KINDS[k] for k in RUNS if RUNS[k][3]], indirect=True)
def test_pictures_show_what_was_predicted(kind, run):
    picture = cv2.imread(str(run / "panels/00000.png"))
    assert picture.shape[2] == 3
    assert picture.shape[1] >= 4 * 48  # photo, truth, prediction, error
    assert picture.std() > 10
    rows = picture.shape[0]
    assert rows >= 32 * len(RUNS[kind][2])


# that of the joint run: tests/evaluation/test_evaluate.py
@pytest.mark.parametrize("kind", [KINDS[k] for k in RUNS if k != "joint"], indirect=True)
def test_evaluating_the_checkpoint_gives_the_same_numbers(run, evaluate, scores, tmp_path):
    found = scores(evaluate(tmp_path, run / "checkpoints/last.ckpt"))
    expected = scores(run)
    assert found.keys() >= expected.keys()  # and errors by range, boundaries, ...
    for key, value in expected.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-6, abs=1e-6), key
        else:
            assert found[key] == value


# ------------------------------------------------------------------------------ repeatability


def test_the_same_seed_gives_the_same_numbers_with_and_without_workers(
    train, metrics, joint_run, tmp_path
):
    same = train(tmp_path / "same", "task=joint", "data.num_workers=1")
    other = train(tmp_path / "other", "task=joint", "seed=1")
    assert metrics(same) == metrics(joint_run)
    assert metrics(other) != metrics(joint_run)


# ------------------------------------------------------------------------------ length of a run


def steps_of(folder):
    return checkpoint_of(folder)["global_step"]


def test_time_ends_a_run_in_order(train, tmp_path, metrics):
    run = train(
        tmp_path,
        "task=regression trainer.max_steps=100000 trainer.max_time=00:00:00:01",
        "trainer.val_check_interval=100000",
    )
    steps = steps_of(run)
    assert 1 <= steps < 100000
    assert "val/mae" in metrics(run)
    assert (run / "checkpoints/best.ckpt").is_file()
    call("train", f"resume={run}")
    assert steps_of(run) == steps


@pytest.mark.slow
def test_overfitting_repeats_one_batch(train, tmp_path):
    run = train(
        tmp_path,
        "task=segmentation debug=overfit trainer.max_steps=4 optim.lr=0 logger=csv",
        "trainer.log_every_n_steps=1 task.objectives.segmentation.dropout=0",
    )
    losses = [float(row["train/loss"]) for row in rows_of(run) if row.get("train/loss")]
    assert len(losses) == 4
    assert max(losses) - min(losses) < 1e-5


# ------------------------------------------------------------------------------ own folders


def test_a_folder_with_partial_labels_and_several_sizes(
    train, evaluate, scores, dense_data, tmp_path
):
    run = train(tmp_path / "run", "task=joint", *dense_data)
    found = scores(run)
    assert {"val/miou", "val/abs_rel", "val/iou/class_2"} <= set(found)
    assert all(isinstance(found[k], float) for k in ("val/miou", "val/abs_rel"))
    assert len(list((run / "panels").glob("*.png"))) == 5
    # how images are batched makes no difference, though only those of one size are stacked
    one_by_one = (*dense_data, "data.batch_size=1")
    alone = scores(evaluate(tmp_path / "alone", run / "checkpoints/last.ckpt", *one_by_one))
    for key, value in found.items():
        if isinstance(value, float):
            assert alone[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_image_table(train, image_folder, tmp_path, metrics):
    run = train(tmp_path, "task=regression", "data=imagetable", f"data.root={image_folder}")
    found = metrics(run)
    assert "val/mae" in found
    # train values 0.5..3.5 have the mean 2; those of val are 0.5, 1.5, 2.5
    assert found["constant/val/mae"] == pytest.approx((1.5 + 0.5 + 0.5) / 3)


# ------------------------------------------------------------------------------ several runs


def test_a_sweep_numbers_its_runs(train, tmp_path):
    train(tmp_path / "sweep", "-m", "task=regression", "optim.lr=0.01,0.02")
    assert sorted(p.name for p in (tmp_path / "sweep").iterdir() if p.is_dir()) == ["0", "1"]
    for number, rate in (("0", 0.01), ("1", 0.02)):
        folder = tmp_path / "sweep" / number
        cfg = OmegaConf.load(folder / "config.yaml")
        assert (cfg.optim.lr, cfg.run_dir) == (rate, str(folder))
        assert (folder / "metrics.json").is_file()
        assert (folder / "checkpoints/last.ckpt").is_file()
        assert log_of(folder).count("Scores on val") == 1
    lines = log_of(folder).partition("Sweep")[2].splitlines()
    assert "val/mae" in lines[1]
    assert [line.split()[:2] for line in lines[3:5]] == [
        ["0", "optim.lr=0.01"],
        ["1", "optim.lr=0.02"],
    ]


# ------------------------------------------------------------------------------ loggers


def rows_of(folder):
    with (folder / "csv/version_0/metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_csv_logger(train, tmp_path):
    run = train(
        tmp_path,
        "task=joint logger=csv trainer.log_every_n_steps=1 seed=1e3 steps=2e0",
        "trainer.max_steps=-1",
    )
    assert "2 steps in" in log_of(run)  # whole numbers may be written as floats
    columns = {key for row in rows_of(run) for key, value in row.items() if value}
    losses = {"train/loss", "train/loss_depth", "train/loss_segmentation"}
    assert losses | {"val/miou", "val/abs_rel"} <= columns
    assert any(column.startswith("lr-") for column in columns)
    first = next(row for row in rows_of(run) if row["train/loss"])
    terms = ("train/loss_depth", "train/loss_segmentation", "train/loss_auxiliary")
    assert float(first["train/loss"]) == pytest.approx(
        sum(float(first[t]) for t in terms), rel=1e-4
    )


@pytest.mark.slow
def test_wandb_without_an_account(train, tmp_path, monkeypatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # no stored key
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run = train(tmp_path / "run", "task=joint", "logger=wandb")
    assert "not logged in" in log_of(run)
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))
    pictures = list((run / "wandb").rglob("*.jpg"))
    assert len(pictures) == 5  # at the only validation of a run of two steps
    assert (run / "metrics.json").is_file()


MISTAKES = [  # overrides, and what the message names
    ("task=contrastive augment=strong", "augment.views=2"),
    ("task=dino task/teacher=none", "task/teacher=self"),
    ("task=depth callbacks.freeze.parts=[encodr]", "callbacks.freeze.parts"),
    ("task=joint trainer.precision=bf16-true", "trainer.precision="),
    ("task=panoptic data=scenes data.things=[box]", "data.things"),
    ("task=panoptic data=folder data.root=. data.first_object=0", "data.first_object=0"),
    ("task=dino trainer.strategy=fsdp", "trainer.strategy=ddp"),
    ("optim=muon task=contrastive trainer.strategy=fsdp", "optim.kind=muon"),
    ("task=depth task/teacher=self", "task/teacher=self is for task=dino"),
    ("task=dino task.objectives.dino.temperature=0", "temperature=0"),
    ("task=depth task/teacher=trained task.teacher.path=nowhere.ckpt", "nowhere.ckpt"),
    ("task=depth task.teacher=ema", "task/teacher=ema"),
]


@pytest.mark.parametrize(("overrides", "names"), slow_after(9, MISTAKES))
def test_a_mistake_ends_a_run_by_one_line(train, tmp_path, refused, overrides, names):
    assert names in refused(train, tmp_path / "run", overrides)


@pytest.mark.slow
def test_precision_auto_is_what_the_machine_can(train, metrics, tmp_path):
    folder = train(tmp_path / "run", "task=joint", "trainer.precision=auto")
    picked = re.search(r"trainer.precision=auto: (\S+) on this machine", log_of(folder))
    assert picked is not None
    assert picked[1] in ("bf16-mixed", "32-true")
    assert metrics(folder)["val/abs_rel"] > 0


def test_one_rank_of_a_machine_reads_the_first_files(monkeypatch):
    """All of them under srun, which sets no LOCAL_RANK: rank 0 could not tell them of an error."""

    class Broken(Dataset):
        info = DatasetInfo(targets=("depth",))

        def __len__(self):
            return 1

        def __getitem__(self, index):
            raise DataError("broken")

    data = LabelledData(Broken(), Broken(), {}, Teacher())
    with pytest.raises(DataError, match="broken"):
        check_first_files(data, on_error="raise")
    monkeypatch.setenv("LOCAL_RANK", "1")
    check_first_files(data, on_error="raise")


def test_labels_that_no_image_has_are_missed():
    class Photos(Dataset):
        info = DatasetInfo(targets=("depth", "labels"))

        def __len__(self):
            return 40

        def __getitem__(self, index):
            return {"image": None, **({"labels": None} if index % 2 else {})}

    targets = {
        name: SimpleNamespace(target=name, remarks=lambda samples: ())
        for name in ("depth", "labels")
    }
    lines = [*missing_labels(LabelledData(Photos(), Photos(), targets, PseudoLabelTeacher()))]
    assert lines == ["depth: none of the 16 training images that were read has depth maps"]


def test_a_run_that_diverges_fails(train, metrics, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(task.base, "nonfinite_names", lambda outputs, labels: labels["name"])
    message = refused(train, tmp_path / "run", "task=depth")
    assert "error: the run has diverged: predictions that are not" in message
    assert metrics(tmp_path / "run")["nonfinite_predictions"] == 5
    assert not (tmp_path / "run/checkpoints/best.ckpt").exists()
    assert "best.ckpt is not replaced" in log_of(tmp_path / "run")
