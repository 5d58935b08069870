"""The configuration of a resumed run: its ``config.yaml`` with values from the command line.

The file may come from somebody else. It is read as plain data: nothing in it reaches the command
line, the environment, Hydra or a resolver of OmegaConf.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from dpt.config.overrides import (
    Override,
    as_argument,
    is_below,
    map_strings,
    parse,
    split_config_dir,
)
from dpt.config.run_keys import RunKeys
from dpt.files import config_dir, read_yaml, real_path, run_folder
from dpt.validation import Plain, unknown_key, validate

log = logging.getLogger("dpt")

RUN_CHOICE = {"resume", "run_dir", "overwrite"}
"""Keys that choose the run, and are no settings of it."""
DIVIDING = {"folds", "fold", "gap", "group_by", "fractions", "split_files", "split_names"}
"""Keys of data that decide which images a split has."""
_FOLDERS = ("dirpath", "folder", "save_dir", "default_root_dir")


@dataclass(frozen=True)
class RunToResume:
    """A run that the command line names by ``resume``, with the text that was typed."""

    folder: Path
    resume: str


def run_to_resume(command: str, arguments: Sequence[str]) -> RunToResume | None:
    """Returns the run that ``resume`` names among the arguments; None if none is resumed.

    Raises:
        ValueError: ``resume`` names no run, or cannot be combined with the other arguments.
    """
    pairs = (argument.lstrip("+").partition("=") for argument in arguments)
    typed = {key: value.strip("\"'") for key, _, value in pairs if key in ("resume", "run_dir")}
    resume = typed.get("resume", "null")
    if resume.lower() == "null":
        return None
    if command != "train":
        raise ValueError(f"dpt {command} resumes no run: leave resume={resume} out")
    path = Path(typed.get("run_dir", "runs") if resume == "auto" else resume)
    folder = run_folder(path)
    if folder != path and not path.is_file():
        raise ValueError(f"resume={resume}: no such file")
    if real_path(Path(typed.get("run_dir", folder))) != real_path(folder):
        raise ValueError(
            f"run_dir={typed['run_dir']}: a resumed run stays in {folder}: leave run_dir out"
        )
    if (folder / "config.yaml").is_file():
        return RunToResume(folder.absolute(), resume)
    if resume == "auto":
        return None
    raise ValueError(
        f"resume={resume}: not a run's folder (it would hold config.yaml and checkpoints/)"
    )


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
    path, before = folder / "config.yaml", run_in(folder)
    _require_all_keys(before, path)
    _, typed = split_config_dir(arguments)  # the run has used the user's own groups already
    overrides = [override for override in parse(typed) if override.key not in RUN_CHOICE]
    changes = _changes(overrides, before)
    after = with_overrides(before, changes)
    keys = {override.key for override in changes}
    if ":***@" in str({**after, "overrides": []}):
        raise ValueError(f"{path}: passwords are not stored: give the address with :***@ again")
    refuse_foreign(after, folder, keys)
    for line in differences(before, after):
        log.info("resume: changes %s", line)
        key = line.partition(": ")[0]
        if DIVIDING & {*key.split(".")[1:]}:
            log.warning("resume: %s: val may now hold images that the run was trained on", key)
        if key in ("model.weights", "model.encoder.weights") and has_checkpoint(folder):
            log.warning("resume: %s has no effect: the weights are the checkpoint's", key)
    texts = [change.text for change in changes if change.text not in before["overrides"]]
    choice = {"run_dir": str(folder), "resume": resume, "overwrite": False}
    return after | choice | {"overrides": [*before["overrides"], *texts]}


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a run continues from a checkpoint, and not from its first weights."""
    return any((folder / "checkpoints").glob("*.ckpt"))


def _require_all_keys(values: Plain, path: Path) -> None:
    """Raises ValueError for a run's configuration that lacks keys, or has values of wrong types."""
    keys = {field.name for field in fields(RunKeys)}
    if absent := sorted(keys - values.keys() - {"paths", "find"}):
        raise ValueError(f"{path}: incomplete, has no {', '.join(absent)}: restore it from a copy")
    try:
        validate(RunKeys, values, "")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _changes(overrides: Iterable[Override], before: Plain) -> list[Override]:
    """Returns the overrides that change a run; ValueError for a group that it was not started
    with."""
    changes = []
    for override in overrides:
        is_repeated = override.text in before["overrides"]
        if not _is_group(override, before):
            if not (is_repeated and override.form == "remove"):
                changes.append(override)
        elif not is_repeated:
            weights = as_argument("model.weights", before["run_dir"])
            raise ValueError(
                f"{override.text}: a run that is resumed keeps its groups. Start a new run from "
                f"its weights with {weights}, or set single keys, as in "
                f"{override.key.replace('/', '.')}.KEY=VALUE"
            )
    return changes


def run_in(folder: Path) -> Plain:
    """Returns the configuration in a run's folder, with paths inside its former folder changed to
    the present one; ValueError if the file is damaged."""
    path = folder / "config.yaml"
    values = read_yaml(path)
    if not isinstance(values, dict) or not isinstance(values.get("data"), dict):
        raise ValueError(f"{path}: not the configuration of a run, with every value written out")
    for key, text in texts_of(values):
        if key.rpartition(".")[2] == "_target_":
            raise ValueError(f"{path}: {key}={text[:200]}: a run's file names no code")
    folder = folder.absolute()  # relative paths of other runs are joined to another folder
    former = str(values.get("run_dir") or folder)
    return map_strings(values, partial(_moved, before=former, after=str(folder)))


