"""Runtimes: each gives what PyTorch gives, from a checkpoint or from an exported file."""

import numpy as np
import pytest
import torch
from photos import TINY, photo_of, save_photo, tiny
from tiny import random_norms

import dpt
from dpt.exporting import files, runtimes
from dpt.exporting.export import export
from dpt.exporting.runtimes import RUNTIMES, cached_export, make_runtime
from dpt.types.preprocessing import Calibration
from dpt.types.samples import Inputs

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
LIBRARIES = [name for name in RUNTIMES if name != "torch"]
TOLERANCE = 2e-5  # of the largest value


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model():
    made = tiny(
        {"depth": {"kind": "relative", "log_variance": True}, "segmentation": {"num_classes": 5}}
    )
    made.calibration = Calibration(scale=2.0, shift=0.5)
    return made


@pytest.fixture(scope="module")
def file(model):
    """An exported file of the model."""
    return cached_export(model)


def assert_same(actual, expected):
    assert actual.outputs == expected.outputs
    for name in ("depth", "depth_confidence"):
        limit = TOLERANCE * np.abs(expected.arrays[name]).max()
        np.testing.assert_allclose(actual.arrays[name], expected.arrays[name], rtol=0, atol=limit)
    assert (actual.labels == expected.labels).mean() > 0.999  # ties fall either way


@pytest.mark.slow  # an export takes 15 s
@pytest.mark.parametrize("name", LIBRARIES)
def test_runtime_gives_what_torch_gives(model, file, name):
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, name))
    photo = photo_of(70, 97)
    expected = dpt.Predictor(model)(photo)
    assert expected.unit == "metres"  # the calibration is of the file too
    for source in (model, file, str(file)):
        assert_same(dpt.Predictor(source, runtime=name)(photo), expected)
    flipped = dpt.Predictor(model, flip=True)(photo)
    assert_same(dpt.Predictor(model, flip=True, runtime=name)(photo), flipped)


@pytest.mark.slow
def test_a_file_that_normalises_is_given_pixels(model, tmp_path):
    path = export(model, tmp_path / "a.onnx", with_preprocessing=True).path
    photo = photo_of(70, 97)
    assert_same(dpt.Predictor(path)(photo), dpt.Predictor(model)(photo))


@pytest.mark.slow
def test_openvino_in_bf16_never_rounds_the_bands_of_files(tmp_path):
    pytest.importorskip("openvino")
    rule = {"pixels": "bands", "mean": [290.0, 500.0], "std": [1.0, 100.0], "image_size": [48, 64]}
    sizes = {k: v for k, v in TINY.items() if k != "image_size"} | {"encoder": {"in_channels": 2}}
    heads = {"depth": {"kind": "relative"}}
    model = dpt.create_model("dpt_tiny", heads=heads, preprocessing=rule, **sizes).eval()
    path = export(model, tmp_path / "a.xml", with_preprocessing=True).path
    bands = np.random.default_rng(0).normal(size=(48, 64, 2)) * rule["std"] + rule["mean"]
    expected = dpt.Predictor(model)(bands.astype(np.float32)).depth
    actual = dpt.Predictor(path)(bands.astype(np.float32)).depth
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE)
    with pytest.raises(ValueError, match=r"bf16.*a\.xml"):
        dpt.Predictor(path, precision="bf16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "head", [{"activation": "exp"}, {"bins": {"max_depth": 10.0, "count": 64}}], ids=["exp", "bins"]
)
def test_depth_of_openvino_in_bf16_has_no_steps(head):
    pytest.importorskip("openvino")
    model = random_norms(tiny({"depth": {"kind": "metric"} | head}))
    photo = torch.from_numpy(photo_of(96, 128)).permute(2, 0, 1)[None]
    images = model.preprocessing.normalize(photo)
    expected = make_runtime(None, model).tensors(Inputs(images))["depth"]
    actual = make_runtime("openvino", model, precision="bf16").tensors(Inputs(images))["depth"]
    torch.testing.assert_close(actual, expected, atol=0, rtol=2e-3)
    assert len(actual.unique()) > 1000  # with steps they are below 20


