"""Scores of images and data sets, their intervals, and the page that reports them."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from dpt.data import Dataset
from dpt.evaluation.evaluate import verdict
from dpt.evaluation.scoring import Scorer, blocks_of
from dpt.objectives import ClassificationObjective
from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.samples import DatasetInfo


def test_images_add_up_to_the_data_set(joint_scores, images_table, metrics):
    rows, values = images_table(joint_scores), metrics(joint_scores)
    assert len(rows) == values["images"] == 5
    assert len({row["name"] for row in rows}) == 5
    for name in ("abs_rel", "rmse", "silog", "delta1"):
        mean = np.mean([float(row[name]) for row in rows])
        assert values[f"val/{name}"] == pytest.approx(mean, rel=1e-6)
    counts = np.loadtxt(joint_scores / "confusion.csv", delimiter=",", skiprows=1, dtype=str)
    counts = counts[:, 1:].astype(int)
    union = counts.sum(1) + counts[:, :-1].sum(0) - counts.diagonal()
    iou = counts.diagonal()[union > 0] / union[union > 0]
    assert values["val/miou"] == pytest.approx(iou.mean())
    assert values["val/pixel_accuracy"] == pytest.approx(counts.diagonal().sum() / counts.sum())


def scorer_of(objective, spec, output, labels, names):
    """A scorer that has seen one batch."""
    scorer = Scorer({objective.head: objective}, {objective.head: spec})
    count = len(names)
    labels = {**labels, "index": torch.arange(count), "name": names}
    images = torch.zeros(count, 3, 8, 9, dtype=torch.uint8)
    scorer.add({objective.head: HeadOutput(output)}, labels, images)
    return scorer


class Named(Dataset):
    """Samples that have names alone."""

    groups = ()

    def __init__(self, names, groups=(), targets=("depth",)):
        self.names, self.groups = names, groups
        self.info = DatasetInfo(targets=targets)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        raise AssertionError("names need no files")

    def name(self, index):
        return self.names[index]


def test_intervals_are_over_blocks():
    names = [f"/data/{video}/{video}_{k}.png" for video in "abc" for k in range(40)]
    right = torch.arange(120) < 60  # one video is easy, another hard
    logits = torch.stack([right.float(), 0.5 * torch.ones(120), torch.zeros(120)], 1)
    objective = ClassificationObjective(num_classes=3)
    labels = {"class_id": torch.zeros(120).long()}
    scorer = scorer_of(objective, OutputSpec("classification", "logits"), logits, labels, names)
    scorer.finish(blocks_of(Named(names), "image"))
    low, high = scorer.intervals["accuracy"]
    assert 0.35 < low < 0.45 < 0.55 < high < 0.65
    margin = 4.302653 * 0.5 / np.sqrt(3)  # t with 2 degrees of freedom, accuracies of 1, 0.5 and 0
    for rule in ("folder", "/[abc]_", None):
        blocks = blocks_of(Named(names), rule)
        assert blocks.numbers.tolist() == np.repeat([0, 1, 2], 40).tolist()
        scorer.finish(blocks)
        interval = scorer.left_out.interval("accuracy")
        assert interval == pytest.approx((0.5 - margin, 0.5 + margin), abs=1e-6)
        assert np.isnan(scorer.intervals["accuracy"]).all()  # it would be from 0 to 1
        assert f"no interval over {blocks}" in verdict(scorer, {}, is_of_files=False)
    assert scorer.left_out.without["accuracy"].tolist() == [0.25, 0.5, 0.75]
    scorer.finish(blocks_of(Named(names), "data"))
    assert np.isnan(scorer.intervals["accuracy"]).all()


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (["/x/a/1.png", "/x/a/2.png", "/x/b/1.png"], {}, "2 folders"),
        (["/x/a_1.png", "/x/a_2.png", "/x/b_1.png"], {}, "2 sequences"),
        (["/x/a_1.png", "/x/b_2.png", "/x/b_1.png"], {"groups": ["r", "r", "s"]}, "2 groups"),
        (["/x/2007_000033.jpg", "/x/2008_000002.jpg"], {}, "2 images"),  # years, as of VOC
        (["/x/1305031102.17.png", "/x/1305031103.21.png"], {}, "2 images"),  # seconds, as of TUM
        (["/x/nyu.mat#0", "/x/nyu.mat#1"], {}, "2 images"),
        (["/x/cat/1.png", "/x/dog/1.png", "/x/dog/2.png"], {"targets": ("class_id",)}, "3 images"),
    ],
)
def test_blocks_are_what_the_names_show(names, options, expected):
    assert str(blocks_of(Named(names, **options), None)) == expected
    assert str(blocks_of(Named(names, **options), "image")) == f"{len(names)} images"


class Page(HTMLParser):
    """Counts tags and complains of such as reach for the network or are left open."""

    VOID = ("meta", "img", "br")

    def __init__(self, path):
        super().__init__()
        self.open, self.tags = [], []
        self.text = path.read_text()
        self.feed(self.text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href") or value.startswith("data:image/")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_report_of_an_evaluation_is_one_whole_page(joint_scores):
    page = Page(joint_scores / "report.html")
    assert page.tags.count("img") == 5 + 8  # examples, and four of the worst by each of two heads
    worst = ("Worst images by abs_rel", "Worst images by miou")
    headings = ("Examples", *worst, "Scores", "Classes", "Largest confusions", "Settings")
    positions = [page.text.index(f">{heading}<") for heading in headings]
    assert positions == sorted(positions)
    assert "better than nearest photo" in page.text
    assert not re.search(r">-?0\.[1-9]\d{3,}<", page.text)  # three digits
