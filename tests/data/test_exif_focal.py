"""Focal lengths in pixels by EXIF tags, of files that Pillow writes."""

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import IFD, Base
from PIL.TiffImagePlugin import IFDRational

from dpt.data.formats.pictures import exif_focal

DIAGONAL = 1000.0  # of the pictures, 800 × 600 pixels
FILM = np.hypot(36, 24)
PLANE = {
    Base.FocalLength: IFDRational(50, 10),
    Base.FocalPlaneXResolution: IFDRational(4000, 1),
    Base.FocalPlaneResolutionUnit: 3,
}
"""5 mm on a sensor of 4000 pixels/cm: 2000 pixels."""


def photo(path, tags=None, *, orientation=1):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    exif.get_ifd(IFD.Exif).update(tags or {})
    Image.fromarray(np.zeros((600, 800, 3), np.uint8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize(
    ("tags", "focal"),
    [
        ({Base.FocalLengthIn35mmFilm: 28} | PLANE, 28 / FILM * DIAGONAL),
        (PLANE, 2000.0),
        (PLANE | {Base.FocalLengthIn35mmFilm: 0}, 2000.0),
        (PLANE | {Base.ExifImageWidth: 4000, Base.ExifImageHeight: 3000}, 400.0),
    ],
    ids=["both", "cm", "unknown", "smaller"],
)
def test_exif_focal_in_pixels(tmp_path, tags, focal, suffix):
    for orientation in (1, 6):
        path = photo(tmp_path / f"{orientation}.{suffix}", tags, orientation=orientation)
        assert exif_focal(path) == pytest.approx(focal)


@pytest.mark.parametrize(
    "tags",
    [{}, {Base.FocalLengthIn35mmFilm: 0}, PLANE | {Base.FocalLength: IFDRational(1, 0)}],
    ids=["none", "zero", "infinite"],
)
def test_exif_focal_is_none_without_a_usable_one(tmp_path, tags):
    assert exif_focal(photo(tmp_path / "a.jpg", tags)) is None
