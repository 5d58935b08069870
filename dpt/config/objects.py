"""From configuration (plain data) to objects.

A mapping with ``_target_`` becomes a call of that function or class, with the other keys as keyword
arguments, converted to the declared types; with ``_partial_: true`` it becomes a factory that takes
the remaining arguments later.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, get_type_hints

from omegaconf import OmegaConf

from dpt.files import read_yaml
from dpt.plugins import VARIABLE, plugin_names
from dpt.validation import unknown_key, validate

log = logging.getLogger("dpt")

ALLOWED = ("dpt.", "lightning.", "torch.nn.", "torch.optim.", "torchmetrics.")
"""Where a ``_target_`` may be, besides the user's own modules (:mod:`dpt.plugins`): a configuration
must not be able to call arbitrary code."""


def make(node: Any, where: str, **given: Any) -> Any:
    """Builds the object that ``node`` describes.

    Args:
        node: plain data with ``_target_``.
        where: the node's key in the configuration, for messages.
        **given: further arguments, which replace the node's.
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
            f"{where}._target_={path!r}: must begin with one of {', '.join(allowed)} or be in a "
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
    """Arguments converted to the types that ``target``, a function or class, declares.

    Args:
        is_partial: required arguments may be missing.

    Raises:
        ValueError: names the key below ``where``, what was found, and what is allowed.
    """
    parameters = dict(inspect.signature(target).parameters)
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {
        n: p for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except NameError:  # hints of a library that exist for type checkers only
        hints = {}
    for key in arguments:
        if key not in named and not is_open:
            raise ValueError(unknown_key(f"{where}.{key}", key, list(named)))
    absent = [n for n, p in named.items() if p.default is p.empty and n not in arguments]
    if absent and not is_partial:
        raise ValueError(f"{where} needs {', '.join(absent)}")
    return {k: validate(hints.get(k, Any), v, f"{where}.{k}") for k, v in arguments.items()}


def continued(cfg: Any, folder: Path, overrides: Sequence[str]) -> Any:
    """The configuration of the run in ``folder``, changed by the command line.

    Args:
        cfg: composed from ``overrides`` without regard to the run.
        folder: of the run; paths inside its former folder are changed to this one.
        overrides: of the command line. A recipe (``experiment``, ``debug``) replaces the old
            configuration, because it sets keys of every group.
    """
    old = OmegaConf.load(StringIO(read_yaml(folder / "config.yaml")))
    keys = [o.lstrip("+~").partition("=")[0].rpartition("@")[2] for o in overrides]
    keys = [k.replace("/", ".") for k in keys if k not in ("resume", "run_dir")]
    if {"experiment", "debug"} & set(keys):
        new = cfg.copy()
    else:
        new = old.copy()
        for key in [*keys, *(str(k) for k in cfg if k not in old)]:
            value = OmegaConf.select(cfg, key)
            OmegaConf.update(new, key, value, merge=False, force_add=True)
    before = str(OmegaConf.select(old, "run_dir") or folder)
    values = _moved(OmegaConf.to_container(new, resolve=True), before, str(folder))
    values |= {"run_dir": str(folder), "resume": cfg.resume}
    for line in changes(OmegaConf.to_container(old), values):
        if not line.startswith("resume:"):
            log.info("resume: changes %s", line)
    return OmegaConf.create(values)


def _moved(values: Any, old: str, new: str) -> Any:
    """``values`` with paths in the folder ``old`` changed to the folder ``new``."""
    if isinstance(values, dict):
        return {k: _moved(v, old, new) for k, v in values.items()}
    if isinstance(values, list):
        return [_moved(v, old, new) for v in values]
    if isinstance(values, str) and (values == old or values.startswith(f"{old}/")):
        return new + values[len(old) :]
    return values


def changes(old: Any, new: Any, prefix: str = "") -> list[str]:
    """``key: old -> new`` for every value in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in changes(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
        ]
    return [] if old == new else [f"{prefix}: {old} -> {new}"]