def _moved(path: str, before: str, after: str) -> str:
    """Returns a path inside the folder ``before`` as one inside ``after``; others unchanged."""
    is_inside = path == before or path.startswith(f"{before}/")
    return f"{after}{path[len(before) :]}" if is_inside else path


def with_overrides(values: Plain, overrides: Sequence[Override]) -> Plain:
    """Returns a copy of a run's configuration with the values of overrides, and the copies of these
    values at other keys (``follows``) changed too.

    Raises:
        ValueError: a key that the configuration does not have, or a copy that cannot follow.
    """
    before, values = values, map_strings(values, str)
    for override in map(_with_names, overrides):
        _set(values, override)
    typed = {override.key for override in overrides}
    for source, copies in before.get("follows", {}).items():
        old, new = _at(before, source), _at(values, source)
        for copy in copies if old != new else ():
            is_typed = is_below(typed, copy) or any(is_below([copy], key) for key in typed)
            if not is_typed:
                value = _followed(copy, _at(values, copy), old, new)
                _set(values, Override(copy, value, "set", ""))
    return values


def _with_names(override: Override) -> Override:
    """Returns an override with registered names in place of classes."""
    from dpt.config.objects import target_at, with_names

    parent, _, last = override.key.rpartition(".")
    if last != "_target_":
        return replace(override, value=with_names(override.value, override.key))
    ((key, name),) = target_at(override.value, parent).items()
    return replace(override, key=f"{parent}.{key}", value=name)


def _set(values: Plain, override: Override) -> None:
    node: object = values
    *parents, last = override.key.split(".")
    for depth, name in enumerate([*parents, last]):
        if not isinstance(node, dict) or not (name in node or override.form == "add"):
            allowed = [*node] if isinstance(node, dict) else []
            key = ".".join([*parents, last][: depth + 1])
            raise ValueError(unknown_key(key, name, allowed))
        if depth < len(parents):
            node = node.setdefault(name, {})
        elif override.form == "remove":
            del node[name]
        else:
            node[name] = override.value


def _followed(key: str, copy: object, old: object, new: object) -> object:
    """Returns the value at ``key``, a copy of ``old`` or a path below it, after a change to
    ``new``."""
    if copy == old:
        return new
    if isinstance(copy, str) and isinstance(old, str) and copy.startswith(f"{old}/"):
        return _moved(copy, old, str(new))
    raise ValueError(f"{key}={copy} was made of {old} when the run was started: set it too")


def _at(values: object, key: str) -> object:
    """Returns the value of a dotted key; None if there is none."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def followers(raw: object, key: str = "") -> dict[str, list[str]]:
    """Returns the keys of an unresolved configuration that others are made of, with these.

    A run stores them as ``follows``: it holds copies of these values, so a change of the first
    alone would have no effect. The run's own folder and names for loggers are left out.
    """
    made: dict[str, list[str]] = {}
    for text_key, text in texts_of(raw):
        if text_key == "run_dir" or text_key.startswith("logger."):
            continue
        for source in re.findall(r"(?<!\\)\$\{([\w.]+)\}", text):
            if source != "run_dir" and text_key not in made.get(source, ()):
                made.setdefault(source, []).append(text_key)
    return made


def _is_group(override: Override, values: Plain) -> bool:
    """Returns whether an override chooses a group or a recipe, and does not set a value."""
    if override.names_group or (config_dir() / override.key.replace(".", "/")).is_dir():
        return True
    node = _at(values, override.key)
    return isinstance(node, dict) and isinstance(override.value, str)


def refuse_foreign(values: Plain, folder: Path, keys: Iterable[str]) -> None:
    """Raises ValueError for a value that a run's file must not choose; ``keys`` were typed."""
    for key, problem in _not_from_a_file(values, folder):
        if not is_below(keys, key):
            remedy = "give it on the command line if you want it"
            raise ValueError(f"{folder / 'config.yaml'}: {key}={problem}: {remedy}")


def _not_from_a_file(values: Plain, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields keys whose values a run's file must not choose, and what is wrong with them."""
    folders_of_data = (folder, Path(), Path(os.environ.get("DPT_DATA", "data")))
    for key, text in texts_of(values):
        group, name = key.partition(".")[0], key.rpartition(".")[2]
        is_path = text[:1] in ("/", "~") or "://" in text or ".." in Path(text).parts
        writes = group in ("callbacks", "logger", "trainer") and (is_path or name in _FOLDERS)
        if writes and not _is_inside(text, folder):
            yield key, f"{text[:200]} would write outside of the run"
        is_cache = group == "data" and name == "cache_dir"
        if is_cache and not any(_is_inside(text, allowed) for allowed in folders_of_data):
            yield key, f"{text[:200]} is outside of the run and of the folder of data"
    if has_checkpoint(folder):
        return  # the weights that the run started from are not read again
    for key in ("model.weights", "model.encoder.weights"):
        file = _at(values, key)
        is_hub = re.match(r"(timm|hf):", str(file))
        if file is not None and not is_hub and not _is_inside(str(file), folder):
            yield key, f"{str(file)[:200]} is outside of the run"


def texts_of(node: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted keys and the texts of a configuration; places in a list are numbers."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from texts_of(value, f"{key}.{name}".lstrip("."))


def _is_inside(path: str, folder: Path) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


def differences(old: object, new: object, key: str = "") -> list[str]:
    """Returns ``key: old -> new`` for every value in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = []
        for name in dict.fromkeys([*old, *new]):
            lines += differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        return lines
    return [] if old == new else [f"{key}: {old} -> {new}"]
