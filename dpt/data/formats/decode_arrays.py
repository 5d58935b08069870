"""Decoders of files that hold named arrays: NumPy, EXR, HDF5, MATLAB.

Each takes ``key``, the name of the array. Without it the file must leave no choice.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpt.data.errors import DataError, few, missing_path, require
from dpt.data.formats.decode_pictures import AGAIN, read_bytes

_HDF5_START = b"\x89HDF\r\n\x1a\n"


def read_numpy(path: str | Path, key: str | None = None) -> np.ndarray:
    """A ``.npy`` file, or an array of a ``.npz`` file: the first, unless ``key`` names one."""
    return decode_numpy(read_bytes(path), source=path, key=key)


def decode_numpy(data: bytes, *, source: str | Path, key: str | None = None) -> np.ndarray:
    """What :func:`read_numpy` gives, from the bytes of the file; ``source`` is for messages."""
    try:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        name = loaded.files[0] if key is None else _choose(source, loaded.files, key)
        return loaded[name]
    except DataError:
        raise
    except Exception as error:  # truncated archives raise BadZipFile, EOFError, OSError, ...
        raise DataError(f"{source}: cannot be read as a NumPy file ({error}): {AGAIN}") from None


def read_exr(path: str | Path, key: str | None = None) -> np.ndarray:
    """A channel of an OpenEXR file, half, float or uint.

    Without ``key``: the only channel, the only one called Z, or any of channels that are all equal
    (depth stored as grey RGB).
    """
    library = require("OpenEXR", f"{path}: reading it", extra="exr")
    _check_exists(path)
    try:
        with library.File(str(path), separate_channels=True) as file:
            channels = {name: c.pixels for name, c in file.channels().items()}
    except Exception as error:  # RuntimeError, or ValueError for a file without whole pixels
        raise DataError(f"{path}: cannot be read as an EXR file ({error}): {AGAIN}") from None
    if key is None and len(channels) > 1:
        called_z = [name for name in channels if name.rpartition(".")[2] == "Z"]
        if len(called_z) == 1:
            return channels[called_z[0]]
        first, *rest = channels.values()
        if all(first.tobytes() == other.tobytes() for other in rest):  # NaN included
            return first
    return channels[_choose(path, list(channels), key)]


def read_hdf5(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A data set of an HDF5 file, or its entry ``index`` along the first axis.

    Where that is a reference, as MATLAB stores the fields of its structs, what it refers to.
    """
    h5py = require("h5py", f"{path}: reading it", extra="datasets")
    _check_exists(path)
    try:
        # Nothing is written, and network file systems often refuse the lock.
        with h5py.File(path, "r", locking=False) as file:
            if key is None or key not in file:
                key = _choose(path, _data_sets(file), key)
            found = file[key]
            entry = found[()] if index is None else found[index]
            if h5py.check_ref_dtype(found.dtype) is not None and index is not None:
                return file[entry.item()][()]
            return entry
    except DataError:
        raise
    except Exception as error:  # OSError, KeyError, RuntimeError, by the place of the damage
        raise DataError(f"{path}: cannot be read as an HDF5 file ({error}): {AGAIN}") from None


def read_mat(path: str | Path, key: str | None = None, *, index: int | None = None) -> np.ndarray:
    """A variable of a MATLAB file as MATLAB shows it, or its entry ``index`` along the last axis.

    Version 7.3 is HDF5, with the axes in reverse; older versions are read by SciPy.
    """
    _check_exists(path)
    with open(path, "rb") as file:
        start = file.read(520)
    if _HDF5_START in (start[:8], start[512:]):  # MATLAB writes 512 bytes of text before it
        return read_hdf5(path, key, index=index).T
    import scipy.io  # which albumentations brings

    try:
        variables = scipy.io.loadmat(io.BytesIO(read_bytes(path)))
    except Exception as error:  # OSError, ValueError, TypeError, zlib.error, ...
        raise DataError(f"{path}: cannot be read as a MATLAB file ({error}): {AGAIN}") from None
    arrays = {k: v for k, v in variables.items() if isinstance(v, np.ndarray)}
    numbers = [k for k, v in arrays.items() if v.dtype.kind in "buif"]
    found = arrays[key if key in arrays else _choose(path, numbers, key)]
    return found if index is None else found[..., index]


def _data_sets(group: Any) -> list[str]:
    """The names of all maps of numbers in an HDF5 file."""
    names: list[str] = []

    def visit(name: str, item: Any) -> None:
        if hasattr(item, "dtype") and item.ndim >= 2 and item.dtype.kind in "uif":
            names.append(name)

    group.visititems(visit)
    return names


def _choose(path: str | Path, names: Sequence[str], key: str | None) -> str:
    if key is not None and key not in names:
        raise DataError(
            f"{path}: holds no {key}, but {few(names, 8) or 'no array'}: check its name"
        )
    if key is None and len(names) != 1:
        found = f"several arrays ({few(names, 8)})" if names else "no array of numbers"
        raise DataError(f"{path}: holds {found}: name the depth's with data.depth_key")
    return names[0] if key is None else key


def _check_exists(path: str | Path) -> None:
    if not Path(path).is_file():
        raise missing_path(Path(path), what="file", remedy="check the path")
    if Path(path).stat().st_size == 0:
        raise DataError(f"{path}: the file is empty: {AGAIN}")
