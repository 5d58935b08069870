"""Older ONNX, float16, AOTInductor and LiteRT: small graphs by hand, and whole models (slow)."""

import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_export import assert_agrees, run_onnx, tiny
from tiny import call

from dpt.exporting.export import export
from dpt.exporting.half import half_session, to_half
from dpt.exporting.targets import _downgrade, _norm_in_parts, target_of
from dpt.types.outputs import tensors_of

onnx = pytest.importorskip("onnx")
FLOAT, FLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16


def onnx_model(nodes, weights, shapes, opset=18):
    """A model of ``images`` to ``y``; ``shapes``: of all values that nodes make, and of images."""
    make = onnx.helper.make_tensor_value_info
    values = {name: make(name, FLOAT, shape) for name, shape in shapes.items()}
    images, y = values.pop("images"), values.pop("y")
    tensors = [onnx.numpy_helper.from_array(v, name) for name, v in weights.items()]
    graph = onnx.helper.make_graph(nodes, "g", [images], [y], tensors, value_info=values.values())
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def node(kind, inputs, output, **attributes):
    return onnx.helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def norm_model():
    """The length of rows, plus 1: sqrt(mean(x * x)) + 1, with the axes of opset 18."""
    nodes = [
        node("Mul", "images images", "square"),
        node("ReduceMean", "square axes", "mean", keepdims=1, noop_with_empty_axes=0),
        node("Sqrt", "mean", "root"),
        node("Add", "root one", "y"),
    ]
    weights = {"axes": np.array([-1]), "one": np.ones(1, np.float32)}
    rows = {name: [1, 1] for name in ("mean", "root", "y")}
    return onnx_model(nodes, weights, {"images": [1, 2], "square": [1, 2], **rows})


# ------------------------------------------------------------------------------ older ONNX


@pytest.mark.parametrize("axes", [1, 2])
def test_norm_in_parts_equals_layer_norm(axes):
    x = 100 + 30 * torch.randn(2, 5, 7)
    shape = list(x.shape[-axes:])
    weight, bias = torch.randn(shape), torch.randn(shape)
    for affine in ((), (weight,), (weight, bias)):
        actual = _norm_in_parts(x, shape, *affine, eps=1e-3)
        torch.testing.assert_close(actual, F.layer_norm(x, shape, *affine, eps=1e-3))


def test_downgrade_turns_axes_into_an_attribute(tmp_path):
    model = norm_model()
    _downgrade(onnx, model, 13)
    onnx.checker.check_model(model, full_check=True)
    assert (model.opset_import[0].version, model.ir_version) == (13, 7)
    mean = model.graph.node[1]
    assert list(mean.input) == ["square"]
    assert {a.name: onnx.helper.get_attribute_value(a) for a in mean.attribute} == {
        "axes": [-1],
        "keepdims": 1,
    }
    onnx.save(model, tmp_path / "a.onnx")
    actual = run_onnx(tmp_path / "a.onnx", torch.tensor([[3.0, 4.0]]))["y"]
    assert actual.item() == pytest.approx(12.5**0.5 + 1)


def test_downgrade_names_the_operator_that_is_lacking():
    nodes = [node("LayerNormalization", "images w", "y")]
    model = onnx_model(nodes, {"w": np.ones(2, np.float32)}, {"images": [1, 2], "y": [1, 2]})
    with pytest.raises(ValueError, match="--opset 13: it has no LayerNormalization"):
        _downgrade(onnx, model, 13)


# ------------------------------------------------------------------------------ float16


def test_half_keeps_a_norm_in_float32(tmp_path):
    """A square of 1000 is beyond float16, the root of the mean is not."""
    half = to_half(norm_model())
    onnx.checker.check_model(half, full_check=True)
    onnx.save(half, tmp_path / "a.onnx")
    images = torch.tensor([[1000.0, 3000.0]])
    expected = float(images.square().mean().sqrt() + 1)
    for run in (half_session(tmp_path / "a.onnx"), lambda x: run_onnx(tmp_path / "a.onnx", x)):
        assert run(images)["y"].item() == pytest.approx(expected, rel=1e-3)


def attention_model():
    """softmax(images @ keys + bias) @ values."""
    nodes = [
        node("MatMul", "images keys", "logits"),
        node("Add", "logits bias", "biased"),
        node("Softmax", "biased", "weights", axis=-1),
        node("MatMul", "weights values", "y"),
    ]
    keys = np.float32([[16, 16.0625], [16, 16]])  # logits near 512, where float16 has steps of 0.5
    weights = {"keys": keys, "bias": np.zeros(2, np.float32), "values": np.eye(2, dtype=np.float32)}
    names = ("images", "logits", "biased", "weights", "y")
    return onnx_model(nodes, weights, {name: [1, 2] for name in names})


def test_half_keeps_the_logits_of_attention_in_float32(tmp_path):
    half = to_half(attention_model())
    onnx.checker.check_model(half, full_check=True)
    onnx.save(half, tmp_path / "a.onnx")
    images = torch.tensor([[16.25, 16.0]])  # float16 would round 517.015625 to 517
    expected = torch.tensor([[516.0, 517.015625]]).softmax(-1)
    actual = half_session(tmp_path / "a.onnx")(images)["y"]
    assert_agrees({"y": actual}, {"y": expected}, 1e-3)
    stored = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert (stored["bias"], stored["values"]) == (FLOAT, FLOAT16)


