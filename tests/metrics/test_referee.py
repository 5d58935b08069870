"""``dpt referee-arrays``: arrays and expected scores for code of others."""

import io
import json
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from dpt.commands.referee_arrays import run
from dpt.metrics.referee import MAX_DEPTH, K, _sine
from dpt.metrics.rules import RULES, SEGMENTATION_RULES, DepthImage
from dpt.metrics.segmentation import SegmentationMetrics

GUIDE = Path(__file__).parents[2] / ".github/guide/rules.md"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("referee") / "arrays.zip"
    run([str(path)])
    return path


@pytest.fixture(scope="module")
def expected(written):
    with zipfile.ZipFile(written) as file:
        return json.loads(file.read("expected.json"), parse_constant=pytest.fail)


def read(written, path):
    with zipfile.ZipFile(written) as file:
        return np.load(io.BytesIO(file.read(path)), allow_pickle=False)


def assert_equal(rule, values, scores):
    if scores is None:
        assert values is None
        return
    theirs = [float(scores[name]) for name in rule.scores]
    np.testing.assert_allclose(values, theirs, rtol=0, atol=0.51e-6)


def test_archive_is_the_one_in_the_guide(written):
    found = sha256(written.read_bytes()).hexdigest()
    assert f"`{found}`" in GUIDE.read_text(), "new arrays, rules or words: state the new hash"


def test_archive_is_small_and_explains_itself(written):
    assert written.stat().st_size < 3e6
    with zipfile.ZipFile(written) as file:
        readme = file.read("README.md").decode()
    for rule in (*RULES.values(), *SEGMENTATION_RULES.values()):
        assert f"- `{rule.name}`: {rule.summary}" in readme


def test_archive_refuses_other_names_and_files_that_exist(written, tmp_path):
    for path in (tmp_path / "arrays.npz", written):
        with pytest.raises(ValueError, match=path.name):
            run([str(path)])


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_expected_scores_are_those_of_the_rule_for_depth(rule, written, expected):
    by_kind = expected["depth"][rule.name]
    assert set(by_kind) == rule.kinds & {"metric", "relative"}
    for kind, by_case in by_kind.items():
        totals = {}
        for case in by_case:
            if "+" not in case:
                prediction, depth, valid = (
                    read(written, f"depth/{case}/{name}.npy") for name in (kind, "depth", "valid")
                )
                totals[case] = rule.sums(DepthImage(prediction, depth, valid, kind, MAX_DEPTH))
        totals["smooth+holes+far"] = sum(totals[case] for case in ("smooth", "holes", "far"))
        assert set(totals) == set(by_case)
        for case, total in totals.items():
            assert_equal(rule, rule.finish(total) if total.any() else None, by_case[case])


@pytest.mark.parametrize("rule", SEGMENTATION_RULES.values(), ids=lambda rule: rule.name)
def test_expected_scores_are_those_of_the_rule_for_segmentation(rule, written, expected):
    for case, scores in expected["segmentation"][rule.name].items():
        metric, sums = SegmentationMetrics(K), 0
        for k in range(3):
            maps = [
                read(written, f"segmentation/{case}/{k}_{name}.npy")
                for name in ("prediction", "labels")
            ]
            metric.update(*(torch.from_numpy(ids) for ids in maps))
            sums = sums + rule.sums(*maps, K)
        total = np.hstack([metric.confusion.double().numpy(), sums])
        assert_equal(rule, rule.finish(total), scores)


def test_expected_scores_say_which_values_are_absent(expected):
    assert expected["depth"]["bts"]["metric"]["empty"] is None
    assert expected["segmentation"]["mmsegmentation"]["wrong"]["miou"] == 0
    assert expected["segmentation"]["mmsegmentation"]["empty"]["miou"] == "NaN"
    assert set(expected["depth"]["moge_affine"]["metric"]) >= {"smooth", "few"}
    assert not set(expected["depth"]["moge_affine"]["metric"]) & {"ties", "zeros"}


def test_sine_is_exact_to_ten_digits():
    angle = np.linspace(-50, 50, 10_001)
    np.testing.assert_allclose(_sine(angle), np.sin(angle), atol=1e-10)
