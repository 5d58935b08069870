"""A short run on a small tree of each named data set that no recipe uses."""

import json

import depth_trees
import pytest

CASES = {"nyuv2": depth_trees.nyuv2, "nyuv2_bts": depth_trees.nyuv2_bts}


@pytest.mark.parametrize("data", CASES)
def test_two_steps(train, tmp_path, data):
    root = tmp_path / "data" / data  # where paths.data_dir looks for it
    root.mkdir(parents=True)
    CASES[data](root)
    options = f"task=depth data={data} paths.data_dir={tmp_path / 'data'} data.batch_size=1"
    run = train(tmp_path / "run", options)
    assert "val/abs_rel" in json.loads((run / "metrics.json").read_text())
