"""A folder of photos beside folders of label files and depth files: the generic data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpt.data import io
from dpt.data.base import DataError, check_sample, missing_path, validate_samples
from dpt.data.pairing import Files, Folders, few, pair_files
from dpt.data.resize import shrink_sample
from dpt.types import IGNORE_INDEX, DatasetInfo, Sample, Target


class FolderDataset:
    """Pairs files of two or three folders by their names. ``data/README.md`` shows layouts.

    Args:
        root: the folder that the other paths start from.
        split: ``train``, ``val``, ...
        images: folder of the photos. Here, in ``labels`` and in ``depth``, ``%split`` stands for
            the split; without it a sub-folder named after the split is used where it exists.
        labels: folder of the class id files, or None.
        depth: folder of the depth files, or None.
        num_classes: of ``labels``; at most 255. May be left out if ``class_names`` are given.
        ignore_index: the value, or values, that mean "unlabelled" in the files. In memory they
            become 255.
        class_names: one for each class; ``class_0``, ... if left out.
        label_colors: an RGB row for each id: the palette of pictures, and the key to RGB label
            files. Rows after the last class are for ignored ids.
        depth_scale: metres = value in the file × depth_scale.
        invalid_depth: values in the files, before scaling, that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        max_depth: largest depth that counts as valid, in metres; required with ``depth``.
        images_name, labels_name, depth_name: templates in which ``%stem`` is what the files of a
            pair have in common: ``%stem_leftImg8bit`` beside ``%stem_gtFine_labelIds``.
        split_names: what a split is called on disk, where it is not its name: ``{val: dev}``.
        split_files: for each split a text file with one relative path or stem per line, relative
            to ``root``; folders are then shared by the splits.
        fractions: each split's share where neither folders nor lists tell the splits apart.
            Neighbouring video frames are nearly the same picture: give those split folders.
        missing: what to do about images that have neither labels nor depth.
        cache: keep decoded samples in memory.
        cache_size: [H, W]; with ``cache``, the train split keeps images scaled down to the
            smallest size that covers this. Other splits are kept at their own size.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        images: str = "images",
        labels: str | None = None,
        depth: str | None = None,
        num_classes: int | None = None,
        ignore_index: int | Sequence[int] | None = IGNORE_INDEX,
        class_names: Sequence[str] = (),
        label_colors: Sequence[Sequence[int]] = (),
        depth_scale: float = 0.001,
        invalid_depth: Sequence[float] = (0,),
        min_depth: float = 1e-3,
        max_depth: float | None = None,
        images_name: str = "%stem",
        labels_name: str = "%stem",
        depth_name: str = "%stem",
        split_names: Mapping[str, str] | None = None,
        split_files: Mapping[str, str | None] | None = None,
        fractions: Mapping[str, float] | None = None,
        missing: Literal["raise", "skip"] = "raise",
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise missing_path(self.root, what="folder", remedy="check data.root")
        if missing not in ("raise", "skip"):
            raise DataError(f"data.missing={missing} must be raise or skip")
        self.depth_scale = depth_scale
        self.invalid_depth = tuple(float(v) for v in invalid_depth)
        ignored = [ignore_index] if isinstance(ignore_index, int) else ignore_index or ()
        self.ignore_index = tuple(int(v) for v in ignored)
        self.label_colors = tuple((int(r), int(g), int(b)) for r, g, b in label_colors)
        targets: list[Target] = []
        if depth is not None:
            targets.append("depth")
            self._check_depth_options(min_depth, max_depth)
        if labels is not None:
            targets.append("labels")
        names = _class_names(num_classes, class_names) if labels is not None else ()
        if self.label_colors and len(self.label_colors) < len(names):
            raise DataError(
                f"data.label_colors has {len(self.label_colors)} rows for {len(names)} classes: "
                "give one [r,g,b] for each"
            )
        self.info = DatasetInfo(
            targets=tuple(targets),
            class_names=names,
            palette=self.label_colors[: len(names)],
            min_depth=min_depth,
            max_depth=max_depth if depth is not None else None,
        )
        folders = Folders(
            root=self.root,
            split=split,
            on_disk=(split_names or {}).get(split, split),
            split_files={k: v for k, v in (split_files or {}).items() if v} or None,
            fractions=fractions,
        )
        self._files = pair_files(
            folders,
            images=(images, images_name),
            labels=(labels, labels_name),
            depth=(depth, depth_name),
            missing=missing,
        )
        self._cache: dict[int, Sample] | None = {} if cache else None
        shrinks = cache and cache_size is not None and split == "train"
        self._cache_size = (int(cache_size[0]), int(cache_size[1])) if shrinks else None  # type: ignore[index]

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
        if files.labels is not None:
            sample["labels"] = self._read_labels(files.labels)
        if files.depth is not None:
            sample["depth"], sample["valid"] = io.read_depth(
                files.depth,
                scale=self.depth_scale,
                invalid=self.invalid_depth,
                min_depth=self.info.min_depth,
                max_depth=self.info.max_depth,
            )
        maps = {"labels": files.labels, "depth": files.depth, "valid": files.depth}
        check_sample(sample, files={k: v for k, v in maps.items() if v is not None})
        return sample

    def _read_labels(self, path: Path) -> np.ndarray:
        raw = io.read_labels(path, colors=self.label_colors)
        count = self.info.num_classes
        ignored = raw == self.ignore_index[0] if self.ignore_index else np.zeros(raw.shape, bool)
        for value in self.ignore_index[1:]:
            ignored |= raw == value
        outside = (raw >= count) | (raw < 0) if raw.dtype.kind == "i" else raw >= count
        if (outside & ~ignored).any():
            raise self._out_of_range(path, np.unique(raw[outside & ~ignored]).tolist())
        if raw.dtype == np.uint8 and self.ignore_index in ((), (IGNORE_INDEX,)):
            return raw
        labels = raw.astype(np.uint8)
        labels[ignored] = IGNORE_INDEX
        return labels

    def _out_of_range(self, path: Path, values: list[int]) -> DataError:
        count = self.info.num_classes
        if values == [count]:
            hint = (
                f"if {count} marks unlabelled pixels, set data.ignore_index={count}; if ids count "
                f"from 1, set data.num_classes={count + 1}"
            )
        elif values == [IGNORE_INDEX]:
            hint = f"if 255 marks unlabelled pixels, add it to data.ignore_index={_plain(self)}"
        else:
            hint = "set data.num_classes, or data.ignore_index for values that mean unlabelled"
        return DataError(
            f"{path}: class ids {few([str(v) for v in values], 8)} are outside 0..{count - 1} "
            f"(data.num_classes={count}) and not data.ignore_index={_plain(self)}: {hint}"
        )

    def _explain_depth(self, index: int) -> str:
        path = self._files[index].depth
        assert path is not None
        raw = io.read_raw_depth(path)
        usable = raw[np.isfinite(raw) & (raw > 0) & ~np.isin(raw, self.invalid_depth)]
        text = f"every pixel of {path} is invalid"
        if usable.size == 0:
            return f"{text}: the file holds no other value than data.invalid_depth: check the file"
        low, middle, high = (float(v) for v in (usable.min(), np.median(usable), usable.max()))
        limits = f"{self.info.min_depth:g}..{self.info.max_depth:g} m"
        text += (
            f": its values {low:g}..{high:g} times data.depth_scale={self.depth_scale:g} lie "
            f"outside {limits}"
        )
        if middle * self.depth_scale > 1000:
            return f"{text}; these look like millimetres: set data.depth_scale=0.001"
        return f"{text}: check data.depth_scale, data.invalid_depth and data.max_depth"

    def _check_depth_options(self, min_depth: float, max_depth: float | None) -> None:
        if max_depth is None:
            raise DataError(
                "data.max_depth is needed with data.depth: the largest depth that counts as "
                "valid, in metres (10 for rooms, 80 for roads)"
            )
        if not 0 <= min_depth < max_depth:
            raise DataError(
                f"data.min_depth={min_depth} must lie in 0..data.max_depth={max_depth} (metres)"
            )
        if self.depth_scale <= 0:
            raise DataError(f"data.depth_scale={self.depth_scale} must be above 0")


def _class_names(num_classes: int | None, class_names: Sequence[str]) -> tuple[str, ...]:
    count = len(class_names) if num_classes is None else num_classes
    if count == 0 and num_classes is None:
        raise DataError("data.num_classes is needed with data.labels: how many classes there are")
    if not 1 <= count <= 255:
        raise DataError(f"data.num_classes={count} must lie in 1..255 (255 is the ignored id)")
    if class_names and len(class_names) != count:
        raise DataError(
            f"data.class_names has {len(class_names)} names for data.num_classes={count}: "
            "give one for each class"
        )
    return tuple(class_names) or tuple(f"class_{i}" for i in range(count))


def _plain(dataset: FolderDataset) -> int | list[int]:
    values = list(dataset.ignore_index)
    return values[0] if len(values) == 1 else values
