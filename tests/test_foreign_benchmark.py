"""The benchmark of ``dpt fit``: its label sets, its score and its table."""

import json
from dataclasses import asdict

import cv2
import numpy as np
import pytest
from benchmarks import foreign


@pytest.fixture
def street(tmp_path):
    """A folder like CamVid's: two drives of train images, and val; class k is column k."""
    ids = np.tile(np.arange(12, dtype=np.uint8).repeat(4), (40, 1))
    for split, names in (("train", ["a_1", "b_1", "b_2", "b_3", "b_4"]), ("val", ["c_1"])):
        for kind in ("images", "masks"):
            (tmp_path / "camvid" / kind / split).mkdir(parents=True)
        for name in names:
            cv2.imwrite(str(tmp_path / f"camvid/masks/{split}/{name}.png"), ids)
            picture = np.dstack([ids * 20] * 3)
            cv2.imwrite(str(tmp_path / f"camvid/images/{split}/{name}.jpg"), picture)
    (tmp_path / "camvid/classes.json").write_text("{}")
    return tmp_path


def test_set_of_all_classes_leaves_void_out(street):
    folder = foreign.make_set(street / "sets", "street", street)
    ((_, ids),) = foreign.read_split(folder, "val")
    assert np.unique(ids).tolist() == [*range(11), 255]
    assert foreign.num_classes_of(folder) == 11
    assert foreign.score(folder, lambda image: ids) == [1.0] * 11


def test_table_has_a_row_for_each_set_and_time(tmp_path):
    scores = {"dpt fit": 0.7, "smp unet": 0.6}
    for method, miou in scores.items():
        for seed in (0, 1):
            run = foreign.Run("road", method, 4, seed)
            baselines = {"constant": 0.5} if method == "dpt fit" else {}
            score = foreign.Score(miou + seed / 10, [miou], 240, 200, 9, baselines)
            (tmp_path / f"{run.name}.json").write_text(json.dumps(asdict(run) | asdict(score)))
    *_, row = foreign.table(tmp_path).splitlines()
    assert row.startswith("| road | 4 | 0.500 |")
    assert "| 0.700, 0.800 | 0.600, 0.700 |" in row
    assert row.endswith("| 17% |")
