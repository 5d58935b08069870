"""A short run on a small tree of every named data set: what the README types must work."""

import json

import depth_trees
import pytest
from tiny import slow_after

CASES = {
    # data: the run's task, how its tree is made, further settings
    "hypersim": ("joint", depth_trees.hypersim, ("data.labels=true",)),
    "nyuv2": ("depth", depth_trees.nyuv2, ()),
    "nyuv2_bts": ("depth", depth_trees.nyuv2_bts, ()),
    "sunrgbd": ("depth", depth_trees.sunrgbd, ()),
    "tum": ("depth", depth_trees.tum, ()),
    "vkitti2": ("depth", depth_trees.vkitti2, ("data.scenes.train=[Scene01]",)),
}


@pytest.mark.parametrize("data", slow_after(2, CASES))
def test_two_steps(train, tmp_path, data):
    task, make, settings = CASES[data]
    root = tmp_path / "data" / data  # where paths.data_dir looks for it
    root.mkdir(parents=True)
    make(root)
    run = train(
        tmp_path / "run",
        f"task={task} data={data} paths.data_dir={tmp_path / 'data'} data.batch_size=1",
        *settings,
    )
    metrics = json.loads((run / "metrics.json").read_text())
    assert "val/abs_rel" in metrics
    assert ("val/miou" in metrics) == (task == "joint")
