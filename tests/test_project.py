"""The house: what is installed, who imports whom, what lies at the top."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOP = {"pyproject.toml", "README.md", "LICENSE", "train.py", "dpt", "conf", "data", "tests",
       "notebooks"}  # fmt: skip


def test_one_distribution_provides_opencv():
    """Two wheels share the folder cv2: the one installed last would win, and break the other."""
    assert set(packages_distributions()["cv2"]) == {"opencv-python-headless"}


def test_imports_go_down_only():
    command = Path(sys.executable).parent / "lint-imports"
    if not command.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_importing_the_package_and_the_command_line_is_cheap():
    heavy = ["torch", "numpy", "lightning", "torchmetrics", "hydra", "omegaconf", "albumentations",
             "cv2", "wandb", "timm", "torchvision", "pydantic"]  # fmt: skip
    code = f"import sys, dpt, dpt.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_top_level_holds_what_is_agreed_and_nothing_else():
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(
        [git, "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.partition("/")[0] for line in done.stdout.splitlines()}
    assert {name for name in names if not name.startswith(".")} <= TOP
    assert {"pyproject.toml", "README.md", "LICENSE", "train.py", "dpt", "conf"} <= names


def sources():
    return {p.relative_to(ROOT).as_posix(): p.read_text() for p in (ROOT / "dpt").rglob("*.py")}


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"^\s*(import|from) albumentations", {"dpt/data/transforms.py"}),
        (r"^\s*(import|from) hydra", {"dpt/config/compose.py"}),
        (r"^\s*(import|from) omegaconf", {"dpt/config/compose.py", "dpt/config/objects.py"}),
        (r"^\s*(import|from) wandb", {"dpt/training/loggers.py"}),
        (
            r"cv2\.im(read|decode)|Image\.open|np\.load\(|\bh5py\b|loadmat",
            {"dpt/data/formats/io.py"},
        ),
        (
            r"\bOpenEXR\b",
            {"dpt/data/formats/io.py", "dpt/predict/outputs.py"},
        ),  # which writes
        (r"cv2\.Video", {"dpt/data/formats/video.py"}),
    ],
)
def test_what_only_one_file_may_do(pattern, allowed):
    users = {path for path, text in sources().items() if re.search(pattern, text, re.M)}
    assert users <= allowed


def test_albumentations_does_not_ask_the_network_for_its_newest_version():
    text = sources()["dpt/data/transforms.py"]
    switch = text.index("NO_ALBUMENTATIONS_UPDATE")
    assert switch < re.search(r"^\s*import albumentations", text, re.M).start()


def test_basenames_of_tests_are_unique():
    """Without packages among the tests, pytest imports two files of one name as one module."""
    names = [p.name for p in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_packages_that_are_imported_are_declared():
    declared = (ROOT / "pyproject.toml").read_text()
    for path, text in sources().items():
        for name in re.findall(r"^\s*(?:import |from (?=\S+ import ))(\w+)", text, re.M):
            if name in sys.stdlib_module_names or name in ("dpt", "__future__"):
                continue
            distribution = {"cv2": "opencv-python-headless", "PIL": "pillow", "hydra": "hydra-core",
                            "omegaconf": "hydra-core", "yaml": "pyyaml",
                            "segmentation_models_pytorch": "segmentation-models-pytorch",
                            "torchvision": "timm", "scipy": "albumentations",  # which bring them
                            }.get(name, name)  # fmt: skip
            assert re.search(rf'"{distribution}[>=<"\[]', declared), f"{path} imports {name}"


def test_no_file_is_large():
    """A checkout stays small: a notebook's pictures above all."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in names.stdout.decode().split("\0") if name]
    assert not [f.name for f in files if f.is_file() and f.stat().st_size > 2**20]
