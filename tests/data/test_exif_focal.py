"""Focal lengths in pixels by EXIF tags, of files that Pillow writes."""

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import IFD, Base

from dpt.data.formats.pictures import exif_focal

DIAGONAL = 1000.0  # of the pictures, 800 × 600 pixels
FILM = np.hypot(36, 24)


def photo(path, tags=None, *, orientation=1):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    exif.get_ifd(IFD.Exif).update(tags or {})
    Image.fromarray(np.zeros((600, 800, 3), np.uint8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_exif_focal_in_pixels(tmp_path, suffix):
    for orientation in (1, 6):
        tags = {Base.FocalLengthIn35mmFilm: 28}
        path = photo(tmp_path / f"{orientation}.{suffix}", tags, orientation=orientation)
        assert exif_focal(path) == pytest.approx(28 / FILM * DIAGONAL)


@pytest.mark.parametrize("tags", [{}, {Base.FocalLengthIn35mmFilm: 0}], ids=["none", "zero"])
def test_exif_focal_is_none_without_a_usable_one(tmp_path, tags):
    assert exif_focal(photo(tmp_path / "a.jpg", tags)) is None
