"""The documentation site: the guide, the pages it links to, and the API."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ["zensical", "mkdocstrings"])),
    reason='the site needs the extra "docs"',
)
def test_site_builds_without_warnings_and_every_link_has_a_target():
    command = [sys.executable, ".github/site.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build/site"
    pages = {p: p.read_text() for p in site.rglob("*.html") if p.name != "404.html"}
    missing = set()
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="(?![a-z]+:|//|#)([^"#]+)', text):
            target = Path(os.path.normpath(page.parent / link))
            if not target.exists():
                missing.add((page.relative_to(site).as_posix(), link))
    assert not missing
    guide = {p.stem for p in (ROOT / ".github/guide").glob("*.md")}
    assert guide <= {page.parent.name for page in pages}
    assert 'id="dpt.losses.SILogLoss"' in pages[site / "api/dpt.losses/index.html"]
    assert (site / "files/github/images/nuclei.jpg").is_file()
    settings = pages[site / "data_settings/index.html"]
    assert "<p>2. " not in settings
    assert "\n2. " not in settings  # an item after one with code is an item
    assert not [page for page, text in pages.items() if ":class:<code" in text]
