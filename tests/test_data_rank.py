"""``dpt data rank``: which images to label next."""

import csv
import shutil

import numpy as np
import pytest
import torch
from photos import save_photo, tiny
from PIL import Image

from dpt.data import DataError
from dpt.predict.ranking import Ranker, class_disagreement, depth_disagreement
from dpt.types.outputs import OutputSpec


@pytest.fixture
def photos(tmp_path):
    for k in range(4):
        save_photo(tmp_path / f"photos/{'ab'[k % 2]}/{k}.png", 40, 57, seed=k)
    return tmp_path / "photos"


@pytest.fixture
def rank(dpt_command, tmp_path):
    """rank(heads, folder): exit code, rows of the table, stderr."""

    def rank(heads, folder):
        tiny(heads).save_pretrained(tmp_path / "model")
        out = tmp_path / "ranking.csv"
        code, _, err = dpt_command("data", "rank", tmp_path / "model", folder, "--out", out)
        rows = list(csv.DictReader(out.open())) if out.is_file() else []
        return code, rows, err

    return rank


SEGMENTATION = {"segmentation": {"num_classes": 5}}
THINGS = {"num_classes": 3, "things": [True, True, False]}


@pytest.mark.parametrize(
    "heads",
    [
        SEGMENTATION,
        {"depth": {"kind": "relative"}},
        {"depth": {"kind": "metric", "max_depth": 10.0, "log_variance": True, "sky": "sigmoid"}},
        {"panoptic": THINGS},
    ],
    ids=["classes", "relative depth", "metric depth with its variance", "segments"],
)
def test_rank_lists_each_image_once_the_highest_score_first(rank, photos, heads):
    code, rows, err = rank(heads, photos)
    assert (code, err) == (0, "")
    assert sorted(row["image"] for row in rows) == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert len({*scores}) == 4
    assert scores[-1] > 0


def test_rank_of_several_outputs_is_the_mean_of_their_ranks(rank, photos):
    code, rows, _ = rank({**SEGMENTATION, "depth": {"kind": "relative"}}, photos)
    assert code == 0
    columns = {key: [float(row[key]) for row in rows] for key in ("depth", "segmentation")}
    for k, row in enumerate(rows):
        ranks = [sum(value <= values[k] for value in values) / 4 for values in columns.values()]
        assert float(row["score"]) == pytest.approx(np.mean(ranks))


def test_rank_names_images_that_cannot_be_read_and_ranks_the_others(rank, photos):
    (photos / "a/0.png").write_bytes(b"no picture")
    code, rows, err = rank(SEGMENTATION, photos)
    assert code == 1
    assert err.startswith("1 failed:\n")
    assert "a/0.png" in err
    assert len(rows) == 3
    shutil.rmtree(photos / "b")
    (photos / "a/2.png").write_bytes(b"")
    code, rows, err = rank(SEGMENTATION, photos)
    assert (code, err.splitlines()[0]) == (1, "2 failed:")


def test_class_disagreement_is_the_probability_that_differs():
    probabilities = torch.zeros(3, 4, 2, 5)
    probabilities[:, 1] = 1
    assert class_disagreement(probabilities) == 0
    probabilities[0, 1, 0], probabilities[0, 2, 0] = 0.25, 0.75  # of one of three views, in a row
    assert class_disagreement(probabilities) == pytest.approx(0.5 * 0.75 * 2 / 3)


@pytest.mark.parametrize("unit", ["m", "relative inverse depth"])
def test_depth_that_differs_in_scale_alone_has_the_score_0(unit):
    spec = OutputSpec("depth", "depth", unit=unit)
    depth = torch.rand(1, 6, 7) + 1
    views = torch.cat([depth, 2 * depth, 0.5 * depth])
    assert depth_disagreement(views, spec) == pytest.approx(0, abs=1e-5)
    shifted = torch.cat([depth, depth + 1])
    is_relative = unit != "m"
    assert (depth_disagreement(shifted, spec) < 1e-5) == is_relative
    views[1] = views[1].flip(0)
    assert depth_disagreement(views, spec) > 0.05


def test_ranker_scores_an_image_and_its_mirror_image_alike(tmp_path, photos):
    model = tiny(SEGMENTATION)
    ranker = Ranker(model, device="cpu")
    image = photos / "a/0.png"
    Image.open(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(tmp_path / "mirror.png")
    assert ranker.scores(tmp_path / "mirror.png") == pytest.approx(ranker.scores(image), rel=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"0\.png"):
        Ranker(model, device="cpu").scores(image)
    with pytest.raises(DataError):
        ranker.scores(tmp_path / "none.png")
