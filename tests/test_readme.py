"""The documents are a promise: every command in them is one that the configuration accepts."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from dpt.cli import COMMANDS, FILE_COMMANDS, config_dir, config_name

ROOT = Path(__file__).resolve().parents[1]


def commands(document):
    """Overrides of each `python train.py ...` and `dpt COMMAND ...` line in the code blocks."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, re.S):
        for line in block.splitlines() if language == "bash" else ():
            for part in line.split("#")[0].split("&&"):
                words = shlex.split(part)
                if words[:2] == ["python", "train.py"]:
                    yield "train", tuple(words[2:])
                elif words[:1] == ["dpt"] and words[1] not in FILE_COMMANDS:
                    name = " ".join(words[1:3]) if words[1] == "data" else words[1]
                    yield name, tuple(words[1 + len(name.split()) :])


FOUND = sorted({c for name in ("README.md", "data/README.md") for c in commands(name)})


def test_the_documents_hold_commands():
    assert {"train", "evaluate"} <= {name for name, _ in FOUND}


@pytest.mark.parametrize(("command", "overrides"), FOUND, ids=lambda v: " ".join(v)[:60])
def test_every_command_composes(command, overrides):
    assert command in COMMANDS
    keys = [word for word in overrides if not word.startswith("-") and word != "..."]
    sweep = "-m" in overrides
    keys = [re.sub(r"=([^\[,]*),.*", r"=\1", key) if sweep else key for key in keys]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(config_name(command), overrides=keys)
    assert cfg.data._target_.startswith("dpt.data.")
