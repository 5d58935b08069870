"""The configuration of a resumed run: its ``config.yaml`` with values from the command line.

The file may come from somebody else. It is read as plain data: nothing in it reaches the command
line, the environment, Hydra or a resolver of OmegaConf.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dpt.config.objects import named
from dpt.config.overrides import Override, as_argument, is_below, map_strings, parse, value_at
from dpt.files import config_dir, read_yaml, real_path, run_folder
from dpt.process import log
from dpt.validation import Plain, PlainMapping, unknown_key, validate

RUN_CHOICE = {"resume", "run_dir", "overwrite"}
"""Keys that choose the run, and are no settings of it."""
DIVIDING = {"folds", "fold", "gap", "group_by", "fractions", "split_files", "split_names"}
"""Keys of data that decide which images a split has."""
_GROUPS = dict.fromkeys(("task", "model", "optim", "schedule", "trainer"), Plain)
_WEIGHTS = ("model.weights", "model.encoder.weights")
_FOLDERS = ("dirpath", "folder", "save_dir", "default_root_dir")
_PLACE = r"<([\w.]+)>"  # of the value of another key, in a template


def run_to_resume(command: str, arguments: Sequence[str]) -> Path | None:
    """Returns the folder of the run that ``resume`` names among the arguments; None if none is
    resumed.

    Raises:
        ValueError: ``resume`` names no run, or cannot be combined with the other arguments.
    """
    pairs = [argument.lstrip("+").partition("=") for argument in arguments]
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
        raise ValueError(f"run_dir={typed['run_dir']}: a resumed run stays in {folder}")
    if (folder / "config.yaml").is_file():
        return folder.absolute()
    if resume != "auto":
        raise ValueError(f"resume={resume}: not a run's folder, which holds config.yaml")
    return None


def resumed_config(folder: Path, arguments: Sequence[str]) -> Plain:
    """Returns the configuration of the run in ``folder``, changed by the command line.

    Args:
        folder: of the run; paths inside its former folder are changed to this one.
        arguments: overrides as typed, with ``resume``. A group or recipe must be one that the run
            was started with; it changes nothing.

    Raises:
        ValueError: a damaged file, a change that needs a new run, or a file that names other code
            or writes outside of the run.
    """
    path, before = folder / "config.yaml", run_in(folder)
    for key, kind in {"overrides": list[str], "follows": dict[str, str], **_GROUPS}.items():
        validate(kind, before.get(key), f"{path}: {key}")
    overrides = [named(override) for override in parse(arguments)]
    changes = [o for o in overrides if o.key not in RUN_CHOICE and not _is_done(o, before)]
    after = with_overrides(before, changes)
    for key in _WEIGHTS:
        if value_at(before, key) != value_at(after, key) and has_checkpoint(folder):
            log.warning("resume: %s has no effect: the weights are the checkpoint's", key)
    if re.search(r"://\S*\*\*\*", str({**after, "overrides": []})):
        raise ValueError(f"{path}: passwords are not stored: give the address with *** again")
    refuse_foreign(after, folder, {change.key for change in changes})
    texts = [*before["overrides"], *(change.text for change in changes)]
    after["overrides"] = [*dict.fromkeys(texts)]
    resume = next((str(o.value) for o in overrides if o.key == "resume"), None)
    return after | {"run_dir": str(folder), "resume": resume, "overwrite": False}


def data_of_evaluation(values: PlainMapping) -> Plain:
    """Returns ``data`` of ``dpt evaluate``: as given, or that of the checkpoint's run.

    Args:
        values: plain data (``conf/evaluate.yaml``). Keys such as ``data.batch_size`` on the command
            line change the run's data.
    """
    overrides = parse(values["overrides"])
    if any(override.key == "data" for override in overrides):
        return dict(values["data"])
    folder = run_folder(Path(str(values["checkpoint"])).expanduser())
    if not (folder / "config.yaml").is_file():
        fault = f"{values['checkpoint'] or values['predictions']}: not a run"
        raise ValueError(f"{fault}: give data=NAME, and checkpoint=FILE or predictions=DIR")
    changes = [o for o in overrides if re.match(r"data\.|paths\.data_dir$", o.key)]
    log.info("data: of the run %s", folder)
    return dict(with_overrides(run_in(folder), changes)["data"])


def has_checkpoint(folder: Path) -> bool:
    """Returns whether a run continues from a checkpoint, and not from its first weights."""
    return any((folder / "checkpoints").glob("*.ckpt"))


def _is_done(override: Override, before: Plain) -> bool:
    """Returns whether a run was started with an override that a second time would change nothing.

    Raises:
        ValueError: a group or recipe that the run was not started with.
    """
    key, is_repeated = override.key, override.text in before["overrides"]
    is_choice = isinstance(value_at(before, key), dict) and isinstance(override.value, str)
    is_folder = (config_dir() / key.replace(".", "/")).is_dir()
    is_group = is_choice or is_folder or re.search("[/@]", key) is not None
    if is_group and not is_repeated:
        remedy = f"start it with {as_argument('model.weights', before['run_dir'])}"
        raise ValueError(f"{override.text}: another group is a new run: {remedy}")
    return is_repeated and (is_group or override.text[0] == "~")


def run_in(folder: Path) -> Plain:
    """Returns the configuration in a run's folder, with paths inside its former folder changed to
    the present one; ValueError if the file is damaged.

    It has no profiler, and no more processes than this machine has cores.
    """
    path = folder / "config.yaml"
    values = read_yaml(path)
    if not isinstance(values, dict) or not isinstance(values.get("data"), dict):
        raise ValueError(f"{path}: not the configuration of a run, with every value written out")
    folder = folder.absolute()  # relative paths of other runs are joined to another folder
    former = str(values.get("run_dir") or folder)

    def moved(text: str) -> str:
        is_inside = text == former or text.startswith(f"{former}/")
        return f"{folder}{text[len(former) :]}" if is_inside else text

    values = map_strings(values, moved)
    if value_at(values, "trainer.profiler") is not None:
        values["trainer"]["profiler"] = None
    cores = os.cpu_count() or 1
    for group, key in (("data", "num_workers"), ("trainer", "devices")):
        count = str(value_at(values, f"{group}.{key}"))
        if count.isdecimal() and int(count) > cores:
            values[group][key] = cores
    return values


def with_overrides(values: Plain, overrides: Sequence[Override]) -> Plain:
    """Returns a copy of a run's configuration with the values of overrides, and with the values at
    other keys that are made of them (``follows``), unless an override sets these too.

    Raises:
        ValueError: a key that the configuration does not have.
    """
    before, values = values, map_strings(values, str)
    for override in overrides:
        _set(values, override)
    typed = {override.key for override in overrides}
    for key in sorted(typed):
        old, new = value_at(before, key), value_at(values, key)
        if old != new:
            log.info("changes %s: %s -> %s", key, old, new)
        if old != new and DIVIDING & {*key.split(".")[1:]}:
            log.warning("%s: the run may have been trained on images of this split", key)
    for key, template in before.get("follows", {}).items():
        value = _filled(template, values)
        if is_below(typed, key) or any(is_below([key], other) for other in typed):
            del values["follows"][key]  # it has a value of its own now
        elif value != _filled(template, before):
            _set(values, Override(key, value, f"{key}={value}"))
    return values


def _set(values: Plain, override: Override) -> None:
    *parents, last = override.key.split(".")
    node: object = values
    for name in (*parents, last):
        if not isinstance(node, dict) or not (name in node or override.text[0] == "+"):
            allowed = [*node] if isinstance(node, dict) else []
            raise ValueError(unknown_key(override.key, name, allowed))
        parent, node = node, node.setdefault(name, {})
    if override.text[0] == "~":
        del parent[last]
    else:
        parent[last] = override.value


def _filled(template: str, values: Plain) -> object:
    """Returns the value of a template such as ``<paths.data_dir>/camvid``."""
    if place := re.fullmatch(_PLACE, template):
        return value_at(values, place[1])
    return re.sub(_PLACE, lambda match: str(value_at(values, match[1])), template)


def templates(raw: object) -> dict[str, str]:
    """Returns the keys of an unresolved configuration whose values are made of others, and how.

    A run stores them as ``follows``: it holds copies of these values, so a change of the others
    alone would have no effect. The run's own folder and names for loggers are left out.
    """
    texts = ((k, t) for k, t in texts_of(raw) if not re.match(r"run_dir$|logger\.", k))
    replaced = {key: re.subn(r"(?<!\\)\$\{([\w.]+)\}", r"<\1>", text) for key, text in texts}
    return {key: template for key, (template, count) in replaced.items() if count}


def refuse_foreign(values: Plain, folder: Path, keys: Iterable[str]) -> None:
    """Raises ValueError for a value that a run's file must not choose; ``keys`` were typed."""
    typed, inside = {*keys}, folder.resolve()
    for key, text in texts_of(values):
        is_path = text[:1] in ("/", "~") or "://" in text or ".." in Path(text).parts
        is_path |= key.rpartition(".")[2] in _FOLDERS
        is_place = is_path and key.partition(".")[0] in ("callbacks", "logger", "trainer")
        if key in _WEIGHTS and not re.match(r"(timm|hf):", text):
            is_place = not has_checkpoint(folder)  # else it is not read
        if is_place and not (is_below(typed, key) or Path(text).resolve().is_relative_to(inside)):
            fault = f"{folder / 'config.yaml'}: {key}={text[:200]} is outside of the run"
            raise ValueError(f"{fault}: give it on the command line if you want it")


def texts_of(node: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted keys and the texts of a configuration; places in a list are numbers."""
    if isinstance(node, str):
        yield key, node
    elif isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from texts_of(value, f"{key}.{name}".lstrip("."))
