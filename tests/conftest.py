"""Fixtures for all tests."""

import gc
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from photos import save_dense
from PIL import Image
from tiny import ON_CPU, TINY_DATA, TINY_RUN, TINY_SCENES, call, words_of

from dpt.files import SCHEMES

Run = Callable[..., Path]
with suppress(ImportError):  # other libraries import it, and Hydra closes handlers of others
    from absl.logging import get_absl_handler

    # it would close pytest's stream, and leaves those of the process alone
    get_absl_handler().python_handler.stream = sys.__stderr__
gc.disable()  # while modules are imported: what they make is kept


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; skips where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data sets in {folder}")
    return folder


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    """The project's log as an import leaves it: runs in earlier tests send it to their folders."""
    log = logging.getLogger("dpt")
    log.disabled, log.propagate = False, True
    log.setLevel(logging.INFO)  # Hydra leaves the root at ERROR
    log.handlers.clear()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _store_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets tests use fsspec's store in memory in place of ``s3://``."""
    monkeypatch.setattr("dpt.files.SCHEMES", (*SCHEMES, "memory"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def train() -> Run:
    """train(folder, *overrides): a tiny run; on scenes where the overrides name no data."""

    def run(folder: Path, *overrides: str) -> Path:
        overrides = words_of(*overrides)
        scenes = () if any(o.startswith("data=") for o in overrides) else TINY_SCENES
        flags = [o for o in overrides if o.startswith("-")]  # Hydra takes them in front alone
        rest = [o for o in overrides if not o.startswith("-")]
        groups = {"model": "dpt_tiny", "optim": "adamw"} | dict(
            o.split("=", 1) for o in rest if o.startswith(("model=", "optim="))
        )
        rest = [o for o in rest if not o.startswith(("model=", "optim="))]
        rest = [*(f"{name}={choice}" for name, choice in groups.items()), *rest]
        call("train", *flags, *TINY_RUN, *scenes, f"run_dir={folder}", *rest)
        return folder

    return run


@pytest.fixture(scope="session")
def evaluate() -> Run:
    """evaluate(folder, checkpoint, *overrides), on scenes where the overrides name no data."""

    def run(folder: Path, checkpoint: Path, *overrides: str) -> Path:
        overrides = words_of(*overrides)
        named = any(o.startswith("data=") for o in overrides)
        scenes = () if named else ("data=scenes", *TINY_SCENES)
        options = (*TINY_DATA, *ON_CPU, *scenes, *overrides)
        call("evaluate", f"checkpoint={checkpoint}", f"run_dir={folder}", *options)
        return folder

    return run


@pytest.fixture(scope="session")
def data_check() -> Callable[..., int]:
    """data_check(folder, *overrides): ``dpt data check`` into ``folder``; gives its exit code."""

    def run(folder: Path, *overrides: str) -> int:
        try:
            call("data", "check", f"run_dir={folder}", *overrides)
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    return run


@pytest.fixture(scope="session")
def score_files(dense_data) -> Run:
    """score_files(folder, predictions, *overrides), on ``dense_data`` unless ``data`` is given."""

    def run(folder: Path, predictions: Path, *overrides: str, data=dense_data) -> Path:
        options = ("data.num_workers=0", *data, *overrides)
        call("evaluate", f"predictions={predictions}", f"run_dir={folder}", *options)
        return folder

    return run


@pytest.fixture(scope="session")
def joint_run(train, tmp_path_factory) -> Path:
    """A finished run of task=joint on scenes."""
    return train(tmp_path_factory.mktemp("joint") / "run", "task=joint")


@pytest.fixture(scope="session")
def finished_run(train, tmp_path_factory) -> Path:
    """A finished run of task=regression, with a CSV file of its losses: not to be changed."""
    return train(tmp_path_factory.mktemp("finished") / "run", "task=regression", "logger=csv")


@pytest.fixture
def run_copy(finished_run, tmp_path) -> Path:
    """A copy of ``finished_run``."""
    return shutil.copytree(finished_run, tmp_path / "run")


@pytest.fixture(scope="session")
def joint_scores(evaluate, joint_run, tmp_path_factory) -> Path:
    """The evaluation of ``joint_run`` by the protocol that is used if none is named."""
    return evaluate(tmp_path_factory.mktemp("scores"), joint_run / "checkpoints/last.ckpt")


@pytest.fixture
def dpt_command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """dpt_command(*arguments): (exit code, stdout, stderr) of ``dpt ARGUMENTS``."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.delenv("DPT_DEBUG", raising=False)
        try:
            call(*arguments)
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """refused(function, *arguments): the one line with which a command ends, by exit code 1."""

    def run(function, *arguments, **options) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            function(*arguments, **options)
        assert stop.value.code == 1
        out, err = capsys.readouterr()
        assert "Traceback" not in out
        assert err.startswith("error: "), err
        assert len(err.splitlines()) == 1, err
        return err

    return run


def metrics_of(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.json").read_text())


def scores_of(folder: Path) -> dict[str, float]:
    """The model's own metrics of a run, baselines left out."""
    return {k: v for k, v in metrics_of(folder).items() if k.startswith("val/")}


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], dict[str, float]]:
    return metrics_of


@pytest.fixture(scope="session")
def scores() -> Callable[[Path], dict[str, float]]:
    return scores_of


@pytest.fixture(scope="session")
def dense_folder(tmp_path_factory) -> Path:
    """Photos of several sizes for data=folder: of six, two lack the mask and two the depth."""
    root = tmp_path_factory.mktemp("dense")
    lacking = {"masks": (0, 3), "depth": (1, 4)}
    save_dense(root, {"train": 6, "val": 5}, (40, 60), (52, 44), (32, 48), lacking=lacking)
    return root


@pytest.fixture(scope="session")
def dense_data(dense_folder) -> tuple[str, ...]:
    """The overrides that choose ``dense_folder``."""
    labels, depth = ("data.labels=masks", "data.num_classes=3"), ("data.depth=depth",)
    return ("data=folder", f"data.root={dense_folder}", *labels, *depth, "data.max_depth=10")


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    """Two classes for data=imagefolder, and the same images in a table for data=imagetable."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    for split, count in (("train", 4), ("val", 3)):
        lines = ["image,value"]
        for i in range(count):
            name = f"{split}/{'ab'[i % 2]}/{i}.png"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            photo = random.integers(0, 255, (36 + i, 50, 3), np.uint8)
            Image.fromarray(photo).save(root / name)
            lines.append(f"{name},{i + 0.5}")
        (root / f"labels_{split}.csv").write_text("\n".join(lines))
    return root
