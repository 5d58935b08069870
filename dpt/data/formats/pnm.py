"""Reads PBM, PGM and PPM pictures: the readers of libraries scale some of them."""

import re

import numpy as np

_SPACE = rb"(?:\s|#[^\n]*\n)+"
_SIZE = 2 * (_SPACE + rb"(\d{1,9})")
_LARGEST = _SPACE + rb"(\d{1,5})"
_HEADER = re.compile(rb"P(?:([14])|([2356]))" + _SIZE + rb"(?(2)" + _LARGEST + rb")\s")


def is_pnm(data: bytes) -> bool:
    return data[:1] == b"P" and data[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6")


def read_pnm(data: bytes) -> tuple[np.ndarray, int]:
    """Returns the numbers as stored, (H, W) or RGB (H, W, 3), and the one that means white.

    Raises:
        ValueError: it is damaged or holds several pictures.
    """
    header = _HEADER.match(data)
    if header is None:
        raise ValueError("no width, height and largest value in its header")
    kind, body = data[1:2], data[header.end() :]
    width, height, largest = int(header[3]), int(header[4]), int(header[5] or 1)
    shape = (height, width, 3) if kind in b"36" else (height, width)
    count = int(np.prod(shape))
    if kind == b"4":
        size = height * (-(-width // 8))
        bits = np.frombuffer(body[:size], np.uint8).reshape(height, -1)
        values = np.unpackbits(bits, axis=1)[:, :width]
    elif kind in b"56":
        dtype = np.dtype(">u2" if largest > 255 else np.uint8)
        size = count * dtype.itemsize
        values = np.frombuffer(body[:size], dtype)
    else:
        text = re.sub(rb"#[^\n]*", b"", body)
        if kind == b"1":  # whose digits need no space between them
            text = re.sub(rb"(\d)", rb"\1 ", text)
        values, size = np.fromstring(text, int, sep=" "), len(body)
    if values.size != count or not 0 < largest < 65536 or values.max(initial=0) > largest:
        raise ValueError(f"{values.size} values up to {values.max(initial=0)} in place of {count}")
    values = 1 - values if kind in b"14" else values  # of bits 1 is black
    if body[size:].lstrip()[:1] == b"P":
        raise ValueError("it holds several pictures: save each as a file of its own")
    return values.reshape(shape).astype(np.uint8 if largest < 256 else np.uint16), largest
