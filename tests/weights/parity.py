"""The parity matrix: ``python tests/weights/parity.py`` prints it as a Markdown table.

Every module beside this one that is called ``peers_*.py`` gives ``CASES``; the tests hold the same.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from peer_cases import Case, Size, bfloat16_ratio, gradient_error, output_error  # noqa: E402

KINDS = ("native size", "other square", "not square", "off the grid")
COLUMNS = ("format", "task", "model", *KINDS, "fp64", "gradient, fp64", "bf16, ours / theirs")


def all_cases() -> list[Case]:
    modules = sorted(p.stem for p in HERE.glob("peers_*.py"))
    return [case for name in modules for case in import_module(name).CASES]


def kind_of(size: Size, native: Size, patch: int) -> str:
    """The column of a size."""
    if size == native:
        return KINDS[0]
    if size[0] % patch or size[1] % patch:
        return KINDS[3]
    return KINDS[1] if size[0] == size[1] else KINDS[2]


def short(error: float) -> str:
    """As 2e-6."""
    return f"{error:.0e}".replace("e-0", "e-")


def row_of(case: Case, folder: Path) -> tuple[str, ...]:
    """Names of the case, its largest error at each kind of size, and what else is measured."""
    theirs, ours = case.build(folder)
    kinds = [kind_of(size, case.sizes[0], ours.encoder.pad_multiple) for size in case.sizes]
    single, double = (
        [output_error(case, theirs, ours, size, dtype) for size in case.sizes]
        for dtype in (torch.float32, torch.float64)
    )
    cells = ["–"] * len(KINDS)
    for i, kind in enumerate(KINDS):
        if kind in kinds:
            cells[i] = short(max(e for e, k in zip(single, kinds, strict=True) if k == kind))
    gradient = gradient_error(case, theirs, ours, folder)
    ratio = bfloat16_ratio(case, theirs, ours)
    names = (case.format, case.task, case.model)
    return (*names, *cells, short(max(double)), short(gradient), f"{ratio:.2f}")


def main() -> None:
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|")
    for case in all_cases():
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {' | '.join(row_of(case, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main()
