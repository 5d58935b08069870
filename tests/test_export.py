"""Files for other programs: they agree with the model, say what they are, or do not exist."""

import json
import sys
from functools import partial

import pytest
import torch
from own_head import NormalsConfig
from tiny import call

import dpt
from dpt.exporting.export import export
from dpt.exporting.files import describe
from dpt.nn import HEADS
from dpt.nn.heads.dense import DepthHead
from dpt.types.outputs import tensors_of

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

SIZES = {"embed_dim": 48, "num_heads": 3, "num_blocks": 4, "out_indices": [0, 1, 2, 3]}
TINY = {**SIZES, "image_size": [64, 64]}
DECODER = {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}
JOINT = {
    "depth": {"kind": "metric", "max_depth": 10.0},
    "segmentation": {"num_classes": 3, "class_names": ["wall", "floor", "sofa"]},
}
UNSEEN = [(1, 64, 64), (1, 16, 16), (2, 71, 130), (3, 100, 33)]


def tiny(heads=JOINT, **overrides):
    torch.manual_seed(0)
    options = {
        "encoder": TINY,
        "decoder": DECODER,
        "preprocessing": {"image_size": [64, 64], "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)},
        **overrides,
    }
    return dpt.create_model("dpt_tiny", heads=heads, **options)


@pytest.fixture(scope="module")
def model():
    """Depth, classes and a user's own head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "surface", NormalsConfig)
        made = tiny({**JOINT, "surface": {}})
    for module in made.modules():  # statistics that a BN left out would show
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -1, 1)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return made.eval()


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
    """A ``.pt2`` of one head with normalisation, loaded, and its metadata."""
    path = tmp_path_factory.mktemp("exported") / "a.pt2"
    export(model, path, with_preprocessing=True, tasks=["depth"])
    extra = {"metadata.json": ""}
    return torch.export.load(path, extra_files=extra), json.loads(extra.popitem()[1])


def run_onnx(path, images):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    actual = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, actual, strict=True)}


def assert_agrees(actual, expected, limit=1e-4):
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].shape == value.shape
        assert (actual[name] - value).abs().max() <= limit * value.abs().max(), name


# ------------------------------------------------------------------------------ agreement


def test_onnx_agrees_at_sizes_not_seen_and_holds_only_standard_operations(model, tmp_path):
    report = export(model, tmp_path / "a.onnx", tasks=["surface"])
    for batch, *size in UNSEEN:
        images = torch.randn(batch, 3, *size)
        with torch.no_grad():
            tensors = tensors_of(model(images), model.outputs)
        expected = {name: tensors[name] for name in ("surface", "surface_confidence")}
        assert_agrees(run_onnx(report.path, images), expected)
    stored = onnx.load(report.path)
    onnx.checker.check_model(stored)
    assert {entry.key: entry.value for entry in stored.metadata_props} == report.metadata
    assert {entry.domain for entry in stored.opset_import} == {""}
    assert not stored.functions
    kinds = {node.op_type for node in stored.graph.node}
    assert "BatchNormalization" not in kinds
    assert not any("auxiliary" in tensor.name for tensor in stored.graph.initializer)
    axes = [d.dim_param or d.dim_value for d in stored.graph.input[0].type.tensor_type.shape.dim]
    assert axes == ["batch", 3, "height", "width"]


@torch.no_grad()
def bytes_and_depth(model, shape):
    """Random uint8 images (B, H, W, 3), and the depth that the model gives for them."""
    images = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8)
    normalised = model.preprocessing.normalize(images.permute(0, 3, 1, 2))
    return images, {"depth": model(normalised)["depth"]}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 64, 64), (2, 71, 130), (3, 100, 33)], ids=str)
def test_pt2_agrees_and_normalises_as_preprocessing_does(model, program, shape):
    images, expected = bytes_and_depth(model, shape)
    assert_agrees(program[0].module()(images), expected)


@pytest.mark.slow
def test_preprocessing_inside_onnx_equals_normalize(model, tmp_path):
    export(model, tmp_path / "a.onnx", with_preprocessing=True, tasks=["depth"])
    images, expected = bytes_and_depth(model, (2, 50, 90))
    assert_agrees(run_onnx(tmp_path / "a.onnx", images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_fixed_size_is_fixed(model, tmp_path, suffix):
    report = export(model, tmp_path / f"a.{suffix}", size=(48, 80))
    assert report.metadata["input_size"] == "[48, 80]"
    images = torch.randn(5, 3, 48, 80)
    with torch.no_grad():
        expected = tensors_of(model(images), model.outputs)
    if suffix == "onnx":
        assert_agrees(run_onnx(report.path, images), expected)
        with pytest.raises(Exception, match="INVALID_ARGUMENT"):
            run_onnx(report.path, images[..., :64])
    else:
        assert_agrees(torch.export.load(report.path).module()(images), expected)


METRIC = {"depth": {"kind": "metric", "max_depth": 20.0}}
DINOV2 = {"patch_size": 14, "image_size": [70, 70], "position_resize": "dinov2"}
CENTRED = {
    "encoder": {**TINY, "padding": "center", "position_resize": "bicubic"},
    "decoder": {**DECODER, "align": "resize_lateral", "output_project": True},
}
HYBRID = {
    "encoder": {**SIZES, "kind": "hybrid", "out_indices": [2, 3], "image_size": [64, 64]},
    "decoder": {"reassemble_channels": [None, None, 16, 16], "fusion_channels": 16},
}
STANDARDIZED = {**HYBRID["encoder"], "weight_standardization": "official"}
INVERSE = {"kind": "metric", "activation": "inverse", "scale": 3e-4, "shift": 0.14}
ROPE = {**TINY, "position": "rope", "key_bias": False, "num_register_tokens": 4}
BINS = {"depth": {"kind": "metric", "bins": {"max_depth": 9.0}}}
VARIANTS = {
    "dinov3": (BINS, {"encoder": ROPE, "decoder": {**DECODER, "reassemble_norm": True}}),
    "own decoders": (
        {"normals": {}, "segmentation": {"num_classes": 3, "decoder": {"readout": "add"}}},
        {"encoder": {**TINY, "position_resize": "bicubic_antialias"}},
    ),
    "classification": ({"classification": {"num_classes": 7}, "regression": {}}, {}),
    "dinov2": (METRIC, {"encoder": {**TINY, **DINOV2, "num_register_tokens": 2}}),
    "centred": ({"depth": {"activation": "relu", "upsample": "double"}}, CENTRED),
    "official": ({"depth": INVERSE}, {}),
    "sincos": ({"depth": {}}, {"encoder": {**TINY, "position": "sincos_2d", "swiglu": True}}),
    "beit": ({"depth": {}}, {"encoder": {**TINY, "kind": "beit"}}),
    "resnet": ({"depth": {}}, {"encoder": {"kind": "timm", "name": "resnet18"}}),
    "hybrid": ({"depth": {}}, HYBRID),
    "official hybrid": ({"depth": {}}, {**HYBRID, "encoder": STANDARDIZED}),
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_models_agree(tmp_path, variant):
    heads, overrides = VARIANTS[variant]
    model = tiny(heads, **overrides).eval()
    export(model, tmp_path / "a.onnx")
    for shape in ((1, 3, *TINY["image_size"]), (1, 3, 70, 70), (1, 3, 70, 97), (2, 3, 97, 140)):
        images = torch.randn(shape)
        with torch.no_grad():
            assert_agrees(run_onnx(tmp_path / "a.onnx", images), model(images))


# ------------------------------------------------------------------------------ what is in it


def test_metadata_say_what_a_user_must_know(model):
    facts = describe(model, model.heads, normalises=False, size=None)
    assert facts["dpt_version"] == dpt.__version__
    outputs = json.loads(facts["outputs"])
    assert list(outputs) == ["depth", "segmentation", "surface"]
    assert (outputs["depth"]["unit"], outputs["depth"]["value_range"]) == ("m", [0, 10.0])
    assert outputs["segmentation"]["class_names"] == ["wall", "floor", "sofa"]
    assert json.loads(facts["mean"]) == [0.4, 0.5, 0.6]
    assert json.loads(facts["std"]) == [0.2, 0.3, 0.4]
    assert json.loads(facts["image_size"]) == [64, 64]
    assert json.loads(facts["multiple_of"]) == 16
    assert "lower_bound" in facts["resize"]
    assert facts["input_size"] == "any"


@pytest.mark.slow
def test_a_pt2_of_one_task_holds_only_what_it_needs(program):
    assert program[1]["input"].startswith("uint8 (batch, height, width, 3)")
    nodes = program[0].graph.nodes
    targets = {str(node.target) for node in nodes if node.op == "call_function"}
    assert not [t for t in targets if t.startswith("dpt") or "autograd" in t]
    names = set(program[0].state_dict)
    assert any("heads.depth" in name for name in names)
    assert not any("segmentation" in name for name in names)


# ------------------------------------------------------------------------------ refusals


def test_a_file_that_does_not_agree_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[export.__module__], "TOLERANCE", -1.0)
    model = tiny({"classification": {"num_classes": 3}})
    (tmp_path / "a.pt2").write_bytes(b"an older file")
    with pytest.raises(ValueError, match=r"a\.pt2 was not written: its .* is off by .* more"):
        export(model, tmp_path / "a.pt2")
    assert [p.name for p in tmp_path.iterdir()] == ["a.pt2"]
    assert (tmp_path / "a.pt2").read_bytes() == b"an older file"


class Hasty(DepthHead):
    """Decides by the shape of what it sees, as a graph for every size cannot."""

    def forward(self, features, size):
        depth = super().forward(features, size)
        return depth if size[0] > size[1] else 0.5 * depth


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_a_branch_by_size_is_found_out(tmp_path, suffix):
    model = tiny({"depth": {"kind": "metric", "max_depth": 10.0}}).eval()
    model.heads["depth"].__class__ = Hasty
    with pytest.raises(ValueError, match="was not written: it"):
        export(model, tmp_path / f"a.{suffix}")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def run(dpt_command):
    """run(*arguments): (exit code, stdout, stderr) of ``dpt export ARGUMENTS``."""
    return partial(dpt_command, "export")


@pytest.mark.slow
def test_the_command_prints_what_it_did(tmp_path, run):
    tiny().save_pretrained(tmp_path / "model")
    out = tmp_path / "a.onnx"
    code, said, _ = run(tmp_path / "model", out, "--task", "depth", "--opset", "21")
    assert code == 0
    lines = said.splitlines()
    assert lines[0].startswith(f"{out}: ")
    assert "checked  1x64x64, 2x65x48, 1x48x64" in said
    assert onnx.load(out).opset_import[0].version == 21
    code, _, said = run(tmp_path / "model", tmp_path / "b.onnx", "--opset", "1")
    assert code == 1
    assert "--opset 1: " in said


@pytest.mark.parametrize(
    ("out", "flags", "message"),
    [
        ("a.engine", (), "TensorRT and Core ML convert the .onnx"),
        ("folder.onnx", (), "folder.onnx"),
        ("a.onnx", ("--task", "surface"), "no head surface: this model has"),
    ],
)
def test_mistakes_are_told_in_one_line(out, flags, message, tmp_path, refused):
    tiny().save_pretrained(tmp_path / "model")
    (tmp_path / "folder.onnx").mkdir()
    assert message in refused(call, "export", tmp_path / "model", tmp_path / out, *flags)


@pytest.mark.parametrize("name", ["a.pt2", "a.onnx", "a.onnx.data"])
def test_the_checkpoint_is_not_replaced(tmp_path, refused, name):
    (tmp_path / name).write_text("a checkpoint")
    (tmp_path / "link.pt").hardlink_to(tmp_path / name)
    for source in (name, "link.pt"):
        error = refused(call, "export", tmp_path / source, tmp_path / name.removesuffix(".data"))
        assert f"{name}: is the input" in error
    assert (tmp_path / name).read_text() == "a checkpoint"
