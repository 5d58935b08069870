"""Ground truth without metres: inverse depth of unknown scale and shift; and stereo disparity."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from depth_trees import configured
from photos import save_picture
from scipy.stats import spearmanr
from tiny import call

from dpt.config.build import make_eval_loader
from dpt.config.compose import compose
from dpt.config.schema import RunConfig
from dpt.data import DataError, FolderDataset, MixDataset
from dpt.data.datasets.files import SCORED_RATIO
from dpt.data.formats.rules import FARTHEST, DepthRule, Disparity
from dpt.data.layouts import detect
from dpt.data.loading import LoaderSettings
from dpt.data_check import examine
from dpt.metrics import Protocol
from dpt.objectives import DepthObjective
from dpt.predict import Predictor
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.preprocessing import Preprocessing

INVERSE = {"depth": "depth", "depth_kind": "inverse"}
RELATIVE = OutputSpec("depth", "depth", unit="relative inverse depth")
METRIC = OutputSpec("depth", "depth", unit="m")
rng = np.random.default_rng(0)


def say(text: str) -> None:
    """Prints nothing."""


def stored(metres: np.ndarray, bits: int) -> np.ndarray:
    """Inverse depth of a map, from 1 at the farthest pixel to the largest value; else 0."""
    inverse = np.divide(1, metres, out=np.zeros(metres.shape), where=metres > 0)
    low, high = inverse[metres > 0].min(), inverse.max()
    steps = 2**bits - 2
    values = 1 + np.rint((inverse - low) / (high - low) * steps)
    return np.where(metres > 0, values, 0).astype(f"u{bits // 8}")


def write(root: Path, maps: list[np.ndarray], split: str = "train", suffix: str = ".png") -> Path:
    """Saves maps with images whose brightness is inverse depth."""
    for k, values in enumerate(maps):
        grey = np.repeat((255.0 * values / values.max()).astype(np.uint8)[..., None], 3, axis=2)
        save_picture(root / f"images/{split}/{k:03}.png", grey)
        path = root / f"depth/{split}/{k:03}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if suffix == ".npy":
            np.save(path, values)
        else:
            save_picture(path, values)
    return root


def slope(seed: int, shape: tuple[int, int] = (32, 48)) -> np.ndarray:
    """Metres that fall from top to bottom, with a nearer box."""
    random = np.random.default_rng(seed)
    metres = np.linspace(8, 2, shape[0])[:, None] + random.uniform(0, 0.05, shape)
    top, left = random.integers(0, [shape[0] // 2, shape[1] // 2])
    metres[top : top + 12, left : left + 16] *= 0.5
    metres[0, 0] = 0
    return metres


def one(root: Path, values: np.ndarray, *, suffix: str = ".png", **options) -> FolderDataset:
    write(root, [values], suffix=suffix)
    return FolderDataset(root=root, split="train", **{**INVERSE, **options})


# --------------------------------------------------------------------------------- the rule


def test_depth_is_in_multiples_of_the_nearest():
    raw = np.array([[0, 50, 100, 200]], np.uint8)
    depth, valid = DepthRule(has_metres=False)(raw)
    assert depth.dtype == np.float32
    assert depth.tolist() == [[0, 4, 2, 1]]
    assert valid.tolist() == [[False, True, True, True]]
    depth, valid = DepthRule(has_metres=False, invalid=[])(raw)
    assert valid.all()
    assert depth.tolist() == [[pytest.approx(FARTHEST), 4, 2, 1]]
    depth, valid = DepthRule(has_metres=False, invalid=[0, 200])(raw)
    assert depth.tolist() == [[0, 2, 1, 0]]
    floats = np.array([[np.nan, np.inf, -1, 0.5, 0.25]], np.float32)
    depth, valid = DepthRule(has_metres=False, invalid=[])(floats)
    assert depth.tolist() == [[0, 0, 0, 1, 2]]
    for empty in (np.zeros((2, 2), np.uint16), np.full((2, 2), np.nan)):
        assert not DepthRule(has_metres=False, invalid=[])(empty)[1].any()


@pytest.mark.parametrize(("bits", "step"), [(8, 1 / 255), (16, 1 / 65535)])
@pytest.mark.parametrize("name", ["kitti", "redwood"])
def test_inverse_of_real_depth_comes_back(shared_data, tmp_path, name, bits, step):
    """8 and 16 bit copies of KITTI and of Redwood: inverse depth is right to half a step."""
    (path, *_) = sorted((shared_data / "formats" / name / "depth").glob("*.png"))
    scale = 1 / 256 if name == "kitti" else 0.001
    metres, valid = DepthRule(scale=scale)(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
    dataset = one(tmp_path, stored(metres, bits))
    sample = dataset[0]
    dataset.check(sample)
    assert np.array_equal(sample["valid"], valid)
    assert sample["depth"][valid].min() == 1
    inverse, true = 1 / sample["depth"][valid], 1 / metres[valid]
    expected = (true - true.min()) / np.ptp(true) * (1 - step) + step
    assert np.abs(inverse - expected).max() <= 0.51 * step
    assert dataset.info.has_metres is False
    assert dataset.info.max_depth == SCORED_RATIO


# ---------------------------------------------------------------------------------- disparity


def test_disparity_becomes_metres_by_hand():
    disparity = Disparity(baseline=0.5, focal=700)
    raw = np.array([[0, 256, 2560]], np.uint16)
    assert disparity.metres(raw, scale=1 / 256).tolist() == [[0, 350, 35]]
    cityscapes = Disparity(baseline=0.2, focal=2000, offset=-1 / 256)  # (p - 1) / 256
    raw = np.array([0, 1, 257, 2561])
    assert cityscapes.metres(raw, scale=1 / 256).tolist() == [0, 0, 400, 40]
    middlebury = Disparity(baseline=0.2, focal=1000, offset=30)
    assert middlebury.metres(np.array([np.inf, np.nan, 10, -40]), scale=1).tolist() == [0, 0, 5, 0]


@pytest.mark.parametrize("bits", [16, 0])  # whole numbers, floats
def test_disparity_of_real_depth_gives_the_same_metres(shared_data, tmp_path, bits):
    """KITTI: depth as disparity of its cameras (0.54 m, 721.5 px) in 1/256 px, and as floats."""
    (path, *_) = sorted((shared_data / "formats/kitti/depth").glob("*.png"))
    raw = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    metres, valid = DepthRule(scale=1 / 256, max_depth=80)(raw)
    pixels = np.divide(0.54 * 721.5, metres, out=np.zeros(metres.shape), where=valid)
    values = np.rint(pixels * 256).astype(np.uint16) if bits else pixels.astype(np.float32)
    write(tmp_path, [values], suffix=".png" if bits else ".npy")
    options = {"split": "train", "depth": "depth", "max_depth": 80.5}
    options |= {"depth_scale": 1 / 256} if bits else {}
    disparity = Disparity(baseline=0.54, focal=721.5)
    sample = FolderDataset(root=tmp_path, disparity=disparity, **options)[0]
    assert np.array_equal(sample["valid"], valid)
    # half a step of 1/256 px of 4.8 px and more
    tolerance = 0.5 / 256 / pixels[valid].min() if bits else 1e-6
    assert sample["depth"][valid] == pytest.approx(metres[valid], rel=1.05 * tolerance)


def test_disparity_of_the_command_line(shared_data, tmp_path):
    """A PFM file; baseline and focal length are those of Scene Flow's renderings."""
    options = ["data.depth=disparity", "data.disparity={baseline:1,focal:1050}"]
    (tmp_path / "list.txt").write_text("0.png\n")
    options += ["data.max_depth=1000", f"data.split_files.train={tmp_path / 'list.txt'}"]
    depth = configured("folder", shared_data / "formats/pfm_disparity", *options)[0]["depth"]
    # by the figures of its README: 1.15 to 75.9 px, median 14.4 px
    limits = [depth.min(), np.median(depth), depth.max()]
    assert limits == pytest.approx([1050 / 75.9, 1050 / 14.4, 1050 / 1.15], rel=0.005)


