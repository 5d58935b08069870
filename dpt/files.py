"""Files that a user names or that somebody else wrote: regular files of bounded size.

A FIFO or a device in their place would block or never end, and a small file can describe data that
fill the memory. Whatever reads such files asks here first, and checks sizes before it decodes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

MAX_PIXELS = 175_000_000
"""Largest picture or map that is read: more than any camera's, less than Pillow's own limit."""
MAX_BYTES = 8 * MAX_PIXELS
"""Largest file that is read as a whole, and largest array in a file: 16-bit RGBA, or float64."""
_MAX_YAML = 1 << 20
_MAX_LEVELS = 50  # of mappings and lists in a YAML file


def open_file(path: str | Path, *, limit: int | None = None) -> BufferedReader:
    """A regular file, or the one that a link leads to, for reading.

    Raises:
        ValueError: it is a folder, a FIFO, a socket or a device, or has more than ``limit`` bytes.
        OSError: it does not exist or cannot be opened.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kind = "folder" if stat.S_ISDIR(found.st_mode) else "FIFO, a socket or a device"
        raise ValueError(f"{path}: is a {kind}, not a file: check the path")
    if limit is not None and found.st_size > limit:
        raise ValueError(f"{path}: has more than {limit} bytes: check that it is the right file")
    return open(path, "rb")


def read_bytes(path: str | Path, *, limit: int = MAX_BYTES) -> bytes:
    """The content of a file; errors as :func:`open_file`."""
    with open_file(path, limit=limit) as file:
        return file.read()


def parse_json(text: str | bytes, source: str | Path) -> Any:
    """Plain data from JSON; a ValueError that names ``source`` if it is none or nested too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: not usable JSON ({error})") from None


def read_yaml(path: str | Path) -> str:
    """The text of a YAML file that can be parsed safely.

    Raises:
        ValueError: it is no YAML, is larger than a megabyte, is nested too deep, or holds aliases,
            by which a short file stands for data of any size.
    """
    import yaml  # not needed by most users of this module

    text, level = read_bytes(path, limit=_MAX_YAML), 0
    try:
        for event in yaml.parse(text):
            level += isinstance(event, yaml.CollectionStartEvent)
            level -= isinstance(event, yaml.CollectionEndEvent)
            if level > _MAX_LEVELS or isinstance(event, yaml.AliasEvent):
                raise ValueError(f"{path}: nested too deep, or holds an alias: write values out")
        return text.decode("utf-8-sig")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None


def config_dir() -> Path:
    """The configuration files: the repository's in an editable install, else the package's own."""
    package = Path(__file__).parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no configuration files beside {package}: reinstall the package")


def without_passwords(text: str) -> str:
    """``text`` with ``***`` in place of the passwords in addresses, ``https://name:word@host``."""
    return re.sub(r"(\w://[^\s/:@]*):[^\s/]+@", r"\1:***@", text)


def printable(text: str | Path) -> str:
    """A path, or a text with paths, as UTF-8 can store it: other bytes become ``\\udcNN``."""
    return str(text).encode(errors="backslashreplace").decode()
