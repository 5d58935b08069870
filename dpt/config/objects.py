"""From configuration (plain data) to objects.

A mapping with ``kind``, a registered name (:func:`dpt.plugins.register`), describes a part of a
run: a data set, a loss, a callback. The part's settings are the arguments of the class that the
name stands for. A configuration never holds the path of a class, and nothing is imported because a
file says so: only ``_target_`` on the command line names a class, which is registered then.
"""

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache, partial
from importlib import import_module
from types import UnionType
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
from dpt.validation import Plain, PlainMapping, Settings, to_plain, validate

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Slot:
    """A place of the configuration that takes a part.

    Attributes:
        packages: whose modules register its classes.
        later: arguments that the program gives.
        key: of the name, beside the settings.
        types: of arguments, in place of those that the class declares.
    """

    packages: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    key: str = "kind"
    types: Plain = field(default_factory=dict)


SLOTS: dict[type, Slot] = {
    Dataset: Slot(("dpt.data.datasets",), later=("split", "sets")),
    Objective: Slot(key="head"),
    Teacher: Slot(),
    Optimizer: Slot(("dpt.training",), later=("model",)),
    LRScheduler: Slot(("dpt.training",), later=("optimizer", "total_steps")),
    Callback: Slot(("dpt.training", "dpt.evaluation")),
    Logger: Slot(("dpt.training",)),
    nn.Module: Slot(("dpt.losses",)),
}
"""The base classes of parts that are chosen by a name."""

UNNAMED: dict[Target, Slot] = {}
"""The classes of parts that need no name, see :mod:`dpt.config.schema`."""

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
        try:
            return self.factory()(**decided)
        except (MisconfigurationException, ImportError, OverflowError, TypeError) as error:
            raise ValueError(f"{self.where}: {error}") from error

    def factory(self) -> Callable[..., T]:
        """Returns the class with the settings as arguments."""
        return partial(self.target, **{k: _built(v) for k, v in self.settings.items()})


def _built(value: object) -> object:
    if isinstance(value, Part):
        return value.build()
    if isinstance(value, dict):
        return {key: _built(item) for key, item in value.items()}
    return value


def read_part(node: object, where: str, base: type, *, name: str | None = None) -> Part[Any]:
    """Checks the description of an object.

    Args:
        node: plain data: the name of a class, and its settings.
        where: the node's key in the configuration, for messages.
        base: of the class, one of :data:`SLOTS` or derived from it, or the class itself, one of
            :data:`UNNAMED`.
        name: where the node has none.

    Raises:
        ValueError: one line that names the key, what was found and what is allowed.
    """
    if base in UNNAMED:
        settings = _checked(base, validate(Plain, node, where), where, UNNAMED[base])
        return Part(where, base, settings, where)
    slot = slot_of(base)
    if not isinstance(node, Mapping):
        choice = f": choose by {where.replace('.', '/')}={node}" if isinstance(node, str) else ""
        raise ValueError(f"{where}={node!r}: must be a mapping with {slot.key}{choice}")
    default = None if base is Objective else name
    name, targets = node.get(slot.key, default), registered(base)
    if not isinstance(name, str) or name not in targets:
        raise ValueError(
            f"{where}.{slot.key}={str(name)[:200]!r}: choose from {', '.join(sorted(targets))}; "
            f"a plug-in's name is known with {VARIABLE}=MODULE, or {where}._target_=MODULE.CLASS"
        )
    given = {k: v for k, v in node.items() if k != slot.key}
    return Part(name, targets[name], _checked(targets[name], given, where, slot), where)


def read_settings(cls: Any, values: PlainMapping, where: str) -> Any:
    """Returns a dataclass of plain data, with the parts and dataclasses that its fields are.

    Raises:
        ValueError: one line that names the key, what was found and what is allowed.
    """
    hints = get_type_hints(cls)
    read = {k: _nested(v, hints.get(k), f"{where}.{k}".lstrip(".")) for k, v in values.items()}
    return validate(cls, read, where)


