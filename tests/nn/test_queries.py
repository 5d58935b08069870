"""Queries: cross-attention by formula, the two kinds of token decoders, mask heads and EoMT."""

import pytest
import torch

import dpt
from dpt.nn.heads.queries import CrossAttention, TokenDecoder, attended, semantic_scores
from dpt.types.outputs import tensors_in

PANOPTIC = {"panoptic": {"num_classes": 4, "things": [1, 1, 0, 0], "num_queries": 6}}
SEMANTIC = {"segmentation": {"num_classes": 4, "kind": "masks", "num_queries": 6}}
SMALL = {"embed_dim": 48, "num_heads": 4, "num_blocks": 6, "num_register_tokens": 2}


def eomt(heads=PANOPTIC, **options):
    sizes = {**SMALL, "out_indices": [3], "num_later_blocks": 2, "image_size": [64, 64]}
    return dpt.create_model("eomt_small", heads=heads, **{**sizes, **options})


def small_dpt(heads=PANOPTIC):
    sizes = {"embed_dim": 48, "num_heads": 4, "num_blocks": 4, "out_indices": [0, 1, 2, 3]}
    return dpt.create_model("dpt_tiny", heads=heads, encoder=sizes, fusion_channels=32)


def test_cross_attention_is_torchs():
    ours = CrossAttention(16, memory_dim=24, num_heads=4).double()
    theirs = torch.nn.MultiheadAttention(16, 4, kdim=24, vdim=24, batch_first=True).double()
    with torch.no_grad():
        for name in ("q", "k", "v"):
            getattr(theirs, f"{name}_proj_weight").copy_(getattr(ours, name).weight)
        theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.k.bias, ours.v.bias]))
        theirs.out_proj.load_state_dict(ours.proj.state_dict())
    queries, memory = torch.randn(2, 3, 16).double(), torch.randn(2, 5, 24).double()
    attn_mask = torch.rand(2, 1, 3, 5) > 0.4
    attn_mask[..., 0] = True
    wanted, _ = theirs(queries, memory, memory)
    torch.testing.assert_close(ours(queries, memory), wanted)
    hidden = ~attn_mask.expand(2, 4, 3, 5).reshape(8, 3, 5)
    wanted, _ = theirs(queries, memory, memory, attn_mask=hidden)
    torch.testing.assert_close(ours(queries, memory, attn_mask=attn_mask), wanted)


def test_the_two_ways_to_decode_into_tokens():
    """Queries from the encoder's tokens keep their number; learned ones are a set of another."""
    memory = torch.randn(2, 7, 16)
    options = {"memory_dim": 16, "num_layers": 2, "num_heads": 2}
    sequence = TokenDecoder(16, **options, num_queries=None)
    first = sequence.layers[0](memory, memory)
    torch.testing.assert_close(sequence(memory), sequence.layers[1](first, memory))
    assert TokenDecoder(16, **options, num_queries=3)(memory).shape == (2, 3, 16)
    assert TokenDecoder(8, **options, num_queries=3)(memory).shape == (2, 3, 8)


def test_semantic_scores():
    masks, classes = torch.randn(1, 3, 2, 2), torch.randn(1, 3, 5)
    probabilities = classes.softmax(-1)
    wanted = sum(probabilities[0, q, :4, None, None] * masks[0, q].sigmoid() for q in range(3))
    torch.testing.assert_close(semantic_scores(masks, classes)[0].exp(), wanted)


@pytest.mark.parametrize("model", ["dpt_tiny", "eomt"])
@pytest.mark.parametrize("heads", [PANOPTIC, SEMANTIC], ids=["panoptic", "semantic"])
def test_outputs(model, heads):
    net = eomt(heads) if model == "eomt" else small_dpt(heads)
    ((name, _),) = heads.items()
    layers = 3 if model == "eomt" else 4
    for height, width in ((64, 96), (50, 33)):
        images = torch.randn(2, 3, height, width)
        out = net.eval()(images)
        shapes = [tuple(tensor.shape) for tensor in tensors_in(out[name])]
        if heads is PANOPTIC:
            assert shapes == [(2, 6, height, width), (2, 6, 5)]
        else:
            assert shapes == [(2, 4, height, width)]
    padded = net.train()(images, raw=True)[name]
    assert padded.layers.masks.shape == (2, layers, 6, 50, 33)
    out = net(images[..., :32, :32], raw=True)[name]
    assert out.layers.masks.shape == (2, layers, 6, 8, 8)
    assert out.layers.classes.shape == (2, layers, 6, 5)
    extra = [] if out.auxiliary is None else [out.auxiliary]
    sum(tensor.sum() for tensor in (*out.layers, *extra)).backward()
    unused = [n for n, p in net.named_parameters() if p.grad is None]
    assert not unused


