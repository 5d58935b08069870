"""Quantised files: small, close to fp32, and refused where they lose too much."""

from argparse import Namespace

import numpy as np
import pytest
import torch
from photos import TINY, photo_of, save_picture, tiny

import dpt
from dpt.commands.export import _images
from dpt.exporting.int8 import _choices, compare_outputs, export_int8, noise_of_layers
from dpt.types.outputs import OutputSpec

onnx = pytest.importorskip("onnx")
helper = onnx.helper


def layers_file(path, *weights):
    """An ONNX file of matrix products in a row, layer0, layer1, ..., of images (1, 4)."""
    tensors = [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    names = ["images", *(f"y{i}" for i in range(len(weights)))]
    nodes = [
        helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"layer{i}")
        for i in range(len(weights))
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4])
        for name in (names[0], names[-1])
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_noise_of_layers_is_that_of_their_inputs(tmp_path):
    pytest.importorskip("onnxruntime")
    wide = np.diag(np.float32([1, 1, 1, 1000]))  # after it, small values are rounded away
    path = layers_file(tmp_path / "a.onnx", wide, np.eye(4, dtype=np.float32))
    noises = noise_of_layers(path, torch.tensor([[0.0, 255.0, 12.0, 0.0]]))
    assert noises == {"layer0": 0.0, "layer1": 0.0}  # 12 and 255 are among the 256 steps
    noises = noise_of_layers(path, torch.tensor([[0.3, 1.0, 0.0, 1.0]]))
    step = 1000 / 255
    expected = np.hypot(0.3, 1.0) / np.sqrt(0.3**2 + 1 + 1000**2)
    assert step > 2
    assert noises["layer1"] == pytest.approx(expected, rel=1e-3)


def test_products_with_probabilities_stay_in_float(tmp_path):
    """Of many tokens, 8 bits would round most probabilities to 0."""
    path = layers_file(tmp_path / "a.onnx", *[np.eye(4, dtype=np.float32)] * 2)
    model = onnx.load(path)
    model.graph.node[0].input[0] = "probabilities"
    model.graph.node.insert(0, helper.make_node("Softmax", ["images"], ["probabilities"]))
    onnx.save(model, path)
    noises = noise_of_layers(path, torch.ones(1, 4))
    assert [noise == np.inf for noise in noises.values()] == [True, False]
    assert _choices(noises)[0] == ("layer0",)


def test_compare_outputs_gives_mean_differences():
    specs = {"depth": OutputSpec("depth", "map"), "classes": OutputSpec("classes", "logits", 2)}
    logits = torch.tensor([[[[2.0, 2.0]], [[1.0, 1.0]]]])
    expected = {"depth": torch.tensor([[[1.0, 3.0]]]), "classes": logits}
    fewer = torch.tensor([[[[1.5, 0.0]], [[0.0, 0.0]]]])
    actual = {"depth": torch.tensor([[[1.2, 3.0]]]), "classes": logits - fewer}
    losses = compare_outputs(lambda _: actual, [(torch.zeros(1), expected)] * 2, specs)
    assert losses == pytest.approx({"depth": 0.05, "classes": 0.5})


@pytest.fixture(scope="module")
def model():
    return tiny({"depth": {"kind": "relative"}})


@pytest.fixture(scope="module")
def images(model):
    photos = [torch.from_numpy(photo_of(48, 64, seed=i))[None] for i in range(8)]
    return [model.preprocessing.normalize(photo.permute(0, 3, 1, 2)) for photo in photos]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "xml"])
def test_int8_is_close_and_runs_as_a_model(model, images, tmp_path, suffix):
    pytest.importorskip({"xml": "nncf"}.get(suffix, "onnxruntime"))
    report = export_int8(model, tmp_path / f"a.{suffix}", images, max_loss=0.05)
    assert 0 < report.differences["depth"] < 0.05
    expected = dpt.Predictor(model)(photo_of(48, 64)).depth
    actual = dpt.Predictor(report.path)(photo_of(48, 64)).depth
    assert 0 < np.abs(actual - expected).mean() < 0.05 * np.abs(expected).mean()


@pytest.fixture
def lose(monkeypatch):
    """lose(*losses): what the following files lose."""

    def lose(*losses):
        following = iter(losses)
        name = "dpt.exporting.int8.compare_outputs"
        monkeypatch.setattr(name, lambda *_: {"depth": next(following)})

    return lose


@pytest.mark.slow
def test_layers_stay_in_float_until_the_loss_is_allowed(model, images, tmp_path, lose):
    lose(0.5, 0.2, 0.01)
    path = tmp_path / "a.onnx"
    report = export_int8(model, path, images)
    assert len(report.kept) == 8  # with the products of 4 blocks with their probabilities
    kinds = {node.name: node.input[0] for node in onnx.load(path).graph.node}
    assert not any(kinds[name].endswith("DequantizeLinear_Output") for name in report.kept)


@pytest.mark.slow
def test_a_file_that_loses_too_much_is_not_written(model, images, tmp_path, lose):
    lose(*[0.2] * 99)
    (tmp_path / "a.onnx").write_bytes(b"an older file")
    with pytest.raises(ValueError, match=r"a\.onnx was not written: in int8, depth loses 20\.0%"):
        export_int8(model, tmp_path / "a.onnx", images)
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]
    assert (tmp_path / "a.onnx").read_bytes() == b"an older file"


def test_calibration_images_that_overshoot_are_clipped(tmp_path):
    """Cubic interpolation beyond 0..255 must not make white of black."""
    edge = np.repeat(np.uint8([[0] * 40 + [255] * 40]), 60, axis=0)
    save_picture(tmp_path / "edge.png", np.dstack([edge] * 3))
    rule = {"preprocessing": {"image_size": [48, 64], "interpolation": "cubic_float"}}
    model = dpt.create_model("dpt_tiny", heads={"depth": {}}, **TINY, **rule)
    options = Namespace(
        calibrate=[tmp_path], out=tmp_path / "a.onnx", with_preprocessing=True, size=[48, 96]
    )
    (image,) = _images(model, options)
    row = image[0, 20, :, 0].int()
    assert row.tolist() == sorted(row.tolist())
    assert (row.min(), row.max()) == (0, 255)
