"""The project as a whole: what it installs, and who may import what."""

import ast
import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_one_distribution_provides_opencv():
    """Two wheels share the folder cv2: the one installed last would win, and break the other."""
    assert set(packages_distributions()["cv2"]) == {"opencv-python-headless"}


def test_imports_go_down_only():
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_importing_the_package_and_the_command_line_is_cheap():
    heavy = ["torch", "numpy", "lightning", "hydra", "omegaconf", "cv2", "timm", "pydantic"]
    code = f"import sys, dpt, dpt.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def sources():
    return {p.relative_to(ROOT).as_posix(): p.read_text() for p in (ROOT / "dpt").rglob("*.py")}


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"^\s*(import|from) albumentations", {"dpt/data/transforms.py"}),
        (r"^\s*(import|from) hydra", {"dpt/config/compose.py", "dpt/config/overrides.py"}),
        (r"^\s*(import|from) omegaconf", {"dpt/config/compose.py", "dpt/config/overrides.py"}),
        (r"^\s*(import|from) wandb", {"dpt/training/loggers.py"}),
        (
            r"cv2\.im(read|decode)|Image\.open|np\.load\(|\bh5py\b|loadmat",
            {"dpt/data/formats/arrays.py", "dpt/data/formats/pictures.py"},
        ),
        (r"\bOpenEXR\b", {"dpt/data/formats/arrays.py", "dpt/predict/encoding.py"}),
        (r"cv2\.Video", {"dpt/data/formats/video.py"}),
    ],
)
def test_what_only_one_file_may_do(pattern, allowed):
    users = {path for path, text in sources().items() if re.search(pattern, text, re.M)}
    assert users <= allowed


PUBLIC_NAMES = {"_asdict", "_replace", "_exit", "_thread"}
"""Documented names of the standard library that begin with an underscore."""


def is_inner(name):
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_NAMES


def inner_names(tree):
    """Returns the inner names that a module defines, and those that it uses."""
    defined, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Attribute):
            is_set = isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
            (defined if is_set else used).add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used |= {alias.name for alias in node.names} | {*(node.module or "").split(".")}
    return set(filter(is_inner, defined)), set(filter(is_inner, used))


def test_inner_names_of_libraries_stand_in_adapters_alone():
    names = {path: inner_names(ast.parse(text)) for path, text in sources().items()}
    of_project = set().union(*(defined for defined, _ in names.values()))
    foreign = {path: used - of_project for path, (_, used) in names.items()}
    assert not {path: u for path, u in foreign.items() if u and "_internals" not in path}
    assert "_batches_that_stepped" in foreign["dpt/training/lightning_internals.py"]


def test_basenames_of_tests_are_unique():
    """Without packages among the tests, pytest imports two files of one name as one module."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


DISTRIBUTIONS = {
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "omegaconf": "hydra-core",
    "hydra": "hydra-core",
    "torchvision": "timm",
    "yaml": "pyyaml",
    "onnx_ir": "onnxscript",
}


def imported(text):
    """Top-level names of the absolute imports of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_packages_that_are_imported_are_declared():
    declared = (ROOT / "pyproject.toml").read_text()
    known = {*sys.stdlib_module_names, "dpt"}
    for path, text in sources().items():
        for name in set(imported(text)) - known:
            distribution = DISTRIBUTIONS.get(name, name)
            assert re.search(rf'"{distribution}[>=<"\[]', declared), f"{path} imports {name}"


MAX_LINES = 60
"""Of a function, docstring and signature included: it fits on a screen."""


def test_functions_fit_on_a_screen():
    long_functions = [
        f"{path}:{node.lineno} {node.name} ({length} lines)"
        for path, text in sources().items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := node.end_lineno - node.lineno + 1) > MAX_LINES
    ]
    assert not long_functions


def test_code_is_laid_out_by_ruff():
    assert not [path for path, text in sources().items() if "fmt: skip" in text]


def test_no_file_is_large():
    """A checkout stays small: a notebook's pictures above all."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in names.stdout.decode().split("\0") if name]
    assert not [f.name for f in files if f.is_file() and f.stat().st_size > 2**20]
