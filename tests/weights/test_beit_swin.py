"""DPTs over BEiT, Swin and SwinV2: what is read, what comes back exactly, what is refused and why.

That outputs and gradients equal the peers', the parity matrix holds.
"""

import copy
import pickle

import pytest
import torch
from peers_beit_swin import BEIT, CASES, PYRAMID, SWINV2, Midas31, to_old_names
from peers_transformers import make

import dpt
from dpt.model_config import ModelConfig
from dpt.weights import load_encoder_weights, official
from dpt.weights.base import Checkpoint
from dpt.weights.files import CheckpointFiles
from dpt.weights.formats import read

pytestmark = pytest.mark.peers


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders that transformers saved, by backbone."""
    actual = {"beit": {"backbone": BEIT}, "swinv2": {"backbone": SWINV2, **PYRAMID}}
    for name, options in actual.items():
        actual[name] = tmp_path_factory.mktemp(name)
        make("depth", **options).save_pretrained(actual[name])
    return actual


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """MiDaS's files, by model."""
    folder = tmp_path_factory.mktemp("midas")
    cases = [c for c in CASES if c.format == "MiDaS 3.1"]
    actual = {}
    for case in cases:
        (folder / case.model).mkdir()
        actual[case.model] = case.save(case.make(), folder / case.model)
    return actual


def test_tables_fit_an_encoder_of_another_grid(files):
    ours = dpt.DPT.from_pretrained(files["BEiT"])
    settings = ours.config.to_dict()
    settings["encoder"]["image_size"] = [96, 128]
    wide = ModelConfig.from_dict(settings).build().encoder
    report = load_encoder_weights(wide, files["BEiT"])
    assert report.resized == ["4 tables of position biases 4x4 to 6x8"]
    images = torch.randn(1, 3, 96, 128)
    with torch.no_grad():
        expected, actual = ours.encoder(images).levels[-1], wide.eval()(images).levels[-1]
    torch.testing.assert_close(actual, expected)


def test_off_the_windows_the_order_of_padding_tells(folders):
    """timm's own order lets the far edge in; transformers', which is Swin's, is what we keep."""
    ours = dpt.DPT.from_pretrained(folders["swinv2"])
    plain = ours.config.to_dict()
    assert plain["encoder"].pop("pad_windows") == "before_shift"
    plain = dpt.DPT(ModelConfig.from_dict(plain)).eval()
    plain.load_state_dict(ours.state_dict())
    for size, equal in (((96, 96), True), ((64, 160), False)):
        images = torch.randn(1, 3, *size)
        with torch.no_grad():
            expected, actual = ours(images)["depth"], plain(images)["depth"]
        assert torch.equal(actual, expected) == equal
    resnet = {"kind": "timm", "name": "resnet18", "pad_windows": "before_shift"}
    with pytest.raises(ValueError, match="pad_windows="):
        dpt.create_model("dpt_tiny", heads={"depth": {}}, encoder=resnet)


def test_stages_behind_the_last_level_are_left_out(tmp_path):
    backbone = {**SWINV2, "out_indices": [1, 2, 3]}
    theirs = make("depth", backbone=backbone, neck_hidden_sizes=[16, 32, 64])
    theirs.save_pretrained(tmp_path)
    ours = dpt.DPT.from_pretrained(tmp_path)
    names = read(tmp_path).unused
    assert "backbone.encoder.layers.2.downsample.reduction.weight" in names
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        expected, actual = theirs(images).predicted_depth, ours(images)["depth"]
    expected = torch.nn.functional.interpolate(expected[None], size=(64, 96), mode="bilinear")[0]
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