def test_classes_of_queries_do_not_overflow_in_float16():
    """The mean of the pixels' logits, whose sum over a mask is above 65504."""
    head = small_dpt().heads["panoptic"].eval()
    dim = head.pixels.out_channels
    queries, pixels = torch.randn(1, 1, dim), torch.randn(1, dim, 64, 64)
    logits = torch.full((1, 4, 64, 64), 60.0)
    with torch.no_grad():
        exact = head._predict(queries, pixels, logits).classes
        with torch.autocast("cpu", dtype=torch.float16):
            classes = head._predict(queries, pixels, logits).classes
    assert exact[..., :4].min() > 30
    torch.testing.assert_close(classes.float(), exact, rtol=0.01, atol=0)


def test_a_query_attends_where_its_mask_is():
    """In training, before the shares fall: patches outside of the mask do not change the query."""
    net = eomt().train()
    head = net.heads["panoptic"]
    masks = torch.full((1, 6, 16, 16), -1.0)
    masks[..., :8, :8] = 1.0
    attn_mask = head._attn_mask(masks, (4, 4), 6 + 3 + 16, torch.tensor(1.0))
    assert attn_mask.shape == (1, 1, 25, 25)
    assert attn_mask[0, 0, 0, 9:].view(4, 4)[:2, :2].all()
    assert attn_mask[0, 0, :6, 9:].sum() == 6 * 4
    assert attn_mask[0, 0, :, :9].all()
    assert attn_mask[0, 0, 6:].all()
    assert head._attn_mask(masks, (4, 4), 25, torch.tensor(0.0)).all()
    assert torch.equal(attended(masks, (16, 16))[0, 0].view(16, 16), masks[0, 0] > 0)


@pytest.mark.parametrize(
    ("starts", "ends"),
    [
        ([14782, 36955, 59128], [29564, 51737, 73910]),  # small and base
        ([14782, 29564, 44346, 59128], [29564, 44346, 59128, 73910]),  # large
        ([14782, 25869, 36955, 48042, 59128], [29564, 40651, 51737, 62824, 73910]),  # giant
    ],
)
def test_masks_are_annealed_at_the_official_steps(starts, ends):
    """Of EoMT's configurations over DINOv2 for COCO, of 12 epochs with 7391 steps."""
    head = eomt(num_later_blocks=len(starts), num_blocks=9).heads["panoptic"]
    for step in sorted({*starts, *ends}):
        for now in (step - 500, step, step + 500):
            head.set_progress(now / (12 * 7391))
            shares = [
                (1 - min(max((now - start) / (end - start), 0), 1)) ** 0.9
                for start, end in zip(starts, ends, strict=True)
            ]
            assert head.mask_shares.tolist() == pytest.approx(shares, abs=2e-4), now


def test_prediction_does_not_depend_on_chance():
    net, images = eomt().eval(), torch.randn(1, 3, 64, 64)
    for fraction in (0.0, 0.4, 1.0):
        net.heads["panoptic"].set_progress(fraction)
        one, two = net(images)["panoptic"].masks, net(images)["panoptic"].masks
        assert torch.equal(one, two)
        fast = net.optimize_for_inference(compiled=False)
        torch.testing.assert_close(fast(images)["panoptic"].masks, one)


@pytest.mark.parametrize("name", ["vit_small_patch14_dinov2", "vit_small_patch16_dinov3"])
def test_over_timm(name):
    """The later blocks are timm's own: without queries they give timm's features."""
    import timm

    encoder = {"kind": "timm", "name": name, "depth": 5, "num_later_blocks": 3}
    net = dpt.create_model("eomt_small", heads=PANOPTIC, encoder=encoder).eval()
    whole = timm.create_model(name, depth=5, num_classes=0, dynamic_img_size=True).eval()
    whole.load_state_dict(net.encoder.model.state_dict())
    stride = net.encoder.strides[0]
    images = torch.randn(1, 3, 4 * stride, 6 * stride)
    with torch.no_grad():
        tokens = net.encoder(images)
        x, grid = tokens.levels[-1], tokens.grids[-1]
        for i in range(3):
            x = net.encoder.later_block(i, x, attn_mask=None, grid=grid)
        torch.testing.assert_close(net.encoder.later_norm(x), whole.forward_features(images))
        # queries move along with the prefix: the patches keep their rotary codes
        mine = torch.cat([torch.zeros(1, 2, x.shape[-1]), tokens.levels[-1]], dim=1)
        attn_mask = torch.ones(1, 1, mine.shape[1], mine.shape[1], dtype=torch.bool)
        attn_mask[:, :, 2:, :2] = False
        for i in range(3):
            mine = net.encoder.later_block(i, mine, attn_mask=attn_mask, grid=grid)
        torch.testing.assert_close(mine[:, 2:], x, atol=1e-4, rtol=1e-4)
    out = net.train()(images, raw=True)
    assert out["panoptic"].layers.masks.shape[1] == 4
