"""Numbers from the lectures that teach this model, computed with the package's own classes.

Where a lecture misprints a number, the right one stands here.
"""

import math

import pytest
import torch
from torch import nn

from dpt.nn import VisionTransformer, ViTConfig
from dpt.nn.vit import Attention, Block, PatchEmbed, sincos_1d, sincos_2d

# lecture 004: a 4 × 4 image of 1..16, 2 × 2 patches, D = 2
IMAGE = torch.arange(1.0, 17.0, dtype=torch.float64).reshape(1, 1, 4, 4)
E = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.float64)
CODES = torch.tensor([[0, 0], [0.1, 0.1], [0.1, 0.2], [0.2, 0.1], [0.2, 0.2]], dtype=torch.float64)
Z = torch.tensor([[1, 5], [3, 7], [9, 13], [11, 15]], dtype=torch.float64)
Z_TILDE = torch.tensor(
    [[0, 0], [1.1, 5.1], [3.1, 7.2], [9.2, 13.1], [11.2, 15.2]], dtype=torch.float64
)


@torch.no_grad()
def toy_vit():
    vit = VisionTransformer(
        ViTConfig(
            image_size=(4, 4),
            patch_size=2,
            in_channels=1,
            embed_dim=2,
            num_blocks=1,
            num_heads=1,
            out_indices=(0,),
        )
    ).double()
    vit.patch_embed.proj.weight.copy_(E.reshape(2, 1, 2, 2))
    vit.patch_embed.proj.bias.zero_()
    vit.cls_token.zero_()
    vit.pos_embed.copy_(CODES)
    return vit


@torch.no_grad()
def attention_maps(tokens, *, scaled=True):
    """softmax(X Xᵀ / √d) of identity Q, K: one-hot values make the output the weights."""
    count, dim = tokens.shape
    wide = Attention(dim + count, num_heads=1, qkv_bias=False).double()
    queries, keys, values = wide.qkv.weight.zero_().chunk(3)
    # the module divides by √(dim + count)
    factor = math.sqrt(dim + count) / (math.sqrt(dim) if scaled else 1.0)
    queries[:dim, :dim] = torch.eye(dim, dtype=torch.float64) * factor
    keys[:dim, :dim] = torch.eye(dim)
    values[:count, dim:] = torch.eye(count)
    wide.proj.weight.copy_(torch.eye(dim + count))
    wide.proj.bias.zero_()
    return wide(torch.cat((tokens, torch.eye(count)), dim=1)[None])[0, :, :count]


@torch.no_grad()
def identity_attention(dim):
    attention = Attention(dim, num_heads=1, qkv_bias=False).double()
    eye = torch.eye(dim, dtype=torch.float64)
    attention.qkv.weight.copy_(torch.cat((eye, eye, eye)))
    attention.proj.weight.copy_(eye)
    attention.proj.bias.zero_()
    return attention


def close(found, wanted, atol=1e-12):
    wanted = torch.as_tensor(wanted, dtype=found.dtype)
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)


# lecture 000


def test_a_token_sees_its_patch_and_attention_sees_everything():
    """The lecture's contrast: one block of attention reaches where five convolutions do not."""
    vit = toy_vit()
    x = IMAGE.clone().requires_grad_()
    vit.patch_embed(x)[0, :, 0, 0].sum().backward()
    assert (x.grad[0, 0, 2:] == 0).all()
    assert (x.grad[0, 0, :, 2:] == 0).all()
    assert (x.grad[0, 0, :2, :2] != 0).any()
    nn.init.normal_(vit.blocks[0].attn.qkv.weight)
    x = IMAGE.clone().requires_grad_()
    vit(x).levels[0][0, 1, 0].backward()
    reached = x.grad.reshape(2, 2, 2, 2).abs().sum(dim=(1, 3))
    assert (reached > 0).all()


def test_sinusoid_of_position_1():
    found = sincos_1d(torch.tensor(1.0, dtype=torch.float64), 4)
    close(found, [0.841471, 0.540302, 0.0099998, 0.999950], atol=5e-7)


