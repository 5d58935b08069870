"""Rules of scoring compute what the code that defines them computes."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import rules
from benchmarks.class_arrays import K, class_counts
from benchmarks.rule_arrays import arrays, image
from scipy.optimize import linprog

from dpt.metrics.rules import RULES, SEGMENTATION_RULES, fits
from dpt.metrics.rules.moge import nearest_in_cells

ROWS = list(rules.rows())
CLASS_ROWS = list(rules.class_rows())


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_equals_its_original(rule):
    rows = [row for row in ROWS if row.rule is rule]
    assert {row.case for row in rows} >= {"smooth", "holes", "few", "empty"}
    assert sum(row.ours is not None for row in rows) >= 4
    for row in rows:
        assert row.difference < 1e-6, (row.case, row.ours, row.theirs)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_reads_nothing_where_invalid(rule):
    prediction, depth, valid = arrays("zeros")
    inside = rule.sums(image("zeros"))
    depth[~valid] = np.inf
    changed = rules.DepthImage(prediction, depth, valid, "metric", 10.0)
    np.testing.assert_array_equal(rule.sums(changed), inside)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_adds_over_images(rule):
    total = sum(rule.sums(image(case)) for case in ("smooth", "holes", "few", "empty"))
    single = [rules.score(rule, image(case)) for case in ("smooth", "holes", "few")]
    single = [values for values in single if values is not None]
    if rule.name == "depth_estimation":  # pools pixels: the largest image decides
        np.testing.assert_allclose(rule.finish(total), single[0], rtol=0.05)
    else:
        np.testing.assert_allclose(rule.finish(total), np.mean(single, axis=0), rtol=1e-12)


@pytest.mark.parametrize("case", ["few", "zeros", "holes"])
def test_line_l1_is_the_minimum_of_a_linear_programme(case):
    _, depth, valid = arrays(case)
    cells = nearest_in_cells(valid)[:700]
    x, y = arrays(case)[0].flat[cells], depth.flat[cells]
    scale, shift = fits.line_l1(x, y, 1 / y)
    count = len(x)
    lines = np.stack([x, np.ones(count)], axis=1)
    bounds = [(None, None)] * 2 + [(0, None)] * count
    limits = np.block([[lines, -np.eye(count)], [-lines, -np.eye(count)]])
    best = linprog(np.r_[0, 0, 1 / y], A_ub=limits, b_ub=np.r_[y, -y], bounds=bounds)
    assert (np.abs(scale * x + shift - y) / y).sum() == pytest.approx(best.fun, rel=1e-9)


def test_line_l1_leaves_a_line_through_many_equal_points():
    x = np.repeat([1.0, 2.0, 3.0], 5)
    y = np.tile([1.0, 1.0, 2.0, 2.0, 4.0], 3)  # each x has the same values
    scale, shift = fits.line_l1(x, y, np.ones(15))
    assert (scale, shift) == (0.0, 2.0)


def test_least_squares_of_a_constant_prediction_is_the_mean():
    assert fits.least_squares(np.full(9, 0.1), np.arange(9.0)) == (0.0, 4.0)


def test_boundary_rules_of_one_step():
    depth = np.ones((8, 12))
    depth[:, 6:] = 1.15  # above five of ten thresholds
    prediction = np.where(np.arange(12) < 6, 3.0, 6.0) * np.ones((8, 1))
    maps = rules.DepthImage(prediction, depth, np.ones((8, 12), dtype=bool))
    thresholds = np.linspace(1.05, 1.25, 10)
    weight = thresholds[thresholds < 1.15].sum() / thresholds.sum()
    recall = weight / 4  # three of four directions have no edge
    assert rules.score(RULES["depth_pro_boundary"], maps) == pytest.approx([recall] * 3)
    steps = thresholds - 1
    weight = steps[steps < 0.15].sum() / steps.sum()
    assert rules.score(RULES["moge_boundary"], maps) == pytest.approx([weight] * 3)


@pytest.mark.parametrize("name", ["depth_pro_boundary", "moge_boundary"])
def test_boundary_rules_ignore_scale_and_read_tiny_images(name):
    prediction, depth, valid = arrays("holes")
    scaled = rules.DepthImage(4 * prediction, depth, valid, "up_to_scale", 10.0)
    np.testing.assert_array_equal(RULES[name].sums(scaled), RULES[name].sums(image("holes")))
    tiny = rules.DepthImage(*(values[:1, :5] for values in arrays("smooth")))
    assert RULES[name].sums(tiny)[:2].tolist() == [5, 1]


@pytest.mark.parametrize("rule", SEGMENTATION_RULES.values(), ids=lambda rule: rule.name)
def test_segmentation_rule_equals_its_original(rule):
    rows = [row for row in CLASS_ROWS if row.rule is rule]
    assert {row.case for row in rows} >= {"absent", "only_predicted", "holes", "empty"}
    for row in rows:
        assert row.difference < 1e-6, (row.case, row.ours, row.theirs)


@pytest.mark.parametrize("rule", SEGMENTATION_RULES.values(), ids=lambda rule: rule.name)
def test_segmentation_rule_does_with_pixels_what_it_says(rule):
    def miou(counts):
        return rule.finish(counts)[rule.scores.index("miou")]

    absent = np.pad(class_counts("all"), ((0, 1), (0, 0)))
    absent = np.insert(absent, K, 0, axis=1)  # one more class that never occurs
    factor = {"left out": 1, "0": K / (K + 1)}[rule.absent]
    assert miou(absent) == pytest.approx(factor * miou(class_counts("all")))
    one_missed = np.array([[3.0, 0, 1], [0, 4, 0]])
    expected = {"wrong": (3 / 4 + 1) / 2, "refused": np.nan}[rule.no_class]
    assert miou(one_missed) == pytest.approx(expected, nan_ok=True)


def test_segmentation_rules_stand_in_the_guide():
    guide = (Path(__file__).parents[2] / ".github/guide/evaluation.md").read_text()
    for rule in SEGMENTATION_RULES.values():
        cells = [f"`{rule.name}`", rule.absent, rule.no_class, rule.summary, rule.original]
        assert f"| {' | '.join(cells)} |" in guide, rule.name


def test_rules_stand_in_the_guide():
    guide = (Path(__file__).parents[2] / ".github/guide/evaluation.md").read_text()
    for rule in RULES.values():
        cells = f"| `{rule.name}` | {rule.fitted or '–'} | {rule.summary} | {rule.original} |"
        assert cells in guide, rule.name
