"""``protocol=all``: the rules of all projects score one pass."""

import numpy as np
import pytest
import torch
from benchmarks.rule_arrays import MAX_DEPTH, depth_arrays, depth_image

from dpt.metrics import DepthMetrics, Protocol
from dpt.metrics.rules import RULES, SEGMENTATION_RULES
from dpt.metrics.rules.all_rules import (
    DEPTH_NOTE,
    SEGMENTATION_NOTE,
    RuleMetrics,
    SegmentationRuleMetrics,
)

CASES = ("smooth", "holes", "far", "empty")


def filled(kind="metric", **settings):
    metric = RuleMetrics(Protocol(max_depth=MAX_DEPTH, **settings), prediction_kind=kind)
    for case in CASES:
        metric.update(*(torch.from_numpy(values) for values in depth_arrays(case, kind)))
    return metric


@pytest.mark.parametrize("kind", ["metric", "up_to_scale", "relative"])
def test_all_rules_score_what_they_can(kind):
    scores = filled(kind).scores()
    rules = {name.partition("/")[0] for name in scores if "/" in name} - {"spread"}
    assert rules == {name for name, rule in RULES.items() if kind in rule.kinds}
    for name in rules:
        rule = RULES[name]
        expected = rule.finish(sum(rule.sums(depth_image(case, kind)) for case in CASES))
        for score, value in zip(rule.scores, expected, strict=True):
            assert scores[f"{name}/{score}"] == value, (name, score)


def test_all_rules_leave_the_scores_of_the_protocol_as_they_are():
    scores = filled().scores()
    plain = DepthMetrics(max_depth=MAX_DEPTH)
    for case in CASES:
        plain.update(*(torch.from_numpy(values) for values in depth_arrays(case)))
    assert {k: scores[k] for k in plain.scores()} == plain.scores()
    assert scores["bts/abs_rel"] == pytest.approx(scores["abs_rel"], abs=1e-12)


def test_all_rules_count_pixels_that_they_leave_out():
    scores = filled(crop=(0, 30, 0, 80)).scores()
    measured = inside = near = 0
    for case in CASES:
        _, depth, valid = depth_arrays(case)
        measured += valid.sum()
        inside += valid[:30, :80].sum()
        near += (valid & (depth < MAX_DEPTH))[:30, :80].sum()
    assert scores["kitti_official/left_out"] == pytest.approx(100 * (1 - inside / measured))
    assert scores["bts/left_out"] == pytest.approx(100 * (1 - near / measured))


def test_all_rules_are_compared_in_one_unit():
    metric = filled()
    scores = metric.scores()
    stated = {rule.name: scores.get(f"{rule.name}/silog", np.nan) for rule in metric.rules}
    percent = stated | {"depth_anything_metric": 100 * stated["depth_anything_metric"]}
    for name in ("metric3d", "metric3d_median", "metric3d_global"):  # to base 10
        percent[name] = 100 * np.log(10) * stated[name]
    table = metric.rule_table(scores)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    for name, value in percent.items():
        assert rows[name]["silog"] == ("-" if np.isnan(value) else f"{value:.4g}"), name
    values = np.array(list(percent.values()))
    values = values[np.isfinite(values)]
    assert scores["spread/silog"] == pytest.approx(values.max() - values.min())
    assert rows["spread"]["silog"] == f"{values.min():.3g}..{values.max():.3g}"
    further = {name: text for name, _, text in table.others}
    assert f"silog as stated {stated['metric3d']:.4g}" in further["metric3d"]


def test_all_rules_score_depth_and_labels_in_two_tables(tmp_path, files, score_files, metrics):
    run = score_files(tmp_path / "run", files, "protocol=all")
    values = metrics(run)
    assert values["val/bts/abs_rel"] == pytest.approx(values["val/abs_rel"], abs=1e-6)
    assert values["val/evaluate/miou"] == values["val/miou"]
    report = (run / "report.html").read_text()
    assert report.count(DEPTH_NOTE) == report.count(SEGMENTATION_NOTE) == 1
    assert RULES["marigold"].summary in report
    assert SEGMENTATION_RULES["cityscapes"].summary in report


def test_all_rules_of_classes_show_their_spread_and_no_predictions_of_no_class():
    metric = SegmentationRuleMetrics(3)
    metric.update(torch.tensor([[0, 0, 1, 255]]), torch.tensor([[0, 0, 1, 1]]))
    scores = metric.scores()
    table = metric.rule_table(scores)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["mmsegmentation"]["miou"] == f"{scores['miou']}" == "0.75"
    assert rows["pytorch_encoding"]["miou"] == "0.5"
    assert rows["pytorch_encoding"]["absent class"] == "0"
    assert rows["torchmetrics"]["miou"] == "-"
    assert rows["torchmetrics"]["no class predicted"] == "refused"
    assert rows["spread"]["miou"] == "0.5..0.75"
    assert scores["spread/miou"] == 0.25
