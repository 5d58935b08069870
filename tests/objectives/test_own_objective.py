"""An objective and a metric of a user's own: only target, losses and metrics are written."""

import numpy as np
import pytest
from listed import Listed
from torch import nn

from dpt.data.loading import LoaderSettings
from dpt.evaluation.baselines import trivial_scores
from dpt.metrics import SumMetric
from dpt.objectives import OBJECTIVES, Objective

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method")

SIZE = (6, 8)


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


def test_baselines_are_the_mean_and_the_mean_at_each_position(objective):
    depths = ramps()
    for depth in depths:
        depth[0, 0] = 0
    data = Listed([{"depth": depth, "valid": depth > 0} for depth in depths], SIZE)
    settings = LoaderSettings(image_size=SIZE, num_workers=0)
    baselines = trivial_scores({"slope": objective}, data, data, range(len(data)), settings)
    assert baselines["per position"]["val/difference"] == pytest.approx(2 / 3)
    values = np.stack(depths)[:, depths[0] > 0]
    expected = np.abs(values - values.mean()).mean()
    assert baselines["constant"]["val/difference"] == pytest.approx(expected)
    assert np.isnan(objective.compute()["difference"])


def test_a_head_has_one_objective():
    """A second one would replace it in every evaluation."""
    with pytest.raises(ValueError, match="the head depth has the objective DepthObjective"):

        class Other(Objective):
            head, target = "depth", "depth"

    assert OBJECTIVES["depth"].__name__ == "DepthObjective"
