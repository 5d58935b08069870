"""Which files ``dpt predict`` writes, by the kind of output and the format.

The table is in ``dpt predict --help``. The files of a second output of kind depth or logits are in
folders that begin with its head's name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpt.files import few, require
from dpt.predict import encoding
from dpt.predict.inputs import KnownCamera
from dpt.predict.prediction import Prediction, depth_unit, first_output, require_points
from dpt.predict.records import FORMATS, POINT_FORMATS, RASTER
from dpt.predict.sources import InputFile
from dpt.types.outputs import OutputSpec
from dpt.validation import Plain

Outputs = Mapping[str, OutputSpec]
Encoder = Callable[[str, encoding.Predicted], bytes]
"""An output's name and the prediction to a file's content, see :mod:`dpt.predict.encoding`."""
EXR_FORMATS: dict[str, type[np.floating]] = {"exr": np.float32, "exr16": np.float16}
_POINT_ENCODERS = {".ply": encoding.encode_cloud, ".glb": encoding.encode_surface}


@dataclass(frozen=True)
class FileKind:
    """One kind of file; by default a picture, which can be a frame of a video."""

    name: str  # of the output
    folder: str  # in the output folder; the files have the names of the inputs
    suffix: str = ".png"  # of the files
    encoder: Encoder = encoding.encode_picture

    @property
    def is_picture(self) -> bool:
        return self.encoder is encoding.encode_picture

    @property
    def needs_image(self) -> bool:
        """Whether ``encoder`` needs the image."""
        return self.is_picture or self.suffix in _POINT_ENCODERS

    def facts(self, prediction: Prediction) -> Plain:
        """Returns facts about the file for the record of its input; ValueError if the prediction
        has no such file."""
        if self.suffix in _POINT_ENCODERS:
            return {self.folder: encoding.point_facts(prediction)}
        return {}

    def path(self, source: InputFile) -> str:
        """Returns the path of the file of an input in the output folder."""
        return f"{self.folder}/{source.name}{self.suffix}"

    def frames(self, source: InputFile) -> str:
        """Returns the folder of the numbered files of a video in the output folder."""
        return f"{self.folder}/{source.name}/"


# --- the table ----------------------------------------------------------------------------------


def folder_names(outputs: Outputs) -> dict[str, str]:
    """Returns the folder of the files of each dense output."""
    first = {"depth": "depth", "logits": "labels"}  # of the first output of that kind
    return {name: first.pop(spec.kind, name) for name, spec in outputs.items() if spec.dense}


def class_names_by_folder(outputs: Outputs) -> dict[str, list[str]]:
    """Returns the class names of each dense output with classes, by the folder of its files."""
    folders = folder_names(outputs).items()
    with_classes = [(n, folder) for n, folder in folders if outputs[n].kind in ("logits", "masks")]
    return {folder: list(outputs[name].class_names) for name, folder in with_classes}


def all_kinds(outputs: Outputs) -> dict[str, list[FileKind]]:
    """Returns the files that can be made of these outputs, by format."""
    kinds: dict[str, list[FileKind]] = {name: [] for name in FORMATS}
    for name, folder in folder_names(outputs).items():
        for file_format, kind in _kinds_of(outputs[name], folder):
            kinds[file_format].append(kind)
    return kinds


def _kinds_of(spec: OutputSpec, folder: str) -> Iterator[tuple[str, FileKind]]:
    """Yields the files that can be made of an output, with their formats."""
    encoders: dict[str, Encoder] = {
        "depth": encoding.encode_depth,
        "logits": encoding.encode_labels,
        "masks": encoding.encode_segments,
    }
    name, encoder = spec.name, encoders.get(spec.kind, encoding.encode_picture)
    yield "png", FileKind(name, folder, encoder=encoder)
    yield "npy", FileKind(name, f"{folder}_npy", ".npy", encoding.encode_array)
    if spec.kind in ("depth", "map"):
        for file_format, dtype in EXR_FORMATS.items():
            exr = partial(encoding.encode_exr, dtype=dtype)
            yield file_format, FileKind(name, f"{folder}_{file_format}", ".exr", exr)
    if spec.kind != "masks":
        yield RASTER, FileKind(name, f"{folder}_{RASTER}", f".{RASTER}")
    if spec.kind == "depth":
        yield "color", FileKind(name, f"{folder}_color")
        if folder == "depth" and not spec.is_inverse_depth:
            for suffix, encoder in _POINT_ENCODERS.items():
                yield suffix[1:], FileKind(name, f"{folder}_{suffix[1:]}", suffix, encoder)
    if spec.kind == "masks":
        yield "json", FileKind(name, f"{folder}_json", ".json", encoding.encode_objects)
    if spec.kind in ("logits", "masks"):
        yield "overlay", FileKind(name, "overlay" if folder == "labels" else f"{folder}_overlay")


def folders_of(outputs: Outputs) -> list[str]:
    """Returns the sub-folders of all files that can be made of these outputs."""
    kinds = [kind for group in all_kinds(outputs).values() for kind in group]
    return [*dict.fromkeys(kind.folder for kind in kinds)]


def chosen_kinds(formats: Sequence[str], outputs: Outputs) -> list[FileKind]:
    """Returns the files for each image that is not predicted by windows: by default of all formats
    but ``npy``, and the arrays of maps."""
    possible = all_kinds(outputs)
    if not formats:
        names = ("png", "color", "overlay", "json")
        chosen = [kind for name in names for kind in possible[name]]
        return chosen + [kind for kind in possible["npy"] if outputs[kind.name].kind == "map"]
    for name in formats:
        if name in POINT_FORMATS:
            require_points(first_output(outputs, "depth"))
            require("trimesh", f"--format {name}", extra="points")
        if name in EXR_FORMATS:
            encoding.exr_library()
        if not possible.get(name):
            kinds = ", ".join(f"{n} ({s.kind})" for n, s in outputs.items())
            fault = f"--format {name} fits none of this model's outputs: {kinds}"
            raise ValueError(f"{fault}: choose from {', '.join(FORMATS)}")
    possible[RASTER] = []
    return list(dict.fromkeys(kind for name in formats for kind in possible[name]))


def videos_of(kinds: Iterable[FileKind]) -> list[FileKind]:
    """Returns the files for each video: the chosen kinds that are pictures."""
    return [replace(kind, suffix=".mp4") for kind in kinds if kind.is_picture]


def sequences_of(formats: Sequence[str], kinds: Iterable[FileKind]) -> list[FileKind]:
    """Returns the files for each frame of a video: the kinds that are neither pictures nor points,
    if their formats were named."""
    return [kind for kind in kinds if formats and not kind.needs_image]


# --- facts for records --------------------------------------------------------------------------


def facts_of(prediction: Prediction) -> Plain:
    """Returns how to read an image's depth files, by folder, its camera, and the outputs for the
    whole image."""
    facts = depth_facts(prediction.outputs, prediction.known_camera)
    for name, folder in folder_names(prediction.outputs).items():
        if folder in facts:
            scale, offset = encoding.depth_coding(name, prediction)
            beyond = prediction.arrays[name] > (encoding.LARGEST + 0.5) * scale + offset
            facts[folder] |= {"scale": scale, "offset": offset, "beyond": int(beyond.sum())}
    return facts | image_facts(prediction)


def depth_facts(outputs: Outputs, known: KnownCamera | None, **coding: float) -> Plain:
    """Returns the unit of each depth, by the folder of its files, with its ``coding`` there, and
    the camera."""
    units = {
        folder: {"unit": depth_unit(outputs[name]), **coding}
        for name, folder in folder_names(outputs).items()
        if outputs[name].kind == "depth"
    }
    return units if known is None else units | known.facts


def image_facts(prediction: Prediction) -> Plain:
    """Returns the outputs for the whole image: class and probability, or values."""
    facts: Plain = {}
    for name, spec in prediction.outputs.items():
        values = prediction.arrays[name]
        if not spec.dense and spec.kind == "logits":
            k = int(values.argmax())
            label, probability = spec.class_name(k), round(float(values[k]), 6)
            facts[name] = {"class_id": k, "class": label, "probability": probability}
        elif not spec.dense:
            facts[name] = values.tolist()
    return facts


def image_lines(prediction: Prediction) -> list[str]:
    """Returns a line for each of :func:`image_facts`, with the first values of a vector."""
    return [
        f"{name}: {few([f'{v:.4g}' for v in value], 4) if np.ndim(value) else value}"
        for name, value in image_facts(prediction).items()
    ]
