"""An objective and a metric of a user's own: only target, losses and metrics are written."""

import numpy as np
import pytest
import torch
from listed import Listed
from torch import nn

from dpt.evaluation.baselines import trivial_scores
from dpt.evaluation.blocks import Blocks
from dpt.evaluation.report import write_per_image, write_report
from dpt.evaluation.scoring import Scorer
from dpt.metrics import SumMetric
from dpt.objectives import OBJECTIVES, Objective
from dpt.objectives.batches import lower_is_better
from dpt.types.outputs import HeadOutput, OutputSpec

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method")

SIZE = (6, 8)
SPEC = OutputSpec("slope", "map", channels=2, value_range=(-9.0, 9.0), flip_signs=(-1.0, 1.0))


class Difference(SumMetric):
    """Mean absolute difference of depth and prediction, over the valid pixels."""

    lower_is_better = frozenset({"difference"})

    def __init__(self):
        super().__init__()
        self.add_sum("total")
        self.add_count("pixels")

    def update(self, prediction, target, valid):
        self.total = self.total + (prediction - target)[valid].abs().sum()
        self.pixels = self.pixels + valid.sum()

    def compute(self):
        return {"difference": self.total / self.pixels, "pixels": self.pixels}


@pytest.fixture
def objective():
    class Slope(Objective):
        head, target = "slope", "depth"

        def __init__(self):
            super().__init__()
            self.metrics = Difference()

        def losses(self, output, batch):
            return {"loss_slope": nn.functional.l1_loss(output.tensor, batch["depth"])}

    yield Slope()
    del OBJECTIVES["slope"]


def ramps(count=3):
    ramp = np.tile(np.arange(1, 9, dtype=np.float32), (6, 1))
    ramp[0, 0] = 0  # not measured
    return [ramp + k for k in range(count)]


def test_it_is_found_by_the_name_of_its_head(objective):
    assert OBJECTIVES["slope"] is type(objective)
    assert type(OBJECTIVES["slope"].from_output(SPEC, None, None)) is type(objective)


def test_baselines_are_the_mean_and_the_mean_at_each_position(objective):
    depths = ramps()
    for depth in depths:
        depth[0, 0] = 0
    data = Listed([{"depth": depth, "valid": depth > 0} for depth in depths], SIZE)
    baselines = trivial_scores({"slope": objective}, data, data, SIZE)
    assert baselines["per position"]["val/difference"] == pytest.approx(2 / 3)
    values = np.stack(depths)[:, depths[0] > 0]
    expected = np.abs(values - values.mean()).mean()
    assert baselines["constant"]["val/difference"] == pytest.approx(expected)
    assert np.isnan(objective.compute()["difference"])


def test_it_is_scored_drawn_and_reported(objective, tmp_path):
    depths = [torch.from_numpy(d) for d in ramps(4)]
    labels = {
        "depth": depths,
        "valid": [d > 0 for d in depths],
        "index": torch.arange(4),
        "name": list("abcd"),
    }
    scorer = Scorer({"slope": objective}, {"slope": SPEC})
    errors = torch.tensor([0.5, 2.0, 1.0, 0.1])[:, None, None]
    scorer.add(
        {"slope": HeadOutput(torch.stack(depths) + errors)},
        labels,
        torch.zeros(4, 3, *SIZE, dtype=torch.uint8),
    )
    result = scorer.result(Blocks.of("image", list("abcd")))
    assert result.scores["difference"] == pytest.approx(0.9, rel=0.01)
    captions = [p.caption for p in result.worst["difference"]]  # the first score
    assert captions[:2] == ["b: difference 2", "c: difference 1"]
    assert lower_is_better([objective]) == {"difference"}
    write_per_image(tmp_path / "per_image.csv", result.images)
    assert "b,2,48" in (tmp_path / "per_image.csv").read_text()
    write_report(tmp_path / "report.html", result, baselines={}, settings={})
    page = (tmp_path / "report.html").read_text()
    assert page.index("b: difference 2") < page.index("c: difference 1")


def test_maps_of_other_sizes_are_resized(objective):
    depth = torch.ones(6, 8)
    batch = {"depth": [depth], "valid": [depth > 0]}
    objective.update(HeadOutput(torch.ones(1, 3, 4)), batch)
    assert objective.compute() == {"difference": 0, "pixels": 48}
    assert objective.predict(torch.ones(1, 3, 2, 5), (7, 9)).shape == (1, 3, 7, 9)


def test_normals_with_three_channels_are_drawn_as_rgb(objective):
    normals = torch.zeros(1, 3, *SIZE)
    normals[:, 2] = 1
    objective.ground_truth = lambda batch, k: (normals, torch.ones(1, *SIZE, dtype=torch.bool))
    spec = OutputSpec("slope", "map", channels=3, value_range=(-1.0, 1.0))
    row = objective.panel(np.zeros((*SIZE, 3), np.uint8), HeadOutput(normals), {}, spec)
    assert (row == (128, 128, 255)).all(-1).mean() > 0.5


def test_a_head_has_one_objective():
    """A second one would replace it in every evaluation."""
    with pytest.raises(ValueError, match="the head depth has the objective DepthObjective"):

        class Other(Objective):
            head, target = "depth", "depth"

    assert OBJECTIVES["depth"].__name__ == "DepthObjective"
