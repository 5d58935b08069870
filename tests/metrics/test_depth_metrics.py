"""Depth metrics; that they equal the BTS evaluation, test_protocols.py says."""

import math

import numpy as np
import pytest
import torch
from test_protocols import compute_errors

from dpt.metrics import DepthMetrics, Protocol, depth_errors


def example(batch=6, height=8, width=9, seed=0):
    """(prediction, target, valid) float32, metres; image 4 has no valid pixel."""
    rng = np.random.default_rng(seed)
    target = rng.uniform(0.2, 12, (batch, height, width))
    prediction = target * np.exp(rng.normal(0, 0.3, target.shape))
    valid = rng.random(target.shape) < 0.6
    valid[4] = False
    valid[0, 0, :4] = True
    target[0, 0, :4] = [1, 2, 3, 4]
    target[~valid] = rng.choice([0, np.nan, np.inf, 1.0], (~valid).sum())
    prediction[0, 0, :4] = [np.nan, np.inf, -np.inf, -3]
    return (
        torch.from_numpy(prediction).float(),
        torch.from_numpy(target).float(),
        torch.from_numpy(valid),
    )


def images(prediction, target, valid, low, high):
    """Float64 (truth, prediction) of the scored pixels, for each image that has some."""
    for p, t, m in zip(prediction.double(), target.double(), valid, strict=True):
        with np.errstate(invalid="ignore"):
            keep = (m & (t > low) & (t < high)).numpy()
        if keep.any():
            yield t.numpy()[keep], p.numpy()[keep]


def values(metric):
    return [v.item() for v in metric.compute().values()]


def test_errors_by_hand():
    prediction, target = torch.tensor([[[2.0, 1.25, 7.0]]]), torch.tensor([[[1.0, 1.0, math.nan]]])
    errors = depth_errors(prediction, target, torch.tensor([[[True, True, False]]]))[0].tolist()
    logs = np.log([2, 1.25])
    expected = [0.625, 0.53125, math.sqrt(0.53125), math.sqrt((logs**2).mean())]
    expected += [np.log10([2, 1.25]).mean(), 100 * logs.std(), 0, 0.5, 0.5]  # 1.25 is not < 1.25
    assert errors == pytest.approx(expected)


def test_range_is_strict():
    target = torch.tensor([[1.0, 10.0, 5.0, 0.5, 20.0]])
    metric = DepthMetrics(max_depth=10.0, min_depth=1.0)
    metric.update(target + 1, target, torch.ones(1, 5, dtype=torch.bool))
    assert metric.pixels.item() == 1
    assert metric.compute()["rmse"].item() == pytest.approx(1)
    assert metric.compute()["rmse_pooled"].item() == pytest.approx(1)


def test_one_image_without_batch_axis():
    prediction, target, valid = example()
    batched, single = DepthMetrics(max_depth=10.0), DepthMetrics(max_depth=10.0)
    batched.update(prediction, target, valid)
    for sample in zip(prediction, target, valid, strict=True):
        single.update(*sample)
    assert values(single) == pytest.approx(values(batched), rel=1e-6)


def test_relative_alignment_is_least_squares_on_inverse_depth():
    prediction, target, valid = example()
    prediction = prediction.nan_to_num(1.0, 1.0, 1.0).clamp(min=0.1).reciprocal()
    metric = DepthMetrics(max_depth=10.0, prediction_kind="relative", alignment="scale_shift")
    metric.update(prediction, target, valid)
    rows = []
    for t, p in images(prediction, target, valid, 1e-3, 10.0):
        scale, shift = np.polyfit(p, 1 / t, 1)
        inverse = scale * p + shift
        rows.append(compute_errors(t, np.where(inverse > 0.1, 1 / inverse, 10.0)))
    assert values(metric)[:9] == pytest.approx(np.mean(rows, 0).tolist(), rel=1e-4)


@pytest.mark.parametrize("alignment", ["median", "scale_shift"])
def test_alignment_survives_non_finite_predictions(alignment):
    prediction, target, valid = example()
    metric = DepthMetrics(max_depth=20.0, alignment=alignment)
    broken = torch.where(prediction.isfinite(), 0.5 * target, prediction)
    metric.update(broken, target, valid)
    result = metric.compute()
    assert result["delta1"].item() > 0.9
    assert all(v.isfinite() for v in result.values())


@pytest.mark.parametrize("kind", ["metric", "relative"])
def test_median_alignment_undoes_a_factor(kind):
    _, target, valid = example()
    prediction = 3 * target if kind == "metric" else 3 / target
    metric = DepthMetrics(max_depth=20.0, prediction_kind=kind, alignment="median")
    metric.update(prediction, target, valid)
    assert metric.compute()["abs_rel"].item() == pytest.approx(0, abs=1e-5)


def test_nothing_seen_is_nan():
    prediction, target, valid = example()
    metric = DepthMetrics(max_depth=10.0)
    metric.update(prediction, target, torch.zeros_like(valid))
    assert all(math.isnan(v) for v in values(metric))


def test_sums_keep_their_precision_when_the_model_changes_its_own():
    module = torch.nn.Module()
    module.metric = DepthMetrics(max_depth=10.0)
    module.to(torch.bfloat16).half()  # the first is what Lightning's "bf16-true" does
    data = example()
    module.metric.update(data[0].bfloat16(), *data[1:])
    assert module.metric.errors.dtype == torch.float64
    before = values(module.metric)
    module.to(torch.bfloat16)
    assert values(module.metric) == before
    module.metric.reset()
    assert module.metric.errors.dtype == torch.float64
    assert module.metric.images.item() == 0


def test_settings_replace_those_of_the_protocol():
    metric = DepthMetrics(Protocol(min_depth=0.5, max_depth=80.0), max_depth=10.0)
    assert (metric.protocol.min_depth, metric.protocol.max_depth) == (0.5, 10.0)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"max_depth=0\.0"):
        DepthMetrics(max_depth=0.0)
    with pytest.raises(ValueError, match="no unit"):
        DepthMetrics(max_depth=10.0, prediction_kind="relative", alignment="none")
    for inverse in ({"prediction_kind": "relative"}, {"space": "inverse_depth"}):
        with pytest.raises(ValueError, match=r"set data\.max_depth or protocol\.max_depth"):
            DepthMetrics(alignment="median", **inverse)
    with pytest.raises(ValueError, match="'scale_shift'"):
        DepthMetrics(max_depth=10.0, alignment="lstsq")
    with pytest.raises(ValueError, match="prediction_kind='relativ': must be 'metric' or"):
        DepthMetrics(max_depth=10.0, prediction_kind="relativ")
    with pytest.raises(ValueError, match=r"no protocol\.max_dept\. Did you mean max_depth"):
        DepthMetrics(max_dept=10.0)
    with pytest.raises(ValueError, match="must have one shape"):
        DepthMetrics(max_depth=10.0).update(torch.ones(1, 2, 3), torch.ones(2, 3), torch.ones(2, 3))
