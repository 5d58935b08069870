"""NYU Depth v2, the 1449 labelled frames (Silberman et al. 2012): depth and 40 classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data.base import DataError, check_sample, data_root, few, missing_path
from dpt.data.datasets.paired import PairedDataset
from dpt.data.datasets.pairing import Files
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule
from dpt.data.formats.metres import DepthRule
from dpt.types import Sample

NYU40_CLASSES = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf",
    "picture", "counter", "blinds", "desk", "shelves", "curtain", "dresser", "pillow", "mirror",
    "floor mat", "clothes", "ceiling", "books", "refrigerator", "television", "paper", "towel",
    "shower curtain", "box", "whiteboard", "person", "night stand", "toilet", "sink", "lamp",
    "bathtub", "bag", "other structure", "other furniture", "other prop",
)  # fmt: skip
"""Gupta et al. 2013; ids in files are 1..40 in this order."""

_MAT = "nyu_depth_v2_labeled.mat"
_MAPPING = "classMapping40.mat"
_SOURCE = "https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html"


class NYUv2Dataset(PairedDataset):
    """Reads ``nyu_depth_v2_labeled.mat`` frame by frame, as it was downloaded.

    The official split (795 for training, 654 for testing) is read from ``splits.mat``, or from
    ``train.txt`` and ``test.txt`` with one frame number of 1..1449 a line.

    Args:
        root: the folder of the files.
        split: ``train``; ``val`` or ``test`` for the test frames.
        depth: ``filled`` for the in-painted maps that benchmarks score, ``raw`` for the measured
            pixels alone.
        labels: also read the 40 classes, which needs ``classMapping40.mat``: the frames' own 894
            classes are too many and too rare to learn. None: if that file is there.
        max_depth: largest depth that counts as valid, in metres.
        min_depth: smallest depth that counts as valid, in metres.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        depth: Literal["filled", "raw"] = "filled",
        labels: bool | None = None,
        max_depth: float = 10.0,
        min_depth: float = 1e-3,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        self._mat = self.root / _MAT
        if not self._mat.is_file():
            raise missing_path(self._mat, what="file", remedy=f"it comes from {_SOURCE}")
        self._depth_name = {"filled": "depths", "raw": "rawDepths"}[depth]
        self._numbers = _split_numbers(self.root, split)
        mapping = self.root / _MAPPING
        self.remedies = {"labels": f"put {_MAPPING} into {self.root}; see data/README.md"}
        if labels and not mapping.is_file():
            remedy = "it maps the 894 raw classes to 40: see data/README.md, or data.labels=false"
            raise missing_path(mapping, what="file", remedy=remedy)
        with_labels = mapping.is_file() if labels is None else labels
        super().__init__(
            [Files(self._mat, self._mat if with_labels else None, self._mat)] * len(self._numbers),
            split=split,
            depth=DepthRule(scale=1.0, min_depth=min_depth, max_depth=max_depth),
            labels=_nyu40_rule(mapping) if with_labels else None,
            cache=cache,
            cache_size=cache_size,
        )

    def _read(self, index: int) -> Sample:
        number = self._numbers[index]
        sample: Sample = {
            "image": np.ascontiguousarray(self._array("images", number)),
            "index": index,
            "name": f"{self._mat}#{number}",
        }
        if self.label_rule is not None:
            sample["labels"] = self.label_rule(self._array("labels", number), source=self._mat)
        assert self.depth_rule is not None
        sample["depth"], sample["valid"] = self.depth_rule(self._array(self._depth_name, number))
        check_sample(sample)
        return sample

    def _array(self, name: str, number: int) -> np.ndarray:
        return io.read_array(self._mat, name, index=number - 1)

    def _explain_depth(self, index: int) -> str:
        assert self.depth_rule is not None
        number = self._numbers[index]
        why = self.depth_rule.explain(self._array(self._depth_name, number))
        return f"every pixel of {self._mat}#{number} is invalid: {why}"


def _split_numbers(root: Path, split: str) -> list[int]:
    """The frames of a split, counted from 1."""
    on_disk = {"train": "train", "val": "test", "test": "test"}.get(split)
    if on_disk is None:
        raise DataError(f"split {split}: NYUv2 has train and test (also called val)")
    listed, official = root / f"{on_disk}.txt", root / "splits.mat"
    if official.is_file():
        return [int(n) for n in io.read_array(official, f"{on_disk}Ndxs").ravel()]
    if not listed.is_file():
        raise missing_path(official, what="file", remedy=f"it comes from {_SOURCE}")
    words = io.read_text(listed).split()
    wrong = [word for word in words if not word.isdecimal() or int(word) < 1]
    if wrong or not words:
        raise DataError(
            f"{listed}: found {few(wrong) or 'nothing'}: write one frame number of 1..1449 a line"
        )
    return [int(word) for word in words]


def _nyu40_rule(path: Path) -> LabelRule:
    """The 40 classes by the file that says which of them each of the 894 raw classes is."""
    class_of_id = io.read_array(path, "mapClass").ravel().tolist()
    if set(class_of_id) != set(range(1, 41)):
        raise DataError(
            f"{path}: mapClass must hold a class of 1..40 for each raw class, and each class once "
            f"at least; found {len(class_of_id)} values of {min(class_of_id)}..{max(class_of_id)}"
        )
    ids: list[list[int]] = [[] for _ in NYU40_CLASSES]
    for raw_id, class_id in enumerate(class_of_id, start=1):
        ids[int(class_id) - 1].append(raw_id)
    return LabelRule(class_names=NYU40_CLASSES, label_map=ids)
