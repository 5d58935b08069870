"""augment.strong: parts of images with labels are pasted on images without labels."""

import numpy as np
import torch

from dpt.data import TrainTransform, collate_train
from dpt.types.samples import IGNORE_INDEX, PasteSource, PasteTarget

SIZE = (32, 48)
IMAGE = (64, 96)


def samples(count=4, *, keys=("labels", "depth", "valid"), plain=(), seed=0, **changes):
    """Every image has a colour and a depth of its own; ``plain`` have no labels."""
    transform = TrainTransform(image_size=SIZE, hflip=0, strong=0.5, **changes)
    labels = np.arange(4, dtype=np.uint8).repeat(24)[None].repeat(IMAGE[0], 0)
    transformed = []
    for k in range(count):
        sample = {
            "image": np.full((*IMAGE, 3), 40 * (k % 6) + 20, np.uint8),
            "labels": np.where(labels == 3, np.uint8(IGNORE_INDEX), labels),
            "depth": np.full(IMAGE, k + 1, np.float32),
            "valid": np.ones(IMAGE, bool),
        }
        kept = {"image"} if k in plain else {"image", *keys}
        sample = {key: array for key, array in sample.items() if key in kept}
        transformed.append(transform(sample, seed=seed + k))
    return transformed


def pasted(before):
    return collate_train(before, ["labels", "depth"])


def test_paste_parts_takes_half_of_the_classes_with_all_maps():
    before = samples(5, plain=(0, 2, 4))
    batch = pasted(before)
    mixed = batch["mixed"]
    assert mixed.unlabelled.tolist() == [True, False, True, False, True]
    for k, source in ((0, 1), (2, 3), (4, 1)):
        origin, target = before[source], before[k]["mixing"]
        part = torch.from_numpy(origin["mixing"].part)
        classes = np.unique(origin["labels"][part])
        assert len(classes) == 2  # of three
        assert IGNORE_INDEX not in classes
        assert not target.padding.any()
        assert torch.equal(mixed.kept[k], part)
        assert torch.equal(mixed.weak[k].permute(1, 2, 0), torch.from_numpy(target.weak))
        image = np.where(part[..., None], origin["image"], before[k]["image"])
        assert torch.equal(batch["image"][k].permute(1, 2, 0), torch.from_numpy(image))
        labels = np.where(part, origin["labels"], IGNORE_INDEX)
        assert torch.equal(batch["labels"][k], torch.from_numpy(labels))
        assert torch.equal(batch["depth"][k], torch.where(part, source + 1.0, 0.0))
        assert torch.equal(batch["valid"][k], part)
    for k in (1, 3):
        assert not mixed.kept[k].any()
        assert torch.equal(batch["labels"][k], torch.from_numpy(before[k]["labels"]))


def test_transform_image_without_a_trained_label_is_unlabelled():
    for sample in samples(2, keys=("labels",), targets=("depth",)):
        assert isinstance(sample["mixing"], PasteTarget)
        assert "labels" not in sample
    assert all(isinstance(s["mixing"], PasteSource) for s in samples(2, keys=("labels",)))


def test_draw_part_of_depth_alone_is_a_rectangle():
    drawn = samples(64, keys=("depth", "valid"))
    parts = [sample["mixing"].part for sample in drawn]
    assert {part.shape for part in parts} == {SIZE}
    areas = [part.mean() for part in parts]
    assert 0.3 < np.mean([area > 0 for area in areas]) < 0.7
    assert max(areas) <= 0.42
    for part in parts:
        if part.any():
            rows, columns = np.nonzero(part)
            assert np.ptp(rows) + 1 == part.sum() / (np.ptp(columns) + 1)


def test_paste_parts_gives_padding_no_label():
    """Where an image is made smaller, the rest is padding."""
    before = samples(4, plain=(0, 2), zoom=(0.5, 0.5))
    batch = pasted(before)
    for k in (0, 2):
        target = before[k]["mixing"]
        assert target.padding.mean() == 0.75
        is_grey = (target.weak == target.weak[0, 0]).all(axis=-1)
        assert (target.padding != is_grey).mean() < 0.03  # pixels at the border are mixed
        padding, part = map(torch.from_numpy, (target.padding, before[k + 1]["mixing"].part))
        assert torch.equal(batch["mixed"].kept[k], part | padding)
        assert (batch["labels"][k][padding & ~part] == IGNORE_INDEX).all()
