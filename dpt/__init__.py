"""Dense Prediction Transformers: train, evaluate and ship depth and segmentation models."""

from dpt.model import DPT, create_model
from dpt.zoo import list_models

__version__ = "0.1.0"

__all__ = ["DPT", "create_model", "list_models"]
