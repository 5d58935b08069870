"""Hooks of mkdocs: the guide's pages link to files of the repository, as GitHub shows them.

Each linked file becomes a part of the site: a page if it is in ``PAGES``, else a file to download.
"""

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

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
    options = f"    options:\n      members: [{', '.join(members)}]\n" if members else ""
    return f"::: {module}\n{options}"


def indent_lists(markdown: str) -> str:
    """Lays out lists as mkdocs needs them; GitHub is content with less.

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


def on_files(files, config):
    for module in API:
        files.append(File.generated(config, f"api/{module}.md", content=api_page(module)))
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    linked = set()
    for file in files.documentation_pages():
        folder = posixpath.dirname(repository_path(file.src_uri))
        linked |= linked_paths(file.content_string, folder)
    for path in sorted(linked):
        if files.get_file_from_path(site_path(path)) is None:
            source = str(ROOT / path)
            files.append(File.generated(config, site_path(path), abs_src_path=source))
    return files


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(repository_path(page.file.src_uri))

    def to_site(match):
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        return f"]({site_path(path)}{match[2] or ''})"

    return LINK.sub(to_site, indent_lists(markdown))


def on_page_content(html, page, config, files):
    return ROLE.sub("<code>", html)  # docstrings name classes as Sphinx does: :class:`dpt.DPT`
