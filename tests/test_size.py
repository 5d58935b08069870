"""The size of the house: ``tests/size.py`` counts it, ``pyproject.toml`` holds the ceilings."""

import tomllib
from pathlib import Path

import pytest
from size import measure

ROOT = Path(__file__).parents[1]


def counted():
    package, _, _, functions, longest = measure("dpt")
    pages = [ROOT / "README.md", ROOT / "data/README.md", *(ROOT / ".github").rglob("*.md")]
    return {
        "code": package["code"],
        "files": package["files"],
        "imports": package["imports"],
        "inner_imports": package["inner imports"],
        "refusals_percent": round(100 * package["refusals"] / package["code"], 1),
        "functions_over_15": sum(branches > 15 for branches, _ in functions),
        "functions_over_12": sum(branches > 12 for branches, _ in functions),
        "functions_over_60_lines": len(longest),
        "tests": measure("tests")[0]["code"],
        "words": sum(len(page.read_text().split()) for page in pages),
    }


def test_size_stays_below_its_ceilings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    ceilings = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["dpt"]["ceilings"]
    counts = counted()
    too_large = {key: (n, ceilings[key]) for key, n in counts.items() if n > ceilings[key]}
    assert not too_large, f"(counted, ceiling): {too_large}"
