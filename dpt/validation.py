"""Validation of plain data and its conversion to typed objects, by pydantic."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import Field

Plain = dict[str, Any]
"""Settings as YAML and JSON hold them: dictionaries, lists, numbers, strings, booleans and None."""
PlainMapping = Mapping[str, Any]
"""Settings that are only read, see ``Plain``."""

MAX_METRES = 1e6
"""Largest depth: more is a mistake of the unit, and products of it leave the range of floats."""
Count = Annotated[int, Field(ge=1, le=10**9)]
_MAX_MESSAGE = 4000  # characters; a message may quote a file
_MAX_FLOAT = 1e30  # products with it still are numbers of 32 bits
Positive = Annotated[float, Field(gt=0, le=_MAX_FLOAT)]
NonNegative = Annotated[float, Field(ge=0, le=_MAX_FLOAT)]
Metres = Annotated[float, Field(gt=0, le=MAX_METRES)]
Share = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, le=1)]


STRICT = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
"""Pydantic's rules for settings: no unknown ones, and neither infinity nor NaN."""


class Settings:
    """The base class of dataclasses that refuse unknown keys, NaN and infinity."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = STRICT


def validate(target: Any, value: Any, where: str) -> Any:
    """Converts plain data to the type ``target``, a dataclass or any type hint.

    Raises:
        ValueError: a line that names the key, ``where``, what was found and what is allowed.
    """
    try:
        typed = _adapter(target).validate_python(value)
    except pydantic.errors.PydanticUserError:  # a type that pydantic cannot check
        return value
    except pydantic.ValidationError as error:
        faults: dict[str, list[str]] = {}
        for e in error.errors(include_url=False):
            key, message = _describe(e, value, where, target)
            faults.setdefault(key, []).append(message)  # one for each alternative of a union
        lines = (f"{k}{' or '.join(dict.fromkeys(v))}" for k, v in faults.items())
        raise ValueError(" ".join("; ".join(lines).splitlines())[:_MAX_MESSAGE]) from None
    _refuse_bools(value, typed, where)
    return typed


@cache
def _adapter(target: Any) -> pydantic.TypeAdapter[Any]:
    config: Any = {"arbitrary_types_allowed": True, "allow_inf_nan": False}
    # a dataclass has its own
    return pydantic.TypeAdapter(target, config=None if is_dataclass(target) else config)


def _refuse_bools(value: object, typed: object, where: str) -> None:
    """Raises ValueError if pydantic made a number of ``true`` or ``false``."""
    if isinstance(value, bool) and isinstance(typed, int | float) and typed is not value:
        raise ValueError(f"{where}={str(value).lower()}: must be a number")
    if isinstance(value, Mapping):
        fields_of_typed = typed if isinstance(typed, Mapping) else vars(typed)
        for key in value.keys() & fields_of_typed.keys():
            _refuse_bools(value[key], fields_of_typed[key], f"{where}.{key}".lstrip("."))
    elif isinstance(value, list | tuple) and isinstance(typed, list | tuple):
        for i, pair in enumerate(zip(value, typed, strict=False)):
            _refuse_bools(*pair, f"{where}.{i}")


def _describe(error: Any, value: Any, where: str, target: Any) -> tuple[str, str]:
    """Returns the key of a fault, as the beginning of a message, and what is wrong with it."""
    key, kind = _place(error["loc"], value, where), error["type"]
    last = error["loc"][-1] if error["loc"] else ""
    if kind == "value_error":  # of our own checks, which name the key themselves
        message = error["msg"].removeprefix("Value error, ")
        return "" if not where or f"{where}." in message else f"{where}: ", message
    if kind == "missing" and isinstance(last, str):
        return f"{key}.{last} ".lstrip("."), "must be given"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        allowed = [f.name for f in fields(target) if f.init] if is_dataclass(target) else []
        return unknown_key(key, str(last), allowed), ""
    return f"{key}={error['input']!r}: ", _reworded(error)


def _reworded(error: Any) -> str:
    """Returns pydantic's message about a value, in the words of YAML."""
    if error["type"] == "missing":
        return "must have more entries"
    message = error["msg"].replace("Input should", "must").replace("valid tuple", "list")
    message = message.replace("an instance of Sequence", "a list")
    return f"{message[0].lower()}{message[1:]}"


def _place(steps: Sequence[str | int], value: Any, where: str) -> str:
    """Returns the dotted key of a fault; some steps are no keys, but alternatives of a union."""
    for step in steps:
        is_index = isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)
        if is_index or (isinstance(value, Mapping) and step in value):
            where, value = f"{where}.{step}".lstrip("."), value[step]
    return where


def unknown_key(full_key: str, key: str, allowed: list[str]) -> str:
    """Returns a message for an unknown key, with the closest of the allowed keys."""
    full_key = " ".join(full_key.split())[:400]  # a file may have chosen it
    shown = sorted(k for k in allowed if not k.startswith("_"))
    near = get_close_matches(key, shown, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"there is no {full_key}.{hint} Allowed here: {', '.join(shown) or 'none'}"


def to_plain(value: Any) -> Any:
    """Converts dataclasses, mappings and sequences to dictionaries and lists."""
    return pydantic.TypeAdapter(Any).dump_python(value, mode="json")