# ------------------------------------------------------------------------ what does not go with it


def test_settings_that_need_metres_are_refused(tmp_path):
    disparity = Disparity(baseline=1, focal=100)
    for option, value in (("max_depth", 9.0), ("normals_from_depth", 2), ("disparity", disparity)):
        with pytest.raises(DataError, match=rf"data\.{option}: data\.depth_kind=inverse"):
            one(tmp_path, stored(slope(0), 8), **{option: value})


def test_tasks_and_protocols_that_need_metres_are_refused(tmp_path):
    data = one(tmp_path, stored(slope(0), 16))
    for settings in ({}, {"kind": "metric"}, {"kind": "up_to_scale"}):
        with pytest.raises(ValueError, match=r"task\.kind=.*set task\.kind=relative"):
            DepthObjective.from_data(data, settings)
    with pytest.raises(ValueError, match=r"task\.max_depth=10"):
        DepthObjective.from_data(data, {"kind": "relative", "max_depth": 10})
    assert DepthObjective.from_data(data, {"kind": "relative"})["max_depth"] == SCORED_RATIO
    for output, protocol, named in (
        (METRIC, {}, r"alignment=none"),
        (METRIC, {"alignment": "scale_shift"}, r"space=inverse_depth"),
        (RELATIVE, {"alignment": "median"}, r"alignment=median"),
        (RELATIVE, {"max_depth": 80.0}, r"protocol\.max_depth"),
        (RELATIVE, {"rules": True}, r"protocol\.rules"),
    ):
        with pytest.raises(ValueError, match=named):
            DepthObjective.from_output(output, data, Protocol(**protocol))
    fitted = Protocol(alignment="scale_shift", space="inverse_depth")
    assert DepthObjective.from_output(METRIC, data, fitted).unit == "x nearest"