def test_learned_codes_are_added():
    vit = VisionTransformer(
        ViTConfig(
            image_size=(1, 2),
            patch_size=1,
            embed_dim=4,
            num_blocks=1,
            num_heads=1,
            out_indices=(0,),
            cls_position=False,
        )
    )
    nn.init.zeros_(vit.cls_token)
    with torch.no_grad():
        vit.pos_embed.copy_(torch.tensor([[0.1, 0.2, 0.3, 0.4], [-0.1, 0.0, 0.1, 0.2]]))
    patches = torch.tensor([1.0, 2.0]).expand(1, 4, 1, 2)
    found = vit.embed(patches)[0]
    close(found[1:], [[1.1, 1.2, 1.3, 1.4], [1.9, 2.0, 2.1, 2.2]], atol=1e-6)


# lecture 001


def test_gram_of_the_2x2_grid():
    codes = sincos_2d(2, 2, 8, like=torch.zeros((), dtype=torch.float64))
    gram = codes @ codes.T
    beside, across = 3.540252, 3.080505
    wanted = [
        [4, beside, beside, across],
        [beside, 4, across, beside],
        [beside, across, 4, beside],
        [across, beside, beside, 4],
    ]
    close(gram, wanted, atol=1e-6)


def test_constant_patches_embed_in_proportion():
    embed = PatchEmbed(patch_size=4, in_channels=1, dim=8).double()
    nn.init.zeros_(embed.proj.bias)
    image = torch.tensor([[0.9, 0.4], [0.6, 0.1]], dtype=torch.float64)
    image = image.repeat_interleave(4, dim=0).repeat_interleave(4, dim=1)
    found = embed(image[None, None])[0].flatten(1).T
    assert found[3].abs().min() > 0
    close(found / found[3], torch.tensor([9.0, 4.0, 6.0, 1.0])[:, None].expand(4, 8))


# lecture 002


def test_head_size_of_vit_base_is_64_and_scores_are_divided_by_its_root():
    torch.manual_seed(0)
    attention = Attention(768, num_heads=12, qkv_bias=False).double()
    for weight in attention.qkv.weight.data.chunk(3):
        nn.init.orthogonal_(weight)
    tokens = torch.randn(1, 60, 768, dtype=torch.float64)
    with torch.no_grad():
        found = attention(tokens)
        q, k, v = attention.qkv(tokens).view(1, 60, 3, 12, 64).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2)
        mixed = (scores / 8).softmax(dim=-1) @ v
        wanted = attention.proj(mixed.transpose(1, 2).flatten(2))
    close(found, wanted)
    assert scores.var().item() == pytest.approx(64, rel=0.05)
    assert (scores / 8).var().item() == pytest.approx(1, rel=0.05)


# lecture 003


def test_layer_norm_divides_by_the_standard_deviation():
    norm = Block(ViTConfig(embed_dim=4, num_heads=1, norm_eps=1e-12)).double().norm1
    found = norm(torch.tensor([1.0, 2, 3, 4], dtype=torch.float64))
    close(found, [-1.3416, -0.4472, 0.4472, 1.3416], atol=5e-5)


# lecture 004


def test_patch_embedding_of_the_toy_image():
    found = toy_vit().patch_embed(IMAGE)[0].flatten(1).T
    close(found, Z)


def test_tokens_with_cls_and_codes():
    vit = toy_vit()
    close(vit.embed(vit.patch_embed(IMAGE))[0], Z_TILDE)


def test_scores_of_the_first_patch():
    weights = attention_maps(Z_TILDE, scaled=False)[1]
    scores = weights.log() - weights[0].log()  # its score with CLS, the zero token, is 0
    close(scores, [0, 27.22, 40.13, 76.93, 89.84], atol=1e-9)


def test_attention_of_cls_is_uniform():
    close(attention_maps(Z_TILDE)[0], [0.2] * 5)
    close(identity_attention(2)(Z_TILDE[None])[0, 0], [4.92, 8.12])


def test_attention_of_the_first_patch():
    weights = attention_maps(Z_TILDE)[1]
    assert weights[3].item() == pytest.approx(1.08e-4, abs=1e-6)
    assert weights[4].item() == pytest.approx(0.999892, abs=1e-6)
    close(identity_attention(2)(Z_TILDE[None])[0, 1], [11.199783, 15.199772], atol=1e-6)
