"""Dense Prediction Transformers: train, evaluate and use depth and segmentation models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpt.fitting import fit
    from dpt.model import DPT, create_model
    from dpt.model_config import list_models
    from dpt.predict import Prediction, Predictor
    from dpt.run import Run, check, evaluate, export, train

__version__ = "0.1.0"

_NAMES = {
    "dpt.fitting": ("fit",),
    "dpt.model": ("DPT", "create_model"),
    "dpt.model_config": ("list_models",),
    "dpt.predict": ("Prediction", "Predictor"),
    "dpt.run": ("Run", "check", "evaluate", "export", "train"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
"""Where the public names are: imported at first use, so that ``dpt --help`` does not load torch."""
_SUBMODULES = ("data", "losses", "metrics", "model", "nn", "types", "viz", "weights")

__all__ = [
    "DPT",
    "Prediction",
    "Predictor",
    "Run",
    "check",
    "create_model",
    "evaluate",
    "export",
    "fit",
    "list_models",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _SUBMODULES:
        return import_module(f"dpt.{name}")
    raise AttributeError(f"module 'dpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
