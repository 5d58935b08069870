"""Folders of transformers' EoMTs: what we write opens there as the same function."""

import pytest
import torch
from peers_eomt import CASES, Output

import dpt
from dpt.types.outputs import tensors_in
from dpt.weights.eomt import Eomt


@pytest.mark.peers
@pytest.mark.parametrize("case", CASES[2:5], ids=["SwiGLU", "semantic", "DINOv3"])
def test_written_folders_open_in_transformers(case, tmp_path):
    from transformers import AutoModelForUniversalSegmentation

    _, ours = case.build(tmp_path / "theirs")
    config = ours.config.to_dict()
    notes = []
    if case.task == "panoptic":
        config["heads"]["panoptic"] |= {"threshold": 0.4}
        notes = ["heads.panoptic.threshold=0.4 becomes 0.8"]
    written = Eomt().write(config, ours.state_dict(), tmp_path / "written")
    assert [note.partition(":")[0] for note in written] == notes
    theirs, loading = AutoModelForUniversalSegmentation.from_pretrained(
        tmp_path / "written", output_loading_info=True
    )
    assert loading["missing_keys"] <= {"criterion.empty_weight"}
    assert not loading["unexpected_keys"]
    assert type(theirs) is type(case.make().model)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        actual = Output(theirs.eval(), semantic=case.task == "segmentation")(images)
        expected = ours.eval().float()(images, raw=True)[case.task].tensor
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


THINGS = {"num_classes": 3, "things": [True, False, True]}


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("panoptic", {"num_classes": 80, "things": [True] * 80}),
        ("instance", THINGS),
        ("segmentation", {"num_classes": 3, "kind": "masks"}),
    ],
)
def test_a_named_model_is_written_and_read_back(name, head, tmp_path):
    sizes = {"embed_dim": 48, "num_heads": 3, "image_size": [64, 64]}
    model = dpt.create_model("eomt_small", heads={name: {**head, "num_queries": 7}}, **sizes)
    notes = Eomt().write(model.config.to_dict(), model.state_dict(), tmp_path)
    assert "encoder.position_resize='bilinear' becomes 'bicubic_antialias'" in notes[0]
    again, images = dpt.DPT.from_pretrained(tmp_path), torch.randn(1, 3, 64, 64)
    assert again.outputs == model.outputs
    with torch.no_grad():
        pairs = (tensors_in(net(images)[name]) for net in (again, model.eval()))
        assert all(torch.equal(one, two) for one, two in zip(*pairs, strict=True))
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    read = dpt.DPT.from_pretrained(tmp_path).preprocessing
    assert (read.mean, read.std) == ((0, 0, 0), (1, 1, 1))
