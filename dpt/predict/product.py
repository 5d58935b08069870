"""``Product``: one kind of file that ``dpt predict`` writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpt.data.annotations.base import Reader
from dpt.predict.inputs import InputFile
from dpt.predict.painting import Style, paint_with_legend
from dpt.predict.prediction import Prediction
from dpt.validation import Plain
from dpt.viz import encode_png


@dataclass(frozen=True)
class Product:
    """One kind of file."""

    name: str  # of the output
    folder: str  # in the output folder; the files have the names of the inputs
    suffix: str = ".png"  # of the files
    encoder: Callable[[str, Prediction], bytes] | None = None
    """See :mod:`dpt.predict.encoding`; None for pictures, which can be frames of a video."""

    @property
    def is_picture(self) -> bool:
        """Whether :func:`paint_with_legend` makes it."""
        return self.encoder is None

    @property
    def needs_image(self) -> bool:
        """Whether :meth:`encode` needs the image."""
        return self.is_picture

    def facts(self, prediction: Prediction) -> Plain:
        """Returns facts about the file for the record of its input; ValueError if the prediction
        has no such file."""
        return {}

    def path(self, source: InputFile) -> str:
        """Returns the path of the file of an input in the output folder."""
        return f"{self.folder}/{source.name}{self.suffix}"

    def encode(
        self, prediction: Prediction, source: InputFile, image: np.ndarray | None, style: Style
    ) -> bytes:
        """Returns the content of the file; ``image`` is given if it is needed."""
        if self.encoder is None:
            return encode_png(paint_with_legend(self.name, prediction, image, style))
        return self.encoder(self.name, prediction)

    def common_files(self, read: Reader, names: Sequence[str]) -> dict[str, bytes]:
        """Returns files for all inputs by their paths in the output folder.

        Args:
            read: returns the contents of files of the output folder by their paths.
            names: of the finished inputs with a file of this kind.
        """
        return {}
