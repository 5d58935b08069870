"""Photos and depth maps paired by text files, as BTS and its successors list NYUv2 and KITTI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, existing, list_of_split
from dpt.data.errors import DataError
from dpt.data.formats import io
from dpt.data.formats.depth_encoding import DepthRule


@dataclass(kw_only=True, eq=False)
class FileListDataset(FileDataset):
    """Depth pairs by lists: a line has the photo, its depth file, and perhaps a focal length.

    ``kitchen_0028b/rgb_00045.jpg kitchen_0028b/sync_depth_00045.png 518.8579``; a line whose depth
    is ``None`` is left out, as the KITTI Eigen protocol does. A leading ``/`` has no meaning.

    Args:
        lists: the text file of each split, relative to ``root``.
        images: folder of the photos in the lists; ``%split`` stands for the split.
        depth: folder of the depth files in the lists; ``%split`` stands for the split.
        depth_scale: metres = value in the file × depth_scale.
        invalid_depth: values in the files that mean "not measured".
        split_names: what ``%split`` becomes, where it is not the split's name.
    """

    lists: Mapping[str, str | None]
    images: str = "."
    depth: str = "."
    max_depth: float | None
    depth_scale: float = 0.001
    invalid_depth: Sequence[float] = (0,)
    split_names: Mapping[str, str] | None = None

    def make_depth_rule(self) -> DepthRule:
        return DepthRule(
            scale=self.depth_scale,
            invalid=self.invalid_depth,
            min_depth=self.min_depth,
            max_depth=self.max_depth,
        )

    def list_files(self) -> list[Files]:
        path = self.folder / list_of_split(self.lists, self.split, option="data.lists")
        files: list[Files] = []
        for number, line in enumerate(io.read_text(path).splitlines(), start=1):
            words = [word.lstrip("/") for word in line.split()]
            if not words or words[0].startswith("#"):
                continue
            if len(words) < 2 or any(".." in Path(word).parts for word in words[:2]):
                raise DataError(
                    f"{path}: line {number} is {line!r}: must be the path of a photo and that of "
                    "its depth file, both below their folders"
                )
            if words[1] != "None":
                files.append(self.locate(words[0], words[1]))
        return existing(files, source=path, remedy="check data.root, data.images and data.depth")

    def locate(self, image: str, depth: str) -> Files:
        """Where the files of a line are."""
        on_disk = (self.split_names or {}).get(self.split, self.split)
        images, maps = (t.replace("%split", on_disk) for t in (self.images, self.depth))
        return Files(self.folder / images / image, depth=self.folder / maps / depth)
