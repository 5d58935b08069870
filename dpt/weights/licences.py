"""What the authors of checkpoints state of their licences."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Family:
    """Checkpoints of one licence, an entry of ``licences.yaml``.

    Attributes:
        family: its name.
        names: a pattern of the names of files and of hub ids; None fits no name.
        checkpoints: the same for people.
        code, weights: the licence of each.
        data: a restriction by the training data, if the authors state one.
        commercial: whether they allow commercial use.
        source, date: where they state that, and when it was as here.
    """

    family: str
    names: str | None
    checkpoints: str
    code: str
    weights: str
    data: str | None
    commercial: str
    source: str
    date: str | None

    def __str__(self) -> str:
        """Returns lines for people."""
        rows = [f"weights: {self.weights}", f"code: {self.code}"]
        rows += [f"data: {self.data}"] if self.data else []
        rows += [f"commercial use: {self.commercial}", f"{self.source} ({self.date or 'no date'})"]
        return "\n    ".join((f"{self.family}: {self.checkpoints}", *rows))


@cache
def families() -> list[Family]:
    """Returns all families of ``licences.yaml``."""
    text = (Path(__file__).parent / "licences.yaml").read_text(encoding="utf-8")
    return [Family(**entry) for entry in yaml.safe_load(text)]


def family_of(name: str) -> Family | None:
    """Returns the family of a file, ``timm:NAME`` or ``USER/NAME``; None if it is not known."""
    return next((f for f in families() if f.names and re.search(f.names, name)), None)
