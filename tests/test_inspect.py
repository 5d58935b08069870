"""Attention, tokens and read-out as arrays, and the sheet made of them."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import call, small_model
from torch import nn

import dpt
from dpt.inspect import (
    attention_maps,
    cls_attention,
    feature_norms,
    inspection_sheet,
    patch_attention,
    readout_contribution,
    token_pca,
)
from dpt.types.outputs import Tokens

WIDTH = {"embed_dim": 48, "num_heads": 3}
METRIC = {"depth": {"kind": "metric", "max_depth": 10.0}}


def noisy_model(*, heads=METRIC, **overrides):
    torch.manual_seed(0)
    model = small_model(heads=heads, **WIDTH, **overrides).eval()
    for parameter in model.parameters():  # nothing may hide behind a zero or a one
        nn.init.normal_(parameter, std=0.2)
    return model


def small_images(count=1, height=48, width=64):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model():
    return noisy_model()


ENCODERS = {
    "learned": {},
    "registers, layer scale": {"num_register_tokens": 3, "layer_scale": 0.5},
    "sincos_1d": {"position": "sincos_1d"},
    "sincos_2d, post-norm": {"position": "sincos_2d", "norm_order": "post"},
    "concat": {"position": "concat", "position_dim": 16},
    "rope": {"position": "rope", "key_bias": False, "num_register_tokens": 2},
    "none, swiglu, no bias": {"position": "none", "swiglu": True, "qkv_bias": False},
    "beit": {"encoder": {"kind": "beit"}},
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in [*ENCODERS][1:-1]]


@pytest.mark.parametrize("name", ["learned", "beit", *SLOW])
@torch.no_grad()
def test_the_weights_are_those_the_block_applies(name):
    """Weights · V, projected, is what the block's own attention gave."""
    model = noisy_model(**ENCODERS[name])
    seen = {}
    for k, block in enumerate(model.encoder.blocks):
        block.attn.register_forward_hook(
            lambda module, args, options, output, k=k: seen.update({k: (args[0], options, output)}),
            with_kwargs=True,
        )
    maps = attention_maps(model, small_images(2), blocks=[3, 1])
    for k, weights in zip([3, 1], maps, strict=True):
        tokens, options, output = seen[k]
        attention = model.encoder.blocks[k].attn
        assert weights.shape == (2, 3, tokens.shape[1], tokens.shape[1])
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
        values = attention.project_qkv(tokens, options.get("norm"))[..., -tokens.shape[-1] :]
        values = values.unflatten(-1, (3, -1)).transpose(1, 2)
        mixed = (torch.from_numpy(weights) @ values).transpose(1, 2).flatten(2)
        torch.testing.assert_close(attention.proj(mixed), output, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["dpt_tiny", "dpt_stem"])
def test_maps_of_one_query_are_rows_of_the_whole(name):
    if name == "dpt_tiny":
        model = noisy_model(num_register_tokens=2)
    else:
        sizes = {"num_blocks": 4, "out_indices": [1, 3], "num_register_tokens": 2}
        model = dpt.create_model(name, heads=METRIC, **sizes).eval()
    images = small_images(2)
    whole = attention_maps(model, images)
    of_cls = cls_attention(model, images)
    of_patch = patch_attention(model, images, patch=(2, 1))
    assert len(whole) == len(of_cls) == len(of_patch) == 4
    for maps, cls_rows, patch_rows in zip(whole, of_cls, of_patch, strict=True):
        assert cls_rows.shape == patch_rows.shape == (2, 3, 3, 4)
        np.testing.assert_allclose(cls_rows.reshape(2, 3, 12), maps[:, :, 0, 3:], rtol=1e-5)
        query = 3 + 2 * 4 + 1
        np.testing.assert_allclose(patch_rows.reshape(2, 3, 12), maps[:, :, query, 3:], rtol=1e-5)


def test_inspection_does_not_change_the_model(model):
    images = small_images()
    before = model(images)["depth"]
    attention_maps(model, images)
    with pytest.raises(ValueError, match="outside the grid of 3 rows and 4 columns"):
        patch_attention(model, images, patch=(3, 0))
    assert torch.equal(model(images)["depth"], before)
    assert not any(block.attn._forward_pre_hooks for block in model.encoder.blocks)


class Planted(dpt.nn.Encoder):
    """An encoder that gives the tokens it was made with: (B, 1 + h·w, D), CLS first."""

    num_prefix_tokens, pad_multiple = (1,), 1

    def __init__(self, tokens, grid):
        super().__init__()
        self.tokens, self.grid = tokens, grid

    def forward(self, images):
        order = images[:, 0, 0, 0].long()  # an image says which tokens are its own
        return Tokens([self.tokens[order]], [self.grid])