def test_prompts_are_refused(tmp_path):
    data = one(tmp_path, stored(slope(0), 8))
    with pytest.raises(ValueError, match=r"model\.decoder\.prompts"):
        make_eval_loader(data, LoaderSettings(), Preprocessing(), ["depth"], prompts=True)


def test_a_mix_with_metric_depth_has_no_metres(tmp_path):
    inverse = one(tmp_path / "a", stored(slope(0), 8))
    millimetres = (1000 * slope(1)).astype("u2")
    metric = one(tmp_path / "b", millimetres, depth_kind="depth", max_depth=9.0)
    mix = MixDataset(sets={"a": lambda _: inverse, "b": lambda _: metric}, split="train")
    assert mix.info.has_metres is False
    assert mix.info.max_depth == SCORED_RATIO
    with pytest.raises(ValueError, match=r"task\.kind=metric"):
        DepthObjective.from_data(mix, {})


# -------------------------------------------------------------------------- training and scores


def test_loss_and_scores_are_those_of_the_depth_itself(tmp_path):
    """Values that are exactly c / depth: another scale changes neither loss nor abs_rel."""
    values = rng.integers(2000, 60000, (32, 48)).astype(np.uint16)
    sample = one(tmp_path, values)[0]
    depth, valid = torch.from_numpy(sample["depth"])[None], torch.from_numpy(sample["valid"])[None]
    metres = torch.from_numpy(30000 / values.astype(np.float32))[None]
    prediction = torch.rand(1, 32, 48) + 0.1
    objective = DepthObjective(kind="relative", max_depth=SCORED_RATIO)
    batches = [{"depth": d, "valid": valid, "index": [0]} for d in (depth, metres)]
    losses = [float(objective.losses(HeadOutput(prediction), b)["loss_depth"]) for b in batches]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    scores = []
    for target in (depth, metres):
        metrics = DepthObjective(kind="relative", max_depth=SCORED_RATIO).metrics
        metrics.update(prediction, target, valid)
        scores.append(float(metrics.compute()["abs_rel"]))
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)


