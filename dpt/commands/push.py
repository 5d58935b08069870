"""What ``dpt push`` publishes: a model, and a card of what its run and an evaluation tell."""

import math
import re
import shlex
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from timm import get_pretrained_cfg

from dpt.config.overrides import keys_of
from dpt.config.resumed_config import run_in
from dpt.evaluation.passes import WEIGHTS_NOTE
from dpt.files import DataError, parse_json, read_bytes, real_path, run_folder, without_passwords
from dpt.model import DPT
from dpt.process import say
from dpt.training.checkpoints import RunCheckpoints, read_checkpoint
from dpt.validation import Plain, PlainMapping
from dpt.weights import hub
from dpt.weights.files import checkpoint_of
from dpt.weights.formats import fingerprint

_OF_MACHINE = {"run_dir", "resume", "overwrite", "logger", "paths"}
"""Keys of a run that say nothing about its result."""
_FOLDERS = re.compile(
    r"""(\w+://|[A-Za-z]:\\|(?<=[=,:'" (\[{])(~\w*|\.\.?)?/)([^,\[\](){}'"]*[\\/])?"""
)
"""All but the last part of an absolute path or an address in an override."""
_NOTES = ("image_size", "precision", "runtime", "images")
METRICS_FILE = "metrics.json"


def publish(options: Namespace) -> None:
    """Uploads a model with a card; ``options`` are the arguments of ``dpt push``."""
    source, name, license = Path(options.checkpoint).expanduser(), options.name, options.license
    if not hub.is_hub_name(name):
        raise ValueError(f"{name}: must have the form user/name")
    if not real_path(source / hub.CARD_FILE).is_relative_to(real_path(source)):
        raise ValueError(f"{source / hub.CARD_FILE}: is a link that leads out: replace it")
    text = hub.read_card(source)
    wants_card = bool(license or options.scores or not hub.license_in(text))
    if wants_card and text and not hub.is_generated(text):
        remedy = "state licence and scores there, without --license and --scores, or remove it"
        raise ValueError(f"{source / 'README.md'}: dpt did not write it: {remedy}")
    if wants_card and not license:
        raise ValueError(f"{source}: states no licence: give --license NAME, such as apache-2.0")
    model = DPT.from_pretrained(str(source))
    with tempfile.TemporaryDirectory(prefix="dpt-push-") as temporary:
        folder = Path(temporary)
        model.save_pretrained(folder)
        if wants_card:
            scores = scores_of(source, model, options.scores)
            text = hub.Card(name, license, training_of(source), scores).text(model, model.config)
        hub.write_card(folder, text)
        say(f"{name}: uploading")
        say(hub.upload(folder, name, private=options.private))


def training_of(path: Path) -> hub.Training | None:
    """Returns how a run was trained, ``path`` being its folder or a checkpoint in it; None for
    other models."""
    folder = run_folder(path)
    if not (folder / "config.yaml").is_file():
        return None
    config = run_in(folder)
    data, model = config["data"], config["model"]
    weights = model.get("weights") or model["encoder"].get("weights")
    download = data.get("download") or {}
    return hub.Training(
        task=str(config["task"]["name"]),
        data=data_name(data),
        page=str(download.get("page") or ""),
        terms=str(download.get("terms") or ""),
        command=shlex.join(["dpt", "train", *shared_overrides(config["overrides"])]),
        weights=initial_weights(str(weights)) if weights else None,
    )


def data_name(data: PlainMapping) -> str:
    """Returns the name of a configured data set: that of its folder, of its sets, or its class."""
    if data.get("root"):
        return Path(data["root"]).name
    if data.get("sets"):
        return ", ".join(data["sets"])
    return str(data["kind"])


def shared_overrides(overrides: Iterable[str]) -> Iterator[str]:
    """Yields what others can type too: without the folders of this machine and of the run."""
    for override in overrides:
        if not {key.partition(".")[0] for key in keys_of([override])} <= _OF_MACHINE:
            yield _FOLDERS.sub("", without_passwords(override))


