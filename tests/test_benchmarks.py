"""The race against other implementations: what it measures is what it says."""

import pytest
import torch
from benchmarks import loader as bench_loader
from benchmarks.lineup import make_contenders
from benchmarks.models import LiveBytes, bench, saved_bytes
from benchmarks.parts import bench_metrics
from benchmarks.profiling import kind_of, profile_model
from benchmarks.rivals import make_ours
from benchmarks.switches import SWITCHES, bench_switches
from torch import nn

KB = 1024


def rows_of(table):
    """The table's rows, by contender: {name: {column: text}}."""
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: dict(zip(lines[0], row, strict=True)) for row in lines[2:]}


def test_live_bytes_are_the_most_held_at_once():
    x = torch.zeros(256)  # made before: does not count
    with LiveBytes() as live:
        a = x + 1
        b = a.view(16, 16)  # the same memory
        b = torch.zeros(512)
        del a
        b = b + torch.zeros(512)
    assert live.peak == 3 * 2 * KB
    assert live.now == 2 * KB


def test_saved_bytes_count_each_storage_once_and_no_parameter():
    layer, x = nn.Linear(256, 4, bias=False), torch.zeros(1, 256, requires_grad=True)
    assert saved_bytes(lambda: layer(x) + layer(x), layer) == KB


@pytest.mark.peers
@pytest.mark.parametrize("task", ["depth", "segmentation"])
def test_rivals_take_turns_and_agree(task):
    table = bench(
        model="dpt_tiny",
        task=task,
        size=(64, 64),
        batch=2,
        dtype="fp32",
        against=["transformers", "smp"],
        train=True,
        rounds=1,
        device="cpu",
    )
    rows = rows_of(table)
    assert set(rows) == {"dpt", "transformers", "smp*"}
    assert rows["dpt"]["forward / ours"] == rows["dpt"]["step / ours"] == "1.00"
    assert float(rows["transformers"]["difference"]) <= 1e-5
    assert rows["smp*"]["difference"] == ""  # another network
    assert float(rows["dpt"]["saved MiB"]) < float(rows["transformers"]["saved MiB"])
    assert all(float(row["forward MiB"]) > 0 for row in rows.values())


def test_an_unknown_rival_is_refused():
    ours = make_ours("dpt_tiny", "depth", (32, 32))
    with pytest.raises(
        ValueError, match="--against midas: choose from dpt, dpt-optimized, dpt-onnx"
    ):
        make_contenders(ours, "depth", ["midas"])


def test_parts_are_timed_beside_the_usual_ways():
    metrics = bench_metrics(rounds=1)
    assert metrics.count("| 1.00 |") == 2


@pytest.mark.parametrize("maps", ["labels", "depth"])
def test_the_loader_is_timed_beside_the_usual_ways(monkeypatch, maps):
    monkeypatch.setattr(bench_loader, "MADE", ((maps, (64, 96)),))
    monkeypatch.setattr(bench_loader, "AT_ONCE", 2)
    title, _, table = bench_loader.bench_data(root=None, size=(48, 64), rounds=1).partition("\n\n")
    assert title == f"96 × 64 with {maps}"
    rows = rows_of(table)
    assert list(rows) == [
        "dpt", "cv2 + albumentations", "PIL + torchvision v2", "dpt, data.cache=true"
    ]  # fmt: skip
    assert all(float(row["samples/s"]) > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("task", ["depth", "segmentation"])
def test_onnx_runtime_takes_part(task):
    pytest.importorskip("onnxruntime")
    ours = make_ours("dpt_tiny", task, (64, 64))
    line_up = make_contenders(ours, task, ["dpt-onnx", "transformers-onnx"])
    for contender in line_up:
        contender.model.eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted, *found = (contender.predict(images) for contender in line_up)
    for out in found:
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="compared in fp32"):
        line_up[1].predict(images.bfloat16())
    with pytest.raises(ValueError, match="ONNX Runtime cannot be compiled once more"):
        make_contenders(ours, task, ["dpt-onnx-compile"])


@pytest.mark.parametrize("task", ["depth", "segmentation"])
def test_a_profile_names_what_is_large(task):
    tables = profile_model(
        model="dpt_tiny", task=task, size=(64, 64), batch=2, dtype="fp32", rounds=1, device="cpu"
    )
    forward, training = (rows_of(table) for table in tables.split("\n\n"))
    assert {"matrix product", "convolution", "attention", "normalisation"} <= set(forward)
    assert set(forward) | {"optimiser"} <= set(training)
    assert "loss" in training or task == "depth"  # L1 is a handful of sums
    for table in (forward, training):
        assert sum(float(row["share"].rstrip("%")) for row in table.values()) == pytest.approx(
            100, abs=1
        )


def test_kinds_of_operations():
    kinds = {
        "aten::addmm": "matrix product",
        "aten::_slow_conv2d_backward": "convolution",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
        "aten::native_batch_norm_backward": "normalisation",
        "aten::upsample_bilinear2d": "upsampling",
        "aten::gelu_backward": "activation",
        "aten::copy_": "copies and layout",
        "aten::add_": "sums and products",
        "aten::empty": "other",
    }
    assert {name: kind_of([name]) for name in kinds} == kinds
    assert kind_of(["aten::mul_", "Optimizer.step#AdamW.step"]) == "optimiser"
    assert kind_of(["aten::copy_", "_EnlargedCrossEntropy"]) == "loss"


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_switches_on_a_gpu_that_is_not_there():
    with pytest.raises(ValueError, match="--device cuda: this machine has none"):
        bench_switches(model="dpt_tiny", task="depth", size=(64, 64), batch=1, rounds=1,
                       device="cuda")  # fmt: skip


def test_switches_are_timed_beside_none_of_them():
    table = bench_switches(
        model="dpt_tiny",
        task="depth",
        size=(64, 64),
        batch=2,
        rounds=1,
        device="cpu",
        names=set(SWITCHES) - {"model.compile=true"},  # a minute of compiling
    )
    rows = rows_of(table)
    plain = rows["none of them"]
    fewer = rows["`model.checkpoint_activations=true`"]
    assert plain["time / none"] == "1.00"
    assert float(fewer["saved MiB"]) < float(plain["saved MiB"])
    assert float(fewer["peak MiB"]) < float(plain["peak MiB"])
    assert float(rows["`trainer.precision=bf16-mixed`"]["step ms"]) > 0
