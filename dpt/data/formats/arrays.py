"""Reads arrays from files of several formats: NumPy, EXR, HDF5, MATLAB, PFM."""

import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpt.files import DataError, check_bytes, decoding, few, open_file, read_bytes, require

_NUMBERS = ("double", "single", "logical", "int", "uint")  # as MATLAB names them
_BSDS = "Segmentation"
_NUMPY_HEADER = 1 << 16  # bytes; NumPy parses 10,000 at most
NUMPY_START = b"\x93NUMPY"
_HDF5_START = b"\x89HDF\r\n\x1a\n"


def read_pfm(path: str | Path, key: str | None = None) -> np.ndarray:
    """Reads a portable float map: a header split on white space, then rows from bottom to top."""
    data = read_bytes(path)
    with decoding(path, "a PFM file"):
        header = re.match(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+(\S+?)(?:[ \t\r]*\n|\s)", data)
        if header is None:
            raise ValueError("no Pf, width, height and scale")
        kind, width, height, scale = header.groups()
        dtype = "<f4" if float(scale) < 0 else ">f4"
        pixels = np.frombuffer(data, dtype, offset=header.end())
        shape = int(height), int(width), 3 if kind == b"PF" else 1
        return pixels.reshape(shape)[::-1].astype(np.float32)


def read_numpy(
    path: str | Path, key: str | None = None, *, data: bytes | None = None
) -> np.ndarray:
    """Reads a ``.npy`` file, or the only map of a ``.npz`` file, or the one that ``key`` names."""
    with decoding(path, "a NumPy file"):
        content = io.BytesIO(data or read_bytes(path))
        if not zipfile.is_zipfile(content):
            content.seek(0)
            check_numpy_header(path, content)
            content.seek(0)
            return np.asarray(np.load(content, allow_pickle=False))
        shapes: dict[str, Sequence[int]] = {}
        with zipfile.ZipFile(content) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    name = member.filename.removesuffix(".npy")
                    shapes[name] = check_numpy_header(path, file)
        content.seek(0)
        name = _choose(path, shapes, key)
        return np.asarray(np.load(content, allow_pickle=False)[name])


def check_numpy_header(path: str | Path, file: IO[bytes]) -> Sequence[int]:
    """Returns the shape of an array in NumPy's format; DataError if it is too large."""
    start = io.BytesIO(file.read(_NUMPY_HEADER))  # NumPy believes the length that a header states
    version, formats = np.lib.format.read_magic(start), np.lib.format
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, _, dtype = read(start)
    check_bytes(path, shape, dtype.itemsize)
    return tuple(shape)


def size_of(shape: Sequence[int]) -> tuple[int, int]:
    """Returns (H, W) of the shape (H, W), (H, W, C) or (C, H, W); C is the smaller number."""
    height, width = shape[1:] if len(shape) == 3 and shape[0] < shape[2] else shape[:2]
    return height, width


def read_exr(path: str | Path, key: str | None = None) -> np.ndarray:
    """Reads a channel of an OpenEXR file: ``key``; by default Z, or any one if all are equal."""
    library = require("OpenEXR", f"{path}: reading it", extra="exr")
    with open_file(path), decoding(path, "an EXR file"):
        count = expected = 0
        for part in library.File(str(path), header_only=True).parts:
            low, high = part.header["dataWindow"]
            expected += len(part.header["channels"])
            count += math.prod((high - low + 1).tolist()) * len(part.header["channels"])
            check_bytes(path, (count,), 4)
        channels: dict[str, np.ndarray] = {}
        with library.File(str(path), separate_channels=True) as file:
            for part in file.parts:
                start = f"{part.name()}." if len(file.parts) > 1 else ""
                channels |= {start + name: c.pixels for name, c in part.channels.items()}
            if len(channels) < expected:  # of damaged files the library only prints a warning
                raise ValueError("pixels are missing")
    names = [name for name in channels if name.rpartition(".")[2] == "Z"] or list(channels)
    if key is None and len({channels[name].tobytes() for name in names}) == 1:  # grey RGB
        return channels[names[0]]
    return channels[_choose(path, {name: channels[name].shape for name in channels}, key)]


def read_hdf5(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """Reads a data set of an HDF5 file, or its entry ``index`` along the first axis.

    An entry that is a reference (MATLAB stores fields of structs so) is followed. Data stored in
    other files is refused.
    """
    h5py = require("h5py", f"{path}: reading it", extra="datasets")
    _require_survival(read_hdf5, path)
    # with an open file instead of a path, external links resolve inside it, and nothing is locked
    with open_file(path) as raw, decoding(path, "an HDF5 file"), h5py.File(raw, "r") as file:
        if key is None or key not in file:
            key = _choose(path, _hdf5_maps(file, h5py.Dataset), key)
        dataset = file[key]
        if h5py.check_ref_dtype(dataset.dtype) is not None and index is not None:
            dataset, index = file[dataset[index].item()], None
        if dataset.external or dataset.is_virtual:
            raise DataError(f"{path}: {key} is stored in other files: copy it into this one")
        for shape in (dataset.shape if index is None else dataset.shape[1:], dataset.chunks or ()):
            check_bytes(path, shape, dataset.dtype.itemsize)
        return np.asarray(dataset[()] if index is None else dataset[index])


def _require_survival(read: Callable[[str], np.ndarray], path: str | Path) -> None:
    """Lets another process than the main one read a file first, which a damaged file may end.

    Raises:
        DataError: it has ended.
    """
    state = os.stat(path).st_mtime_ns if os.path.isfile(path) else 0
    if hasattr(os, "fork") and not parent_process() and _ends_process(read, str(path), state):
        raise DataError(f"{path}: damaged, as it ends the process that reads it: copy it again")


@lru_cache(maxsize=1 << 17)
def _ends_process(read: Callable[[str], np.ndarray], path: str, state: int) -> bool:
    """Returns whether a process ends that reads a file; ``state`` is the time of its change."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        return isinstance(pool.submit(_read, read, path).exception(), BrokenProcessPool)


def _read(read: Callable[[str], np.ndarray], path: str) -> None:
    read(path)  # the array is not sent to the main process


def _hdf5_maps(file: Any, dataset_type: type) -> Mapping[str, Sequence[int]]:
    """Returns the shapes of the data sets of numbers by their names; if there are none, of bits."""
    names: list[str] = []
    file.visit(names.append)
    arrays = {name: file[name] for name in names if isinstance(file[name], dataset_type)}
    maps = {name: array for name, array in arrays.items() if array.ndim >= 2}
    shapes = {name: array.shape for name, array in maps.items() if array.dtype.kind in "uif"}
    return shapes or {name: array.shape for name, array in maps.items() if array.dtype.kind == "b"}


def read_mat(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """Reads a variable of a MATLAB file as MATLAB shows it, or an entry of its last axis.

    Version 7.3 is HDF5 with the axes reversed, and only the entry is read; SciPy reads older
    versions, whole.
    """
    with open_file(path) as file:
        start = file.read(520)
    if _HDF5_START in (start[:8], start[512:]):  # MATLAB puts 512 bytes of text first
        return read_hdf5(path, key, index=index).T
    import scipy.io  # slow to import

    _require_survival(read_mat, path)
    with decoding(path, "a MATLAB file"):
        data = read_bytes(path)
        if 0 in data[:4]:
            raise ValueError("version 4: save it in a newer one")
        order = {b"IM": "<", b"MI": ">"}[data[126:128]]
        _check_mat(memoryview(data)[128:], order, {_MATRIX, _COMPRESSED})
        content = io.BytesIO(data)
        variables = scipy.io.whosmat(content)
        shapes = {
            name: shape
            for name, shape, kind in variables
            if kind.startswith(_NUMBERS) or (name == key and kind in ("cell", "struct"))
        }
        structs = [name for name, shape, kind in variables if (shape, kind) == ((1, 1), "struct")]
        if key not in shapes and len(structs) == 1 and (key is not None or not shapes):
            (struct,) = scipy.io.loadmat(content, variable_names=structs)[structs[0]].ravel()
            return _field(path, struct, key)
        key = _choose(path, shapes, key)
        check_bytes(path, shapes[key], 8)
        values = np.asarray(scipy.io.loadmat(content, variable_names=[key])[key])
    return values if index is None else values[..., index]


_SHAPE, _MATRIX, _COMPRESSED = 5, 14, 15
_VALUES = {*range(1, 8), 9, 12, 13, 16, 17, 18}
"""Types of the elements of a MATLAB file: of arrays of numbers, and of texts."""
_TYPES_INSIDE = dict.fromkeys(range(1, 16), _VALUES)
_TYPES_INSIDE |= dict.fromkeys((1, 2, 3), _VALUES | {_MATRIX})
"""Types of the elements of a matrix by its class, of which 1 to 3 are cells, structs and objects;
SciPy leaves functions out."""
_MAX_LEVELS = 40
_MAX_UNPACKED = 1 << 30  # bytes of a compressed element


def _check_mat(view: memoryview, order: str, types: Set[int], level: int = 0) -> None:
    """Raises ValueError for elements that SciPy's compiled reader would trust: it takes a type for
    a position in memory, and the size of a container for memory to fill."""
    while len(view) >= 8:
        kind, size = struct.unpack_from(f"{order}II", view)
        content, end = view[8 : 8 + size], 8 + size + -size % (1 if kind == _COMPRESSED else 8)
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size, content, end = kind & 0xFFFF, kind >> 16, view[4:8], 8
        if kind not in types or size > len(content) or level > _MAX_LEVELS:
            raise ValueError(f"an element of type {kind} and {size} bytes, or nested too deep")
        if kind == _COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content, _MAX_UNPACKED)
            _check_mat(memoryview(unpacked), order, {_MATRIX}, level + 1)
        elif kind == _MATRIX and size > 8:  # no empty cell
            types_inside = _TYPES_INSIDE.get(content[8 if order == "<" else 11])
            if types_inside:
                _check_mat(content, order, types_inside, level + 1)
        elif _MATRIX in types and kind == _SHAPE:
            shape = np.frombuffer(content, f"{order}i4").tolist()
            if math.prod(shape) > len(view):
                raise ValueError(f"cells of the shape {shape}")
        view = view[end:]


def _field(path: str | Path, struct: np.void, key: str | None) -> np.ndarray:
    """Returns the map in a struct of MATLAB; of several, ``Segmentation``, as BSDS names it."""
    fields = {name: np.asarray(struct[name]) for name in struct.dtype.names or ()}
    shapes = {name: a.shape for name, a in fields.items() if a.ndim == 2 and a.dtype.kind in "uif"}
    return fields[_choose(path, shapes, _BSDS if key is None and _BSDS in shapes else key)]


def _choose(path: str | Path, shapes: Mapping[str, Sequence[int]], key: str | None) -> str:
    """Returns ``key``, or the name of the only map; DataError if there are several."""
    if key is not None and key not in shapes:
        present = few([*shapes], 8) or "no array"
        raise DataError(f"{path}: holds no {key}, but {present}: check its name")
    if key is not None:
        return key
    maps = [name for name, shape in shapes.items() if len([n for n in shape if n > 1]) > 1]
    names = maps or [*shapes]  # not single numbers and lists beside a map
    if len(names) != 1:
        present = f"several arrays ({few(names, 8)})" if names else "no array of numbers"
        raise DataError(f"{path}: holds {present}: set data.array_key or data.depth_key to one")
    return names[0]


ARRAY_READERS: Mapping[str, Callable[[str | Path, str | None], np.ndarray]] = {
    ".npy": read_numpy,
    ".npz": read_numpy,
    ".exr": read_exr,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".mat": read_mat,
    ".pfm": read_pfm,
}
"""By suffix; all other files are pictures, whose format OpenCV finds by their first bytes."""
