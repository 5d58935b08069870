"""From configuration (plain data) to objects.

A mapping with ``_target_`` becomes an object of the class it names. Each place in the configuration
declares the base class of its objects, and a base class declares where its subclasses may be
defined (:data:`SLOTS`): a configuration from somebody else cannot call other code.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from yaml import YAMLError

from dpt.config.compose import composed
from dpt.data import Dataset
from dpt.files import read_yaml
from dpt.metrics import SumMetric
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.plugins import VARIABLE, plugin_names
from dpt.validation import unknown_key, validate

log = logging.getLogger("dpt")

_RECIPES = {"experiment", "debug"}
_OF_RESUMING = {"resume", "run_dir", "overwrite"}

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


def make(node: Any, where: str, *bases: type) -> Any:
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


def _build(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return make(value, where, *SLOTS)
        return {k: _build(v, f"{where}.{k}") for k, v in value.items()}
    if isinstance(value, list):
        return [_build(v, f"{where}.{i}") for i, v in enumerate(value)]
    return value


def find(path: Any, where: str, *bases: type) -> Callable[..., Any]:
    """The class that a ``_target_`` names, or a function of this project, or of the user's modules,
    whose declared return type is such a class; ValueError if it is neither."""
    own = tuple(f"{name}." for name in plugin_names())
    allowed = tuple(dict.fromkeys(package for base in bases for package in SLOTS[base]))
    wrong = f"{where}._target_={str(path)[:200]}"
    places = f"{' or '.join(allowed)} or in a module of yours that {VARIABLE} names"
    is_name = isinstance(path, str) and len(path) < 200 and "._" not in path
    if not is_name or not path.startswith((*allowed, *own)):
        raise ValueError(f"{wrong}: must be in {places}")
    module, _, name = path.rpartition(".")
    try:
        found = vars(import_module(module))[name]
    except (ImportError, KeyError) as error:
        raise ValueError(f"{wrong}: not found ({error})") from error
    made, home = found, f"{getattr(found, '__module__', '')}."
    if inspect.isfunction(found):
        made = _hints(found).get("return") if home.startswith(("dpt.", *own)) else None
    if inspect.isclass(made) and not inspect.isabstract(found):
        for base in bases:
            if issubclass(made, base) and home.startswith((*SLOTS[base], *own)):
                return found
    kinds = " or ".join(base.__name__ for base in bases)
    raise ValueError(f"{wrong}: must be a {kinds} that is defined in {places}")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    try:
        source = target.__init__ if inspect.isclass(target) else target
        return get_type_hints(source, include_extras=True)
    except NameError:  # hints of a library that exist for type checkers only
        return {}


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
    hints = _hints(target)
    for key in arguments:
        if key not in named and not is_open:
            raise ValueError(unknown_key(f"{where}.{key}", key, list(named)))
    absent = [n for n, p in named.items() if p.default is p.empty and n not in arguments]
    if absent and not is_partial:
        raise ValueError(f"{where} needs {', '.join(absent)}")
    return {k: validate(hints.get(k, Any), v, f"{where}.{k}") for k, v in arguments.items()}


def own_overrides(folder: Path) -> list[str]:
    """The arguments that the run in ``folder`` was started with, except those for its place."""
    every = read_run(folder).get("overrides") or ()
    own = [o for o in every if "hydra" not in o.partition("=")[0]]  # nothing else is executed
    return [o for o in own if not keys_of([o]) & _OF_RESUMING]


def merged_overrides(own: list[str], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The run's ``own`` arguments that the ``given`` ones do not replace, and these.

    There are none if nothing or everything (by a recipe) is replaced. ``++`` is put in front of
    keys that the run has added.
    """
    keys = keys_of(given)
    if not keys - _OF_RESUMING or keys & _RECIPES:
        return [], [*given]
    added = keys_of(o for o in own if o.startswith("+"))
    new = [f"++{a}" if a[0] not in "+~" and keys_of([a]) & added else a for a in given]
    return [o for o in own if not is_below(keys, *keys_of([o]))], new


