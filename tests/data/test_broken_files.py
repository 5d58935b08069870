"""Files that break in mid-run: named, counted, and left out where that is asked for."""

import numpy as np
import pytest

from dpt.data import DataError, Dataset, EvalTransform, TrainTransform, make_loader
from dpt.data.loading import LoaderSettings
from dpt.data_check.scan import record_of
from dpt.objectives.base import same_size_groups
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import DatasetInfo


class Photos(Dataset):
    """Four photos with labels, of which some cannot be read."""

    info = DatasetInfo(targets=("labels",), class_names=("a", "b"))

    def __init__(self, *broken):
        self.broken = broken

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index in self.broken:
            raise DataError(f"{index}.png: the file is truncated")
        image, labels = (np.full(shape, index % 2, np.uint8) for shape in ((32, 48, 3), (32, 48)))
        return {"image": image, "name": f"{index}.png", "labels": labels}


def loader(dataset, *, training, skip=True, workers=0):
    transform = (
        TrainTransform(image_size=(32, 48))
        if training
        else EvalTransform(Preprocessing(image_size=(32, 48)))
    )
    on_error = "skip" if skip else "raise"
    settings = LoaderSettings(batch_size=4, num_workers=workers, on_error=on_error)
    return make_loader(dataset, transform, settings, ["labels"], training=training)


@pytest.mark.parametrize("workers", [0, 1])
def test_next_photo_takes_its_place_in_training(workers):
    (batch,) = loader(Photos(1, 2), training=True, workers=workers)
    assert sorted(batch["index"].tolist()) == [0, 1, 2, 3]
    assert sorted(batch["name"]) == ["0.png", "3.png", "3.png", "3.png"]
    assert len(batch["failed"]) == 3  # 1 and 2 in 1's place, 2 in its own
    assert all("truncated" in message for message in batch["failed"])


def test_it_counts_nowhere_in_evaluation():
    (batch,) = loader(Photos(3), training=False)
    assert [positions for _, positions in same_size_groups(batch)] == [[0, 1, 2]]
    assert batch["failed"] == ["3.png: the file is truncated"]


def test_photos_that_are_too_long_count_nowhere_either():
    class Long(Photos):
        def __getitem__(self, index):
            shape = (10, 900) if index == 2 else (32, 48)
            labels = np.zeros(shape, np.uint8)
            return {"image": np.zeros((*shape, 3), np.uint8), "labels": labels, "name": "2.png"}

    (batch,) = loader(Long(), training=False)
    assert [positions for _, positions in same_size_groups(batch)] == [[0, 1, 3]]
    assert "2.png: 900x10 pixels are too elongated" in batch["failed"][0]


def test_broken_file_stops_the_run_unless_it_is_skipped():
    (batch,) = loader(Photos(), training=True)
    assert "failed" not in batch
    with pytest.raises(DataError, match=r"2\.png"):
        next(iter(loader(Photos(2), training=True, skip=False)))
    with pytest.raises(DataError, match=r"4 samples in a row .*\.png"):
        next(iter(loader(Photos(0, 1, 2, 3), training=True)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"labels": np.full((32, 48), 2, np.uint8)}, r"0\.png: class ids 2 are outside 0\.\.1"),
        ({"depth": np.ones((32, 48), np.float32)}, r"0\.png: .* depth and valid or neither"),
        ({"image": None}, r"0\.png: must have an image"),
    ],
)
def test_sample_that_is_not_what_its_data_set_says_is_refused(changed, says):
    class Own(Photos):
        def __getitem__(self, index):
            sample = {**super().__getitem__(index), **changed}
            return {key: value for key, value in sample.items() if value is not None}

    with pytest.raises(DataError, match=says):
        Own().validate()
    with pytest.raises(DataError, match=r"\.png: .*(class ids|depth|image)"):
        next(iter(loader(Own(), training=True, skip=False)))
    assert "png" in record_of(Own(), 0).faults[0][1]
