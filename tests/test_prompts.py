"""Sparse depth as an input: points under views, in batches, in the model, and from files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from photos import TINY, photo_of, save_photo, tiny
from PIL import Image
from tiny import ON_CPU, call, small_model

import dpt
from dpt.data import EvalTransform, TrainTransform, collate_eval, collate_train
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.data.view import view_points
from dpt.geometry import Camera, View, Window
from dpt.nn import Decoder
from dpt.nn.heads.dense import DepthHeadConfig
from dpt.nn.prompts import corrected, spread
from dpt.objectives.base import prompts_of
from dpt.objectives.teacher import predict
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.weights import load_model_weights
from dpt.weights.formats import read

HEADS = {"depth": {"kind": "metric", "max_depth": 10.0}}

# ------------------------------------------------------------------------------ data


@pytest.mark.parametrize(
    "view",
    [
        View.of_window(Window(0, 0, 30, 40), (60, 80)).flipped(),
        View.of_window(Window(0, 0, 30, 40), (15, 20)),
        View.of_window(Window(5, 6, 20, 24), (40, 48)).rotated(20),
    ],
    ids=["flip", "shrink", "rotate"],
)
def test_view_points_keeps_every_point_that_is_inside(view):
    prompt = np.zeros((30, 40), np.float32)
    points = [(3, 2, 1.5), (39, 29, 2.5), (20, 10, 3.5), (11, 21, 4.5)]
    expected = np.zeros(view.size, np.float32)
    for x, y, metres in points:
        prompt[y, x] = metres
        u, v = view.map_points(np.array([[x, y]]))[0].round().astype(int)
        if 0 <= u < view.size[1] and 0 <= v < view.size[0]:
            expected[v, u] = metres
    assert (expected > 0).sum() >= 2
    assert np.array_equal(view_points(prompt, view), expected)


def test_view_points_keeps_the_nearest_of_several():
    prompt = np.array([[3, 1], [2, 0]], np.float32)
    assert view_points(prompt, View.of_window(Window(0, 0, 2, 2), (1, 1))) == 1
    assert not view_points(np.zeros((2, 2), np.float32), View(np.eye(2, 3), (2, 2))).any()


def sample_of(height=48, width=64):
    random = np.random.default_rng(0)
    depth = random.uniform(1, 9, (height, width)).astype(np.float32)
    valid = random.random((height, width)) < 0.5
    return {"image": photo_of(height, width), "depth": depth * valid, "valid": valid}


def test_train_transform_draws_points_of_the_final_depth():
    transform = TrainTransform(
        image_size=(32, 48), zoom=(1.5, 2.0), rotate=5, prompts=True, prompt_points=(3, 20)
    )
    counts = set()
    for seed in range(20):
        out = transform(sample_of(), seed=seed)
        is_given = out["prompt"] > 0
        counts.add(int(is_given.sum()))
        assert np.array_equal(out["prompt"][is_given], out["depth"][is_given])
        assert out["prompt"].dtype == np.float32
    assert 3 <= min(counts) < max(counts) <= 20
    assert "prompt" not in TrainTransform(image_size=(32, 48))(sample_of(), seed=0)
    batch = collate_train([out, {"image": out["image"]}], ["depth"])
    assert torch.equal(batch["prompt"][0], torch.from_numpy(out["prompt"]))
    assert not batch["prompt"][1].any()


def test_eval_transform_draws_points_that_are_not_scored():
    sample, transform = sample_of(), EvalTransform(Preprocessing(image_size=(24, 32)), 50)
    out = transform(sample, seed=7)
    given = sample["valid"] & ~out["valid"]
    assert given.sum() == 50
    assert out["prompt"].shape == out["image"].shape[:2]
    assert set(out["prompt"][out["prompt"] > 0]) <= set(sample["depth"][given])
    assert (out["prompt"] > 0).sum() > 40  # some share a pixel
    again, other = transform(sample, seed=7), transform(sample, seed=8)
    assert np.array_equal(again["prompt"], out["prompt"])
    assert not np.array_equal(other["prompt"], out["prompt"])
    few = transform({**sample, "valid": sample["valid"] & (sample["depth"] > 8.9)}, seed=7)
    assert not few["valid"].any()  # all are given
    listed = collate_eval([out, {"image": photo_of(16, 16)}], ["depth"])["prompt"]
    assert [tuple(p.shape) for p in listed] == [out["prompt"].shape, (16, 16)]


# ------------------------------------------------------------------------------ model


def test_spread_gives_points_and_fills_by_their_distance():
    valid = torch.zeros(2, 4, 8, dtype=torch.bool)
    valid[0, 0, 0] = valid[0, 0, 1] = valid[0, 3, 7] = True
    values = torch.full((2, 4, 8), torch.nan)
    values[0, 0, 0], values[0, 0, 1], values[0, 3, 7] = 1.0, 3.0, 7.0
    value, nearness = spread(values, valid, (4, 8))[0]
    assert value[valid[0]].tolist() == pytest.approx([1, 3, 7], abs=0.05)
    assert (nearness[valid[0]] == 1).all()
    assert 1 < value[1, 0] < value[1, 1] < 3 < value[0, 4] < value[2, 7] < 7
    assert 1 > nearness[0, 2] > nearness[0, 3] > 0
    coarse = spread(values, valid, (2, 4))[0, 0]
    assert (coarse[0, 0], coarse[1, 3]) == (pytest.approx(2, abs=0.01), pytest.approx(7, abs=0.01))
    assert not spread(values, valid, (4, 8))[1].any()
    assert spread(values[:1], values[:1] == 7, (3, 5))[0, 0].flatten().tolist() == pytest.approx(
        [7] * 15
    )


def test_corrected_is_the_prompt_at_points():
    random = torch.Generator().manual_seed(0)
    depth, prompts = 1 + 4 * torch.rand(2, 2, 6, 9, generator=random)
    prompts = prompts * (torch.arange(9) % 4 == 0)
    gate = torch.ones(2, 1, 3, 4)
    assert torch.equal(corrected(depth, prompts, 0 * gate), depth)
    is_given = prompts > 0
    result = corrected(depth, prompts, gate)
    torch.testing.assert_close(result[is_given], prompts[is_given], rtol=0.05, atol=0)
    torch.testing.assert_close(corrected(depth, 3 * depth * is_given, gate), 3 * depth)


def random_prompts(*size, count=30):
    prompts = torch.zeros(size).flatten(1)
    for row in prompts:
        row[torch.randperm(row.numel())[:count]] = 1 + 5 * torch.rand(count)
    return prompts.view(size)


@pytest.fixture(scope="module")
def untrained():
    return tiny_prompted()


def tiny_prompted():
    torch.manual_seed(6)
    return dpt.create_model("dpt_tiny", heads=HEADS, decoder={"prompts": True}, **TINY).eval()


@pytest.fixture(scope="module")
def trained():
    model = tiny_prompted()
    for layer in model.decoder.prompt_layers:
        torch.nn.init.normal_(layer.conv3.weight, std=0.1)
    torch.nn.init.normal_(model.decoder.prompt_gate.weight, std=0.1)
    return model


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 64), (40, 57)])
def test_untrained_prompts_change_nothing(untrained, size):
    plain = tiny(HEADS)
    missing, unexpected = plain.load_state_dict(untrained.state_dict(), strict=False)
    assert missing == []
    assert {name.split(".")[1] for name in unexpected} == {"prompt_layers", "prompt_gate"}
    images, prompts = torch.randn(2, 3, *size), random_prompts(2, *size)
    expected = plain(images)["depth"]
    assert torch.equal(untrained(images, prompts=prompts)["depth"], expected)
    assert torch.equal(untrained(images)["depth"], expected)


@torch.no_grad()
@pytest.mark.parametrize("size", [(48, 64), (40, 57)])
def test_images_without_points_are_those_without_prompts(trained, size):
    images, prompts = torch.randn(2, 3, *size), random_prompts(2, *size)
    prompts[1] = 0
    depth, plain = trained(images, prompts=prompts)["depth"], trained(images)["depth"]
    assert (depth[0] - plain[0]).abs().max() > 1e-3
    torch.testing.assert_close(depth[1], plain[1])


def test_prompt_is_packed_with_its_sample():
    prompt = np.zeros((8, 12), np.float32)
    prompt[2, 3] = 1.7
    sample = {"image": np.zeros((16, 24, 3), np.uint8), "prompt": prompt}
    decoded = decode_sample(encode_sample(sample), source="shard")
    np.testing.assert_array_equal(decoded["prompt"], prompt)


HEADS_READING_PROMPTS = {
    "metric": {"kind": "metric", "max_depth": 10.0},
    "up_to_scale": {"kind": "up_to_scale"},
}


@pytest.mark.parametrize("kind", HEADS_READING_PROMPTS)
def test_every_trained_parameter_gets_a_gradient_without_points(kind):
    """A process without prompts, too, gives DDP the gradients for which the others wait."""
    heads = {"depth": HEADS_READING_PROMPTS[kind]}
    model = small_model(heads=heads, decoder={"prompts": True}).train()
    model(torch.randn(2, 3, 64, 64), raw=True)["depth"].tensor.sum().backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert [name for name, gradient in trained.items() if gradient is None] == []
    assert ("decoder.prompt_gate.weight" in trained) == (kind == "metric")


def test_weights_without_prompts_start_a_model_with_prompts(tmp_path):
    plain, model = tiny(HEADS, seed=1), tiny_prompted()
    plain.save_pretrained(tmp_path)
    report = load_model_weights(model, model.config, read(tmp_path), source="file")
    assert {"decoder.prompt_layers", "decoder.prompt_gate"} <= set(report.missing)
    images, prompts = torch.randn(1, 3, 48, 64), random_prompts(1, 48, 64)
    with torch.no_grad():
        assert torch.equal(model(images, prompts=prompts)["depth"], plain(images)["depth"])


# ------------------------------------------------------------------------------ prediction

POINTS = "x,y,depth_m\n3,2,1.5\n49.2,31.8,2.5\n"


@pytest.fixture
def files(trained, tmp_path):
    """A saved model, a photo of 33 × 50 pixels, and its points."""
    trained.save_pretrained(tmp_path / "model")
    save_photo(tmp_path / "photo.png", 33, 50)
    (tmp_path / "points.csv").write_text(POINTS)
    return tmp_path


def test_predictor_reads_points_in_every_form(trained, files):
    predictor, photo = dpt.Predictor(trained), files / "photo.png"
    depth = np.zeros((33, 50), np.float32)
    depth[2, 3], depth[32, 49] = 1.5, 2.5
    np.save(files / "map.npy", np.where(depth > 0, depth, np.nan))
    Image.fromarray((1000 * depth).astype(np.uint16)).save(files / "map.png")
    expected = predictor(photo, prompt=depth).depth
    for name in ("points.csv", "map.npy", "map.png"):
        assert np.array_equal(predictor(photo, prompt=files / name).depth, expected), name
    assert not np.allclose(predictor(photo).depth, expected)
    mirrored = dpt.Predictor(trained, flip=True)(photo, prompt=depth).depth
    both = [expected, predictor(photo_flipped(photo), prompt=depth[:, ::-1]).depth[:, ::-1]]
    np.testing.assert_allclose(mirrored, np.mean(both, axis=0), atol=1e-4)


def test_prompts_keep_their_metres_in_bf16(trained, monkeypatch):
    prompts = []
    fuse = Decoder.fuse
    monkeypatch.setattr(Decoder, "fuse", lambda *args: prompts.append(args[2]) or fuse(*args))
    points = np.full((48, 64), 30.06, np.float32)  # bf16 has 30 and 30.125
    dpt.Predictor(trained, device="cpu", precision="bf16")(photo_of(48, 64), prompt=points)
    assert np.array_equal(prompts[0][0].float().numpy(), points)


def photo_flipped(path):
    return np.ascontiguousarray(np.asarray(Image.open(path))[:, ::-1])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x,y,depth_m\n50,3,1.5\n", "line 2"),
        ("x,y,depth_m\n3,1,nan\n", "line 2"),
        ("x,y,depth\n3,1,2\n", "depth_m"),
    ],
)
def test_points_that_do_not_fit_are_named(trained, files, text, named):
    (files / "points.csv").write_text(text)
    with pytest.raises(ValueError, match=r"points\.csv") as caught:
        dpt.Predictor(trained)(files / "photo.png", prompt=files / "points.csv")
    assert named in str(caught.value)


def test_prompts_of_a_calibrated_model_are_refused(trained, files):
    predictor = dpt.Predictor(trained)
    predictor.calibration = Calibration(scale=2.0, space="depth")
    with pytest.raises(ValueError, match=r"prompt.*dpt calibrate"):
        predictor(files / "photo.png", prompt=files / "points.csv")


def test_predict_command_takes_a_prompt(trained, files, dpt_command):
    out, photo, points = files / "out", files / "photo.png", files / "points.csv"
    arguments = ("predict", files / "model", photo, "--out", out, "--format", "npy")
    assert dpt_command(*arguments, "--prompt", points)[0] == 0
    expected = dpt.Predictor(trained)(photo, prompt=points).depth
    assert np.array_equal(np.load(out / "depth_npy/photo.npy"), expected)
    points.write_text(POINTS + "9,9,3\n")  # other points, other predictions
    code, _, err = dpt_command(*arguments, "--prompt", points)
    assert (code, "prompt=" in err) == (1, True)
    save_photo(files / "other.png", 33, 50)
    code, _, err = dpt_command(*arguments, files / "other.png", "--prompt", points)
    assert (code, "--prompt" in err) == (1, True)


# ------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("focal", ["null", pytest.param("64", marks=pytest.mark.slow)])
def test_run_with_prompts_is_scored_on_other_pixels(train, tmp_path, metrics, refused, focal):
    """By dpt evaluate as in training, since the points are the same."""
    settings = ("task=depth", "model.decoder.prompts=true", "data.prompt_points=300")
    settings += (f"task.canonical_focal={focal}", "augment.prompt_points=[1,50]")
    run = train(tmp_path / "run", *settings)
    call("evaluate", run, f"run_dir={tmp_path / 'scores'}", *ON_CPU)
    trained, scored = metrics(run), metrics(tmp_path / "scores")
    assert scored["val/abs_rel"] == pytest.approx(trained["val/abs_rel"], rel=1e-5)
    folder = f"run_dir={tmp_path / 'flip'}"
    call("evaluate", run, folder, "protocol.flip=true", "protocol.window=[16,16]", *ON_CPU)
    scales = ("protocol.scales=[0.5,1]", f"run_dir={tmp_path / 'scales'}")
    assert "protocol.scales" in refused(call, "evaluate", run, *scales, *ON_CPU)


# ------------------------------------------------------------------------------ canonical depth

CANONICAL = {"kind": "metric", "activation": "exp", "canonical_focal": 300.0}


@pytest.fixture(scope="module")
def canonical():
    torch.manual_seed(6)
    decoder = {"prompts": True}
    model = dpt.create_model("dpt_tiny", heads={"depth": CANONICAL}, decoder=decoder, **TINY).eval()
    for layer in model.decoder.prompt_layers:
        torch.nn.init.normal_(layer.conv3.weight, std=0.1)
    torch.nn.init.normal_(model.decoder.prompt_gate.weight, std=0.1)
    return model


def cameras_of(*focals):
    return torch.from_numpy(np.stack([Camera.from_focal(f, (48, 64)).K for f in focals])).float()


def test_prompts_of_batches_are_those_of_the_canonical_camera(canonical, trained):
    prompt = random_prompts(3, 48, 64)
    batch = {"prompt": [*prompt], "K": cameras_of(600.0, 150.0, np.nan)}
    scaled = prompts_of(batch, canonical.outputs)
    torch.testing.assert_close(scaled, prompt * torch.tensor([0.5, 2, 0])[:, None, None])
    assert not prompts_of({"prompt": prompt}, canonical.outputs).any()
    assert torch.equal(prompts_of(batch, trained.outputs), prompt)
    assert prompts_of({}, canonical.outputs) is None


@torch.no_grad()
def test_points_of_canonical_depth_are_metres(canonical):
    """Twice the focal length and twice the metres are one input of the network."""
    image, prompt = photo_of(48, 64), random_prompts(48, 64).numpy()
    predictor = dpt.Predictor(canonical)
    once, twice = (
        predictor(image, Camera.from_focal(f * 200.0, (48, 64)), prompt=f * prompt) for f in (1, 2)
    )
    np.testing.assert_allclose(twice.depth, 2 * once.depth, rtol=1e-5)
    images, K = torch.from_numpy(image).permute(2, 0, 1)[None], cameras_of(200.0)
    inputs, given = canonical.preprocessing.normalize(images), torch.from_numpy(prompt)[None]
    expected = canonical(inputs, prompts=given * 1.5)["depth"] / 1.5
    np.testing.assert_allclose(once.depth, expected[0], rtol=1e-5)
    taught = predict(canonical, images, K, given * 1.5)["depth"].tensor
    torch.testing.assert_close(taught, expected)
    plain = predictor(image, Camera.from_focal(200.0, (48, 64))).depth
    assert not np.allclose(plain, once.depth, rtol=0.01)


def test_points_of_canonical_depth_need_a_camera(canonical):
    image, prompt = photo_of(48, 64), random_prompts(48, 64).numpy()
    with pytest.raises(ValueError, match=r"prompt.*--focal"):
        dpt.Predictor(canonical)(image, prompt=prompt)


def test_prompts_of_two_canonical_cameras_are_refused(monkeypatch):
    class NearConfig(DepthHeadConfig):
        @property
        def output(self):
            return replace(super().output, name="near")

    monkeypatch.setitem(dpt.nn.HEADS, "near", NearConfig)
    heads = {"depth": CANONICAL, "near": CANONICAL}
    dpt.create_model("dpt_tiny", heads=heads, decoder={"prompts": True}, **TINY)
    heads["near"] = HEADS["depth"]
    with pytest.raises(ValueError, match="canonical_focal"):
        dpt.create_model("dpt_tiny", heads=heads, decoder={"prompts": True}, **TINY)
