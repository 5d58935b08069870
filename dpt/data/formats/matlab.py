"""Checks MATLAB files before SciPy reads them: its compiled reader trusts types and sizes."""

import math
import struct
import zlib
from collections.abc import Iterator

from dpt.files import MAX_BYTES

_NUMBERS = {1, 2, 3, 4, 5, 6, 7, 9, 12, 13}
_TEXTS = {16, 17, 18}
_MATRIX, _COMPRESSED = 14, 15
"""Types of elements in version 5."""
_CHARACTERS, _SPARSE, _NUMERIC_CLASSES, _LAST_CLASS = 4, 5, range(5, 16), 17
"""Classes of matrices; those below hold further matrices, as do the last two."""
_MAX_LEVELS = 40
_ITEM_BYTES_4 = {0: 8, 1: 4, 2: 4, 3: 2, 4: 2, 5: 1}
"""By type in version 4."""


def check_mat(data: bytes) -> None:
    """Raises ValueError or zlib.error if types or sizes in a file of version 4 or 5 are wrong."""
    if 0 in data[:4]:
        _check_version_4(data)
        return
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("no byte order in its header")
    room = MAX_BYTES
    for kind, content in _elements(memoryview(data)[128:], order, padding=1):
        if kind == _COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content, room)
            room -= len(unpacked)
            if room <= 0:
                raise ValueError(f"it unpacks to more than {MAX_BYTES / 1e6:g} MB, the limit")
            kind, content = next(_elements(memoryview(unpacked), order), (0, content))
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} in place of a matrix")
        _check_matrix(content, order, level=0)


def _elements(
    view: memoryview, order: str, *, padding: int = 8
) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each element; ValueError if one is longer than the file."""
    while len(view) >= 8:
        kind, size = struct.unpack_from(f"{order}II", view)
        start, end = 8, 8 + size
        if kind >> 16:  # up to four bytes are stored in the tag itself
            kind, size, start, end = kind & 0xFFFF, kind >> 16, 4, 8
        if size > min(end, len(view)) - start:
            raise ValueError(f"an element of {size} bytes in {len(view) - start}")
        yield kind, view[start : start + size]
        view = view[end + -end % padding :]


def _check_matrix(view: memoryview, order: str, *, level: int) -> None:
    if not view and level:  # an empty cell
        return
    elements = list(_elements(view, order))
    types = [kind for kind, _ in elements]
    if types[:1] != [6] or len(types) < 3 or len(elements[0][1]) != 8 or level > _MAX_LEVELS:
        raise ValueError("a matrix without flags, or nested too deep")
    (flags,) = struct.unpack(f"{order}I", elements[0][1][:4])
    matrix_class, is_complex = flags & 0xFF, flags >> 11 & 1
    holds_numbers = matrix_class in _NUMERIC_CLASSES
    if not 1 <= matrix_class <= _LAST_CLASS:
        raise ValueError(f"a matrix of class {matrix_class}")
    if matrix_class != _LAST_CLASS:  # which has no shape
        if types[1] not in (5, 6) or types[2] not in (1, 16) or len(elements[1][1]) % 4:
            raise ValueError("a matrix without a shape or a name")
        sides = struct.unpack(f"{order}{len(elements[1][1]) // 4}i", elements[1][1])
        most = len(view) if matrix_class < _CHARACTERS else MAX_BYTES // 8
        if min(sides, default=-1) < 0 or (matrix_class != _SPARSE and math.prod(sides) > most):
            raise ValueError(f"a matrix of the shape {sides}")
    expected = 6 + is_complex if matrix_class == _SPARSE else 4 + is_complex
    if (holds_numbers and len(types) != expected) or (
        matrix_class == _CHARACTERS and len(types) != 4
    ):
        raise ValueError(f"{len(types) - 3} elements in a matrix of class {matrix_class}")
    for kind, content in elements[1 if matrix_class == _LAST_CLASS else 3 :]:
        if kind == _MATRIX and not holds_numbers:
            _check_matrix(content, order, level=level + 1)
        elif kind not in _NUMBERS and (holds_numbers or kind not in _TEXTS):
            raise ValueError(f"an element of type {kind}")


def _check_version_4(data: bytes) -> None:
    order, place = "<" if 0 <= struct.unpack_from("<i", data)[0] <= 5000 else ">", 0
    while place < len(data):
        code, rows, columns, imaginary, name = struct.unpack_from(f"{order}5i", data, place)
        size = _ITEM_BYTES_4.get(code // 10 % 10, 0)
        if not 0 <= code <= 4052 or not size or min(rows, columns, name) < 0:
            raise ValueError("a damaged header")
        place += 20 + name + rows * columns * size * (2 if imaginary else 1)
    if place != len(data):
        raise ValueError("an array longer than the file")
