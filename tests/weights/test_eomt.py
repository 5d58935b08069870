"""Folders of transformers' ``eomt``: what we write opens there as the same function."""

import pytest
import torch
from peers_eomt import CASES, Output

from dpt.weights.eomt import Eomt


@pytest.mark.peers
@pytest.mark.parametrize("case", [CASES[2], CASES[3]], ids=["SwiGLU", "semantic"])
def test_written_folders_open_in_transformers(case, tmp_path):
    from transformers import EomtForUniversalSegmentation

    _, ours = case.build(tmp_path / "theirs")
    config = ours.config.to_dict()
    notes = []
    if case.task == "panoptic":
        config["heads"]["panoptic"] |= {"threshold": 0.4}
        notes = ["heads.panoptic.threshold=0.4 becomes 0.8: it is an argument of the image "
                 "processor's post_process methods"]  # fmt: skip
    assert Eomt().write(config, ours.state_dict(), tmp_path / "written") == notes
    theirs, loading = EomtForUniversalSegmentation.from_pretrained(
        tmp_path / "written", output_loading_info=True
    )
    assert loading["missing_keys"] <= {"criterion.empty_weight"}
    assert not loading["unexpected_keys"]
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        found = Output(theirs.eval(), semantic=case.task == "segmentation")(images)
        wanted = ours.eval().float()(images, upsample_logits=False)[case.task]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