@pytest.mark.slow
def test_training_learns_that_near_is_large(tmp_path, train):
    maps = [stored(slope(k), 8) for k in range(8)]
    root = write(write(tmp_path / "set", maps), [stored(slope(20), 8)], "val")
    words = ["task=depth", "task.kind=relative", "data=folder", f"data.root={root}", "seed=0"]
    words += ["data.depth=depth", "data.depth_kind=inverse", "optim.lr=0.003"]
    run = train(tmp_path / "run", *words, "trainer.max_steps=40")
    predicted = Predictor(run / "checkpoints/last.ckpt")(root / "images/val/000.png").depth
    true = slope(20)
    measured = true > 0
    assert spearmanr(predicted[measured], 1 / true[measured])[0] > 0.8
    panel = cv2.cvtColor(cv2.imread(str(next((run / "panels").glob("*.png")))), cv2.COLOR_BGR2RGB)
    cell = panel.shape[1] // 4
    shown = panel[:, cell : 2 * cell].astype(int).sum(axis=2)
    height = shown.shape[0] // 2
    assert shown[height - 20 : height].mean() > shown[24:44].mean()  # the floor is near and bright


# ----------------------------------------------------------------------------- check and dpt fit


def findings(root: Path, *overrides: str) -> dict[str, str]:
    words = ["task=depth", "task.kind=relative", "data=folder", f"data.root={root}"]
    words += ["data.depth=depth", "data.num_workers=0", *overrides]
    config = RunConfig.read(compose("train", words).values())
    return {f.code: f.line for f in examine(config.data, splits=["train"])[0]}


def test_data_check_knows_inverse_depth(tmp_path):
    root = write(tmp_path / "a", [stored(slope(k), 8) for k in range(8)])
    inverse = "data.depth_kind=inverse"
    of_registration = {"depth_misregistered", "depth_swapped"}  # of made images
    assert {c for c in findings(root, inverse) if c.startswith("depth")} <= of_registration
    assert "depth_8bit" in findings(root, "data.max_depth=10", "data.depth_scale=0.02")
    upside_down = write(tmp_path / "b", [(slope(k) * 30).astype(np.uint8) for k in range(8)])
    assert inverse in findings(upside_down, inverse)["depth_inverse"]


@pytest.mark.parametrize(
    ("kind", "bits", "other"),
    [
        ("depth", 8, "data.depth_scale="),
        ("depth", 16, "data.depth_scale"),
        ("disparity", 16, "data.disparity={"),
        ("inverse_depth", 16, "data.disparity={"),
    ],
)
def test_fit_asks_what_maps_without_a_unit_are(tmp_path, kind, bits, other):
    root = write(tmp_path / "set", [stored(slope(k), bits) for k in range(12)])
    (root / "depth").rename(root / kind)
    with pytest.raises(DataError) as raised:
        detect(root, {}, say)
    (line,) = str(raised.value).splitlines()
    assert "data.depth_kind=inverse" in line
    assert other in line
    settings = detect(root, {"depth_kind": "inverse"}, say).settings
    assert settings.items() >= {"depth": "depth", "depth_kind": "inverse"}.items()
    assert settings["invalid_depth"] == [0]
    assert "max_depth" not in settings
    given = {"disparity": Disparity(baseline=0.1, focal=500), "depth_scale": 1 / 64}
    settings = detect(root, given, say).settings
    assert settings["depth_scale"] == 1 / 64
    assert "depth_kind" not in settings


def test_fit_plans_relative_depth(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "set", [stored(slope(k), 8) for k in range(12)])
    call("fit", str(tmp_path / "set"), "data.depth_kind=inverse", "--plan")
    assert "task.kind=relative" in capsys.readouterr().out
