"""Photos and depth maps paired by text files, as BTS and its successors list NYUv2 and KITTI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpt.data.base import DataError, data_root, missing_path
from dpt.data.datasets.paired import PairedDataset, check_files
from dpt.data.datasets.pairing import Files
from dpt.data.formats import io
from dpt.data.formats.metres import DepthRule


class FileListDataset(PairedDataset):
    """Depth pairs by lists: a line has the photo, its depth file, and perhaps a focal length.

    ``kitchen_0028b/rgb_00045.jpg kitchen_0028b/sync_depth_00045.png 518.8579``; a line whose depth
    is ``None`` is left out, as the KITTI Eigen protocol does.

    Args:
        root: the folder that the other paths start from.
        split: ``train``, ``val``, ...
        lists: the text file of each split.
        images: folder that the photos in the lists start from; ``%split`` stands for the split.
        depth: folder that the depth files start from; may hold ``%split``.
        max_depth: largest depth that counts as valid, in metres.
        depth_scale: metres = value in the file × depth_scale.
        invalid_depth: values in the files that mean "not measured".
        min_depth: smallest depth that counts as valid, in metres.
        split_names: what ``%split`` is on disk, where it is not the split's name.
        cache, cache_size: see ``PairedDataset``.
    """

    def __init__(
        self,
        *,
        root: str | Path,
        split: str,
        lists: Mapping[str, str | None],
        images: str = ".",
        depth: str = ".",
        max_depth: float,
        depth_scale: float = 0.001,
        invalid_depth: Sequence[float] = (0,),
        min_depth: float = 1e-3,
        split_names: Mapping[str, str] | None = None,
        cache: bool = False,
        cache_size: Sequence[int] | None = None,
    ) -> None:
        self.root = data_root(root)
        name = lists.get(split)
        if not name:
            known = ", ".join(key for key, value in lists.items() if value)
            raise DataError(f"data.lists names no file for split {split} (it has {known}): add it")
        path = self.root / name
        if not path.is_file():
            raise missing_path(path, what="list", remedy=f"put it there, or set data.lists.{split}")
        on_disk = (split_names or {}).get(split, split)
        folders = [self.root / t.replace("%split", on_disk) for t in (images, depth)]
        files = read_list(path, images=folders[0], depth=folders[1])
        check_files(files, source=path, remedy="check data.root, data.images and data.depth")
        rule = DepthRule(
            scale=depth_scale,
            invalid=tuple(float(v) for v in invalid_depth),
            min_depth=min_depth,
            max_depth=max_depth,
        )
        super().__init__(files, split=split, depth=rule, cache=cache, cache_size=cache_size)


def read_list(path: Path, *, images: Path, depth: Path) -> list[Files]:
    """The pairs that a text file names, in its order. Existence is not checked.

    Args:
        path: the list.
        images: folder that the first path of a line starts from; a leading ``/`` means nothing.
        depth: folder that the second starts from.
    """
    files: list[Files] = []
    for number, line in enumerate(io.read_text(path).splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) < 2 or any(".." in Path(word).parts for word in words[:2]):
            raise DataError(
                f"{path}: line {number} is {line!r}: must be the path of a photo and that of its "
                "depth file, both below their folders"
            )
        photo, depth_file = (word.lstrip("/") for word in words[:2])
        if depth_file != "None":
            files.append(Files(images / photo, None, depth / depth_file))
    return files
