"""Parts of a user's own: encoders, heads, losses and data sets from outside the project.

Who starts a command names them in the environment, ``DPT_PLUGINS=mine,other/parts.py``, for every
process of it. No file can: what a checkpoint or a run's configuration says never chooses which code
is run.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "DPT_PLUGINS"


def plugin_names() -> tuple[str, ...]:
    """Names of the user's modules: ``mine`` for a folder or file of that name, wherever it lies."""
    return tuple(Path(e).stem if _is_path(e) else e for e in _entries())


def load_plugins() -> None:
    """Imports the user's modules; a second call does nothing.

    Raises:
        ValueError: there is no such folder, file or module, or another module has its name.
    """
    for entry, name in zip(_entries(), plugin_names(), strict=True):
        path = Path(entry).resolve()
        if _is_path(entry) and str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # after all others: it hides nothing
        found = find_spec(name) if name.isidentifier() else None
        if found is None:
            raise ValueError(f"{VARIABLE}={entry}: no such folder, Python file or module")
        places = [Path(p) for p in (found.origin, *(found.submodule_search_locations or ())) if p]
        if _is_path(entry) and not any(p == path or path in p.parents for p in places):
            raise ValueError(f"{VARIABLE}={entry}: a module {name} exists already, choose a name")
        import_module(name)


def _entries() -> list[str]:
    return [entry for entry in os.environ.get(VARIABLE, "").split(",") if entry]


def _is_path(entry: str) -> bool:
    return entry.endswith(".py") or Path(entry).exists()
