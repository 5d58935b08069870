"""The documents are a promise: their commands are accepted, their links lead somewhere."""

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from dpt.cli import COMMANDS, FILE_COMMANDS
from dpt.config.compose import config_dir, config_name

ROOT = Path(__file__).resolve().parents[1]
GUIDE = sorted((ROOT / ".github/guide").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "data/README.md", ROOT / ".github/CONTRIBUTING.md", *GUIDE]


def lines(document):
    """The command lines in a document's code blocks, each as its words."""
    text = document.read_text().replace("\\\n", " ")
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, re.S):
        for line in block.splitlines() if language == "bash" else ():
            for part in line.split("#")[0].split("&&"):
                words = shlex.split(part)
                while words and re.match(r"[A-Z_]+=", words[0]):  # set for this command alone
                    words.pop(0)
                yield words


def commands():
    """(name, overrides) of each ``python train.py ...`` and ``dpt COMMAND ...`` of a document."""
    for words in (w for document in DOCUMENTS for w in lines(document)):
        if words[:2] == ["python", "train.py"]:
            yield "train", tuple(words[2:])
        elif words[:1] == ["dpt"] and words[1] not in FILE_COMMANDS:
            name = " ".join(words[1:3]) if words[1] == "data" else words[1]
            yield name, tuple(words[1 + len(name.split()) :])


FOUND = sorted(set(commands()))
ON_FILES = sorted({tuple(w[1:]) for d in DOCUMENTS for w in lines(d) if w[:1] == ["dpt"]
                   and w[1] in FILE_COMMANDS})  # fmt: skip


def test_the_documents_hold_commands():
    assert {"train", "evaluate", "find-lr", "data check", "data download"} <= {n for n, _ in FOUND}
    assert {words[0] for words in ON_FILES} == set(FILE_COMMANDS)


@pytest.mark.parametrize(
    ("command", "overrides"),
    [c for c in FOUND if "--config-dir=mine" not in c[1]],  # tests/engine/test_extending.py runs
    ids=lambda v: " ".join(v)[:60],
)
def test_every_command_composes(command, overrides):
    assert command in COMMANDS
    keys = [word for word in overrides if not word.startswith("-") and word != "..."]
    sweep = "-m" in overrides
    keys = [re.sub(r"=([^\[,]*),.*", r"=\1", key) if sweep else key for key in keys]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(config_name(command), overrides=keys)
    assert cfg.data._target_.startswith("dpt.data.")


@pytest.mark.parametrize("words", ON_FILES, ids=lambda w: " ".join(w)[:60])
def test_every_command_on_files_is_understood(words, monkeypatch):
    """Its flags are those of the command's parser; nothing is run."""

    class UnderstoodError(Exception):
        pass

    def stopping(parse):
        def parse_and_stop(*arguments, **options):
            parse(*arguments, **options)
            raise UnderstoodError

        return parse_and_stop

    for name in ("parse_args", "parse_intermixed_args"):
        parse = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, stopping(parse))
    with pytest.raises(UnderstoodError):
        import_module(f"dpt.commands.{words[0]}").run(list(words[1:]))


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


@pytest.mark.parametrize("page", GUIDE, ids=lambda p: p.name)
def test_every_page_is_reached_from_the_front_page(page):
    assert f".github/guide/{page.name}" in " ".join(links(ROOT / "README.md"))
