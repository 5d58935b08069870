"""Dense Prediction Transformers: train, evaluate and use depth and segmentation models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpt.model import DPT, create_model
    from dpt.model_config import list_models
    from dpt.predict import Prediction, Predictor

__version__ = "0.1.0"

__all__ = ["DPT", "Prediction", "Predictor", "create_model", "list_models"]

_MODULES = {
    "DPT": "dpt.model",
    "create_model": "dpt.model",
    "list_models": "dpt.model_config",
    "Prediction": "dpt.predict",
    "Predictor": "dpt.predict",
}
"""Where the public names are: imported at first use, so that ``dpt --help`` does not load torch."""
_SUBMODULES = ("data", "losses", "metrics", "model", "nn", "types", "viz", "weights")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in _SUBMODULES:
        return import_module(f"dpt.{name}")
    raise AttributeError(f"module 'dpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
