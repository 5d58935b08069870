"""Benchmarks against other implementations measure what they say."""

import pytest
import torch
from benchmarks import originals, parts
from benchmarks.contenders import make_contenders, make_ours
from benchmarks.models import LiveBytes, bench, kept_bytes
from torch import nn
from torch.utils.checkpoint import checkpoint

KB = 1024


@pytest.mark.parametrize("sets", [8, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", originals.COMPARISONS)
def test_scores_equal_those_of_the_originals(kind, sets):
    for name, (count, largest) in originals.differences(kind, sets, seed=1).items():
        assert count > sets / 8, name
        assert largest < 1e-6, name


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


def test_kept_bytes_count_the_inputs_of_recomputed_parts():
    layer, x = nn.Linear(256, 256, bias=False), torch.zeros(1, 256, requires_grad=True)

    def forward(recompute):
        h = x * 2.0  # kept by the layer for its weight's gradient, in both forms
        if recompute:
            return checkpoint(lambda h: layer(h).sigmoid(), h, use_reentrant=False).sum()
        return layer(h).sigmoid().sum()

    scalar = 4
    assert kept_bytes(lambda: forward(False)) == 2 * KB + scalar  # h and the sigmoid
    assert kept_bytes(lambda: forward(True)) == KB + scalar  # h alone


@pytest.mark.peers
@pytest.mark.parametrize("task", ["depth", pytest.param("segmentation", marks=pytest.mark.slow)])
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
    assert rows["dpt"]["forward / ours"] == rows["dpt"]["step / ours"] == "1"
    assert float(rows["transformers"]["difference"]) <= 1e-5
    assert rows["smp*"]["difference"] == ""  # another network
    assert float(rows["transformers"]["kept / theirs"]) < 0.8
    assert all(float(row["forward MiB"]) > 0 for row in rows.values())


def test_an_unknown_rival_is_refused():
    with pytest.raises(ValueError, match="--against midas: choose from dpt, dpt-optimized"):
        make_contenders(make_ours("dpt_tiny", "depth", (32, 32)), "depth", ["midas"])


def test_the_loader_is_timed_beside_the_usual_ways(monkeypatch):
    monkeypatch.setattr(parts, "MADE", (("depth", (64, 96)),))
    monkeypatch.setattr(parts, "SAMPLES", 2)
    title, _, table = parts.bench_data(root=None, size=(48, 64), rounds=1).partition("\n\n")
    assert title == "96 × 64 with depth"
    rows = rows_of(table)
    assert list(rows)[:3] == ["dpt", "cv2 + albumentations", "PIL + torchvision v2"]
    assert all(float(row["samples/s"]) > 0 for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["depth", "segmentation"])
def test_onnx_runtime_takes_part(task):
    pytest.importorskip("onnxruntime")
    ours = make_ours("dpt_tiny", task, (64, 64))
    contenders = make_contenders(ours, task, ["dpt-onnx"])
    for contender in contenders:
        contender.model.eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected, predicted = (contender.predict(images) for contender in contenders)
    torch.testing.assert_close(predicted, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="compared in fp32"):
        contenders[1].predict(images.bfloat16())
    with pytest.raises(ValueError, match="cannot be compiled"):
        make_contenders(ours, task, ["dpt-onnx-compile"])