def planted(patches):
    """A model whose tokens at (row, column) are ``patches[:, row, column]``, behind a loud CLS."""
    patches = torch.as_tensor(patches, dtype=torch.float32)
    cls_token = torch.full((len(patches), 1, patches.shape[-1]), 100.0)
    tokens = torch.cat((cls_token, patches.flatten(1, 2)), dim=1)
    encoder = Planted(tokens, tuple(patches.shape[1:3]))
    return dpt.nn.Network(encoder=encoder, decoder=None, heads={})


def numbered(*numbers):
    return torch.tensor(numbers, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 4, 6)


def test_principal_components_are_found_in_order():
    """Three planted directions of unequal spread become red, green and blue."""
    random = np.random.default_rng(0)
    latent = random.normal(size=(48, 3))
    latent = np.linalg.qr(latent - latent.mean(axis=0))[0].reshape(2, 4, 6, 3) * [3.0, 1.0, 0.3]
    axes = np.linalg.qr(random.normal(size=(8, 8)))[0][:3]
    colours = token_pca(planted(latent @ axes + 5), numbered(0, 1))[0]
    assert colours.shape == (2, 4, 6, 3)
    assert colours.min() == 0
    assert colours.max() == 1
    for k in range(3):
        planted_values, actual = latent[..., k].ravel(), colours[..., k].ravel()
        assert abs(np.corrcoef(planted_values, actual)[0, 1]) > 0.98  # but for what is cut off


@torch.no_grad()
def test_the_contribution_of_the_read_out():
    """Against its definition, on concatenated tokens as the paper writes it (section 3.2)."""
    images = small_images(2)
    for mode in ("ignore", "add", "project"):
        model = noisy_model(readout=mode, num_register_tokens=1)
        actual = readout_contribution(model, images)
        levels = model.encoder(images).levels
        for reassemble, level, change in zip(model.decoder.reassemble, levels, actual, strict=True):
            cls_token, patches = level[:, :1], level[:, 2:]
            if mode == "ignore":
                expected = torch.zeros(patches.shape[:2])
            elif mode == "add":
                expected = cls_token.norm(dim=-1) / patches.norm(dim=-1)
            else:

                def read(cls_token, patches=patches, linear=reassemble.read.linear):
                    pairs = torch.cat((patches, cls_token.expand_as(patches)), dim=-1)
                    return F.gelu(linear(pairs))

                alone = read(torch.zeros_like(cls_token))
                expected = (read(cls_token) - alone).norm(dim=-1) / alone.norm(dim=-1)
            assert change.shape == (2, 3, 4)
            np.testing.assert_allclose(change.reshape(2, 12), expected, rtol=1e-3, atol=1e-6)


@pytest.fixture(scope="module")
def timm_model():
    torch.manual_seed(0)
    encoder = {"kind": "timm", "name": "convnext_atto"}
    return dpt.create_model("dpt_tiny", heads=METRIC, encoder=encoder).eval()


def test_an_encoder_without_attention_still_shows_its_tokens(timm_model):
    images = small_images(1, 64, 64)
    assert [m.shape[1] for m in token_pca(timm_model, images)] == [16, 8, 4, 2]
    assert [m.shape[1] for m in feature_norms(timm_model, images)] == [16, 8, 4, 2]
    assert [m.max() for m in readout_contribution(timm_model, images)] == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="no attention maps of TimmEncoder"):
        cls_attention(timm_model, images)
    photo = np.zeros((64, 64, 3), np.uint8)
    assert inspection_sheet(timm_model, photo).dtype == np.uint8
    with pytest.raises(ValueError, match="no attention maps"):
        inspection_sheet(timm_model, photo, patch=(0, 0))


@pytest.fixture(scope="module")
def files(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    model.save_pretrained(folder / "model")
    photo = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    cv2.imwrite(str(folder / "photo.png"), photo)
    return folder / "model", folder / "photo.png"


def test_the_command_writes_a_sheet_and_marks_the_patch(files, tmp_path, capsys):
    def sheet(*flags):
        call("inspect", *files, "--out", tmp_path / "sheet.png", *flags)
        return cv2.imread(str(tmp_path / "sheet.png"))

    whole = sheet()
    assert f"{whole.shape[1]} x {whole.shape[0]} pixels" in capsys.readouterr().out
    assert np.array_equal(sheet(), whole)
    assert not np.array_equal(sheet("--patch", 0, 0), whole)


def test_mistakes_are_one_line_and_the_photo_is_not_replaced(files, tmp_path, refused):
    photo = tmp_path / "photo.png"
    photo.write_bytes(files[1].read_bytes())
    (tmp_path / "link.png").symlink_to(photo)
    (tmp_path / "hard.png").hardlink_to(photo)
    sheet = tmp_path / "sheet.png"
    for image, out, message, *more in (
        (photo, photo, "photo.png: is the input"),
        (photo, tmp_path / "link.png", "link.png: is the input"),
        (photo, tmp_path / "hard.png", "hard.png: is the input"),
        (photo, sheet, "device='warp' cannot be used", "--device", "warp"),
    ):
        assert message in refused(call, "inspect", files[0], image, "--out", out, *more)
    assert photo.read_bytes() == files[1].read_bytes()
