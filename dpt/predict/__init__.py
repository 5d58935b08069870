"""Predictions for images of any size, at their own size: from Python, or for folders and videos."""

from dpt.predict.prediction import Prediction
from dpt.predict.predictor import Predictor

__all__ = ["Prediction", "Predictor"]
