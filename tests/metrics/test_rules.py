"""Rules of scoring compute what the code that defines them computes."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks import rules
from benchmarks.rule_arrays import K, class_counts, depth_arrays, depth_image, depth_scores
from scipy.optimize import linprog

from dpt.metrics.rules import RULES, SEGMENTATION_RULES
from dpt.metrics.rules.base import line_l1
from dpt.metrics.rules.depth import nearest_in_cells, ordered_pairs

ROWS = list(rules.rows())
CLASS_ROWS = list(rules.class_rows())
COUNTED_RULES = [rule for rule in SEGMENTATION_RULES.values() if not rule.columns]
"""Rules that need nothing but the confusion matrix."""


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_equals_its_original(rule):
    rows = [row for row in ROWS if row.rule is rule]
    assert {row.case for row in rows} >= {"smooth", "holes", "few", "empty"}
    assert sum(row.ours is not None for row in rows) >= 4
    for row in rows:
        assert row.difference < 1e-6, (row.case, row.ours, row.theirs)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_reads_nothing_where_invalid(rule):
    prediction, depth, valid = depth_arrays("zeros")
    inside = rule.sums(depth_image("zeros"))
    depth[~valid] = np.inf
    changed = rules.DepthImage(prediction, depth, valid, "metric", 10.0)
    np.testing.assert_array_equal(rule.sums(changed), inside)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rule_adds_over_images(rule):
    images = [depth_image(case) for case in ("smooth", "holes", "few")]
    total = depth_scores(rule, *images, depth_image("empty"))
    known = [image for image in images if depth_scores(rule, image) is not None]
    single = [depth_scores(rule, image) for image in known]
    weights = [rule.sums(image)[1] for image in known]  # 1, but of pooled pixels or pairs
    rtol = 0.05 if rule.name == "depth_estimation" else 1e-12  # takes the roots at the end
    np.testing.assert_allclose(total, np.average(single, 0, weights), rtol=rtol)


@pytest.mark.parametrize("case", ["few", "zeros", "holes"])
def test_line_l1_is_the_minimum_of_a_linear_programme(case):
    _, depth, valid = depth_arrays(case)
    cells = nearest_in_cells(valid)[:700]
    x, y = depth_arrays(case)[0].flat[cells], depth.flat[cells]
    scale, shift = line_l1(x, y, 1 / y)
    count = len(x)
    lines = np.stack([x, np.ones(count)], axis=1)
    bounds = [(None, None)] * 2 + [(0, None)] * count
    limits = np.block([[lines, -np.eye(count)], [-lines, -np.eye(count)]])
    best = linprog(np.r_[0, 0, 1 / y], A_ub=limits, b_ub=np.r_[y, -y], bounds=bounds)
    assert (np.abs(scale * x + shift - y) / y).sum() == pytest.approx(best.fun, rel=1e-9)


@pytest.mark.parametrize("name", ["depth_pro_boundary", "moge_boundary"])
def test_boundary_rules_ignore_scale_and_read_tiny_images(name):
    prediction, depth, valid = depth_arrays("holes")
    scaled = rules.DepthImage(4 * prediction, depth, valid, "up_to_scale", 10.0)
    np.testing.assert_array_equal(RULES[name].sums(scaled), RULES[name].sums(depth_image("holes")))
    tiny = rules.DepthImage(*(values[:1, :5] for values in depth_arrays("smooth")))
    assert RULES[name].sums(tiny)[:2].tolist() == [5, 1]


@pytest.mark.parametrize("rule", SEGMENTATION_RULES.values(), ids=lambda rule: rule.name)
def test_segmentation_rule_equals_its_original(rule):
    rows = [row for row in CLASS_ROWS if row.rule is rule]
    assert {row.case for row in rows} >= {"absent", "only_predicted", "holes", "empty"}
    for row in rows:
        assert row.difference < 1e-6, (row.case, row.ours, row.theirs)


def test_whdr_draws_are_those_of_splitmix64():
    state, draws = 0, []
    for _ in range(1000):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        draws.append((z ^ z >> 31) >> 32)
    count = 12_345
    depth = 1.0 + np.arange(count) % 3
    pairs = [tuple(draw * count >> 32 for draw in draws[k : k + 2]) for k in range(0, 1000, 2)]
    expected = [[a, b] for a, b in pairs if depth[a] != depth[b]]
    assert ordered_pairs(depth)[: len(expected)].tolist() == expected


@pytest.mark.parametrize("rule", COUNTED_RULES, ids=lambda rule: rule.name)
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


@pytest.mark.parametrize(
    "row", [*rules.depth_table(), *rules.class_table()], ids=lambda row: row[0]
)
def test_rules_stand_in_the_guide(row):
    guide = (Path(__file__).parents[2] / ".github/guide/rules.md").read_text()
    cells = [cell.replace("|", "\\|") for cell in row[:-1]]  # the difference depends on the machine
    assert f"| {' | '.join(cells)} | " in guide
