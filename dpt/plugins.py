"""Names by which a configuration chooses classes, and a user's own modules, which add more of them.

A file never chooses which code is imported: a configuration holds registered names alone. Modules
of a user are named by the environment variable, ``DPT_PLUGINS=mine,other/parts.py``, or are an
installed package's entry points of the group ``dpt.plugins``. They are imported once, when a
command starts.
"""

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from dpt.process import Stopped

VARIABLE = "DPT_PLUGINS"
Target = Callable[..., Any]
"""A class, or a function whose return type says what it makes."""
T = TypeVar("T", bound=Target)

REGISTERED: dict[str, list[Target]] = {}
"""What each name stands for: one class at most of each kind (a loss, a data set, ...)."""


def register(name: str) -> Callable[[T], T]:
    """Adds a class, or a function that declares what it returns, to what a configuration may name.

    A class of another kind may have the same name. A module that is imported again replaces its
    classes.
    """

    def add(target: T) -> T:
        others = [t for t in REGISTERED.get(name, []) if path_of(t) != path_of(target)]
        REGISTERED[name] = [*others, target]
        return target

    return add


def path_of(target: Target) -> str:
    """Returns the module and the name of a class or a function."""
    return f"{target.__module__}.{target.__qualname__}"


def load_plugins() -> None:
    """Imports the modules that the environment variable names now, and those of entry points.

    Raises:
        ValueError: an entry does not exist, another module already has its name, or it cannot be
            imported.
    """
    for entry in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        _import(f"{VARIABLE}={entry}", _module_of(entry))
    for point in entry_points(group="dpt.plugins"):
        _import(f"entry point {point.name}", point)


def _module_of(entry: str) -> str:
    """Returns the name of the module that an entry of the variable stands for."""
    is_path = entry.endswith(".py") or Path(entry).exists()
    name, path = Path(entry).stem if is_path else entry, Path(entry).resolve()
    if is_path and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end, so that it hides no other module
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None:
        raise ValueError(f"{VARIABLE}={entry}: no such folder, Python file or top-level module")
    files = [Path(p) for p in (spec.origin, *(spec.submodule_search_locations or ())) if p]
    if is_path and not any(p == path or path in p.parents for p in files):
        raise ValueError(f"{VARIABLE}={entry}: a module {name} exists already, rename yours")
    return name


def _import(source: str, module: str | EntryPoint) -> None:
    try:
        import_module(module) if isinstance(module, str) else module.load()
    except (Stopped, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit too
        last = traceback.extract_tb(error.__traceback__)[-1]
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        place = f"{last.filename}:{last.lineno}"
        raise ValueError(f"{source}: cannot be imported: {cause} ({place})") from error