def initial_weights(text: str) -> hub.InitialWeights:
    """Returns what is known of ``FILE``, ``timm:NAME``, ``hf:USER/NAME`` or ``USER/NAME``."""
    path, name = Path(text).expanduser(), text.removeprefix("hf:")
    if text.startswith("timm:"):
        config = get_pretrained_cfg(text.removeprefix("timm:"))
        facts = (config.hf_hub_id, config.license) if config else (None, None)
        return hub.InitialWeights(text, *facts)
    if path.exists():
        return hub.InitialWeights(path.name, None, hub.license_in(hub.read_card(path)))
    is_there, license = hub.license_of(name)
    is_name = is_there or name != text
    return hub.InitialWeights(name if is_name else path.name, name if is_there else None, license)


def scores_of(path: Path, model: DPT, folder: Path | None) -> hub.Scores | None:
    """Returns the scores of a model; None if none are known.

    Args:
        path: the run's folder or a checkpoint in it, or another model.
        model: loaded from ``path``.
        folder: of an evaluation of this model; None for the evaluation that ``dpt fit`` writes into
            the run's folder, or else for the run's validation.

    Raises:
        DataError: ``folder`` has the scores of other weights.
    """
    of_fit = run_folder(path) / "evaluation"
    weights = fingerprint(model.config.to_dict(), model.state_dict())
    if folder is None and _read_facts(of_fit).get(WEIGHTS_NOTE) == weights:
        folder = of_fit
    if folder is None:
        return _scores_of_validation(path)
    facts, config = _read_facts(folder), run_in(folder)
    if facts.get(WEIGHTS_NOTE) != weights:
        remedy = f"give the folder that dpt evaluate {path} run_dir=FOLDER writes"
        raise DataError(f"{folder / METRICS_FILE}: not the scores of {path}: {remedy}")
    notes = _notes(facts, checkpoint_of(path))
    notes["intervals over"] = f"{facts['blocks']} {facts['blocks_kind']}s"
    return hub.Scores(data_name(config["data"]), str(config["split"]), _rows(facts), notes)


def _scores_of_validation(path: Path) -> hub.Scores | None:
    """Returns the scores of a run's validation.

    ``metrics.json`` has those of the last step. Of an earlier ``best.ckpt`` only the score by which
    it was chosen is known.
    """
    folder, checkpoint = run_folder(path), checkpoint_of(path)
    content, last = map(read_checkpoint, (checkpoint, folder / "checkpoints/last.ckpt"))
    if content is None or not (folder / "config.yaml").is_file():
        return None
    facts = _read_facts(folder)
    if last is None or last["global_step"] != content["global_step"]:
        facts = dict([_choice(content)])
    rows, data = _rows(facts), run_in(folder)["data"]
    return hub.Scores(data_name(data), "val", rows, _notes(facts, checkpoint)) if rows else None


def _read_facts(folder: Path) -> Plain:
    """Returns ``metrics.json``; empty without this file."""
    path = folder / METRICS_FILE
    facts: Plain = parse_json(read_bytes(path), path) if path.is_file() else {}
    return facts


def _rows(facts: PlainMapping) -> list[hub.Score]:
    """Returns the finite scores of ``metrics.json`` with their intervals."""
    rows = []
    for key, value in facts.items():
        group, _, name = key.partition("/")
        if group == "val" and isinstance(value, float) and math.isfinite(value):
            low, high = (facts.get(f"ci95_{end}/{name}") for end in ("low", "high"))
            rows.append(hub.Score(name, value, low, high))
    return rows


def _notes(facts: PlainMapping, checkpoint: Path) -> dict[str, str]:
    """Returns how scores were computed, and how the weights of a run were chosen."""
    notes = {
        key.removeprefix("protocol/"): str(value)
        for key, value in facts.items()
        if key in _NOTES or key.startswith("protocol")
    }
    content = read_checkpoint(checkpoint) if checkpoint.name == "best.ckpt" else None
    monitor = _choice(content)[0] if content else None
    return notes | ({"weights chosen by": f"the run's best {monitor}"} if monitor else {})


def _choice(content: PlainMapping) -> tuple[str, float | None]:
    """Returns the score by which ``best.ckpt`` was chosen; its name is empty if unknown."""
    state = content["callbacks"].get(RunCheckpoints.__qualname__, {})
    return str(state.get("monitor", "")), state.get("best_score")
