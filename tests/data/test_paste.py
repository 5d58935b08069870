"""augment.strong: parts of images with labels are pasted on images without labels."""

import numpy as np
import torch

from dpt.data import TrainTransform, collate_train
from dpt.types import IGNORE_INDEX

SIZE = (32, 48)
PHOTO = (64, 96)


def samples(count=4, *, keys=("labels", "depth"), plain=(), seed=0, **changes):
    """Every image has a colour and a depth of its own; ``plain`` have no labels."""
    transform, found = TrainTransform(image_size=SIZE, hflip=0, strong=0.5, **changes), []
    for k in range(count):
        labels = np.arange(4, dtype=np.uint8).repeat(24)[None].repeat(PHOTO[0], 0)
        sample = {
            "image": np.full((*PHOTO, 3), 40 * (k % 6) + 20, np.uint8),
            "labels": np.where(labels == 3, np.uint8(IGNORE_INDEX), labels),
            "depth": np.full(PHOTO, k + 1, np.float32),
            "valid": np.ones(PHOTO, bool),
        }
        wanted = () if k in plain else (*keys, "valid") if "depth" in keys else keys
        sample = {key: v for key, v in sample.items() if key in ("image", *wanted)}
        found.append(transform(sample, seed=seed + k))
    return found


def test_half_of_the_classes_are_pasted_with_all_that_is_known():
    before = samples(5, plain=(0, 2, 4))
    assert [s["part"].any() for s in before] == [False, True, False, True, False]
    batch = collate_train(before, ["labels", "depth"])
    assert batch["unlabelled"].tolist() == [True, False, True, False, True]
    for k, source in ((0, 1), (2, 3), (4, 1)):
        origin, part = before[source], torch.from_numpy(before[source]["part"])
        classes = np.unique(origin["labels"][origin["part"]])
        assert len(classes) == 2  # of three
        assert IGNORE_INDEX not in classes
        assert torch.equal(batch["kept"][k], part)
        assert torch.equal(batch["weak"][k].permute(1, 2, 0), torch.from_numpy(before[k]["weak"]))
        image = np.where(origin["part"][..., None], origin["image"], before[k]["image"])
        assert torch.equal(batch["image"][k].permute(1, 2, 0), torch.from_numpy(image))
        labels = np.where(origin["part"], origin["labels"], IGNORE_INDEX)
        assert torch.equal(batch["labels"][k], torch.from_numpy(labels))
        assert torch.equal(batch["depth"][k], torch.where(part, source + 1.0, 0.0))
        assert torch.equal(batch["valid"][k], part)
    for k in (1, 3):
        assert not batch["kept"][k].any()
        assert torch.equal(batch["labels"][k], torch.from_numpy(before[k]["labels"]))


def test_an_image_without_the_trained_label_is_unlabelled():
    masks_alone = samples(2, keys=("labels",), targets=("depth",))
    assert all("weak" in s and "labels" not in s for s in masks_alone)
    assert not any("weak" in s for s in samples(2, keys=("labels",)))


def test_depth_alone_is_pasted_in_rectangles():
    parts = [s["part"] for seed in range(8) for s in samples(8, keys=("depth",), seed=8 * seed)]
    assert {part.shape for part in parts} == {SIZE}
    shares = [part.mean() for part in parts]
    assert 0.3 < np.mean([share > 0 for share in shares]) < 0.7
    assert max(shares) <= 0.42
    for part in parts:
        if part.any():
            rows, columns = np.nonzero(part)
            assert np.ptp(rows) + 1 == part.sum() / (np.ptp(columns) + 1)


def test_without_an_image_with_labels_nothing_is_pasted():
    before = samples(2, plain=(0, 1))
    batch = collate_train(before, ["labels"])
    assert not batch["kept"].any()
    for key in ("image", "weak"):
        images = np.stack([s[key] for s in before])
        assert torch.equal(batch[key].permute(0, 2, 3, 1), torch.from_numpy(images))


def test_padding_gets_no_label():
    """Where an image is made smaller, the rest is padding."""
    before = samples(4, plain=(0, 2), zoom=(0.5, 0.5))
    for k in (0, 2):
        padding = (before[k]["weak"] == before[k]["weak"][0, 0]).all(axis=-1)
        assert padding.mean() == 0.75
        np.testing.assert_array_equal(before[k]["part"], padding)
    batch = collate_train(before, ["labels", "depth"])
    for k in (0, 2):
        pasted, padding = (torch.from_numpy(before[n]["part"]) for n in (k + 1, k))
        assert torch.equal(batch["kept"][k], pasted | padding)
        assert (batch["labels"][k][padding & ~pasted] == IGNORE_INDEX).all()
