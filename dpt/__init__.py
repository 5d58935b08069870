"""Dense Prediction Transformers: train, evaluate and ship depth and segmentation models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpt.model import DPT, create_model
from dpt.zoo import list_models

if TYPE_CHECKING:
    from dpt.predict import Prediction, Predictor

__version__ = "0.1.0"

__all__ = ["DPT", "Prediction", "Predictor", "create_model", "list_models"]

_ON_DEMAND = {"Prediction": "dpt.predict", "Predictor": "dpt.predict"}
"""Names that need OpenCV: imported when first asked for."""


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(_ON_DEMAND[name]), name)
    raise AttributeError(f"module 'dpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
