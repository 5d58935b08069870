"""Folders of transformers' ``tipsv2_dpt``: what we write opens there as the same function."""

import json

import pytest
import torch
import transformers
from peer_cases import default
from peers_tipsv2 import CASES, Output

import dpt
from dpt.weights.files import open_checkpoint
from dpt.weights.formats import read
from dpt.weights.tipsv2 import Tipsv2Dpt

pytestmark = pytest.mark.peers
TASKS = ("depth", "normals", "segmentation")


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """The folder of a model with three necks, and ours."""
    folder = tmp_path_factory.mktemp("dense")
    return folder, CASES[0].build(folder)[1]


@pytest.mark.parametrize(
    "case", default([CASES[0], *CASES[4:]], str(CASES[0]), "tipsv2_dpt, normals, one neck")
)
def test_a_written_folder_holds_the_same_tensors_and_opens_in_transformers(case, tmp_path):
    _, ours = case.build(tmp_path / "theirs")
    assert not Tipsv2Dpt().write(ours.config.to_dict(), ours.state_dict(), tmp_path / "written")
    before, after = (open_checkpoint(tmp_path / name).tensors for name in ("theirs", "written"))
    unused = {*read(tmp_path / "theirs").unused}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before.keys() - unused)
    (name,) = json.loads((tmp_path / "written/config.json").read_text())["architectures"]
    theirs, loading = getattr(transformers, name).from_pretrained(
        tmp_path / "written", output_loading_info=True
    )
    assert not any(loading.values()), loading
    assert type(theirs) is type(case.make().model)
    images = torch.randn(1, 3, 56, 56)
    with torch.no_grad():
        expected = Output(theirs.eval(), case.task)(images)
        actual = ours(images)[case.task]
        if expected.shape != actual.shape:
            maps = expected if expected.ndim == 4 else expected[:, None]
            maps = torch.nn.functional.interpolate(maps, size=(56, 56), mode="bilinear")
            expected = maps.view_as(actual)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_outputs_and_preprocessing_follow_from_the_folder(dense):
    _, ours = dense
    assert tuple(ours.heads) == TASKS
    assert ours.decoder is None
    depth, normals, segmentation = ours.outputs.values()
    assert (depth.unit, depth.value_range) == ("m", (0.5, 8.0))
    assert (normals.is_direction, segmentation.channels) == (True, 5)
    settings = ours.preprocessing
    assert (settings.mean, settings.std) == ((0, 0, 0), (1, 1, 1))
    assert (settings.image_size, settings.resize) == ((448, 448), "stretch")
    assert (settings.multiple_of, settings.interpolation) == (14, "bilinear_antialias")
    with torch.no_grad():
        lengths = ours(torch.randn(1, 3, 60, 75))["normals"].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(1, 60, 75))


def test_all_three_heads_train_at_once_and_are_written(dense, tmp_path):
    ours = dpt.DPT.from_pretrained(dense[0]).train()
    images = torch.randn(2, 3, 56, 56)
    outputs = ours(images, raw=True)
    assert outputs["segmentation"].tensor.shape == (2, 5, 56, 56)
    sum(output.tensor.square().mean() for output in outputs.values()).backward()
    frozen = [name for name, p in ours.named_parameters() if p.grad is None]
    assert frozen == []
    torch.optim.SGD(ours.parameters(), 1e-3).step()
    Tipsv2Dpt().write(ours.config.to_dict(), ours.state_dict(), tmp_path)
    again = dpt.DPT.from_pretrained(tmp_path)
    with torch.no_grad():
        pairs = zip(again(images).values(), ours.eval()(images).values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
