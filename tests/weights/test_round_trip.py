"""What was read comes back exactly, and opens where it came from."""

import pytest
import torch
from parity import all_cases
from peer_cases import default, random_images

import dpt
from dpt.weights.files import open_checkpoint
from dpt.weights.formats import convert

pytestmark = pytest.mark.peers

WRITTEN = [
    case
    for case in all_cases()
    if case.format in ("official", "transformers", "depth_anything")
    and "SwinV2" not in case.model
    and "stored" not in case.model
]


def assert_opens(folder, task):
    from transformers import AutoModelForDepthEstimation, DPTForSemanticSegmentation

    cls = AutoModelForDepthEstimation if task == "depth" else DPTForSemanticSegmentation
    _, info = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize(
    "case",
    default(
        WRITTEN,
        "official, depth, hybrid",
        "official, segmentation, ViT",
        "transformers, depth, ViT, add",
        "transformers, segmentation, hybrid",
        "transformers, depth, DINOv2, norm, SwiGLU",
        "transformers, depth, BEiT",
        "depth_anything, depth, v2 .pth",
        "depth_anything, depth, transformers, metric",
    ),
)
def test_round_trip_is_exact_for_what_runs(case, tmp_path):
    torch.manual_seed(0)
    (tmp_path / "theirs").mkdir()
    theirs = case.make()
    source = case.save(theirs, tmp_path / "theirs")
    again = tmp_path / "again" / (source.name if source.is_file() else "")
    there = convert(source, tmp_path / "ours", to="dpt")
    back = convert(tmp_path / "ours", again, to=case.format)
    before, after = open_checkpoint(source).tensors, open_checkpoint(again).tensors
    kept = {k for k in before if k in after and torch.equal(before[k], after[k])}
    assert before.keys() | after.keys() == kept | set(there.unused)
    ours, twin = (dpt.DPT.from_pretrained(path) for path in (tmp_path / "ours", again))
    assert there.tensors == back.tensors == len(ours.state_dict())
    images = random_images(1, case.sizes[0])
    with torch.no_grad():
        assert torch.equal(twin(images)[case.task], ours(images)[case.task])
    if source.is_file():
        theirs.load_state_dict(after)  # strict
    else:
        assert_opens(again, case.task)
