"""data=mix from the command line: sets added one by one, or in a file of one's own."""

import json

import pytest
from omegaconf import OmegaConf

MASKS = ("data.sets.masks.root={0} data.sets.masks.labels=masks data.sets.masks.num_classes=3",)
DEPTH = (
    "data.sets.near.root={0} data.sets.near.depth=depth data.sets.near.max_depth=10",
    "data.sets.near.missing=skip",
)
OWN = """
defaults:
  - mix
  - folder@sets.masks
  - folder@sets.near
  - _self_

sets:
  masks:
    root: {0}
    labels: masks
    num_classes: 3
    missing: skip
  near:
    root: {0}
    depth: depth
    max_depth: 10
    missing: skip
weights: {{near: 3}}
length: 8
"""


def test_partial_labels_train_joint(train, metrics, dense_folder, tmp_path):
    overrides = [o.format(dense_folder) for o in (*MASKS, *DEPTH)]
    run = train(
        tmp_path / "run",
        "task=joint data=mix +data@data.sets.masks=folder +data@data.sets.near=folder",
        "+data.weights.near=3 data.length=8 data.sets.masks.missing=skip",
        *overrides,
    )
    found = metrics(run)
    assert found["val/miou"] is not None
    assert found["val/abs_rel"] is not None


@pytest.mark.slow
def test_a_file_of_ones_own(train, dense_folder, tmp_path):
    (tmp_path / "mine/data").mkdir(parents=True)
    (tmp_path / "mine/data/streets.yaml").write_text(OWN.format(dense_folder))
    run = train(
        tmp_path / "run",
        f"--config-dir={tmp_path / 'mine'}",
        "task=joint data=streets data.val_on=near",
    )
    cfg = OmegaConf.load(run / "config.yaml")
    assert cfg.data.sets.masks.kind == "folder"
    assert (cfg.data.weights.near, cfg.data.length) == (3, 8)
    found = json.loads((run / "metrics.json").read_text())
    assert found["val/abs_rel"] is not None
    assert found.get("val/miou") is None  # near has no masks
    assert (
        "segmentation is trained but not scored: the val split has no class masks"
        in (run / "log.txt").read_text()
    )
