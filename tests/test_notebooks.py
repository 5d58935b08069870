"""The notebooks run from top to bottom, and the numbers that they assert are right."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def cases() -> list:
    return [
        pytest.param(path, id=path.stem, marks=[] if path.name[:2] == "02" else [pytest.mark.slow])
        for path in sorted(FOLDER.glob("*.ipynb"))
    ]


@pytest.mark.parametrize("path", cases())
def test_notebook(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="needs the extra 'notebooks'")
    pytest.importorskip("matplotlib", reason="needs the extra 'notebooks'")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebooks'")
    nbclient = pytest.importorskip("nbclient", reason="needs the extra 'notebooks'")
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager

    monkeypatch.setenv("FAST", "1")
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other tests may run beside this one
    # no folder of installed kernels: "python3" is then this very interpreter
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    notebook = nbformat.read(path, as_version=4)
    assert any(cell.get("outputs") for cell in notebook.cells), "committed without its outputs"
    if any("onnxruntime" in cell.source for cell in notebook.cells):
        pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
        pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")
    where = {"metadata": {"path": str(FOLDER)}}
    nbclient.NotebookClient(notebook, km=kernel, timeout=600, resources=where).execute(
        cleanup_kc=True  # stop the kernel, which was given
    )
