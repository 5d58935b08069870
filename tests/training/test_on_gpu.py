"""Training and prediction on a GPU; ``DEVICE=cpu pytest -m gpu`` rehearses the tests."""

import os

import numpy as np
import pytest
import test_resume
import torch
from test_ddp import finish, start
from test_fit import TASKS
from test_fsdp import ON_CPU as FSDP_ON_CPU
from tiny import TINY_DATA, TINY_SCENES, TINY_VIT, call, checkpoint_of, small_model

import dpt

pytestmark = pytest.mark.gpu
OPTIONS = (*TINY_VIT, *TINY_DATA, *TINY_SCENES, "optim=adamw logger=none")


@pytest.fixture(scope="module", autouse=True)
def device():
    name = os.environ.get("DEVICE", "cuda")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return name


@pytest.fixture
def accelerator(device):
    return f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains_on_a_gpu(task, accelerator, tmp_path, metrics):
    options = (*TINY_DATA, *TINY_SCENES, accelerator)
    call("train", *options, f"task={task} logger=none trainer.max_steps=2 run_dir={tmp_path}")
    checkpoint = checkpoint_of(tmp_path)
    assert checkpoint["global_step"] == 2
    assert all(torch.isfinite(value).all() for value in checkpoint["state_dict"].values())
    assert metrics(tmp_path)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_resumed_run_on_a_gpu_is_the_same_bit_for_bit(
    device, accelerator, tmp_path, precision, monkeypatch
):
    """With the deterministic kernels, without which no two runs on a GPU are equal."""
    if device == "cpu" and precision == "bf16-mixed":
        pytest.skip("the rehearsal on a CPU is in float32")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    options = (accelerator, f"trainer.precision={precision}", "trainer.deterministic=true")
    finish(test_resume.start(f"run_dir={tmp_path / 'whole'}", *options))
    killed = tmp_path / "killed"
    test_resume.start_and_kill(killed, 4, *options)
    finish(test_resume.start(f"resume={killed}", *options))
    test_resume.assert_same_run(killed, tmp_path / "whole")


def test_a_compiled_model_trains_on_a_gpu(accelerator, tmp_path):
    """Its dropout draws other numbers than that of eager mode, so that weights are not compared."""
    steps = ("model.compile=true trainer.max_steps=3", f"run_dir={tmp_path}")
    finish(start("train.py", *OPTIONS, accelerator, "task=joint", *steps))
    checkpoint = checkpoint_of(tmp_path)
    assert checkpoint["global_step"] == 3
    assert all(torch.isfinite(value).all() for value in checkpoint["state_dict"].values())


def test_fsdp_with_one_process_takes_the_steps_of_ddp(device, accelerator, tmp_path, monkeypatch):
    if device == "cpu":
        (tmp_path / "fsdp_on_cpu.py").write_text(FSDP_ON_CPU)
        monkeypatch.setenv("DPT_PLUGINS", str(tmp_path / "fsdp_on_cpu.py"))
    options = (*OPTIONS, accelerator, "task=joint trainer.precision=32-true trainer.devices=1")
    states = []
    for strategy in ("ddp", "fsdp"):
        folder = tmp_path / strategy
        steps = ("trainer.max_steps=3", f"trainer.strategy={strategy}", f"run_dir={folder}")
        finish(start("train.py", *options, *steps))
        states.append(checkpoint_of(folder)["state_dict"])
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_predicts_nearly_the_same_on_a_gpu(device, precision):
    if device == "cpu" and precision == "fp16":
        pytest.skip("fp16 is for GPUs")
    model, random = small_model(), np.random.default_rng(0)
    images = [random.integers(0, 256, (60, 90, 3), np.uint8) for _ in range(3)]
    exact = dpt.Predictor(model, device="cpu")(images)
    rough = dpt.Predictor(model, device=device, precision=precision, batch_size=2)(images)
    for found, expected in zip(rough, exact, strict=True):
        assert found.unit == expected.unit == "metres"
        assert found.depth.dtype == np.float32
        np.testing.assert_allclose(found.depth, expected.depth, rtol=0.03, atol=0.03)


def test_dpt_predict_and_evaluate_run_on_a_gpu(device, accelerator, tmp_path, metrics, joint_run):
    checkpoint = joint_run / "checkpoints/last.ckpt"
    options = (*TINY_DATA, "data=scenes", *TINY_SCENES, accelerator)
    call("evaluate", f"checkpoint={checkpoint}", f"run_dir={tmp_path / 'scores'}", *options)
    assert np.isfinite(metrics(tmp_path / "scores")["val/abs_rel"])
    panels = [str(path) for path in sorted((joint_run / "panels").glob("*.png"))]
    call("predict", checkpoint, *panels, "--out", tmp_path / "out", "--device", device)
    assert len(list((tmp_path / "out/depth").glob("*.png"))) == len(panels) > 0
