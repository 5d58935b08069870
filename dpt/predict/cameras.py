"""Which camera an image to be predicted has: stated, of its EXIF tags, predicted or guessed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from dpt.data.formats.cameras import (
    CameraFile,
    CameraSource,
    FieldOfView,
    FocalLength,
    StatedCamera,
)
from dpt.data.formats.pictures import exif_focal
from dpt.geometry import Camera
from dpt.predict.inputs import Image
from dpt.validation import Plain

GUESS = FieldOfView(60.0)
"""The camera of ``dpt predict --focal guess`` where nothing else is known."""


class KnownCamera(NamedTuple):
    """The camera of an image, at the image's own size, and how it is known."""

    camera: Camera
    source: Literal["given", "EXIF", "predicted", "guess"]

    @property
    def facts(self) -> Plain:
        """What records hold."""
        size = [*self.camera.size]
        return {"camera": {"K": self.camera.K.tolist(), "size": size, "source": self.source}}


@dataclass(frozen=True)
class FrameCamera:
    """The camera that ``stated`` gives to the frames of a video, by the video's name."""

    stated: CameraSource
    video: Path

    def camera(self, image: str | Path, size: tuple[int, int]) -> Camera:
        return self.stated.camera(self.video, size)


def known_camera(
    image: Image, size: tuple[int, int], stated: CameraSource | None, *, data: bytes | None = None
) -> KnownCamera | None:
    """Returns the camera that ``stated`` gives to an image of ``size`` (H, W), upright, or that of
    its file's EXIF tags; None without any. ``data`` is the content of the file, if it was read."""
    if stated is not None:
        name = image if isinstance(image, str | Path) else "an image"
        return KnownCamera(stated.camera(name, size), "given")
    focal = exif_focal(image, data=data) if isinstance(image, str | Path) else None
    return None if focal is None else KnownCamera(Camera.from_focal(focal, size), "EXIF")


def as_sources(
    cameras: Camera | Sequence[Camera | None] | None, count: int
) -> list[CameraSource | None]:
    """Returns what states the camera of each of ``count`` images: one for all, or one for each."""
    each = [cameras] * count if cameras is None or isinstance(cameras, Camera) else cameras
    if len(each) != count:
        raise ValueError(f"{len(each)} cameras for {count} images: give one, or one for each")
    return [None if c is None else StatedCamera.parse(c.K, "cameras", c.size) for c in each]


def chosen_camera(
    fov: float | None, focal: str | None, intrinsics: Path | None
) -> CameraSource | None:
    """Returns the camera that the options of ``dpt predict`` state; None if none does."""
    if fov is not None:
        if not 0 < fov < 180:
            raise ValueError(f"--fov {fov:g}: must be above 0 and below 180 degrees")
        return FieldOfView(fov)
    if intrinsics is not None:
        file = CameraFile(intrinsics)
        file.read()  # faults are told before any image is read
        return file
    if focal in (None, "guess"):
        return None
    pixels = float(focal) if focal.replace(".", "", 1).isdecimal() else 0.0
    if pixels == 0:
        raise ValueError(f"--focal {focal}: must be above 0, in pixels of the images, or guess")
    return FocalLength(pixels)
