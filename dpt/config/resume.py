"""The configuration of a resumed run: its ``config.yaml`` with values from the command line.

The file may come from somebody else. It is read as plain data: nothing in it reaches the command
line, the environment, Hydra or a resolver of OmegaConf.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from dpt.config.overrides import Override, as_argument, is_below, parse
from dpt.config.run_keys import RunKeys
from dpt.files import config_dir, few, read_yaml
from dpt.plugins import plugin_names
from dpt.validation import Plain, unknown_key, validate

log = logging.getLogger("dpt")

PLACE = {"resume", "run_dir", "overwrite"}
"""Keys that choose the run, and are no settings of it."""
TRUSTED = {
    "dpt.evaluation.callbacks.Panels",
    "dpt.training.callbacks.Freeze",
    "dpt.training.callbacks.MovingAverage",
    "dpt.training.callbacks.Throughput",
    "dpt.training.callbacks.make_progress",
    "dpt.training.checkpoints.RunCheckpoints",
    "dpt.training.loggers.TensorBoard",
    "dpt.training.loggers.make_wandb",
    "lightning.pytorch.callbacks.EarlyStopping",
    "lightning.pytorch.callbacks.LearningRateMonitor",
    "lightning.pytorch.loggers.CSVLogger",
}
"""Callbacks and loggers that a run's file may name, besides those of the user's own modules."""
_FOLDERS = ("dirpath", "folder", "save_dir", "default_root_dir")


def resumed_config(folder: Path, arguments: Sequence[str], resume: str) -> Plain:
    """Returns the configuration of the run in ``folder``, changed by the command line.

    Args:
        folder: of the run; paths inside its former folder are changed to this one.
        arguments: overrides as typed. A group or recipe must be one that the run was started with;
            it changes nothing.
        resume: the value of ``resume``, as typed.

    Raises:
        ValueError: a damaged file, a change that needs a new run, or a file that names other code
            or writes outside of the run.
    """
    path = folder / "config.yaml"
    before = _moved_run(folder)
    started_with = before["overrides"]
    typed = [override for override in parse(arguments) if override.key not in PLACE]
    changes = []
    for override in typed:
        is_repeated = override.text in started_with
        if not _is_group(override, before):
            changes += [] if is_repeated and override.form == "remove" else [override]
        elif not is_repeated:
            raise ValueError(
                f"{override.text}: a run that is resumed keeps its groups. Start a new run from "
                f"its weights with {as_argument('model.weights', folder)}, or set single keys, as "
                f"in {override.key.replace('/', '.')}.KEY=VALUE"
            )
    values = changed(before, changes)
    keys = {override.key for override in changes}
    _require_followers(before["follows"], keys, before, values)
    if ":***@" in str({**values, "overrides": []}):
        raise ValueError(f"{path}: passwords are not stored: give the address with :***@ again")
    refuse_foreign(values, folder, keys)
    for line in differences(before, values):
        log.info("resume: changes %s", line)
    texts = [override.text for override in changes if override.text not in started_with]
    place = {"run_dir": str(folder), "resume": resume, "overwrite": False}
    return values | place | {"overrides": [*started_with, *texts]}


def _moved_run(folder: Path) -> Plain:
    """Returns the checked configuration of a run, with paths of its former folder changed."""
    path, values = folder / "config.yaml", run_in(folder)
    keys = {field.name for field in fields(RunKeys)}
    if absent := sorted(keys - values.keys() - {"paths", "find"}):
        raise ValueError(f"{path}: incomplete, has no {', '.join(absent)}: restore it from a copy")
    try:
        validate(RunKeys, values, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return values


def run_in(folder: Path) -> Plain:
    """Returns the configuration in a run's folder, with paths inside its former folder changed to
    the present one; ValueError if the file is damaged."""
    path = folder / "config.yaml"
    values = read_yaml(path)
    if not isinstance(values, dict) or not isinstance(values.get("data"), dict):
        raise ValueError(f"{path}: not the configuration of a run, with every value written out")
    folder = folder.absolute()  # others join relative paths to another folder
    moved: Plain = _moved(values, str(values.get("run_dir") or folder), str(folder))
    return moved


def _moved(values: Any, before: str, after: str) -> Any:
    """Returns ``values`` with the folder ``after`` in paths in place of ``before``."""

    def moved(text: str) -> str:
        is_inside = text == before or text.startswith(f"{before}/")
        return f"{after}{text[len(before) :]}" if is_inside else text

    return map_strings(values, moved)


def changed(values: Plain, overrides: Iterable[Override]) -> Plain:
    """Returns a copy of a run's configuration with the values of overrides. With
    ``paths.data_dir``, paths inside the former folder of the data change too.

    Raises:
        ValueError: a key that the configuration does not have.
    """
    values = map_strings(values, str)
    for override in overrides:
        names = override.key.split(".")
        if override.key == "paths.data_dir":
            for copy in _at(values, ["follows", "paths.data_dir"]) or ():
                *parents, last = str(copy).split(".")
                node, before = _at(values, parents), str(_at(values, names))
                if isinstance(node, dict) and last in node:
                    node[last] = _moved(node[last], before, str(override.value))
        for place, name in enumerate(names):
            node = _at(values, names[:place])
            is_known = isinstance(node, dict) and (name in node or override.form == "add")
            if not is_known:
                allowed = [*node] if isinstance(node, dict) else []
                raise ValueError(unknown_key(".".join(names[: place + 1]), name, allowed))
            if place < len(names) - 1:
                node.setdefault(name, {})
            elif override.form == "remove":
                del node[name]
            else:
                node[name] = override.value
    return values


def _at(values: Any, names: Sequence[str]) -> Any:
    """Returns the value below ``names``; None if there is none."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def followers(raw: Any, key: str = "") -> dict[str, list[str]]:
    """Returns the keys of an unresolved configuration that others are made of, with these.

    A run stores them as ``follows``: it holds copies of these values, so a change of the first
    alone would have no effect. The run's own folder and names for loggers are left out.
    """
    made: dict[str, list[str]] = {}
    if isinstance(raw, dict):
        for name, value in raw.items():
            for source, keys in followers(value, f"{key}.{name}".lstrip(".")).items():
                made.setdefault(source, []).extend(keys)
    elif isinstance(raw, str) and key != "run_dir" and not key.startswith("logger."):
        for source in re.findall(r"(?<!\\)\$\{([\w.]+)\}", raw):
            if source != "run_dir":
                made[source] = [key]
    return made