def complete(part: Part[Any]) -> Plain:
    """Returns the settings of a part that needs no name with those at their default, as data."""
    parameters = _parameters(part.target, UNNAMED[part.target])
    values: Plain = to_plain({k: p.default for k, p in parameters.items()} | part.settings)
    return values


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


def _parameters(target: Target, slot: Slot) -> dict[str, inspect.Parameter]:
    """Returns the arguments that a configuration may give."""
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(target).parameters.items()
    return {k: p for k, p in parameters if k not in slot.later and p.kind not in starred}


def _checked(target: Target, given: PlainMapping, where: str, slot: Slot) -> Plain:
    """Returns settings of ``target`` with the types that it declares, and parts among them."""
    types, required = _types(target, slot), _required(target, slot)
    if slot is SLOTS[Objective]:  # the data decide what is not set
        given = {k: v for k, v in given.items() if v is not None or k not in required}
    read = {k: _nested(v, types.get(k), f"{where}.{k}") for k, v in given.items()}
    parts = frozenset(k for k in given if read[k] is not given[k])
    typed = vars(validate(_schema(target, slot, parts), read, where))
    return {key: typed[key] for key in given}


def _types(target: Target, slot: Slot) -> Plain:
    hints = {**_hints(target), **slot.types}
    return {name: hints.get(name, Any) for name in _parameters(target, slot)}


def _required(target: Target, slot: Slot) -> set[str]:
    return {name for name, p in _parameters(target, slot).items() if p.default is p.empty}


@cache
def _schema(target: Target, slot: Slot, parts: frozenset[str]) -> type:
    """Returns a dataclass with the settings of ``target``; those that are ``parts`` take any
    value."""
    types, required = _types(target, slot), _required(target, slot)
    if slot is SLOTS[Objective]:
        head: Any = HEADS.get(getattr(target, "head", ""))
        of_head = {f.name: Any for f in fields(head)} if head else {}
        types, required = of_head | types, set()  # the data decide the others
    types |= dict.fromkeys(parts, Any)
    entries = [
        (name, hint, field(default=MISSING if name in required else None))
        for name, hint in types.items()
    ]
    return make_dataclass("Settings", entries, bases=(Settings,), kw_only=True)


def _nested(value: object, hint: Any, where: str, name: str | None = None) -> object:
    """Returns the parts and dataclasses that a field of the type ``hint`` takes; other values
    unchanged."""
    origin, arguments = get_origin(hint), get_args(hint)
    base: Any = arguments[0] if origin is Part else hint
    if value is None:
        return None
    if origin is Part or (inspect.isclass(base) and issubclass(base, tuple(SLOTS))):
        return read_part(value, where, base, name=name)
    if origin in (Union, UnionType):
        options = (_nested(value, argument, where, name) for argument in arguments)
        return next((option for option in options if option is not value), value)
    if not isinstance(value, Mapping):
        return value
    if origin in (dict, Mapping):
        read = {k: _nested(v, arguments[1], f"{where}.{k}", k) for k, v in value.items()}
        return value if read == value else read
    return read_settings(base, value, where) if is_dataclass(base) else value


# --- Classes that a user names on the command line


def named(override: Override) -> Override:
    """Returns an override with registered names in place of the classes that ``_target_`` names,
    which are imported and registered; a run's file holds the names."""
    if "_target_" not in override.text:
        return override
    key, value = override.key, override.value
    if key.endswith("._target_"):
        key = key.removesuffix("._target_")
        ((last, value),) = target_at(value, key).items()
        key = f"{key}.{last}"
    value = _with_names(value, key)
    return replace(override, key=key, value=value, text=f"++{key}={as_text(value)}")


def _with_names(node: Any, where: str) -> Any:
    if isinstance(node, list):
        return [_with_names(item, f"{where}.{i}") for i, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {key: _with_names(value, f"{where}.{key}") for key, value in node.items()}
    if "_target_" in values:
        values |= target_at(values.pop("_target_"), where)
    return values


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
