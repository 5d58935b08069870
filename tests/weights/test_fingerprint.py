"""One code for one model, wherever it lies."""

import torch

import dpt
from dpt.weights.formats import fingerprint

TINY = {
    "encoder": {"embed_dim": 16, "num_heads": 2, "num_blocks": 4, "out_indices": [0, 1, 2, 3],
                "image_size": [32, 32]},
    "decoder": {"reassemble_channels": [4, 4, 8, 8], "fusion_channels": 8},
}  # fmt: skip


def code_of(model):
    return fingerprint(model.config.to_dict(), model.state_dict())


def test_it_tells_weights_and_settings_apart(tmp_path):
    torch.manual_seed(0)
    model = dpt.create_model("dpt_tiny", heads={"depth": {}}, **TINY).eval()
    code = code_of(model)
    for folder in ("a", "b"):
        model.save_pretrained(tmp_path / folder)
        assert code_of(dpt.DPT.from_pretrained(tmp_path / folder)) == code
    with torch.no_grad():
        model.heads["depth"].conv3.bias.add_(1e-6)
    assert code_of(model) != code
    other = dpt.DPT.from_pretrained(tmp_path / "a")
    other.config.name = "x"
    assert code_of(other) != code
