"""ONNX files of models that were exported to be run here, kept in the user's cache."""

import logging
import os
import shutil
from pathlib import Path

import dpt
from dpt.exporting.export import compare, export
from dpt.exporting.graph import Graph
from dpt.exporting.sessions import OnnxSession
from dpt.files import require
from dpt.model import DPT
from dpt.weights.files import writing
from dpt.weights.formats import fingerprint

log = logging.getLogger("dpt")

MOST_FILES = 8  # the least recently used are deleted


def cached_export(model: DPT) -> Path:
    """Returns the ONNX file of a model, which is written if it is not in the cache.

    A file that is there is compared with the model at one small size.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpt" / "exported"
    folder = cache / f"{fingerprint(model.config.to_dict(), model.state_dict())}-{dpt.__version__}"
    path = folder / "model.onnx"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        kept = sorted((f for f in cache.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime)
        for old in kept[:-MOST_FILES]:
            shutil.rmtree(old, ignore_errors=True)
    if path.is_file() and _is_current(model, path):
        return path
    require("onnxscript", "export to ONNX", extra="onnx")
    log.info("%s: the model is exported for this runtime, once", path)
    return export(model, path).path


def _is_current(model: DPT, path: Path) -> bool:
    """Whether the file agrees with the model, also after a change of the code."""
    graph, step = Graph.of(model, tasks=(), with_preprocessing=False), model.encoder.pad_multiple
    try:
        compare(graph, OnnxSession(path), [(1, 3 * step, 4 * step)])
    except ValueError:
        return False
    return True
