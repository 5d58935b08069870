"""From configuration (plain data) to objects.

A mapping with ``kind``, a registered name (:func:`dpt.plugins.register`), describes a part of a
run: a data set, a loss, a callback. The part's settings are the arguments of the class that the
name stands for. A configuration never holds the path of a class, and nothing is imported because a
file says so: only ``_target_`` on the command line, or in a user's own YAML files, names a class,
which is registered then.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, make_dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from dpt.config.overrides import Override, as_text
from dpt.data import Dataset
from dpt.nn import HEADS
from dpt.objectives import OBJECTIVES, Objective
from dpt.objectives.teacher import Teacher
from dpt.plugins import REGISTERED, VARIABLE, Target, path_of, register
from dpt.validation import STRICT, Plain, PlainMapping, to_plain, validate

T = TypeVar("T")


@dataclass(frozen=True)
class Slot:
    """A place of the configuration that takes a part.

    Attributes:
        packages: whose modules register its classes.
        later: arguments that the program gives.
        key: of the name, beside the settings.
        of_data: whether arguments that must be given may be null, because the data decide them.
    """

    packages: tuple[str, ...]
    later: tuple[str, ...] = ()
    key: str = "kind"
    of_data: bool = False


SLOTS: dict[type, Slot] = {
    Dataset: Slot(("dpt.data.datasets",), later=("split", "sets")),
    Objective: Slot((), key="head", of_data=True),
    Teacher: Slot(()),
    Optimizer: Slot(("dpt.training",), later=("model",)),
    LRScheduler: Slot(("dpt.training",), later=("optimizer", "total_steps")),
    Callback: Slot(("dpt.training", "dpt.evaluation")),
    Logger: Slot(("dpt.training",)),
    nn.Module: Slot(("dpt.losses",)),
}
"""The base classes of parts."""

register("early_stopping")(EarlyStopping)
register("learning_rate")(LearningRateMonitor)
for _name in {*lr_scheduler.__all__} - {"LRScheduler"}:
    register(_name)(vars(lr_scheduler)[_name])


@dataclass(frozen=True)
class Part(Generic[T]):
    """A registered class with settings of it that were checked.

    Attributes:
        name: of the class.
        target: the class, or a function that makes an object.
        settings: those that were given, of the types that the class declares.
        where: the part's key in the configuration, for messages.
    """

    name: str
    target: Callable[..., T]
    settings: Plain
    where: str

    def build(self, **decided: object) -> T:
        """Makes the object; ``decided`` are arguments that the program gives."""
        hints = _hints(self.target)
        typed = {k: validate(hints.get(k, Any), v, f"{self.where}.{k}") for k, v in decided.items()}
        try:
            return self.factory()(**typed)
        except (MisconfigurationException, ImportError, TypeError) as error:  # of libraries
            raise ValueError(f"{self.where}: {error}") from error

    def factory(self) -> Callable[..., T]:
        """Returns the class with the settings as arguments."""
        return partial(self.target, **{k: _built(v) for k, v in self.settings.items()})

    @property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.target).parameters

    def complete(self, later: tuple[str, ...]) -> Plain:
        """Returns the settings with those that stand at their default, as plain data."""
        defaults = {k: p.default for k, p in self.arguments.items() if k not in later}
        values: Plain = to_plain({**defaults, **self.settings})
        return values


def _built(value: object) -> object:
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return value


def make(node: object, where: str, base: type) -> Any:
    """Builds the object that ``node`` describes; see :func:`read_part`."""
    return read_part(node, where, base).build()


def read_part(node: object, where: str, base: type, *, default: str | None = None) -> Part[Any]:
    """Checks the description of an object.

    Args:
        node: plain data: the name of a class, and its settings.
        where: the node's key in the configuration, for messages.
        base: of the class, one of :data:`SLOTS` or derived from it.
        default: the name where the node has none.

    Raises:
        ValueError: one line that names the key, what was found and what is allowed.
    """
    slot = slot_of(base)
    if not isinstance(node, Mapping):
        choice = f": choose by {where.replace('.', '/')}={node}" if isinstance(node, str) else ""
        raise ValueError(f"{where}={node!r}: must be a mapping with {slot.key}{choice}")
    name = node.get(slot.key, default)
    targets = registered(base)
    if not isinstance(name, str) or name not in targets:
        names = ", ".join(sorted(targets))
        remedy = f"{VARIABLE}=MODULE before the command, or {where}._target_=MODULE.CLASS"
        raise ValueError(
            f"{where}.{slot.key}={str(name)[:200]!r}: choose from {names}; a plug-in's name is "
            f"known with {remedy}"
        )
    given = {k: v for k, v in node.items() if k != slot.key}
    return Part(name, targets[name], _checked(targets[name], given, where, slot), where)


def slot_of(base: type) -> Slot:
    return next(slot for known, slot in SLOTS.items() if issubclass(base, known))


def registered(base: type) -> dict[str, Target]:
    """Returns the classes and functions that make a ``base``, by their names."""
    if issubclass(base, Objective):
        return {**OBJECTIVES}
    for package in slot_of(base).packages:
        _import_all(package)
    targets: dict[str, Target] = {}
    for name, candidates in REGISTERED.items():
        fitting = [target for target in candidates if _makes(target, base)]
        if len(fitting) > 1:
            paths = " and ".join(path_of(target) for target in fitting)
            raise ValueError(f"{paths} have the same name, {name}: register yours as another")
        if fitting:
            targets[name] = fitting[0]
    return targets


@cache
def _import_all(package: str) -> None:
    """Imports the modules of a package, which register their classes."""
    module = import_module(package)
    for info in pkgutil.iter_modules(module.__path__):
        import_module(f"{package}.{info.name}")


def _makes(target: Target, base: type) -> bool:
    """Returns whether a class is a ``base``, or a function is declared to return one."""
    made = _hints(target).get("return") if inspect.isfunction(target) else target
    return inspect.isclass(made) and issubclass(made, base) and not inspect.isabstract(target)


@cache
def _hints(target: Target) -> Plain:
    try:
        source = target.__init__ if inspect.isclass(target) else target
        return get_type_hints(source, include_extras=True)
    except NameError:  # hints of a library that exist for type checkers only
        return {}


def _checked(
    target: Target,
    given: PlainMapping,
    where: str,
    slot: Slot,
    types: PlainMapping = MappingProxyType({}),
) -> Plain:
    """Returns settings of ``target`` with the types that it declares, and parts among them."""
    hints = {k: v for k, v in {**_hints(target), **types}.items() if k not in slot.later}
    values = {key: _nested(value, hints.get(key), f"{where}.{key}") for key, value in given.items()}
    typed = vars(validate(_schema(target, slot, hints), values, where))
    return {key: typed[key] for key in given if not _is_left_to_data(target, key, typed[key], slot)}


def _is_left_to_data(target: Target, key: str, value: object, slot: Slot) -> bool:
    if value is not None or not slot.of_data:
        return False
    parameter = inspect.signature(target).parameters.get(key)
    return parameter is not None and parameter.default is parameter.empty


def _schema(target: Target, slot: Slot, hints: PlainMapping) -> type:
    """Returns a dataclass of the arguments of ``target``, and of the settings of its head."""
    fields: list[tuple[str, Any, Any]] = []
    for name, parameter in inspect.signature(target).parameters.items():
        is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not is_named or name in slot.later:
            continue
        hint = hints.get(name, Any) if _part_in(hints.get(name)) is None else Any
        is_required = parameter.default is parameter.empty
        if is_required and slot.of_data:
            hint, is_required = hint | None, False
        fields.append((name, hint, MISSING if is_required else None))
    head = HEADS.get(getattr(target, "head", "")) if slot is SLOTS[Objective] else None
    of_head = [] if head is None else dataclass_fields(head)
    own = {name for name, *_ in fields}
    fields += [(f.name, Any, None) for f in of_head if f.name not in own]
    entries = [(name, hint, field(default=default)) for name, hint, default in fields]
    strict = {"__pydantic_config__": STRICT}
    return make_dataclass("Settings", entries, kw_only=True, namespace=strict)


@dataclass(frozen=True)
class _Nested:
    """A type of an argument that is a part, or a mapping of parts."""

    base: type
    is_mapping: bool


def _part_in(hint: object) -> _Nested | None:
    """Returns what parts an argument of this type takes; None if it takes values."""
    if inspect.isclass(hint):
        return _Nested(hint, False) if issubclass(hint, tuple(SLOTS)) else None
    arguments = get_args(hint)
    origin = get_origin(hint)
    if inspect.isclass(origin) and issubclass(origin, Mapping):
        inner = _part_in(arguments[1])
        return inner and _Nested(inner.base, True)
    alternatives = map(_part_in, arguments if origin in (Union, UnionType) else ())
    return next((inner for inner in alternatives if inner is not None), None)


def _nested(value: object, hint: object, where: str) -> object:
    """Returns the parts that an argument of the type ``hint`` takes; other values unchanged."""
    nested = _part_in(hint)
    if nested is None or value is None:
        return value
    if nested.is_mapping and isinstance(value, Mapping):
        return {key: read_part(v, f"{where}.{key}", nested.base) for key, v in value.items()}
    return read_part(value, where, nested.base)


def read_arguments(
    target: Callable[..., T],
    values: object,
    where: str,
    later: tuple[str, ...] = (),
    types: PlainMapping = MappingProxyType({}),
) -> Part[T]:
    """Checks the arguments of a class that needs no name.

    Args:
        values: plain data.
        where: the key in the configuration, for messages.
        later: arguments that the program gives.
        types: of arguments, in place of those that the class declares.
    """
    given = validate(Plain, values, where)
    settings = _checked(target, given, where, Slot((), later=later), types)
    return Part(where, target, settings, where)


# --- Classes that a user names on the command line


def with_names(node: Any, where: str = "") -> Any:
    """Returns plain data with registered names in place of the classes that ``_target_`` names.

    The data must be a user's own: each class is imported and registered under its own name.
    """
    if isinstance(node, list):
        return [with_names(item, f"{where}.{i}") for i, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {key: with_names(value, f"{where}.{key}".lstrip(".")) for key, value in node.items()}
    if "_target_" not in values:
        return values
    target = target_at(values.pop("_target_"), where)
    return {**values, **target}


def named(override: Override) -> Override:
    """Returns an override with registered names in place of the paths of classes, which a run's
    file does not hold."""
    if "_target_" not in override.text:
        return override
    key, value = override.key, override.value
    parent, _, last = key.rpartition(".")
    if last == "_target_":
        ((last, value),) = target_at(value, parent).items()
        key = f"{parent}.{last}"
    value = with_names(value, key)
    return replace(override, key=key, value=value, text=f"++{key}={as_text(value)}")


def target_at(path: object, where: str) -> dict[str, str]:
    """Imports and registers a class, and returns the key and the name by which it is chosen."""
    module, _, name = str(path).rpartition(".")
    try:
        target = vars(import_module(module))[name]
    except (ImportError, KeyError, ValueError) as error:
        raise ValueError(f"{where}._target_={str(path)[:200]}: not found ({error})") from error
    if inspect.isclass(target) and issubclass(target, Objective) and "head" in vars(target):
        return {SLOTS[Objective].key: target.head}
    if not any(_makes(target, base) for base in SLOTS):
        kinds = " or ".join(base.__name__ for base in SLOTS)
        raise ValueError(f"{where}._target_={str(path)[:200]}: must be a {kinds}")
    for known, candidates in REGISTERED.items():
        if target in candidates:
            return {"kind": known}
    register(name)(target)
    return {"kind": name}