@pytest.mark.slow
def test_masks_are_predicted_by_every_runtime():
    heads = {"panoptic": {"num_classes": 2, "things": [1, 0], "num_queries": 4}}
    sizes = {"embed_dim": 32, "num_heads": 2, "num_blocks": 6, "out_indices": [3]}
    sizes |= {"num_later_blocks": 2, "image_size": [64, 64]}
    model = dpt.create_model("eomt_small", heads=heads, **sizes).eval()
    images = torch.ones(1, 3, 64, 64)
    expected = make_runtime(None, model, upsample_logits=True).tensors(Inputs(images))
    actual = make_runtime("onnx", model).tensors(Inputs(images))
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value, atol=1e-4, rtol=0)


def test_a_model_of_prompts_needs_torch():
    heads = {"depth": {"kind": "metric", "max_depth": 9.0}}
    model = dpt.create_model("dpt_tiny", heads=heads, prompts=True, **TINY)
    with pytest.raises(ValueError, match="runtime=onnx: takes no sparse depth"):
        make_runtime("onnx", model)


@pytest.mark.slow
def test_a_foreign_file_is_not_guessed_about(file, tmp_path):
    onnx = pytest.importorskip("onnx")
    stored = onnx.load(file)
    del stored.metadata_props[:]
    onnx.save(stored, tmp_path / "foreign.onnx")
    with pytest.raises(ValueError, match=r"foreign\.onnx: its metadata do not state"):
        dpt.Predictor(tmp_path / "foreign.onnx")


@pytest.mark.slow
def test_command_predicts_by_an_exported_file(file, predict, refusal, tmp_path, out):
    photo = save_photo(tmp_path / "a.png", 40, 57)
    predict(photo, "--format", "npy", model=file)
    assert np.load(out / "depth_npy/a.npy").shape == (40, 57)
    assert "runtime" in refusal(photo, "--runtime", "openvino", model=file)
    assert "b.onnx" in refusal(photo, model=tmp_path / "b.onnx")


@pytest.fixture
def exports(monkeypatch, tmp_path):
    """The files that an export in a cache of its own has written."""
    paths = []

    def write(model, path):
        path.write_bytes(b"exported")
        paths.append(path)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtimes, "export", write)
    return paths


def test_a_cached_file_that_was_changed_is_written_again(model, exports):
    path = cached_export(model)
    assert cached_export(model) == path
    assert len(exports) == 1
    path.write_bytes(b"changed!")
    cached_export(model)
    assert len(exports) == 2
    assert path.read_bytes() == b"exported"


def test_a_cache_in_which_others_write_is_refused(model, exports, tmp_path):
    folder = cached_export(model).parent
    folder.chmod(0o777)
    with pytest.raises(ValueError, match=str(folder)):
        cached_export(model)
    folder.rename(tmp_path / "theirs")
    (tmp_path / "theirs").chmod(0o700)
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match=str(folder)):
        cached_export(model)


def test_a_relative_cache_is_not_one(model, exports, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cached_export(model).is_relative_to(tmp_path / ".cache/dpt/exported")


def saved_graph(path, *nodes):
    image, out = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["b", "c", "h", "w"])
        for name in ("images", "out")
    )
    sizes = onnx.helper.make_tensor("sizes", onnx.TensorProto.INT64, [4], [1, 1, 1, 1])
    graph = onnx.helper.make_graph(nodes, "graph", [image], [out], [sizes])
    opset = onnx.helper.make_opsetid("", 18)
    onnx.save(onnx.helper.make_model(graph, ir_version=9, opset_imports=[opset]), path)
    return path


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("kind", ["Loop", "Scan", "If"])
def test_a_file_with_a_loop_is_refused(tmp_path, name, kind):
    body = onnx.helper.make_graph([], "body", [], [])
    loop = onnx.helper.make_node(kind, ["images"], ["out"], body=body)
    with pytest.raises(ValueError, match=r"a\.onnx"):
        make_runtime(name, saved_graph(tmp_path / "a.onnx", loop))


def test_a_file_that_fails_while_it_runs_is_one_line(tmp_path):
    reshape = onnx.helper.make_node("Reshape", ["images", "sizes"], ["out"])
    session = files.onnx_session(saved_graph(tmp_path / "a.onnx", reshape))
    assert session(torch.zeros(1, 1, 1, 1))["out"].shape == (1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"images \(1, 3, 8, 8\)"):
        session(torch.zeros(1, 3, 8, 8))