def _require_followers(
    follows: Mapping[str, Sequence[str]], keys: set[str], before: Plain, after: Plain
) -> None:
    """Raises ValueError for one of the typed ``keys`` that changes while its copies do not."""

    def touches(key: str, other: str) -> bool:
        return is_below([key], other) or is_below([other], key)

    for key in keys - {"paths.data_dir"}:
        names = key.split(".")
        if _at(before, names) == _at(after, names):
            continue
        copies = [copy for source in follows if touches(key, source) for copy in follows[source]]
        left = [copy for copy in copies if not any(touches(copy, other) for other in keys)]
        if left:
            raise ValueError(
                f"{key}: {few(left)} was made of it when the run was started: set it too"
            )


def _is_group(override: Override, values: Plain) -> bool:
    """Returns whether an override chooses a group or a recipe, and does not set a value."""
    if override.names_group or (config_dir() / override.key.replace(".", "/")).is_dir():
        return True
    node = _at(values, override.key.split("."))
    return isinstance(node, dict) and isinstance(override.value, str)


def refuse_foreign(values: Plain, folder: Path, keys: Iterable[str]) -> None:
    """Raises ValueError for a value that a run's file must not choose; ``keys`` were typed."""
    for key, problem in _not_from_a_file(values, folder):
        if not is_below(keys, key):
            remedy = "give it on the command line if you want it"
            raise ValueError(f"{folder / 'config.yaml'}: {key}={problem}: {remedy}")


def _not_from_a_file(values: Plain, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields keys whose values a run's file must not choose, and what is wrong with them."""
    own_code = tuple(f"{name}." for name in plugin_names())
    for group in ("callbacks", "logger"):
        for name, node in values[group].items():
            target = str(_at(node, ["_target_"]))
            if target not in TRUSTED and not target.startswith(own_code):
                for key, value in (node or {}).items():
                    yield f"{group}.{name}.{key}", f"{str(value)[:200]} is not one of dpt's own"
    of_data = (folder, Path(), Path(os.environ.get("DPT_DATA", "data")))
    for key, text in _texts(values):
        group, name = key.partition(".")[0], key.rpartition(".")[2]
        is_path = text[:1] in ("/", "~") or "://" in text or ".." in Path(text).parts
        writes = group in ("callbacks", "logger", "trainer") and (is_path or name in _FOLDERS)
        if writes and not _is_inside(text, folder):
            yield key, f"{text[:200]} would write outside of the run"
        if (
            group == "data"
            and name == "cache_dir"
            and not any(_is_inside(text, p) for p in of_data)
        ):
            yield key, f"{text[:200]} is outside of the run and of the folder of data"
    if any((folder / "checkpoints").glob("*.ckpt")):
        return  # the weights that the run started from are not read again
    for key in ("model.weights", "model.encoder.weights"):
        file = _at(values, key.split("."))
        is_hub = re.match(r"(timm|hf):", str(file))
        if file is not None and not is_hub and not _is_inside(str(file), folder):
            yield key, f"{str(file)[:200]} is outside of the run"


def _texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields the keys and texts of a configuration."""
    if isinstance(node, str):
        yield key, node
    if isinstance(node, Mapping | list):
        for name, value in node.items() if isinstance(node, Mapping) else enumerate(node):
            yield from _texts(value, f"{key}.{name}".lstrip("."))


def _is_inside(path: str, folder: Path) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


def map_strings(values: Any, change: Callable[[str], str]) -> Any:
    """Returns a copy of plain data with ``change`` applied to every string that is a value."""
    if isinstance(values, Mapping):
        return {k: map_strings(v, change) for k, v in values.items()}
    if isinstance(values, list):
        return [map_strings(v, change) for v in values]
    return change(values) if isinstance(values, str) else values


def differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Returns ``key: old -> new`` for every value in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for key in dict.fromkeys([*old, *new]):
            lines += differences(old.get(key), new.get(key), f"{prefix}.{key}".lstrip("."))
        return lines
    return [] if old == new else [f"{prefix}: {old} -> {new}"]
