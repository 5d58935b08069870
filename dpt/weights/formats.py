"""The front door: which format a file is in, told from what it holds.

A format is a module of this package with ``NAME``, ``matches``, ``read`` and, where models can be
written in it, ``write``. Modules are found by listing the package: adding one file adds a format.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from torch import Tensor

from dpt import weights
from dpt.weights.files import Source, open_source
from dpt.zoo import Spec


class Format(Protocol):
    """What a format's module offers; some also have ``unused(source)`` and ``write``."""

    NAME: str

    def matches(self, source: Source) -> bool:
        """Whether the file is in this format, by its names; cheap."""

    def read(self, source: Source) -> tuple[Spec, dict[str, Tensor]]:
        """A complete spec, and the tensors under our names."""


def _find() -> tuple[Format, ...]:
    here = __name__.rpartition(".")[2]
    names = [
        m.name for m in pkgutil.iter_modules(weights.__path__) if m.name not in (here, "convert")
    ]
    modules = [import_module(f"{weights.__name__}.{name}") for name in names]
    wanted = ("NAME", "matches", "read")
    return tuple(cast(Format, m) for m in modules if all(hasattr(m, w) for w in wanted))


FORMATS = _find()


def recognise(source: Source) -> Format:
    """The format of ``source``.

    Raises:
        ValueError: none; the message lists what was found.
    """
    for candidate in FORMATS:
        if candidate.matches(source):
            return candidate
    found = sorted(map(str, source.content))
    config = ""
    if source.config is not None:
        config = f"a config.json of model_type {source.config.get('model_type')!r} and "
    raise ValueError(
        f"{source.path}: not a checkpoint of this project, nor of any other known format "
        f"({', '.join(f.NAME for f in FORMATS)}); found {config}"
        f"{len(found)} entries: {', '.join(found[:6])}{', ...' if len(found) > 6 else ''}"
    )


def read(path: str | Path) -> tuple[Spec, dict[str, Tensor]]:
    """(spec, state dict in our names) of a file or folder in any known format.

    Raises:
        ValueError: missing, damaged, unknown, or of a model that we cannot express.
    """
    source = open_source(path)
    return recognise(source).read(source)
