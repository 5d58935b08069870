"""PNG files by hand, of kinds that no library writes."""

import struct
import zlib

import numpy as np


def chunk(kind: bytes, content: bytes) -> bytes:
    end = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + end


def png(width: int, height: int, rows: np.ndarray, *, bits: int = 8, color_type: int) -> bytes:
    """A file of that size with the bytes of ``rows``, which may be fewer than the size needs."""
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    palette = chunk(b"PLTE", bytes(6)) if color_type == 3 else b""
    chunks = chunk(b"IHDR", header) + palette + chunk(b"IDAT", content) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks
