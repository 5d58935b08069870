"""Photos with their depth and label files: what the data sets on disk have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpt.data.base import DataError, check_sample, few, validate_samples
from dpt.data.datasets.pairing import Files
from dpt.data.formats import io
from dpt.data.formats.labels import LabelRule
from dpt.data.formats.metres import DepthRule
from dpt.data.resize import shrink_sample
from dpt.types import DatasetInfo, Sample, Target


class PairedDataset:
    """Reads photos, depth and labels. A data set derives from it and says which files pair.

    Args:
        files: the samples of the split, in order.
        split: ``train``, ``val``, ...
        depth: how depth files become metres; None if there are none. Needs a ``max_depth``.
        labels: how label files become classes; None if there are none.
        depth_key: name of the depth array in files that hold several, see ``io.read_raw_depth``.
        cache: keep decoded samples in memory.
        cache_size: [H, W]; with ``cache``, the train split keeps images scaled down to the
            smallest size that covers this. Other splits are kept at their own size.
    """

    remedies: Mapping[Target, str] = {}
    """How to get labels that the set could have and has not, for messages."""

    def __init__(
        self,
        files: Sequence[Files],
        *,
        split: str,
        depth: DepthRule | None = None,
        labels: LabelRule | None = None,
        depth_key: str | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.depth_rule, self.label_rule, self.depth_key = depth, labels, depth_key
        targets: list[Target] = [] if depth is None else ["depth"]
        if labels is not None:
            targets.append("labels")
        self.info = DatasetInfo(
            targets=tuple(targets),
            class_names=() if labels is None else labels.class_names,
            palette=() if labels is None else labels.palette,
            min_depth=1e-3 if depth is None else depth.min_depth,
            max_depth=None if depth is None else depth.max_depth,
        )
        self._files = list(files)
        self._cache: dict[int, Sample] | None = {} if cache else None
        self._cache_size: tuple[int, int] | None = None
        if cache and cache_size is not None and split == "train":
            self._cache_size = (int(cache_size[0]), int(cache_size[1]))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Sample:
        """The sample as it is on disk. A cached sample's arrays are read-only."""
        if self._cache is None:
            return self._read(index)
        if index not in self._cache:
            sample = self._read(index)
            if self._cache_size is not None:
                sample = shrink_sample(sample, self._cache_size)
            for value in sample.values():
                if isinstance(value, np.ndarray):
                    value.setflags(write=False)
            self._cache[index] = sample
        return self._cache[index].copy()

    def files(self, index: int) -> Files:
        """Where a sample comes from."""
        return self._files[index]

    def preload(self) -> None:
        """Fills the cache, if there is one, so that worker processes forked later share it."""
        if self._cache is not None:
            for index in range(len(self)):
                self[index]

    def validate(self, *, limit: int = 16, seed: int = 0) -> list[str]:
        """Reads some samples and raises DataError for what would spoil a run; returns remarks."""
        return validate_samples(self, limit=limit, seed=seed, explain=self._explain_depth)

    def _read(self, index: int) -> Sample:
        files = self._files[index]
        sample: Sample = {
            "image": io.read_image(files.image),
            "index": index,
            "name": str(files.image),
        }
        if files.labels is not None and self.label_rule is not None:
            sample["labels"] = self.label_rule.read(files.labels)
        if files.depth is not None and self.depth_rule is not None:
            raw = io.read_raw_depth(files.depth, key=self.depth_key)
            sample["depth"], sample["valid"] = self.depth_rule(raw)
        maps: dict[str, Path | None] = {
            "labels": files.labels,
            "depth": files.depth,
            "valid": files.depth,
        }
        check_sample(sample, files={k: v for k, v in maps.items() if v is not None})
        return sample

    def _explain_depth(self, index: int) -> str:
        path = self._files[index].depth
        assert path is not None
        assert self.depth_rule is not None
        raw = io.read_raw_depth(path, key=self.depth_key)
        return f"every pixel of {path} is invalid: {self.depth_rule.explain(raw)}"


def check_files(files: Sequence[Files], *, source: Path, remedy: str) -> None:
    """Raises DataError if files that a list or table names do not exist.

    Args:
        files: what was listed.
        source: the list or folder that says so.
        remedy: what to check.
    """
    absent = [str(path) for item in files for path in item if path and not path.is_file()]
    if absent:
        raise DataError(
            f"{source}: {len(absent)} files of its {len(files)} images do not exist "
            f"({few(absent)}): {remedy}"
        )
    if not files:
        raise DataError(f"{source}: no image found: {remedy}")
