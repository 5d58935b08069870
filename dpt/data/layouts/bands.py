"""Which images have other bands than 8-bit grey or RGB."""

from contextlib import suppress

from dpt.data.formats import io
from dpt.data.formats.bands import read_bands
from dpt.data.formats.part import FilePart
from dpt.data.layouts.base import Folder
from dpt.files import DataError
from dpt.validation import Plain


def band_settings(folder: Folder, image: str) -> Plain:
    """Returns ``bands=all`` if an image can be read so, and not as 8-bit grey or RGB."""
    path = folder.root / image
    if not folder.given.keys().isdisjoint(("bands", "image_max", "page")):
        return {}
    with suppress(DataError):
        io.read_image(path)
        return {}
    with suppress(DataError):
        form = read_bands([path], FilePart(bands="all")).form
        folder.note(f"bands: data.bands=all, as {image} holds {form}; see also data.image_max")
        return {"bands": "all"}
    return {}