def test_half_session_shows_an_overflow_that_onnx_runtime_hides(tmp_path):
    nodes = [node("Mul", "images large", "product"), node("Mul", "product small", "y")]
    weights = {"large": np.float32([1000]), "small": np.float32([1e-3])}
    model = onnx_model(nodes, weights, {"images": [1], "product": [1], "y": [1]})
    onnx.save(to_half(model), tmp_path / "a.onnx")
    images = torch.tensor([1000.0])
    assert run_onnx(tmp_path / "a.onnx", images)["y"].item() == pytest.approx(1000, rel=1e-2)
    assert half_session(tmp_path / "a.onnx")(images)["y"].item() == float("inf")


# ------------------------------------------------------------------------------ whole models


@pytest.mark.slow
@pytest.mark.parametrize(("opset", "half"), [(13, False), (17, True), (None, True)])
def test_onnx_for_npus_and_in_half_agrees(tmp_path, opset, half):
    model = tiny().eval()
    report = export(model, tmp_path / "a.onnx", opset=opset, half=half, size=(64, 96))
    stored = onnx.load(report.path)
    onnx.checker.check_model(stored, full_check=True)
    if opset is not None:
        kinds = {node.op_type for node in stored.graph.node}
        assert kinds.isdisjoint({"LayerNormalization", "Gelu", "Attention"})
        assert stored.opset_import[0].version == opset
        assert report.compared == ((1, 64, 96),)
        axes = [d.dim_value for d in stored.graph.input[0].type.tensor_type.shape.dim]
        assert axes == [1, 3, 64, 96]
    if half:
        sizes = dict.fromkeys((FLOAT, FLOAT16, onnx.TensorProto.INT64), 0)
        for tensor in stored.graph.initializer:
            sizes[tensor.data_type] += np.prod(tensor.dims)
        assert sizes[FLOAT16] > 20 * sizes[FLOAT]
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        expected = tensors_of(model(images), model.outputs)
    assert_agrees(run_onnx(report.path, images), expected, 1e-2 if half else 1e-4)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler: g++")
def test_a_compiled_package_agrees(tmp_path):
    model = tiny({"classification": {"num_classes": 3}}).eval()
    path = tmp_path / "a.pt2"
    export(model, path, to="aoti", size=(32, 32))
    images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = tensors_of(model(images), model.outputs)
    assert_agrees(target_of(path, "aoti").open(path)(images), expected)


@pytest.mark.slow
def test_litert_agrees(tmp_path):
    pytest.importorskip("litert_torch", reason="pip install litert-torch ai-edge-litert")
    model = tiny({"depth": {"kind": "metric", "max_depth": 10.0}}).eval()
    report = export(model, tmp_path / "a.tflite", with_preprocessing=True)
    images = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    normalised = model.preprocessing.normalize(images.permute(0, 3, 1, 2))
    with torch.no_grad():
        expected = tensors_of(model(normalised), model.outputs)
    assert_agrees(target_of(report.path).open(report.path)(images), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tflite"]


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("out", "flags", "message"),
    [
        ("a.onnx", "--opset 12", "--opset 12: must be 13 or more"),
        ("a.pt2", "--half", "--opset and --half are for .onnx"),
        ("a.pt2", "--to aoti --opset 13", "--opset and --half are for .onnx"),
        ("a.onnx", "--to aoti", "a.onnx: must be a file that ends in .pt2"),
        ("a.pt2", "--to chip", "--to chip: choose from onnx, openvino, torch, aoti, litert"),
    ],
)
def test_mistakes_are_told_in_one_line(out, flags, message, tmp_path, refused):
    tiny({"classification": {"num_classes": 3}}).save_pretrained(tmp_path / "model")
    error = refused(call, "export", tmp_path / "model", tmp_path / out, *flags.split())
    assert message in error
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise ImportError('undefined symbol: c10')", "which fails (ImportError: undefined sym"),
        ("raise AttributeError('torch.int1')", "which fails (AttributeError: torch.int1)"),
        (None, "needs litert_torch: "),
    ],
)
def test_a_package_that_does_not_fit_torch_is_one_line(code, fault, tmp_path, refused, monkeypatch):
    if code is None:
        monkeypatch.setitem(sys.modules, "litert_torch", None)
    else:
        (tmp_path / "litert_torch.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
    error = refused(call, "export", tmp_path / "model", tmp_path / "a.tflite")
    assert fault in error
    assert "pip install 'dense-prediction-transformers[litert]'" in error


def test_an_operator_that_aoti_lacks_is_named(tmp_path, monkeypatch):
    from dpt.exporting import targets

    def fail(*arguments):
        raise NotImplementedError("aten::fold is missing")

    monkeypatch.setattr(targets, "compile_package", fail)
    with pytest.raises(ValueError, match=r"AOTInductor, .*: NotImplementedError: aten::fold"):
        export(tiny({"classification": {"num_classes": 3}}), tmp_path / "a.pt2", to="aoti")
    assert not list(tmp_path.iterdir())
