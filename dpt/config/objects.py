"""From configuration (plain data) to objects.

A mapping with ``_target_`` becomes an object of the class it names. Each place in the configuration
declares the base class of its objects, and a base class declares where its subclasses may be
defined (:data:`SLOTS`): a configuration from somebody else cannot call other code.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, get_type_hints

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from dpt.data import Dataset
from dpt.metrics import SumMetric
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.plugins import VARIABLE, plugin_names
from dpt.validation import Plain, PlainMapping, unknown_key, validate

Target = Callable[..., Any]
"""A class or a function that a configuration names."""
SLOTS: dict[type, tuple[str, ...]] = {
    Callback: ("dpt.", "lightning.pytorch.callbacks."),
    Logger: ("dpt.", "lightning.pytorch.loggers."),
    Optimizer: ("dpt.",),
    LRScheduler: ("dpt.", "torch.optim.lr_scheduler."),
    Dataset: ("dpt.data.",),
    Objective: ("dpt.objectives.",),
    Teacher: ("dpt.objectives.teacher.",),
    SumMetric: ("dpt.metrics.",),
    nn.Module: ("dpt.losses.", "dpt.objectives.", "torch.nn."),  # losses
}
"""Base classes of what a configuration may name, and the packages that may define it, besides the
user's own modules (:mod:`dpt.plugins`)."""


def make(node: object, where: str, *bases: type) -> Any:
    """Builds the object that ``node`` describes.

    Optimisers and schedules need a model first: for these, returns a ``functools.partial``.

    Args:
        node: plain data with ``_target_``. Mappings with ``_target_`` among its values are built
            first; the types of the arguments say which they may be.
        where: the node's key in the configuration, for messages.
        *bases: allowed base classes of the object, keys of :data:`SLOTS`.
    """
    if not isinstance(node, Mapping):
        choice = f": choose by {where.replace('.', '/')}={node}" if isinstance(node, str) else ""
        raise ValueError(f"{where}={node!r}: must be a mapping with _target_{choice}")
    target = find(node.get("_target_"), where, *bases)
    arguments = {k: _build(v, f"{where}.{k}") for k, v in node.items() if k != "_target_"}
    is_partial = bases in ((Optimizer,), (LRScheduler,))
    arguments = check_arguments(target, arguments, where, is_partial=is_partial)
    try:
        return partial(target, **arguments) if is_partial else target(**arguments)
    except (MisconfigurationException, ImportError, TypeError) as error:  # of libraries
        raise ValueError(f"{where}: {error}") from error


def _build(value: object, where: str) -> object:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return make(value, where, *SLOTS)
        return {k: _build(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_build(v, f"{where}.{i}") for i, v in enumerate(value)]
    return value


def find(path: object, where: str, *bases: type) -> Target:
    """Returns the class that a ``_target_`` names, or a function of this project, or of the user's
    modules, whose declared return type is such a class; ValueError if it is neither."""
    of_user = tuple(f"{name}." for name in plugin_names())
    allowed = tuple(dict.fromkeys(package for base in bases for package in SLOTS[base]))
    wrong = f"{where}._target_={str(path)[:200]}"
    places = f"{' or '.join(allowed)} or in a module of yours that {VARIABLE} names"
    if not isinstance(path, str) or len(path) >= 200 or "._" in path:
        path = ""
    if not path.startswith((*allowed, *of_user)):
        raise ValueError(f"{wrong}: must be in {places}")
    module, _, name = path.rpartition(".")
    try:
        target = vars(import_module(module))[name]
    except (ImportError, KeyError) as error:
        raise ValueError(f"{wrong}: not found ({error})") from error
    made, home = target, f"{getattr(target, '__module__', '')}."
    if inspect.isfunction(target):
        made = _hints(target).get("return") if home.startswith(("dpt.", *of_user)) else None
    if inspect.isclass(made) and not inspect.isabstract(target):
        for base in bases:
            if issubclass(made, base) and home.startswith((*SLOTS[base], *of_user)):
                return target
    kinds = " or ".join(base.__name__ for base in bases)
    raise ValueError(f"{wrong}: must be a {kinds} that is defined in {places}")


def _hints(target: Target) -> Plain:
    try:
        source = target.__init__ if inspect.isclass(target) else target
        return get_type_hints(source, include_extras=True)
    except NameError:  # hints of a library that exist for type checkers only
        return {}


def check_arguments(
    target: Target, arguments: PlainMapping, where: str, *, is_partial: bool = False
) -> Plain:
    """Converts arguments to the types that ``target``, a function or class, declares.

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
    hints = _hints(target)
    for key in arguments:
        if key not in named and not is_open:
            raise ValueError(unknown_key(f"{where}.{key}", key, list(named)))
    absent = [n for n, p in named.items() if p.default is p.empty and n not in arguments]
    if absent and not is_partial:
        raise ValueError(f"{where} needs {', '.join(absent)}")
    return {k: validate(hints.get(k, Any), v, f"{where}.{k}") for k, v in arguments.items()}
