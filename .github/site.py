"""Makes the documentation site with Zensical: python .github/site.py

The guide's pages link to files of the repository, as GitHub shows them. Each linked file becomes a
part of the site: a page if it is in ``PAGES``, else a file to download.
"""

import ast
import posixpath
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDE = ".github/guide"
PAGES = {
    "README.md": "index.md",
    "data/README.md": "data_settings.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    ".github/CHANGELOG.md": "changelog.md",
}
"""Path in the repository -> page of the site, beside those of the guide."""
TYPES = ["dpt.types.samples", "dpt.types.outputs", "dpt.types.preprocessing"]
API = ["dpt", *TYPES, "dpt.geometry", "dpt.losses", "dpt.metrics", "dpt.nn", "dpt.data"]
ROLE = re.compile(r":[a-z]+:<code>~?")
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def repository_path(page: str) -> str:
    """Returns the path in the repository of a page of the site."""
    return {uri: path for path, uri in PAGES.items()}.get(page, f"{GUIDE}/{page}")


def site_path(path: str) -> str:
    """Returns the path in the site of a file of the repository."""
    if path.startswith(f"{GUIDE}/"):
        return path.removeprefix(f"{GUIDE}/")
    return PAGES.get(path, f"files/{path.removeprefix('.')}")


def linked_paths(text: str, folder: str) -> set[str]:
    """Returns the files of the repository that a page in a folder of the repository links to."""
    found = {posixpath.normpath(posixpath.join(folder, m[1])) for m in LINK.finditer(text)}
    return {path for path in found if (ROOT / path).is_file()}


def public_names(module: str) -> list[str]:
    """Returns the names that a package's ``__init__`` imports; none for a module of one file."""
    path = ROOT / module.replace(".", "/") / "__init__.py"
    nodes = ast.parse(path.read_text()).body if path.is_file() else []
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").startswith("dpt") or node.level]
    return sorted(alias.asname or alias.name for node in own for alias in node.names)


def api_page(module: str) -> str:
    """Returns the directive of mkdocstrings that documents a module, and what it imports."""
    members = public_names(module)
    # the module's name is the page's title; a class has the signature of its constructor
    options = ["heading_level: 1", "merge_init_into_class: true"]
    options += [f"members: [{', '.join(members)}]"] if members else []
    return "\n      ".join([f"::: {module}\n    options:", *options]) + "\n"


def indent_lists(markdown: str) -> str:
    """Lays out lists as Python-Markdown needs them; GitHub is content with less.

    What belongs to an item is indented by four spaces, and blank lines stand around its code.
    """
    lines, extra, in_code = [], 0, False
    for line in markdown.split("\n"):
        marker = None if in_code else re.match(r"(-|\d+\.) ", line)
        if line[:1].strip():
            extra = max(4 - len(marker[0]), 0) if marker else 0
        is_fence = line.lstrip().startswith("```")
        in_code ^= is_fence
        if not (extra and line.startswith(" ")):
            lines.append(line)
        elif not is_fence:
            lines.append(" " * extra + line)
        else:
            lines += ["", " " * extra + line] if in_code else [" " * extra + line, "", ""]
    return re.sub(r"(?m)^(    \S.*)\n(?=\d+\. )", r"\1\n\n", "\n".join(lines))


def to_site(markdown: str, folder: str) -> str:
    """Returns a page in a folder of the repository with links to files of the site."""

    def replaced(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return f"]({site_path(path)}{match[2] or ''})"

    return LINK.sub(replaced, indent_lists(markdown))


def write_pages(out: Path) -> None:
    """Writes the pages and the files that they link to."""
    pages = {site_path(f"{GUIDE}/{p.name}"): p for p in (ROOT / GUIDE).glob("*.md")}
    pages |= {page: ROOT / path for path, page in PAGES.items()}
    linked: set[str] = set()
    for page, source in pages.items():
        text, folder = source.read_text(), posixpath.dirname(repository_path(page))
        linked |= linked_paths(text, folder)
        (out / page).write_text(to_site(text, folder))
    for module in API:
        (out / f"api/{module}.md").write_text(api_page(module))
    for path in linked:
        target = out / site_path(path)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, target)


def main() -> None:
    """Writes the pages to ``build/guide``, and the site to ``build/site``."""
    build = ROOT / "build"
    docs, site = build / "guide", build / "site"
    for folder in (docs, site):
        shutil.rmtree(folder, ignore_errors=True)
    (docs / "api").mkdir(parents=True)
    write_pages(docs)
    shutil.copyfile(ROOT / ".github/site.yml", build / "mkdocs.yml")
    command = ["zensical", "build", "--clean", "--strict", "-f", "mkdocs.yml"]
    subprocess.run(command, cwd=build, check=True)
    # docstrings name classes as Sphinx does: :class:`dpt.DPT`
    for page in (*site.rglob("*.html"), site / "search.json"):
        page.write_text(ROLE.sub("<code>", page.read_text()))


if __name__ == "__main__":
    main()
