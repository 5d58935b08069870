"""Commands in the documents are accepted, and links lead somewhere; nothing is run."""

import argparse
import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from dpt.cli import COMMANDS
from dpt.commands.configured import FUNCTIONS
from dpt.config.compose import DATACLASS_SETTINGS
from dpt.files import config_dir

ROOT = Path(__file__).resolve().parents[1]
GUIDE = sorted((ROOT / ".github/guide").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "data/README.md", ROOT / ".github/CONTRIBUTING.md", *GUIDE]


def lines(document):
    """The command lines in a document's code blocks, each as its words."""
    text = document.read_text().replace("\\\n", " ")
    for block in re.findall(r"```bash\n(.*?)```", text, re.S):
        for line in block.splitlines():
            for part in line.split("#")[0].split("&&"):
                words = shlex.split(part)
                while words and re.match(r"[A-Z_]+=", words[0]):  # set for this command alone
                    words.pop(0)
                yield words


def commands():
    """(document, name, arguments) of each ``python train.py ...`` and ``dpt COMMAND ...``."""
    for document in DOCUMENTS:
        for words in lines(document):
            if words[:2] == ["python", "train.py"]:
                yield document.name, "train", words[2:]
            elif words[:1] == ["dpt"]:
                name = " ".join(words[1:3]) if words[1] == "data" else words[1]
                yield document.name, name, words[1 + len(name.split()) :]


def test_ci_runs_the_first_two_commands():
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    first = next(block for block in blocks if "venv" in block).splitlines()
    assert len(first) == 2
    assert all(line.startswith("python3 -m venv") and "&& pip install" in line for line in first)
    typed = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in typed if "venv" in line] == [f"{line} || exit 1" for line in first]


def test_every_command_is_shown():
    shown = {name for _, name, _ in commands()}
    assert shown >= {*COMMANDS}


@pytest.mark.slow
def test_configured_commands_compose():
    failed = []
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        for document, name, arguments in commands():
            if name not in FUNCTIONS or "--config-dir=mine" in arguments:  # test_extending.py runs
                continue
            overrides = [a for a in arguments if not a.startswith("-") and "=" in a]
            overrides = [f"++{o}" if o.startswith(DATACLASS_SETTINGS) else o for o in overrides]
            if "-m" in arguments:  # the first value of a sweep
                overrides = [re.sub(r"=([^\[,]*),.*", r"=\1", o) for o in overrides]
            try:
                compose(name.replace(" ", "_").replace("-", "_"), overrides=overrides)
            except Exception as error:
                failed.append(f"{document}: dpt {name} {' '.join(arguments)}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {*FUNCTIONS}))
def test_commands_on_files_are_parsed(command, monkeypatch):
    class ParsedError(Exception):
        pass

    def stopping(parse):
        def parse_and_stop(*arguments, **options):
            parse(*arguments, **options)
            raise ParsedError

        return parse_and_stop

    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, stopping(parse))
    for _, name, arguments in commands():
        if name == command:
            with pytest.raises(ParsedError):
                COMMANDS[command](list(arguments))


def anchors(document):
    """What a link to a heading may end in, as GitHub makes it."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def links(document):
    """Targets of a document's links and pictures, those in code left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", document.read_text(), flags=re.S)
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document):
    for link in links(document):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{document.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{document.name}: {link}"


def test_every_page_is_linked_from_the_front_page():
    front = " ".join(links(ROOT / "README.md"))
    assert all(f".github/guide/{page.name}" in front for page in GUIDE)
