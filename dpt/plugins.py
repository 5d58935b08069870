"""User modules with encoders, heads, losses or data sets of their own.

The environment variable names them, ``DPT_PLUGINS=mine,other/parts.py``, for every process of a
command. It is read once, when the command starts. A checkpoint or a configuration file never
chooses which code is imported.
"""

import os
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dpt.process import Stopped

VARIABLE = "DPT_PLUGINS"


_names: list[str] = []


def plugin_names() -> tuple[str, ...]:
    """Returns the names of the user's modules that were loaded: ``mine`` for a folder ``mine``, a
    file ``mine.py`` or a module."""
    return tuple(_names)


def load_plugins() -> None:
    """Imports the user's modules, as the environment variable names them now.

    Raises:
        ValueError: an entry does not exist, another module already has its name, or it cannot be
            imported.
    """
    entries = [e.strip() for e in os.environ.get(VARIABLE, "").split(",") if e.strip()]
    _names[:] = [Path(entry).stem if _is_path(entry) else entry for entry in entries]
    for entry, name in zip(entries, _names, strict=True):
        path = Path(entry).resolve()
        if _is_path(entry) and str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # at the end, so that it hides no other module
        spec = find_spec(name) if name.isidentifier() else None
        if spec is None:
            raise ValueError(f"{VARIABLE}={entry}: no such folder, Python file or top-level module")
        files = [Path(p) for p in (spec.origin, *(spec.submodule_search_locations or ())) if p]
        if _is_path(entry) and not any(p == path or path in p.parents for p in files):
            raise ValueError(f"{VARIABLE}={entry}: a module {name} exists already, rename yours")
        try:
            import_module(name)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit too
            last = traceback.extract_tb(error.__traceback__)[-1]
            cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            line = (
                f"{VARIABLE}={entry}: cannot be imported: {cause} ({last.filename}:{last.lineno})"
            )
            raise ValueError(line) from error


def _is_path(entry: str) -> bool:
    return entry.endswith(".py") or Path(entry).exists()
