"""Overrides, ``KEY=VALUE``: values as text that Hydra reads back unchanged, and text as values.

Only the standard library is imported at the top: ``dpt --help`` must start at once.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpt.validation import Plain, PlainMapping


@dataclass(frozen=True)
class Override:
    """An override as it was typed; ``value`` is plain data."""

    key: str
    value: object
    text: str  # +KEY and ++KEY may be new ones, ~KEY is removed


def as_text(value: object) -> str:
    """Returns the value as Hydra reads it back: no character of a string has a special meaning.

    Raises:
        ValueError: the string ``???``, which stands for a missing value, or a key with such
            characters; neither can be written.
    """
    if isinstance(value, str):
        if value == "???":
            raise ValueError("the name ??? is reserved for missing values: give it another name")
        is_plain = re.fullmatch(r"[A-Za-z_/][\w./-]*", value, re.ASCII)
        if is_plain and value.lower() not in ("null", "true", "false", "nan", "inf"):
            return value
        text = re.sub(r'(\\*)"', r'\1\1\\"', escaped(value))
        return '"' + re.sub(r"(\\+)\Z", r"\1\1", text) + '"'
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, int) and not re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII):
                raise ValueError(f"{key!r}: must be a number or a name of letters, digits and _")
        return "{" + ",".join(f"{key}:{as_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(as_text, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)


def escaped(text: str) -> str:
    """Returns ``text`` as OmegaConf resolves it to itself: ``${...}`` is no interpolation."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def as_argument(key: str, value: object) -> str:
    """Returns ``key=value`` as typed in a shell, quoted if Hydra or the shell needs it."""
    is_plain = re.fullmatch(r"[-\w./:@+]+", f"{key}{value}", re.ASCII)
    return f"{key}={value}" if is_plain else shlex.quote(f"{key}={as_text(str(value))}")


def unreadable(text: str) -> str:
    """Returns what is wrong with an override that Hydra cannot parse, and how to write it.

    Of a longer one the first 1000 characters are shown.
    """
    example = shlex.quote('KEY=["A (B)",C]')
    return f"{text[:1000]}: cannot be read: write KEY=VALUE, special characters as in {example}"


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides of a command line.

    Raises:
        ValueError: an override that cannot be parsed, or that has several values.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    parsed = []
    try:
        for override in OverridesParser.create().parse_overrides(list(overrides)):
            text = str(override.input_line)
            if override.is_sweep_override():
                remedy = f"quote a value with commas, as in {as_argument('KEY', 'A, B')}"
                raise ValueError(f"{text}: has several values: {remedy}")
            typed: Any = OmegaConf.to_container(
                OmegaConf.create({"value": override.value()}), resolve=True
            )
            key = override.get_key_element().lstrip("+~")
            parsed.append(Override(key, typed["value"], text))
    except OverrideParseException as error:
        raise ValueError(unreadable(error.override)) from None
    except OmegaConfBaseException as error:
        raise ValueError(f"{text}: {str(error).splitlines()[0]}") from None
    return parsed


def keys_of(overrides: Iterable[str]) -> set[str]:
    """Returns the keys that overrides of a command line set."""
    keys = (o.lstrip("+~").partition("=")[0].rpartition("@")[2] for o in overrides)
    return {key.replace("/", ".") for key in keys}


def is_below(keys: Iterable[str], key: str) -> bool:
    """Returns whether ``key`` is one of ``keys`` or in a group of them."""
    return any(key == other or key.startswith(f"{other}.") for other in keys)


def value_at(values: object, key: str) -> object:
    """Returns the value of a dotted key; None if there is none."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def split_config_dir(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the folder that ``--config-dir`` names, None without it, and the other arguments."""
    folder, others, words = None, [], iter(arguments)
    for word in words:
        name, has_value, value = word.partition("=")
        if name not in ("-cd", "--config-dir"):
            others.append(word)
        else:
            folder = value if has_value else next(words, "")
    return folder, others


def map_strings(values: "PlainMapping", change: Callable[[str], str]) -> "Plain":
    """Returns a copy of plain data with ``change`` applied to every text that is a value."""

    def mapped(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: mapped(item) for key, item in value.items()}
        if isinstance(value, list):
            return [mapped(item) for item in value]
        return change(value) if isinstance(value, str) else value

    return {key: mapped(value) for key, value in values.items()}
