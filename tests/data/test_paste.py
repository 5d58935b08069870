"""augment.paste: a part of another image of the batch is pasted, with its labels."""

import numpy as np
import pytest
import torch

from dpt.data import TrainTransform, collate_train
from dpt.types import IGNORE_INDEX

SIZE = (32, 48)


def samples(count=4, *, paste=1.0, keys=("labels", "objects", "depth"), plain=()):
    """Every image has a colour, depth and object ids of its own; ``plain`` have no labels."""
    transform, found = TrainTransform(image_size=SIZE, hflip=0, paste=paste, strong=0.5), []
    for k in range(count):
        labels = np.arange(4, dtype=np.uint8).repeat(12)[None].repeat(SIZE[0], 0)
        labels = np.where(labels == 3, np.uint8(IGNORE_INDEX), labels)
        sample = {
            "image": np.full((*SIZE, 3), 40 * (k % 6) + 20, np.uint8),
            "labels": labels,
            "objects": (labels == 1).astype(np.uint16),
            "depth": np.full(SIZE, k + 1, np.float32),
            "valid": np.ones(SIZE, bool),
        }
        wanted = () if k in plain else (*keys, "valid") if "depth" in keys else keys
        sample = {key: v for key, v in sample.items() if key in ("image", *wanted)}
        found.append(transform(sample, seed=k))
    return found


def test_half_of_the_classes_of_the_next_image_are_pasted_with_all_that_is_known():
    before = samples()
    batch = collate_train(before, ["labels", "objects", "depth"])
    area = batch["pasted"]
    for k in range(4):
        source = before[(k + 1) % 4]
        classes = np.unique(source["labels"][source["part"]])
        assert len(classes) == 2  # of three
        assert IGNORE_INDEX not in classes
        part = torch.from_numpy(source["part"])
        assert torch.equal(area[k], part)
        colour = torch.where(part, int(source["image"].max()), 40 * k + 20)
        assert torch.equal(batch["image"][k], colour.to(torch.uint8).expand(3, *SIZE))
        assert torch.equal(batch["depth"][k], torch.where(part, (k + 1) % 4 + 1, k + 1).float())
    # all images have equal labels: what differs are ids of objects, 2 if pasted
    assert torch.equal(batch["labels"], torch.from_numpy(np.stack([s["labels"] for s in before])))
    expected = torch.where(batch["labels"] == 1, torch.where(area, 2, 1), 0)
    assert torch.equal(batch["objects"], expected.to(torch.int32))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_depth_alone_is_pasted_in_rectangles():
    shares = []
    for _ in range(8):
        area = collate_train(samples(8, keys=("depth",), paste=0.5), ["depth"])["pasted"]
        for each in area[area.any(dim=2).any(dim=1)]:
            rows, columns = each.nonzero(as_tuple=True)
            height, width = (int(v.max() - v.min()) + 1 for v in (rows, columns))
            assert height * width == each.sum()
        shares += area.float().mean((1, 2)).tolist()
    assert 0 in shares
    assert 0.02 < max(shares) <= 0.42


def test_images_without_labels_get_parts_and_give_none():
    before = samples(plain=(0, 1))
    assert ["part" in s for s in before] == [False, False, True, True]
    batch = collate_train(before, ["labels", "depth"])
    assert batch["unlabelled"].tolist() == [True, True, False, False]
    for k in (0, 1):  # the next one with labels is the third
        part = torch.from_numpy(before[2]["part"])
        assert torch.equal(batch["pasted"][k], part)
        assert torch.equal(batch["image"][k].permute(1, 2, 0), torch.from_numpy(before[k]["image"]))
        pasted = np.where(before[2]["part"][..., None], before[2]["image"], before[k]["image"])
        changed = torch.from_numpy(before[k]["recolor"](pasted))
        assert torch.equal(batch["strong"][k].permute(1, 2, 0), changed)
        assert (batch["labels"][k][~part] == IGNORE_INDEX).all()
        assert torch.equal(batch["valid"][k], part)
    alone = collate_train(samples(2, plain=(0, 1)), ["labels"])
    assert "pasted" not in alone


def test_colours_change_after_pasting():
    """Of the part, and of the image below it, alike."""
    transform = TrainTransform(image_size=SIZE, hflip=0, color=1.0, gamma=1.0, paste=1.0)
    sample = {"image": np.full((*SIZE, 3), 90, np.uint8), "labels": np.eye(*SIZE, dtype=np.uint8)}
    batch = collate_train([transform(sample, seed=seed) for seed in range(4)], ["labels"])
    colours = batch["image"].flatten(2).unique(dim=2)
    assert colours.shape == (4, 3, 1)
    assert len(colours.unique()) == 4  # each image has its own
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_probability_and_default():
    assert all("part" not in s for s in samples(paste=0))
    empty = [not s["part"].any() for s in samples(200, paste=0.25)]
    assert 0.6 < np.mean(empty) < 0.9
    with pytest.raises(ValueError, match=r"augment\.paste=2 must lie in 0\.\.1"):
        TrainTransform(image_size=SIZE, paste=2)
