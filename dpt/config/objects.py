"""From configuration to objects: the only door. Below it nobody sees a Hydra object.

A mapping with ``_target_`` becomes a call of that function or class with the other keys as typed
keyword arguments; with ``_partial_`` it becomes a factory that waits for the rest.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pydantic
from omegaconf import OmegaConf

from dpt.plugins import VARIABLE, plugin_names

log = logging.getLogger("dpt")

ALLOWED = ("dpt.", "lightning.", "torch.nn.", "torch.optim.", "torchmetrics.")
"""Where a ``_target_`` may lie, beside the user's own modules (:mod:`dpt.plugins`): a configuration
must not be able to call anything there is."""


def plain(cfg: Any) -> Any:
    """A configuration node as plain dictionaries and lists, interpolations resolved."""
    return OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else cfg


def make(node: Any, where: str, **given: Any) -> Any:
    """Builds the object that ``node`` describes.

    Args:
        node: plain data with ``_target_``.
        where: the node's key in the configuration, for messages.
        **given: further arguments, which win over the node's.

    Raises:
        ValueError: an unknown target or key, or a value of the wrong type.
    """
    node = dict(node)
    target = find(node.pop("_target_", None), where)
    is_partial = node.pop("_partial_", False)
    arguments = {k: _build(v, f"{where}.{k}") for k, v in node.items()} | given
    arguments = check_arguments(target, arguments, where, is_partial=is_partial)
    return partial(target, **arguments) if is_partial else target(**arguments)


def _build(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return make(value, where)
        return {k: _build(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_build(v, f"{where}.{i}") for i, v in enumerate(value)]
    return value


def find(path: Any, where: str) -> Callable[..., Any]:
    """The function or class that a ``_target_`` names."""
    allowed = (*ALLOWED, *(f"{name}." for name in plugin_names()))
    if not isinstance(path, str) or not path.startswith(allowed):
        raise ValueError(
            f"{where}._target_={path!r}: must begin with one of {', '.join(allowed)} or lie in a "
            f"module of yours that {VARIABLE} names"
        )
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{where}._target_={path}: not found ({error})") from error


def check_arguments(
    target: Callable[..., Any],
    arguments: Mapping[str, Any],
    where: str,
    *,
    is_partial: bool = False,
) -> dict[str, Any]:
    """Arguments converted to the types that ``target`` declares.

    Raises:
        ValueError: one line that names the key, what was found, and what is allowed.
    """
    parameters = inspect.signature(target).parameters
    names = [
        n for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    hints = _hints(target)
    checked: dict[str, Any] = {}
    for key, value in arguments.items():
        if key not in names:
            if not open_ended:
                raise ValueError(unknown_key(f"{where}.{key}", key, names))
            checked[key] = value
        elif key in hints:
            checked[key] = convert(value, hints[key], f"{where}.{key}")
        else:
            checked[key] = value
    if not is_partial:
        empty = inspect.Parameter.empty
        absent = [n for n in names if parameters[n].default is empty and n not in arguments]
        if absent:
            raise ValueError(f"{where} needs {', '.join(absent)}")
    return checked


def unknown_key(path: str, key: str, allowed: list[str]) -> str:
    near = get_close_matches(key, allowed, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    shown = sorted(k for k in allowed if not k.startswith("_"))
    return f"there is no {path}.{hint} Allowed here: {', '.join(shown)}"


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    own = inspect.isclass(target) and not is_dataclass(target)
    try:
        return get_type_hints(target.__init__ if own else target)
    except NameError:  # a library's hints that exist for type checkers alone
        return {}


def convert(value: Any, hint: Any, where: str) -> Any:
    """``value`` as the type that ``hint`` declares; a ValueError names the key ``where``."""
    try:
        config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(hint, config=config)
    except Exception:  # a hint that describes no plain data
        return value
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        reasons = "; ".join(dict.fromkeys(e["msg"].lower() for e in error.errors()))
        raise ValueError(f"{where}={value!r}: {reasons}") from None


def continued(cfg: Any, folder: Path, overrides: Sequence[str]) -> Any:
    """The configuration of the run in ``folder`` with what the command line changes in it."""
    old = OmegaConf.load(folder / "config.yaml")
    keys = [o.lstrip("+~").partition("=")[0].rpartition("@")[2] for o in overrides]
    keys = [k.replace("/", ".") for k in keys if k not in ("resume", "run_dir")]
    recipe = bool({"experiment", "debug"} & set(keys))  # these change keys in every group
    new = cfg.copy() if recipe else old.copy()
    for key in keys if not recipe else ():
        OmegaConf.update(new, key, OmegaConf.select(cfg, key), merge=False, force_add=True)
    for key in [str(k) for k in cfg if k not in new]:  # of a newer version than the run's
        OmegaConf.update(new, key, cfg[key], force_add=True)
    moved = str(OmegaConf.select(old, "run_dir") or folder)
    values: Any = OmegaConf.to_container(new, resolve=True)
    if moved != str(folder):
        values = _replaced(values, moved, str(folder))
    values |= {"run_dir": str(folder), "resume": cfg.resume}
    for line in changes(OmegaConf.to_container(old), values):
        if not line.startswith("resume:"):
            log.info("resume: changes %s", line)
    return OmegaConf.create(values)


def _replaced(values: Any, old: str, new: str) -> Any:
    """Paths that begin with ``old`` begin with ``new``: the run's folder was moved."""
    if isinstance(values, dict):
        return {k: _replaced(v, old, new) for k, v in values.items()}
    if isinstance(values, list):
        return [_replaced(v, old, new) for v in values]
    if isinstance(values, str) and (values == old or values.startswith(f"{old}/")):
        return new + values[len(old) :]
    return values


def changes(old: Any, new: Any, prefix: str = "") -> Sequence[str]:
    """``key: old -> new`` of every value in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines: list[str] = []
        for key in dict.fromkeys([*old, *new]):
            lines += changes(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
        return lines
    return [] if old == new else [f"{prefix}: {old} -> {new}"]