RELEASED = {  # timm's model today; heads, windows or grid, image size, what is kept of the aspect
    "dpt_beit_base_384": ("beit_base_patch16_384", 12, None, 384, "minimal"),
    "dpt_beit_large_384": ("beit_large_patch16_384", 16, None, 384, "minimal"),
    "dpt_beit_large_512": ("beit_large_patch16_512", 16, None, 512, "minimal"),
    "dpt_swin_large_384": ("swin_large_patch4_window12_384", 6, 12, 384, "stretch"),
    "dpt_swin2_large_384": ("swinv2_large_window12to24_192to384", 6, 24, 384, "stretch"),
    "dpt_swin2_base_384": ("swinv2_base_window12to24_192to384", 4, 24, 384, "stretch"),
    "dpt_swin2_tiny_256": ("swinv2_tiny_window16_256", 3, 16, 256, "stretch"),
}


@pytest.mark.parametrize(
    ("name", "masks"),
    [
        ("dpt_beit_base_384", True),
        ("dpt_swin2_tiny_256", False),
        *(pytest.param(n, True, marks=pytest.mark.slow) for n in list(RELEASED)[1:]),
        *(pytest.param(n, False, marks=pytest.mark.slow) for n in list(RELEASED)[3:-1]),
    ],
)
def test_released_architectures_are_recognised_by_their_shapes(name, masks, tmp_path):
    """Of the names and shapes that a released file has; nothing is computed."""
    import timm

    arch, heads, window, size, resize = RELEASED[name]
    beit = "beit" in name
    with torch.device("meta"):
        if beit:
            dim = 768 if "base" in name else 1024
            channels = (96, 192, 384, 768) if "base" in name else (256, 512, 1024, 1024)
            theirs = Midas31("BEiT", channels, 256, embed_dim=dim, depth=1, num_heads=1)
        else:
            theirs = Midas31("Swin", fusion=256, embed_dim=96, depths=(1, 1, 1, 1))
        trunk = timm.create_model(arch)
        theirs.pretrained.model = trunk
        if not beit:
            for n, level in enumerate(trunk.feature_info):
                rn = torch.nn.Conv2d(level["num_chs"], 256, 3, bias=False)
                setattr(theirs.scratch, f"layer{n + 1}_rn", rn)
        state = to_old_names(theirs.state_dict(), theirs)
    if not masks:
        state = {k: v for k, v in state.items() if not k.endswith("attn_mask")}
    source = CheckpointFiles(tmp_path / f"{name}.pt", state)
    assert official.Official().recognises(source)
    checkpoint = Checkpoint(official.Official().read(source))
    spec, actual = checkpoint.config.to_dict(), checkpoint.tensors
    assert actual.keys() == {k for k in actual if k.startswith(("encoder.", "decoder.", "heads."))}
    encoder = spec["encoder"]
    if beit:
        assert encoder["num_heads"] == heads
        assert encoder["image_size"] == [size, size]
    else:
        config = trunk.layers[3].blocks[0].attn
        assert (encoder["num_heads"][0], encoder["window_size"]) == (heads, window)
        assert encoder["img_size"] == [size, size]
        if "swin2" in name:
            before = encoder["pretrained_window_sizes"][3]
            assert config.pretrained_window_size == (before, before)
    settings = spec["preprocessing"]
    assert (settings["image_size"], settings["resize"]) == ([size, size], resize)
    assert (settings["multiple_of"], settings["mean"]) == (32, [0.5] * 3)


def test_a_swin_at_other_sizes_is_that_of_transformers(files, folders):
    """MiDaS takes its own size alone; beyond it the same tensors give the same in both formats."""
    ours, other = (dpt.DPT.from_pretrained(p) for p in (folders["swinv2"], files["SwinV2"]))
    other.load_state_dict(ours.state_dict())
    images = torch.randn(1, 3, 64, 160)
    with torch.no_grad():
        expected, actual = ours(images)["depth"], other(images)["depth"]
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_a_swin_can_be_pickled_and_copied(folders):
    """Processes that are spawned get their model so."""
    ours = dpt.DPT.from_pretrained(folders["swinv2"])
    images = torch.randn(1, 3, 96, 96)
    for twin in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        with torch.no_grad():
            assert torch.equal(twin(images)["depth"], ours(images)["depth"])
