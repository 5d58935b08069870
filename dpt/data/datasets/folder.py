"""A folder of photos beside folders of label files and depth files: the generic data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dpt.data.base import DataError, data_root
from dpt.data.datasets.paired import PairedDataset
from dpt.data.datasets.pairing import Folders, Unpaired, pair_files, unpaired_files
from dpt.data.formats.labels import LabelMap, LabelRule
from dpt.data.formats.metres import DepthEncoding, DepthRule
from dpt.types import IGNORE_INDEX


class FolderDataset(PairedDataset):
    """Pairs files of two or three folders by their names. ``data/README.md`` shows layouts.

    Args:
        root: the folder that the other paths start from.
        split: ``train``, ``val``, ...
        images: folder of the photos. Here, in ``labels`` and in ``depth``, ``%split`` stands for
            the split; without it a sub-folder named after the split is used where it exists.
        labels: folder of the class id files, or None.
        depth: folder of the depth files, or None.
        num_classes: of ``labels``; at most 255. May be left out if ``class_names`` or a
            ``label_map`` are given.
        ignore_index: the value, or values, that mean "unlabelled" in the files. In memory they
            become 255.
        label_map: the files' ids of each class, where they are not 0, 1, 2, ...:
            ``[7, 8, [11, 12]]``, or ``"1-150"``. All other ids are then ignored.
        class_names: one for each class; ``class_0``, ... if left out.
        label_colors: an RGB row for each id of the files: the palette of pictures, and the key to
            RGB label files. Rows after the last class are for ignored ids.
        depth_scale: metres = value in the file × depth_scale.
        depth_encoding: what the values are, where they are not proportional to depth; see
            ``dpt/data/metres.py``. With ``disparity``, ``depth_scale`` is baseline × focal length.
        depth_key: name of the depth array in files that hold several: an EXR channel, an HDF5
            data set, a variable of a ``.mat`` or ``.npz`` file.
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
        missing: what to do about images that have neither labels nor depth: ``keep`` is for
            tasks that learn from such, with a teacher or by inpainting.
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
        label_map: LabelMap | None = None,
        class_names: Sequence[str] = (),
        label_colors: Sequence[Sequence[int]] = (),
        depth_scale: float = 0.001,
        depth_encoding: DepthEncoding = "linear",
        depth_key: str | None = None,
        invalid_depth: Sequence[float] = (0,),
        min_depth: float = 1e-3,
        max_depth: float | None = None,
        images_name: str = "%stem",
        labels_name: str = "%stem",
        depth_name: str = "%stem",
        split_names: Mapping[str, str] | None = None,
        split_files: Mapping[str, str | None] | None = None,
        fractions: Mapping[str, float] | None = None,
        missing: Literal["raise", "skip", "keep"] = "raise",
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        if missing not in ("raise", "skip", "keep"):
            raise DataError(f"data.missing={missing} must be raise, skip or keep")
        depth_rule, label_rule = None, None
        if depth is not None:
            if max_depth is None:
                raise DataError(
                    "data.max_depth is needed with data.depth: the largest depth that counts as "
                    "valid, in metres (10 for rooms, 80 for roads)"
                )
            depth_rule = DepthRule(
                encoding=depth_encoding,
                scale=depth_scale,
                invalid=tuple(float(v) for v in invalid_depth),
                min_depth=min_depth,
                max_depth=max_depth,
            )
        if labels is not None:
            label_rule = LabelRule(
                num_classes=num_classes,
                class_names=class_names,
                ignore_index=ignore_index,
                label_map=label_map,
                colors=label_colors,
            )
        folders = Folders(
            root=self.root,
            split=split,
            on_disk=(split_names or {}).get(split, split),
            split_files={k: v for k, v in (split_files or {}).items() if v} or None,
            fractions=fractions,
        )
        self._where: dict[str, Any] = {
            "folders": folders,
            "images": (images, images_name),
            "labels": (labels, labels_name),
            "depth": (depth, depth_name),
        }
        super().__init__(
            pair_files(**self._where, missing=missing),
            split=split,
            depth=depth_rule,
            labels=label_rule,
            depth_key=depth_key,
            cache=cache,
            cache_size=cache_size,
        )

    def unpaired(self) -> Unpaired:
        """Photos without labels, and label files without a photo: what ``missing=skip`` skips."""
        return unpaired_files(**self._where)
