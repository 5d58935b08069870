"""Virtual KITTI 2 (Cabon et al. 2020): five rendered drives in ten variations, with classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

from dpt.data.base import Files
from dpt.data.datasets.files import FileDataset, require_files
from dpt.data.formats.cameras import StatedCamera
from dpt.data.formats.rules import DepthRule, LabelRule
from dpt.files import DataError, decoding, few, read_list
from dpt.plugins import register

_MASKS = "classSegmentation"
_SIZE = (375, 1242)


@register("vkitti2")
@dataclass(kw_only=True, eq=False)
class VirtualKitti2Dataset(FileDataset):
    """``SceneXX/VARIATION/frames/{rgb,depth,classSegmentation}/Camera_N/`` as in the archives.

    The cameras are in ``SceneXX/VARIATION/intrinsic.txt``, if that archive was unpacked.

    Args:
        variations: ``clone``, ``fog``, ``15-deg-left``, ...; None for all.
        cameras: ``Camera_0`` (left) and ``Camera_1``.
        labels: also read the 14 classes if their archive was unpacked.
        class_names, label_colors: the 14 classes, and their colours and that of undefined pixels.
    """

    scenes: Mapping[str, Sequence[str]]
    variations: Sequence[str] | None = None
    cameras: Sequence[str] = ("Camera_0",)
    labels: bool = True
    max_depth: float | None = 80.0
    class_names: Sequence[str] = ()
    label_colors: Sequence[Sequence[int]] = ()

    depth_format = DepthRule(scale=0.01, invalid=(0, 65535))  # the sky is stored as 655.35 m
    labels_remedy = f"unpack the {_MASKS} archive into data.root"

    def make_label_rule(self) -> LabelRule | None:
        if not (self.labels and any(self.folder.glob(f"Scene*/*/frames/{_MASKS}"))):
            return None
        return LabelRule(
            class_names=self.class_names,
            colors=self.label_colors,
            ignore_index=len(self.class_names),
        )

    def camera_source(self, index: int) -> StatedCamera | None:
        image = self._files[index].image
        path = image.parents[3] / "intrinsic.txt"
        if not path.is_file():
            return None
        row = image.stem.removeprefix("rgb_").lstrip("0") or "0", image.parent.name[-1]
        with decoding(path, "intrinsics of Virtual KITTI 2"):
            return _read_intrinsics(path)[row]

    def list_files(self) -> list[Files]:
        files: list[Files] = []
        for scene in self.scenes.get(self.listed_split, ()):
            on_disk = sorted(path.parent.name for path in self.folder.glob(f"{scene}/*/frames"))
            variations = on_disk if self.variations is None else self.variations
            if not on_disk or not set(variations) <= set(on_disk):
                remedy = f"check data.scenes.{self.listed_split} and data.variations"
                raise DataError(
                    f"{self.folder / scene} holds {few(on_disk, 10) or 'nothing'}: {remedy}"
                )
            for variation, camera in product(variations, self.cameras):
                folder = self.folder / scene / variation / "frames"
                for image in sorted((folder / "rgb" / camera).glob("rgb_*.jpg")):
                    number = image.stem.removeprefix("rgb_")
                    mask = folder / _MASKS / camera / f"classgt_{number}.png"
                    depth = folder / "depth" / camera / f"depth_{number}.png"
                    files.append(Files(image, mask if self.label_rule else None, depth))
        remedy = f"unpack the rgb, depth and {_MASKS} archives, or set data.labels=false"
        return require_files(files, source=self.folder, remedy=remedy)


@lru_cache(maxsize=64)
def _read_intrinsics(path: Path) -> dict[tuple[str, str], StatedCamera]:
    """Returns the cameras by the texts of frame and camera."""
    rows = (line.split() for line in read_list(path)[1:])
    return {(row[0], row[1]): StatedCamera.parse(row[2:6], path, _SIZE) for row in rows}
