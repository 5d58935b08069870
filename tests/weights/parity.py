"""The parity matrix: ``python tests/weights/parity.py`` prints it as a Markdown table.

Every module beside this one that is called ``peers_*.py`` gives ``CASES``; the tests hold the same.
"""

import sys
import tempfile
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from peer_cases import Case, measure  # noqa: E402


def all_cases() -> list[Case]:
    modules = sorted(p.stem for p in HERE.glob("peers_*.py"))
    return [case for name in modules for case in import_module(name).CASES]


def main() -> None:
    print("| format | task | model | size | max abs. error / scale, fp32 | fp64 |")
    print("|---|---|---|---|---|---|")
    for case in all_cases():
        with tempfile.TemporaryDirectory() as folder:
            for (height, width), (single, double) in measure(case, Path(folder)).items():
                row = (case.format, case.task, case.model, f"{height}×{width}")
                print(f"| {' | '.join(row)} | {single:.1e} | {double:.1e} |", flush=True)


if __name__ == "__main__":
    main()
