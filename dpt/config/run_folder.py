"""The folder of a run: refusing one that is in use, and writing its ``config.yaml``."""

import json
import re
from pathlib import Path

import yaml

from dpt.atomic import write_bytes
from dpt.config.overrides import as_argument
from dpt.config.resumed_config import map_strings
from dpt.files import read_text, without_passwords
from dpt.validation import PlainMapping

RESULTS = ("config.yaml", "metrics.json", "nonfinite.csv", "panels", "lr.json", "lr.png")


def refuse_used(folder: Path, *, is_training: bool) -> None:
    """Raises ValueError if the folder holds a run, scores or a configuration of the user that a
    command would overwrite."""
    remedy = ", or overwrite=true" if is_training else ""
    has_checkpoints = any(folder.glob("checkpoints/*.ckpt"))
    if has_checkpoints or (not is_training and (folder / "metrics.json").exists()):
        resume = f", {as_argument('resume', folder)} to continue it" if is_training else ""
        raise ValueError(
            f"run_dir={folder} holds a run already: give another run_dir{resume}{remedy}"
        )
    path = folder / "config.yaml"
    is_run = path.exists() and re.search(r"(?m)^run_dir:", read_text(path))
    foreign = [folder / name for name in RESULTS if (folder / name).exists()]
    if foreign and not is_run:
        raise ValueError(
            f"{foreign[0]}: is not of a run: give another run_dir{remedy}, which replaces it"
        )


def remove_run(folder: Path) -> None:
    """Removes what an earlier run left in the folder, for ``overwrite=true``."""
    names = ("metrics.json", "nonfinite.csv")
    for path in (*folder.glob("checkpoints/*.ckpt"), *(folder / name for name in names)):
        path.unlink(missing_ok=True)


def save_config(values: PlainMapping, folder: Path) -> None:
    """Writes ``config.yaml``, from which a run is resumed; :func:`dpt.files.read_yaml` reads it
    back unchanged, but for passwords."""
    plain = map_strings(values, without_passwords)
    text = json.dumps(plain, ensure_ascii=False, default=str)
    readable = not re.search("[\x85\u2028\u2029\ufeff]", text)  # YAML takes these for line ends
    content = yaml.safe_dump(plain, sort_keys=False, allow_unicode=readable)
    write_bytes(folder / "config.yaml", content.encode())
