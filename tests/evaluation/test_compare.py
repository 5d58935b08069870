"""dpt compare: whether a planted difference is found, and what is refused."""

import csv
import json
import shutil

import numpy as np
import pytest
from photos import save_picture
from tiny import call

from dpt.metrics import LeftOut

SEQUENCES = {"a": 20, "b": 12, "c": 8}
SIZE = (24, 32)


def frames():
    return [f"{name}_{k:03d}" for name, length in SEQUENCES.items() for k in range(length)]


def depth_of(name):
    """A plane whose slope depends on the frame."""
    number, rows = ord(name[0]) - ord("a"), np.linspace(2, 6, SIZE[0])[:, None]
    return (rows + number + 0.02 * int(name[2:]) + np.zeros(SIZE)).astype(np.float32)


def noise(seed, correlation=0.9):
    """Log errors of each frame, of which those of a sequence are correlated."""
    rng, errors = np.random.default_rng(seed), {}
    for name, length in SEQUENCES.items():
        value = rng.normal()
        for k in range(length):
            value = correlation * value + np.sqrt(1 - correlation**2) * rng.normal()
            errors[f"{name}_{k:03d}"] = value
    return errors


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """40 images of three sequences, with depth: the overrides that name them."""
    root = tmp_path_factory.mktemp("sequences")
    rng = np.random.default_rng(0)
    (root / "depth/val").mkdir(parents=True)
    for name in frames():
        save_picture(root / f"images/val/{name}.png", rng.integers(0, 255, (*SIZE, 3), np.uint8))
        np.save(root / f"depth/val/{name}.npy", depth_of(name))
    options = {"root": root, "depth": "depth", "max_depth": 20, "depth_scale": 1}
    return ("data=folder", *(f"data.{key}={value}" for key, value in options.items()))


@pytest.fixture(scope="module")
def scored(score_files, scenes, tmp_path_factory):
    """scored(errors, *overrides): the evaluation of predictions with these log errors."""

    def run(errors, *overrides):
        root = tmp_path_factory.mktemp("predictions")
        for name, error in errors.items():
            np.save(root / f"{name}.npy", (depth_of(name) * np.exp(error)).astype(np.float32))
        return score_files(root.with_name(f"{root.name}_scores"), root, *overrides, data=scenes)

    return run


def errors_of(scale, own, seed):
    """Errors that two models share because of the images, and smaller ones of each model."""
    shared, of_model = noise(0), noise(seed)
    return {k: scale * 0.1 * (2 + 0.3 * v + own * of_model[k]) for k, v in shared.items()}


@pytest.fixture(scope="module")
def a(scored):
    return scored(errors_of(1, 0.01, 1))


def compared(a, b, out):
    call("compare", a, b, "--out", out)
    return json.loads((out / "comparison.json").read_text())


def test_improvement_by_two_percent_is_found(scored, a, tmp_path, capsys):
    b = scored(errors_of(0.98, 0.01, 2))
    values = compared(a, b, tmp_path / "out")
    assert values["verdict/abs_rel"] == "better"
    assert values["difference/abs_rel"] == values["b/abs_rel"] - values["a/abs_rel"]
    assert values["difference/abs_rel"] == pytest.approx(-0.02 * values["a/abs_rel"], rel=0.15)
    assert values["ci95_low/abs_rel"] < values["difference/abs_rel"] < values["ci95_high/abs_rel"]
    assert values["ci95_high/abs_rel"] < 0
    assert (values["images"], values["blocks"]) == (40, 3)
    assert "over 3 sequences" in capsys.readouterr().out
    assert "Images that moved most" in (tmp_path / "out/report.html").read_text()
    rows = [*csv.DictReader((tmp_path / "out/per_image.csv").open())]
    gains = [float(row["better by"]) for row in rows]
    assert len(rows) == 40
    assert gains == sorted(gains, reverse=True)
    assert float(rows[0]["A"]) - float(rows[0]["B"]) == pytest.approx(gains[0])
    back = compared(b, a, tmp_path / "back")
    assert back["verdict/abs_rel"] == "worse"
    assert back["difference/abs_rel"] == -values["difference/abs_rel"]


@pytest.mark.parametrize(("planted", "low", "high"), [(0.0, 0.02, 0.08), (0.02, 0.85, 1.0)])
def test_differences_are_found_as_often_as_intervals_say(planted, low, high):
    """40 correlated frames of three sequences, whose difficulty both models share."""
    sizes, found, repeats = np.array([*SEQUENCES.values()]), 0, 1000
    edges = [0, *np.cumsum(sizes)[:-1]]
    for seed in range(repeats):
        shared, one, two = (np.array([*noise(3 * seed + k).values()]) for k in range(3))
        difficulty = 0.1 * np.exp(0.2 * shared)
        gain = difficulty * ((1 - planted) * np.exp(0.003 * two) - np.exp(0.003 * one))
        without = (gain.sum() - np.add.reduceat(gain, edges)) / (40 - sizes)
        interval = LeftOut({"x": gain.mean()}, {"x": without}, sizes).interval("x")
        found += not interval.low <= 0 <= interval.high
    assert low <= found / repeats <= high


def test_other_data_splits_and_protocols_are_refused(scored, a, scenes, refused, tmp_path):
    errors = errors_of(1, 0.01, 1)
    others = {
        "protocol.max_depth (20.0 and 5.0)": ("protocol=depth", "protocol.max_depth=5"),
        "data.max_depth (20 and 7)": ("data.max_depth=7",),
        "blocks (sequence and image)": ("blocks=image",),
    }
    for says, overrides in others.items():
        message = refused(call, "compare", a, scored(errors, *overrides), "--out", tmp_path / "x")
        assert says in message
        assert str(a) in message
    assert not (tmp_path / "x").exists()


def test_one_block_leaves_it_open(scored, tmp_path, capsys):
    one, two = (scored(errors_of(scale, 0.01, 1), "blocks=val") for scale in (1, 0.9))
    assert compared(one, two, tmp_path / "out")["verdict/abs_rel"] == "unknown"
    assert "blocks=" in capsys.readouterr().out.splitlines()[-1]


def test_folders_that_are_no_evaluation_are_refused(a, refused, tmp_path, dense_folder):
    assert "left_out.csv" in refused(call, "compare", a, dense_folder)
    broken = shutil.copytree(a, tmp_path / "broken")
    text = (broken / "left_out.csv").read_text()
    for damaged in ("", text[: len(text) // 2], text.replace("40", "41", 1), "\0"):
        (broken / "left_out.csv").write_text(damaged)
        assert "left_out.csv" in refused(call, "compare", a, broken)
    (broken / "left_out.csv").write_text(text)
    (broken / "config.yaml").write_text("split: val\n")
    assert "config.yaml" in refused(call, "compare", a, broken)


def test_checkpoints_are_compared(larger_scores, joint_scores, tmp_path):
    values = compared(joint_scores, larger_scores, tmp_path / "out")
    assert values["b/miou"] - values["a/miou"] == values["difference/miou"]
    assert values["blocks"] == 5