def continued(cfg: Any, folder: Path, arguments: Sequence[str]) -> Any:
    """The configuration of the run in ``folder``, changed by the command line.

    Args:
        cfg: composed from :func:`merged_overrides`, without regard to the values of the run.
        folder: of the run; paths inside its former folder are changed to this one.
        arguments: of the command line. A recipe (``experiment``, ``debug``) replaces the old
            configuration, because it sets keys of every group. Of others, the values that they set
            count, and those that change with them by interpolation.
    """
    path, old = folder / "config.yaml", read_run(folder)
    given = [a for a in arguments if not a.startswith("-")]
    keys = keys_of(given)
    if absent := [str(key) for key in cfg if key not in old]:
        raise ValueError(f"{path}: incomplete, has no {', '.join(absent)}: restore it from a copy")
    new = cfg.copy() if keys & _RECIPES else with_values(old, cfg, keys)
    values: Any = OmegaConf.to_container(new, resolve=True)
    own = own_overrides(folder)
    kept, _ = merged_overrides(own, given)
    is_changed = keys - _OF_RESUMING and not keys & _RECIPES
    if is_changed and {*kept} <= {*cfg.overrides}:  # else the folder was not known before
        same = (f"{key}='{OmegaConf.select(cfg, key)}'" for key in ("paths.name", "run_dir"))
        before = composed("train", [*own, *same])
        plain = (OmegaConf.to_container(each, resolve=True) for each in (before, cfg))
        values = _followed(values, *plain)

    values = in_folder(values, old, folder)
    if ":***@" in str({**values, "overrides": []}):
        raise ValueError(f"{path}: passwords are not stored: give the address with :***@ again")
    writing = {key: values[key] for key in ("callbacks", "logger", "trainer") if key in values}
    for key, place in _outside(writing, folder):
        if not (keys & _RECIPES or is_below(keys, key)):
            raise ValueError(
                f"{path}: {key}={place} would write outside of the run: give it on the command "
                "line if you want that"
            )
    values |= {"run_dir": str(folder), "resume": cfg.resume, "overwrite": False}
    for line in changes(OmegaConf.to_container(old), values):
        if not line.startswith(("resume:", "overrides:")):
            log.info("resume: changes %s", line)
    return OmegaConf.create(values)


def is_below(keys: Iterable[str], key: str) -> bool:
    """Whether ``key`` is one of ``keys`` or in a group of them."""
    return any(key == each or key.startswith(f"{each}.") for each in keys)


def _followed(values: Any, before: Any, after: Any) -> Any:
    """Plain ``values`` with the differences between ``before`` and ``after``."""
    if not (isinstance(before, dict) and isinstance(after, dict) and isinstance(values, dict)):
        return values if before == after else after
    kept = {k: v for k, v in values.items() if k in after or k not in before}
    changed = {k for k in after if k not in before or before[k] != after[k]}
    return kept | {k: _followed(values.get(k), before.get(k), after[k]) for k in changed}


def in_folder(values: Any, run: DictConfig, folder: Path) -> Any:
    """``values`` with the run's present ``folder`` in paths in place of its former one."""
    folder = folder.absolute()  # others join relative paths to another folder
    before = str(OmegaConf.select(run, "run_dir") or folder)

    def moved(text: str) -> str:
        is_inside = text == before or text.startswith(f"{before}/")
        return f"{folder}{text[len(before) :]}" if is_inside else text

    return map_strings(values, moved)


def read_run(folder: Path) -> DictConfig:
    """The configuration of the run in ``folder``; ValueError if its file is damaged."""
    path = folder / "config.yaml"
    text = read_yaml(path)
    try:
        found = OmegaConf.create(text)
    except (YAMLError, OmegaConfBaseException) as error:  # tags, keys that occur twice, dates
        raise ValueError(f"{path}: {error}") from error
    except AssertionError:  # of OmegaConf, for a number
        found = None
    if (
        not isinstance(found, DictConfig)
        or not isinstance(found.get("data"), DictConfig)
        or "${" in text
    ):
        raise ValueError(f"{path}: not the configuration of a run, with every value written out")
    return found


def _outside(node: Any, folder: Path, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys and paths of a configuration that lie outside of ``folder``."""
    if isinstance(node, Mapping | list):
        for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _outside(value, folder, f"{key}.{name}".lstrip("."))
    elif isinstance(node, str):
        is_path = node[:1] in ("/", "~") or "://" in node or ".." in Path(node).parts
        is_path |= key.rpartition(".")[2] in ("dirpath", "folder", "save_dir", "default_root_dir")
        if is_path and not Path(node).resolve().is_relative_to(folder.resolve()):
            yield key, node


def keys_of(overrides: Iterable[str]) -> set[str]:
    """The keys that ``overrides``, of a command line, set; without those of Hydra itself, which
    Lightning passes to the other processes of a run."""
    keys = {o.lstrip("+~").partition("=")[0].rpartition("@")[2] for o in overrides}
    return {key.replace("/", ".") for key in keys if key.partition(".")[0] != "hydra"}


def with_values(base: DictConfig, other: Any, keys: Iterable[str]) -> DictConfig:
    """A copy of ``base`` with the values that ``other`` has for ``keys``."""
    new = base.copy()
    for key in sorted(keys):  # a group before what is in it
        OmegaConf.update(new, key, OmegaConf.select(other, key), merge=False, force_add=True)
    return new


def map_strings(values: Any, change: Callable[[str], str]) -> Any:
    """Plain data with ``change`` applied to every string."""
    if isinstance(values, Mapping):
        return {k: map_strings(v, change) for k, v in values.items()}
    if isinstance(values, list):
        return [map_strings(v, change) for v in values]
    return change(values) if isinstance(values, str) else values


def changes(old: Any, new: Any, prefix: str = "") -> list[str]:
    """``key: old -> new`` for every value in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in dict.fromkeys([*old, *new])
            for line in changes(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else key)
        ]
    return [] if old == new else [f"{prefix}: {old} -> {new}"]
