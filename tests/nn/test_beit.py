"""BEiT: timm's function under timm's names, and tables of position biases on any grid."""

import torch

import dpt
from dpt.nn import Beit, BeitConfig
from dpt.nn.beit import offset_index, resize_table

SMALL = {
    "image_size": (64, 64),
    "embed_dim": 32,
    "num_blocks": 4,
    "num_heads": 2,
    "layer_scale": 0.1,
    "out_indices": (0, 1, 2, 3),
}


def small(**arguments):
    model = Beit(BeitConfig(**{**SMALL, **arguments})).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) / 5)
    return model


def test_timm_and_ours_are_one_function():
    from timm.models.beit import Beit as TimmBeit

    ours = small()
    options = {"img_size": 64, "embed_dim": 32, "depth": 4, "num_heads": 2, "init_values": 0.1}
    theirs = TimmBeit(**options, use_abs_pos_emb=False, use_rel_pos_bias=True).eval()
    state = {k.replace("ls1.gamma", "gamma_1"): v for k, v in ours.state_dict().items()}
    state = {k.replace("ls2.gamma", "gamma_2"): v for k, v in state.items()}
    left = theirs.load_state_dict(state, strict=False)
    assert left.unexpected_keys == []
    assert {k.partition(".")[0] for k in left.missing_keys} == {"fc_norm", "head"}
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        pairs = theirs.forward_intermediates(
            images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
        )
        levels, grids = ours(images)
    assert grids == [(4, 4)] * 4
    for found, (patches, cls_token) in zip(levels, pairs, strict=True):
        wanted = torch.cat((cls_token, patches), dim=1)
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_a_bias_belongs_to_an_offset():
    """The entry of a pair is its offset's, counted from the definition."""
    height, width = 2, 3
    index = offset_index((height, width), device=torch.device("cpu"))
    assert index.shape == (7, 7)
    assert index[0, 0] == 17  # (2·2 - 1)(2·3 - 1) = 15 offsets, then the three of CLS
    assert index[0, 1:].tolist() == [15] * 6
    assert index[1:, 0].tolist() == [16] * 6
    for query in range(6):
        for key in range(6):
            down = query // width - key // width
            right = query % width - key % width
            wanted = (down + height - 1) * (2 * width - 1) + right + width - 1
            assert index[1 + query, 1 + key] == wanted


def test_a_table_that_is_linear_in_the_offset_stays_so():
    """Bilinear resizing keeps a ramp but near its ends, and does not take rows for columns."""
    rows, columns = torch.meshgrid(torch.arange(-7, 8), torch.arange(-3, 4), indexing="ij")
    ramp = torch.stack((rows, columns), dim=-1).reshape(-1, 2).double()
    table = torch.cat((ramp, torch.tensor([[1.0, 2], [3, 4], [5, 6]]).double()))
    assert torch.equal(resize_table(table, (8, 4), (8, 4), policy="bilinear"), table)
    found = resize_table(table, (8, 4), (23, 11), policy="bilinear")
    assert torch.equal(found[-3:], table[-3:])
    cells = found[:-3].unflatten(0, (45, 21))[2:-2, 2:-2]  # 15 to 45 rows, 7 to 21 columns
    torch.testing.assert_close(
        cells[..., 0], (torch.arange(-20, 21) / 3)[:, None].expand(-1, 17).double()
    )
    torch.testing.assert_close(
        cells[..., 1], (torch.arange(-8, 9) / 3)[None].expand(41, -1).double()
    )


def test_any_size_trains_and_every_tensor_takes_part():
    model = dpt.create_model(
        "dpt_tiny",
        heads={"depth": {"kind": "metric", "max_depth": 10.0}},
        encoder={"kind": "beit", **SMALL, "image_size": [64, 96]},
    )
    depth = model(torch.randn(2, 3, 70, 101))["depth"]
    assert depth.shape == (2, 70, 101)
    (depth * torch.randn_like(depth)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    tables = [p for n, p in model.named_parameters() if n.endswith("bias_table")]
    assert len(tables) == 4
    assert all(p.shape == ((2 * 4 - 1) * (2 * 6 - 1) + 3, 2) for p in tables)


def test_autocast():
    model = small()
    images = torch.randn(1, 3, 32, 64)
    with torch.no_grad():
        wanted = model(images).levels[-1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model(images).levels[-1].float()
    assert (found - wanted).abs().max() <= 0.05 * wanted.abs().max()
